//! The order in which pending jobs should start: owners take turns, and the jobs of one owner stand
//! by the priorities of their containers. Pure.
//!
//! Input: the pending jobs of each pass. Output: their order, for
//! [`Scheduler::reorder`](crate::scheduler::Scheduler::reorder).
//!
//! Each job gets a place when it is first seen: behind the last one of its owner, but not before
//! the first job that waits (start-time fair queueing; Goyal, Vin and Cheng, 1996). A place is kept
//! until the job starts, so jobs that leave the queue move no other. Only jobs that are charged
//! alike are compared: shares between accounts are the scheduler's. A restarted dispatcher gives
//! new places, by turns.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use arvados_client::{ContainerUuid, UserUuid};

use crate::model::owner::{KnownCharge, Weight};
use crate::model::scheduling::DesiredPlace;
use crate::model::turns::{TURN, turn};

/// A job that waits in the scheduler.
#[derive(Debug, Clone)]
pub struct PendingJob {
    /// Container of the job.
    pub container: ContainerUuid,
    /// User of the container, if it is known.
    pub user: Option<UserUuid>,
    /// How the job is charged.
    pub charge: KnownCharge,
    /// Priority of the container.
    pub priority: i64,
    /// The job cannot start by itself.
    pub is_blocked: bool,
}

impl PendingJob {
    fn turn(&self) -> u64 {
        let charge = self.charge.as_ref();
        turn(charge.map_or(Weight::MIN, |charge| charge.weight))
    }
}

/// The places of pending jobs.
#[derive(Debug, Default)]
pub struct PendingOrder {
    places: BTreeMap<ContainerUuid, u64>,
    /// End of the last turn of each owner, by account.
    ends: BTreeMap<KnownCharge, BTreeMap<Option<UserUuid>, u64>>,
}

impl PendingOrder {
    /// Puts jobs in order. Jobs of the last call that are missing now have left the queue.
    pub fn arrange(&mut self, jobs: Vec<PendingJob>) -> Vec<DesiredPlace> {
        let mut groups: BTreeMap<KnownCharge, Vec<PendingJob>> = BTreeMap::new();
        for job in jobs {
            groups.entry(job.charge.clone()).or_default().push(job);
        }
        self.ends.retain(|charge, _| groups.contains_key(charge));
        let old = std::mem::take(&mut self.places);
        let mut wanted = Vec::new();
        for (charge, jobs) in groups {
            let ends = self.ends.entry(charge.clone()).or_default();
            let placed = place_group(jobs, &old, ends);
            for (place, container) in placed {
                self.places.insert(container.clone(), place);
                wanted.push(DesiredPlace {
                    container,
                    charge: charge.clone(),
                });
            }
        }
        wanted
    }
}

/// The jobs of one account with their places, first place first.
fn place_group(
    mut jobs: Vec<PendingJob>,
    old: &BTreeMap<ContainerUuid, u64>,
    ends: &mut BTreeMap<Option<UserUuid>, u64>,
) -> Vec<(u64, ContainerUuid)> {
    let place = |job: &PendingJob| old.get(&job.container).copied();
    // A job that waits for an administrator must not let newcomers pass all others.
    let can_start = jobs.iter().filter(|job| !job.is_blocked);
    let first = can_start.filter_map(place).min();
    let first = first.or_else(|| jobs.iter().filter_map(place).min());
    let now = first.unwrap_or_default();
    // By owner; of equal priorities, those that have a place come first and keep their order.
    let key = |job: &PendingJob| {
        let place = place(job).unwrap_or(u64::MAX);
        let priority = Reverse(job.priority);
        (job.user.clone(), priority, place, job.container.clone())
    };
    jobs.sort_by_cached_key(key);
    let mut placed = Vec::with_capacity(jobs.len());
    let mut kept_ends = BTreeMap::new();
    for of_owner in jobs.chunk_by(|one, other| one.user == other.user) {
        let Some(owner) = of_owner.first() else {
            continue;
        };
        let mut places: Vec<u64> = of_owner.iter().filter_map(place).collect();
        places.sort_unstable();
        // Turns of jobs that left without a start are given back.
        let last = places.last().copied().unwrap_or(now).max(now) + owner.turn();
        let end = ends.get(&owner.user).copied().unwrap_or(now);
        let mut next = end.clamp(now, last);
        for job in of_owner.iter().filter(|job| place(job).is_none()) {
            places.push(next);
            next += job.turn();
        }
        kept_ends.insert(owner.user.clone(), next);
        let containers = of_owner.iter().map(|job| job.container.clone());
        placed.extend(places.into_iter().zip(containers));
    }
    // An owner without a job waits for its turn, too, if it had one a moment ago.
    let recent = std::mem::take(ends).into_iter();
    let recent = recent.filter(|(user, end)| !kept_ends.contains_key(user) && *end > now);
    *ends = recent
        .map(|(user, end)| (user, end.min(now + TURN)))
        .collect();
    ends.append(&mut kept_ends);
    placed.sort();
    placed
}

#[cfg(test)]
mod tests;
