//! Decides which worker jobs to start and stop. In: the demand, the listed jobs, the last start.
//! Out: a [`Plan`]. No I/O, no clock.
//!
//! | demand | jobs | action |
//! |---|---|---|
//! | any | not listed | nothing |
//! | never read, or stale | listed | nothing |
//! | finished | some idle | stop the idle ones |
//! | finished | none, or only busy ones after `finish_wait` | end |
//! | fresh | idle ones of an earlier command | stop them |
//! | fresh | fewer than wanted | start more after the cool-down, if the last start is not uncertain |
//! | fresh | more than wanted | stop idle ones, the newest first; never busy ones |
//!
//! The file says how many workers are wanted *beside* those connected when it was written. So the
//! wanted number is the number of connected workers plus the needed ones. A job that started after
//! the file was written is not connected for this purpose. A job that started shortly before may or
//! may not be. A start assumes the lowest possible number of connected workers, a stop the highest.

use worker_demand::Demand;

use crate::job::{Job, State};
use crate::start_journal::Starts;

/// Maximum number of jobs per start.
const MAX_JOBS_PER_START: u32 = 500;

/// Limits set by flags. Times in seconds.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Minimum number of workers while the computation goes on.
    pub min: u32,
    /// Maximum number of jobs.
    pub max: u32,
    /// Minimum time between two starts.
    pub cool_down: u64,
    /// Time from a job's start until its worker is connected for certain.
    pub worker_startup_time: u64,
    /// Time to wait for busy workers once the computation is finished.
    pub finish_wait: u64,
}

/// Status of the demand file.
#[derive(Debug, Clone, Copy)]
pub enum DemandStatus<'a> {
    /// No valid file was read yet.
    Unread,
    /// The last valid demand is too old.
    Stale,
    /// The last valid demand.
    Fresh(&'a Demand),
    /// The computation is finished; first read at this time.
    Finished(u64),
}

/// Input of [`decide`].
#[derive(Debug, Clone)]
pub struct DecideInput<'a> {
    /// Seconds since 1970.
    pub now: u64,
    pub status: DemandStatus<'a>,
    /// A complete listing, if there is one.
    pub jobs: Option<&'a [Job]>,
    pub starts: Starts,
}

impl DecideInput<'_> {
    /// Whether jobs of a start with an unknown outcome may still appear.
    fn is_uncertain(&self) -> bool {
        let until = self.starts.uncertain_until;
        until.is_some_and(|until| self.now < until)
    }
}

/// Why jobs are not started, or the overseer does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Deferral {
    #[error("the scheduler cannot list the jobs")]
    Unlisted,
    #[error("no valid demand file was read yet")]
    Unread,
    #[error("the demand file is stale; starting and stopping nothing until it is written again")]
    Stale,
    #[error("more workers are needed; waiting for the cool-down after the last start")]
    CoolDown,
    #[error("more workers are needed; waiting for jobs of a start with an unknown outcome")]
    UncertainStart,
    #[error("more workers are needed than --max-workers allows")]
    AtMax,
    #[error("the computation is finished; waiting for busy workers")]
    Busy,
}

/// Result of [`decide`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Jobs to start.
    pub start: u32,
    /// Jobs to stop.
    pub stop: Vec<String>,
    /// Whether the overseer is done.
    pub is_done: bool,
    /// Why nothing more is done now.
    pub deferral: Option<Deferral>,
}

/// Applies the table above.
pub fn decide(input: &DecideInput<'_>, limits: &Limits) -> Plan {
    let deferral = |deferral| Plan {
        deferral: Some(deferral),
        ..Plan::default()
    };
    let Some(jobs) = input.jobs else {
        return deferral(Deferral::Unlisted);
    };
    match input.status {
        DemandStatus::Unread => deferral(Deferral::Unread),
        DemandStatus::Stale => deferral(Deferral::Stale),
        DemandStatus::Finished(since) => plan_finished(jobs, input, since, limits),
        DemandStatus::Fresh(demand) => plan_fresh(demand, jobs, input, limits),
    }
}

fn idle(jobs: &[Job]) -> impl DoubleEndedIterator<Item = &Job> {
    jobs.iter().filter(|job| job.state == State::Idle)
}

fn plan_finished(jobs: &[Job], input: &DecideInput<'_>, since: u64, limits: &Limits) -> Plan {
    let stop: Vec<String> = idle(jobs).map(|job| job.id.clone()).collect();
    let waited = input.now.saturating_sub(since) >= limits.finish_wait;
    let is_uncertain = input.is_uncertain();
    let is_done = stop.is_empty() && !is_uncertain && (jobs.is_empty() || waited);
    let deferral = match (is_done, is_uncertain, stop.is_empty()) {
        (true, ..) | (_, false, false) => None,
        (_, true, _) => Some(Deferral::UncertainStart),
        _ => Some(Deferral::Busy),
    };
    Plan {
        start: 0,
        stop,
        is_done,
        deferral,
    }
}

fn plan_fresh(demand: &Demand, jobs: &[Job], input: &DecideInput<'_>, limits: &Limits) -> Plan {
    let command_hash = demand.command().command_hash();
    let (current, earlier): (Vec<&Job>, Vec<&Job>) =
        idle(jobs).partition(|job| job.command_hash == command_hash);
    let busy: Vec<&Job> = jobs.iter().filter(|job| job.state == State::Busy).collect();
    let began_before = |job: &&&Job, worker_startup_time: u64| {
        job.started_at
            .is_some_and(|at| at.saturating_add(worker_startup_time) <= demand.written_at)
    };
    let min_connected = busy
        .iter()
        .filter(|job| began_before(job, limits.worker_startup_time))
        .count();
    let max_connected = busy
        .iter()
        .filter(|job| job.started_at.is_none() || began_before(job, 0))
        .count();
    let wanted = |connected: usize| {
        let wanted = saturating_u32(connected).saturating_add(demand.needed);
        wanted.clamp(limits.min.min(limits.max), limits.max)
    };
    let current_count = saturating_u32(busy.len() + current.len());
    let mut stop: Vec<String> = earlier.iter().map(|job| job.id.clone()).collect();
    let surplus = current_count.saturating_sub(wanted(max_connected)) as usize;
    stop.extend(current.iter().rev().take(surplus).map(|job| job.id.clone()));

    let missing = wanted(min_connected).saturating_sub(current_count);
    // Jobs that are leaving still count.
    let capacity = limits.max.saturating_sub(saturating_u32(jobs.len()));
    let start = missing.min(capacity).min(MAX_JOBS_PER_START);
    // A clock that was set back must not block starts for ever.
    let is_within = |at: u64, time: u64| at <= input.now && input.now < at.saturating_add(time);
    let deferral = if start == 0 {
        let unmet = saturating_u32(min_connected).saturating_add(demand.needed) > limits.max;
        unmet.then_some(Deferral::AtMax)
    } else if input.is_uncertain() {
        Some(Deferral::UncertainStart)
    } else {
        let last = input.starts.last_start;
        let is_cooling = last.is_some_and(|at| is_within(at, limits.cool_down));
        is_cooling.then_some(Deferral::CoolDown)
    };
    Plan {
        start: if deferral.is_none() { start } else { 0 },
        stop,
        is_done: false,
        deferral,
    }
}

fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
