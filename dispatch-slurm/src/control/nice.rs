//! Computes the nice values that put the pending jobs of each account in their order. Pure.
//!
//! Input: rows of `squeue` and the desired order. Output: changes of nice values, and jobs that a
//! change released from a hold.
//!
//! The order between accounts, and that against other people's jobs, is Slurm's: its fair share
//! would have no effect otherwise.
//!
//! A user can only lower jobs: Slurm orders by its own priority (age, fair share) minus the nice
//! value. So jobs start with a nice value that leaves room to raise them. The first of them gets 0,
//! each other one just enough to stand behind the one before. Jobs that are in order keep their
//! values, because every change costs slurmctld work. If the jobs of an account have equal
//! priorities without nice values, the last of N has at most N - 1 times the spread.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::model::scheduling::by_account;
use dispatch_core::scheduler::DesiredPlace;
use dispatch_core::scheduler::in_order::longest_in_order;

use crate::query::ended_job::has_ended;
use crate::query::squeue::{JobPhase, QueuePosition, Row};

/// Maximum nice value of Slurm (`NICE_OFFSET - 3`).
const MAX_NICE: i64 = 2_147_483_645;
/// Slurm's lowest priority of a job that is not held.
const MIN_PRIORITY: i64 = 1;
/// Minimum loss of priority that cannot happen by itself between two listings.
const MIN_PRIORITY_LOSS: i64 = 100;

/// A new nice value for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Job id, `12` or `12_3`.
    pub job: String,
    pub nice: i64,
}

/// A change that was sent to Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentChange {
    /// Job id.
    pub job: String,
    /// Position of the job when the change was planned.
    pub before: QueuePosition,
    /// New nice value.
    pub nice: i64,
}

/// Nice values that the next listing must confirm.
#[derive(Debug, Default)]
pub struct PendingNice {
    /// Changes that no listing has shown yet.
    pub unconfirmed: Vec<SentChange>,
    /// Changes that released their job from a hold.
    pub lost_holds: Vec<SentChange>,
}

impl PendingNice {
    /// Compares the sent changes with the rows of a listing.
    pub fn confirm(&mut self, rows: &[Row]) {
        let (lost, unconfirmed) = lost_holds(std::mem::take(&mut self.unconfirmed), rows);
        self.unconfirmed = unconfirmed;
        self.lost_holds.extend(lost);
    }
}

/// The changes that put the pending jobs of each account in `queue` in order. Running jobs are left
/// alone. So are held jobs: a new nice value would give them a priority and so release them.
pub fn changes(queue: &[Row], wanted: &[DesiredPlace], spread: i64) -> Vec<Change> {
    let is_free = |row: &&Row| row.phase == JobPhase::Pending && row.position.priority > 0;
    let free: BTreeMap<&ContainerUuid, &Row> = queue
        .iter()
        .filter(is_free)
        .map(|row| (&row.container, row))
        .collect();
    let mut changes = Vec::new();
    for containers in by_account(wanted).into_values() {
        let jobs = containers.into_iter().filter_map(|one| free.get(one));
        let jobs: Vec<&Row> = jobs.copied().collect();
        let positions: Vec<QueuePosition> = jobs.iter().map(|row| row.position).collect();
        let nice = nice_values(&positions, spread).into_iter();
        let new = jobs.iter().zip(nice);
        changes.extend(
            new.filter(|(row, nice)| row.position.nice != *nice)
                .map(|(row, nice)| Change {
                    job: row.id.clone(),
                    nice,
                }),
        );
    }
    changes
}

/// A pending job without its nice value.
#[derive(Debug, Clone, Copy)]
struct Standing {
    /// Slurm's priority of the job, if its nice value were 0.
    base: i64,
    now: QueuePosition,
    /// Slurm has no priority below 1, so one of 1 says nothing about the base.
    is_at_floor: bool,
}

/// Nice values of one account in queue order, so that each job stands behind the one before. The
/// jobs that are in order keep their values, unless a value is above the bound.
fn nice_values(jobs: &[QueuePosition], spread: i64) -> Vec<i64> {
    let (gap, bound) = (step(spread), spread * (jobs.len() as i64 - 1).max(0));
    let standings = standings(jobs);
    let floors = lowest_priorities(&standings, bound);
    // Those that may keep their value, at the place that they have.
    let keepable: Vec<usize> = (0..standings.len())
        .filter(|n| !standings[*n].is_at_floor && standings[*n].now.priority >= floors[*n])
        .collect();
    let keys: Vec<Reverse<i64>> = keepable
        .iter()
        .map(|n| Reverse(standings[*n].now.priority))
        .collect();
    let kept = longest_in_order(&keys).into_iter().map(|n| keepable[n]);
    let placed = priorities(&standings, &kept.collect::<Vec<_>>(), gap);
    let fits = placed
        .iter()
        .zip(&floors)
        .all(|(placed, lowest)| placed >= lowest);
    let placed = match fits {
        true => placed,
        false => priorities(&standings, &[], gap),
    };
    let values = standings.iter().zip(placed);
    values
        .map(|(standing, priority)| standing.nice_for(priority, bound))
        .collect()
}

