//! What follows from a demand and the jobs that are there. No I/O, no clock.
//!
//! | demand | jobs | what is done |
//! |---|---|---|
//! | any | not known | nothing |
//! | never read, or older than it may be | known | nothing: none is started, none is stopped |
//! | finished | some idle | these are stopped |
//! | finished | none at all, or only busy ones for longer than these are waited for | the overseer ends |
//! | fresh | idle ones of an earlier command | these are stopped: nobody waits for them any more |
//! | fresh | fewer than wanted | more are started, if the last start is long enough ago and its outcome is known |
//! | fresh | more than wanted | idle ones are stopped, the newest first; never busy ones |
//!
//! The file counts the workers wanted *beside* those that are at work, as it was when it was written. A job that started
//! since then, or so shortly before that its worker may not have come yet, is not counted there. So as many are
//! wanted as are counted, and the needed ones besides. How many are counted is not quite certain: for a start the
//! fewest there can be are taken, for a stop the most.

use demand::Demand;

use crate::job::{Job, State};

/// Jobs submitted by one command, at most.
const AT_ONCE: u32 = 500;

/// What the owner of the overseer set. Times in seconds.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Workers to keep while the computation goes on, even if none is needed.
    pub min: u32,
    /// Jobs there may be, whatever is needed.
    pub max: u32,
    /// From one start to the next.
    pub cool_down: u64,
    /// From a job's start until its worker has surely come.
    pub settle: u64,
    /// How long busy workers are waited for when the computation is finished.
    pub finish_wait: u64,
}

/// What is known of the demand.
#[derive(Debug, Clone, Copy)]
pub enum Standing<'a> {
    /// There was no good file yet.
    Unread,
    /// The last good one is older than it may be.
    Stale,
    /// The last good one still holds.
    Fresh(&'a Demand),
    /// It said so; seen first at this time.
    Finished(u64),
}

/// All that is known.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// Seconds since 1970.
    pub now: u64,
    /// The demand.
    pub standing: Standing<'a>,
    /// A complete listing, if there is one.
    pub jobs: Option<&'a [Job]>,
    /// When jobs were started last.
    pub last_start: Option<u64>,
    /// Until then, a start whose outcome is not known may still bring jobs.
    pub doubtful_until: Option<u64>,
}

/// Why less is done than could be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Hold {
    #[error("the scheduler's listing is not known")]
    Unlisted,
    #[error("no good demand file was read yet")]
    Unread,
    #[error(
        "the demand file is older than it may be; nothing is started or stopped until it is written again"
    )]
    Stale,
    #[error("jobs are wanted, and the last start is too short a time ago")]
    CoolDown,
    #[error("jobs are wanted, and those of a start without a clear answer may still come")]
    Doubt,
    #[error("more workers are needed than --max allows")]
    Max,
    #[error("it is finished, and workers are still busy")]
    Busy,
}

/// What to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Jobs to start.
    pub start: u32,
    /// Jobs to stop.
    pub stop: Vec<String>,
    /// Nothing is left to do, ever.
    pub end: bool,
    /// Why not more.
    pub hold: Option<Hold>,
}

/// The table above.
pub fn decide(view: &View<'_>, limits: &Limits) -> Plan {
    let hold = |hold| Plan {
        hold: Some(hold),
        ..Plan::default()
    };
    let Some(jobs) = view.jobs else {
        return hold(Hold::Unlisted);
    };
    match view.standing {
        Standing::Unread => hold(Hold::Unread),
        Standing::Stale => hold(Hold::Stale),
        Standing::Finished(since) => finish(jobs, view, since, limits),
        Standing::Fresh(demand) => keep(demand, jobs, view, limits),
    }
}

fn idle(jobs: &[Job]) -> impl DoubleEndedIterator<Item = &Job> {
    jobs.iter().filter(|job| job.state == State::Idle)
}

fn finish(jobs: &[Job], view: &View<'_>, since: u64, limits: &Limits) -> Plan {
    let stop: Vec<String> = idle(jobs).map(|job| job.id.clone()).collect();
    let waited = view.now.saturating_sub(since) >= limits.finish_wait;
    let doubt = view.doubtful_until.is_some_and(|until| view.now < until);
    let end = stop.is_empty() && !doubt && (jobs.is_empty() || waited);
    let hold = match (end, doubt, stop.is_empty()) {
        (true, ..) | (_, false, false) => None,
        (_, true, _) => Some(Hold::Doubt),
        _ => Some(Hold::Busy),
    };
    Plan {
        start: 0,
        stop,
        end,
        hold,
    }
}

fn keep(demand: &Demand, jobs: &[Job], view: &View<'_>, limits: &Limits) -> Plan {
    let mark = demand.command().mark();
    let (current, earlier): (Vec<&Job>, Vec<&Job>) = idle(jobs).partition(|job| job.mark == mark);
    let busy: Vec<&Job> = jobs.iter().filter(|job| job.state == State::Busy).collect();
    let began_before = |job: &&&Job, settle: u64| {
        job.started_at
            .is_some_and(|at| at.saturating_add(settle) <= demand.written_at)
    };
    let fewest = busy
        .iter()
        .filter(|job| began_before(job, limits.settle))
        .count();
    let most = busy
        .iter()
        .filter(|job| job.started_at.is_none() || began_before(job, 0))
        .count();
    let wanted = |counted: usize| {
        let wanted = size(counted).saturating_add(demand.needed);
        wanted.clamp(limits.min.min(limits.max), limits.max)
    };
    let have = size(busy.len() + current.len());
    let mut stop: Vec<String> = earlier.iter().map(|job| job.id.clone()).collect();
    let surplus = have.saturating_sub(wanted(most)) as usize;
    stop.extend(current.iter().rev().take(surplus).map(|job| job.id.clone()));

    let lacking = wanted(fewest).saturating_sub(have);
    // What is on its way out still takes a place.
    let room = limits.max.saturating_sub(size(jobs.len()));
    let start = lacking.min(room).min(AT_ONCE);
    // A clock that was set back must not hold starts for ever.
    let within = |at: u64, time: u64| at <= view.now && view.now < at.saturating_add(time);
    let hold = if start == 0 {
        let unmet = size(fewest).saturating_add(demand.needed) > limits.max;
        unmet.then_some(Hold::Max)
    } else if view.doubtful_until.is_some_and(|until| view.now < until) {
        Some(Hold::Doubt)
    } else if view
        .last_start
        .is_some_and(|at| within(at, limits.cool_down))
    {
        Some(Hold::CoolDown)
    } else {
        None
    };
    Plan {
        start: if hold.is_none() { start } else { 0 },
        stop,
        end: false,
        hold,
    }
}

fn size(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