/// Distance of neighbours that get new values. The rest of the spread is room for later jobs, so
/// that a queue that moves up is seldom numbered again.
fn step(spread: i64) -> i64 {
    (spread / 4).max(1)
}

/// The base of each job. A job at the floor is taken for equal to the one before, or to the first
/// one that is not at the floor.
fn standings(jobs: &[QueuePosition]) -> Vec<Standing> {
    let is_at_floor = |job: &QueuePosition| job.priority <= MIN_PRIORITY && job.nice > 0;
    let sum = |job: &QueuePosition| job.priority.saturating_add(job.nice);
    let mut known = jobs.iter().find(|job| !is_at_floor(job)).map(sum);
    let standing = |job: &QueuePosition| {
        let is_at_floor = is_at_floor(job);
        if !is_at_floor {
            known = Some(sum(job));
        }
        Standing {
            base: known.map_or(sum(job), |known| known.min(sum(job))),
            now: *job,
            is_at_floor,
        }
    };
    jobs.iter().map(standing).collect()
}

/// The lowest priority of each job at which its nice value is within `bound` of what it needs to
/// stand behind the jobs before it.
fn lowest_priorities(standings: &[Standing], bound: i64) -> Vec<i64> {
    let mut lowest_base = i64::MAX;
    let lowest = |standing: &Standing| {
        lowest_base = lowest_base.min(standing.base);
        (lowest_base - bound).max(MIN_PRIORITY)
    };
    standings.iter().map(lowest).collect()
}

/// Priorities in queue order. The jobs in `kept` keep theirs, if there is room before them.
fn priorities(standings: &[Standing], kept: &[usize], gap: i64) -> Vec<i64> {
    let mut kept = kept.iter().copied().peekable();
    let mut above: Option<i64> = None;
    let mut placed = Vec::with_capacity(standings.len());
    for (n, standing) in standings.iter().enumerate() {
        let is_kept = kept.next_if_eq(&n).is_some();
        let highest = above.map_or(standing.base, |above| standing.base.min(above - 1));
        let priority = match above {
            _ if is_kept && standing.now.priority <= highest => standing.now.priority,
            None => standing.base,
            Some(above) => {
                // Before the next one that keeps its priority, if there is room.
                let next = kept.peek().map(|n| standings[*n].now.priority + 1);
                let next = next.filter(|next| *next < above).unwrap_or(i64::MIN);
                (above - gap).max(next).min(highest)
            }
        };
        placed.push(priority.max(MIN_PRIORITY));
        above = placed.last().copied();
    }
    placed
}

impl Standing {
    /// The nice value that gives the job this priority.
    fn nice_for(&self, priority: i64, bound: i64) -> i64 {
        let nice = (self.base - priority).clamp(0, MAX_NICE);
        // Its base moves with its age, which changes nothing at the floor.
        let stays = self.is_at_floor
            && priority == MIN_PRIORITY
            && (nice..=nice.saturating_add(bound)).contains(&self.now.nice);
        if stays { self.now.nice } else { nice }
    }
}

/// Returns the changes in `sent` that released their job from a hold, and those that `queue` does
/// not show yet.
///
/// A held job has priority 0. If its nice value changes, Slurm adds the difference and raises the
/// priority to at least 2 (`_update_job` in slurmctld). Then the job may start although nobody
/// released it. An administrator may hold a job between a listing and the change. A priority that
/// equals this difference, far below the expected one, shows that this happened.
pub fn lost_holds(sent: Vec<SentChange>, queue: &[Row]) -> (Vec<SentChange>, Vec<SentChange>) {
    let waits = |row: &&Row| row.phase == JobPhase::Pending;
    let now: BTreeMap<&str, QueuePosition> = queue
        .iter()
        .filter(waits)
        .map(|row| (row.id.as_str(), row.position))
        .collect();
    let (mut lost_holds, mut open) = (Vec::new(), Vec::new());
    for sent in sent {
        match now.get(sent.job.as_str()) {
            Some(now) if now.nice != sent.nice => {
                if now.nice == sent.before.nice {
                    open.push(sent);
                }
            }
            Some(now) if sent.undid_hold(now.priority) => lost_holds.push(sent),
            Some(_) | None => {}
        }
    }
    (lost_holds, open)
}

impl SentChange {
    fn undid_hold(&self, priority: i64) -> bool {
        let difference = self.before.nice - self.nice;
        // Age and fair share move priorities a little, so the loss of a small priority proves
        // nothing.
        let lost = self.before.priority + difference - priority;
        priority == difference.max(2) && lost >= (self.before.priority / 2).max(MIN_PRIORITY_LOSS)
    }
}

/// Whether `scontrol` rejected only changes of jobs that are not pending any more.
pub fn is_only_about_ended_jobs(message: &str) -> bool {
    message
        .lines()
        .filter(|line| !line.trim().is_empty())
        .all(|line| has_ended(line) || line.contains("no longer pending"))
}

#[cfg(test)]
mod tests;
