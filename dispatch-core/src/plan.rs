//! The plan: one pure function from what is known to what is to be done, with the reason for each action.
//!
//! | container | lock | attempt of ours | job | priority > 0 | priority 0 |
//! |---|---|---|---|---|---|
//! | Queued | nobody | none | gone | start, highest priority first, as far as admitted | wait |
//! | Queued | nobody | any, and a token of an earlier one is left over | gone | end that token, in the place of the start | end it when there is time |
//! | Queued | nobody | asked for the lock, answer lost | gone | start again with the same token | two minutes later end the attempt |
//! | Queued | nobody | over, or its end not confirmed | gone, unknown | end the attempt | the same |
//! | Queued | any | any | there | stop the job: its attempt does not hold the lock | the same |
//! | Locked | ours | not submitted, also where the answer to lock was lost | – | submit | unlock |
//! | Locked | ours | being submitted | – | wait for the answer | the same |
//! | Locked | ours | submitted, adopted | there | wait | stop the job |
//! | Locked | ours | submitted, adopted | there, in vain for too long | stop the job | stop the job |
//! | Locked | ours | submitted, adopted | gone | unlock | unlock |
//! | Running | ours | any | there | wait | stop the job |
//! | Running | ours | any | gone | cancel the record, with the scheduler's verdict | the same |
//! | Running | ours | its results are on its node | gone | wait for their delivery; when the time for that is over, cancel | cancel |
//! | Locked, Running | other | any | there | stop the job: its attempt lost the lock | the same |
//! | Locked, Running | other | asked for the lock, answer lost | gone, unknown | two minutes later end the attempt | the same |
//! | Locked, Running | other | any other | gone, unknown | end the attempt | the same |
//! | final, deleted | – | any | there | stop the job | the same |
//! | final, deleted | – | any | gone, unknown | end the attempt | the same |
//! | any | ours | any | unknown | wait | wait |
//! | state not known here | any | any | any | wait | wait |
//!
//! *There*: the newest listing shows it. *Gone*: two complete listings, both begun after the attempt could last have been
//! submitted, do not show it, and the record was read after the second began. *Unknown*: anything else, so no listing at all, a
//! failed one, one older than the submission, or a record older than the listing.
//!
//! A second job of the same container is stopped wherever the first is kept. A container with an action under way
//! gets no other. So a container with a left-over token is locked only after the server has confirmed that it does not
//! accept that token any more.

use std::cmp::Reverse;
use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};

use crate::facts::{Facts, Presence};
use crate::needs::Fit;
use crate::world::{Holder, Job, JobId, Known, Moment, Phase, World};

mod reason;

pub use reason::Reason;

/// So long a request whose answer was lost may still take effect on the server.
pub const LOST_ANSWER: Duration = Duration::from_secs(120);

/// What limits a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How many containers may be Locked (submitted and not running) at once.
    pub max_pending: usize,
    /// How many workflow runners may be Locked or Running at once.
    pub max_supervisors: usize,
    /// A job that will not start by itself is stopped after so long; none: never.
    pub start_timeout: Option<Duration>,
    /// False while the circuit breaker is open, or the program is draining: nothing new is locked or submitted.
    pub may_start: bool,
}

/// Something to be done. Its result is an observation of a later look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Mint an attempt token and lock with it, if the record is still the one with this etag.
    Start {
        /// The container.
        container: ContainerUuid,
        /// The version seen.
        etag: String,
    },
    /// End a token of an earlier attempt, after which the container can be started.
    EndLeftOver {
        /// The container.
        container: ContainerUuid,
    },
    /// Hand the attempt to the scheduler.
    Submit {
        /// The container.
        container: ContainerUuid,
        /// The attempt that holds the lock.
        attempt: TokenUuid,
    },
    /// End a job of ours.
    StopJob {
        /// The container it runs.
        container: ContainerUuid,
        /// The job.
        job: JobId,
        /// Why.
        reason: Reason,
    },
    /// Locked → Queued with the attempt's token, then end the token.
    Unlock {
        /// The container.
        container: ContainerUuid,
        /// The attempt that holds the lock.
        attempt: TokenUuid,
        /// Why.
        reason: Reason,
    },
    /// Running → Cancelled with the scheduler's verdict.
    Cancel {
        /// The container.
        container: ContainerUuid,
        /// The attempt that holds the lock.
        attempt: TokenUuid,
        /// Why.
        reason: Reason,
    },
    /// End the attempt's token and forget the attempt.
    EndAttempt {
        /// The container.
        container: ContainerUuid,
        /// The token to end.
        attempt: TokenUuid,
        /// Its record is final, and nobody was told so: the state.
        ended: Option<ContainerState>,
    },
}

impl Action {
    /// Whether the scheduler is asked or told something.
    pub fn asks_scheduler(&self) -> bool {
        match self {
            Action::Submit { .. } | Action::StopJob { .. } | Action::Cancel { .. } => true,
            // It is asked once more what became of the job.
            Action::Unlock { reason, .. } => *reason == Reason::JobGone,
            Action::Start { .. } | Action::EndLeftOver { .. } | Action::EndAttempt { .. } => false,
        }
    }

    /// The container it is about.
    pub fn container(&self) -> &ContainerUuid {
        match self {
            Action::Start { container, .. }
            | Action::EndLeftOver { container }
            | Action::Submit { container, .. }
            | Action::StopJob { container, .. }
            | Action::Unlock { container, .. }
            | Action::Cancel { container, .. }
            | Action::EndAttempt { container, .. } => container,
        }
    }
}

/// What to do now. Deterministic: the same world and policy give the same actions in the same order. Lazy: who can do
/// only a few things now need not hear of all.
pub fn plan<'a>(world: &'a World, policy: &'a Policy) -> impl Iterator<Item = Action> + 'a {
    let followed = Facts::of_all(world).flat_map(|(known, facts)| {
        let mut actions = Vec::new();
        if !facts.in_flight {
            follow(world.now, policy, known, facts, &mut actions);
        }
        actions
    });
    let cleared = world.deleted.iter().flat_map(|uuid| {
        let mut actions = Vec::new();
        let facts = Facts::of(world, uuid);
        if !facts.in_flight && !world.containers.contains_key(uuid) {
            clear(facts, Reason::ContainerDeleted, None, &mut actions);
        }
        actions
    });
    let started = std::iter::once_with(|| {
        let mut actions = Vec::new();
        start(world, policy, &mut actions);
        actions
    });
    followed.chain(cleared).chain(started.flatten())
}

/// The rows of the table for one container, but for starting it.
fn follow(
    now: Moment,
    policy: &Policy,
    known: &Known,
    facts: Facts<'_>,
    actions: &mut Vec<Action>,
) {
    match (&known.state, &known.holder) {
        (ContainerState::Unknown(_), _) => {}
        (ContainerState::Complete | ContainerState::Cancelled, _) => {
            clear(facts, Reason::ContainerFinal, Some(&known.state), actions)
        }
        // Its token must live on: should the lost request take effect after all, only that token can use the lock or
        // give it back.
        (_, Holder::Other | Holder::Nobody) if may_still_be_locked(now, known, facts) => {
            stop_all(facts, Reason::LockLost, actions)
        }
        (ContainerState::Queued, _) | (_, Holder::Other | Holder::Nobody) => {
            clear(facts, Reason::LockLost, None, actions)
        }
        (_, Holder::Ours(attempt)) => hold(now, policy, known, facts, attempt, actions),
    }
}

/// The rows for a container that `attempt`, one of ours, holds.
fn hold(
    now: Moment,
    policy: &Policy,
    known: &Known,
    facts: Facts<'_>,
    attempt: &TokenUuid,
    actions: &mut Vec<Action>,
) {
    let running = known.state == ContainerState::Running;
    let ours = facts.attempt.filter(|a| a.token == *attempt);
    let phase = ours.map(|a| a.phase);
    let unsubmitted = matches!(phase, Some(Phase::Locked | Phase::Unclear(_))) && !running;
    let unlock = |reason| Action::Unlock {
        container: facts.uuid.clone(),
        attempt: attempt.clone(),
        reason,
    };
    if unsubmitted {
        match known.priority > 0 {
            true if policy.may_start => actions.push(Action::Submit {
                container: facts.uuid.clone(),
                attempt: attempt.clone(),
            }),
            true => {}
            false => actions.push(unlock(Reason::PriorityZero)),
        }
        return;
    }
    match facts.presence() {
        Presence::Unknown => {}
        // Its executor's last word may be in the record by now.
        Presence::Gone if facts.listed().is_none_or(|listed| known.seen < listed) => {}
        Presence::Gone if running => {
            let reason = match phase {
                Some(Phase::Undelivered(until)) if known.priority > 0 && now < until => return,
                Some(Phase::Undelivered(_)) => Reason::Undelivered,
                _ if known.priority <= 0 => Reason::PriorityZero,
                _ => Reason::JobGone,
            };
            actions.push(Action::Cancel {
                container: facts.uuid.clone(),
                attempt: attempt.clone(),
                reason,
            });
        }
        Presence::Gone => actions.push(unlock(Reason::JobGone)),
        Presence::There(_) if known.priority <= 0 => stop_all(facts, Reason::PriorityZero, actions),
        Presence::There(_) if !running && is_over(now, policy, facts) => {
            stop_all(facts, Reason::InVain, actions)
        }
        Presence::There(_) => stop_others(facts, attempt, actions),
    }
}

/// Its job has waited in vain for too long.
fn is_over(now: Moment, policy: &Policy, facts: Facts<'_>) -> bool {
    let since = facts.waits.and_then(|waits| waits.in_vain_since);
    match (since, policy.start_timeout) {
        (Some(since), Some(most)) => now.since(since) >= most,
        _ => false,
    }
}

/// A lost request for the lock may still take effect, or the container is to be locked with the same token.
fn may_still_be_locked(now: Moment, known: &Known, facts: Facts<'_>) -> bool {
    facts.attempt.is_some_and(|attempt| match attempt.phase {
        Phase::Unclear(asked) => {
            let again = known.state == ContainerState::Queued && known.priority > 0;
            again || now.since(asked) < LOST_ANSWER
        }
        _ => false,
    })
}

/// Nothing of ours should exist for this container, which has ended in the state `ended`, or goes on without us: stop its
/// jobs, then end its attempt.
fn clear(
    facts: Facts<'_>,
    reason: Reason,
    ended: Option<&ContainerState>,
    actions: &mut Vec<Action>,
) {
    let before = actions.len();
    stop_all(facts, reason, actions);
    if actions.len() == before
        && let Some(attempt) = facts.attempt
        // Its submission is on its way: the job it makes must still be found and stopped.
        && attempt.phase != Phase::Submitting
    {
        actions.push(Action::EndAttempt {
            container: facts.uuid.clone(),
            attempt: attempt.token.clone(),
            // Of an attempt that is over the end was told; and one that may not have had the lock has no part in it.
            ended: ended
                .filter(|_| !matches!(attempt.phase, Phase::Unclear(_) | Phase::Ending))
                .cloned(),
        });
    }
}

fn stop_all(facts: Facts<'_>, reason: Reason, actions: &mut Vec<Action>) {
    actions.extend(facts.live().map(|job| Action::StopJob {
        container: facts.uuid.clone(),
        job: job.id.clone(),
        reason,
    }));
}

/// Keeps one job of the attempt (or, where the scheduler does not tell attempts, one job) and stops the rest.
fn stop_others(facts: Facts<'_>, attempt: &TokenUuid, actions: &mut Vec<Action>) {
    let is_mine = |job: &Job| job.attempt.as_ref() == Some(attempt);
    let mine = facts.live().position(is_mine);
    let keep = mine.or_else(|| facts.live().position(|job| job.attempt.is_none()));
    for (n, job) in facts.live().enumerate() {
        if keep != Some(n) {
            let anothers = job.attempt.is_some() && !is_mine(job);
            actions.push(Action::StopJob {
                container: facts.uuid.clone(),
                job: job.id.clone(),
                reason: match anothers {
                    true => Reason::LockLost,
                    false => Reason::SecondJob,
                },
            });
        }
    }
}

/// Starts Queued containers, highest priority first, as far as `max_pending` allows.
fn start(world: &World, policy: &Policy, actions: &mut Vec<Action>) {
    if !policy.may_start {
        return;
    }
    let pending = |(uuid, known): &(&ContainerUuid, &Known)| match known.holder {
        Holder::Ours(_) => known.state == ContainerState::Locked,
        // Its lock is being asked for.
        _ => known.state == ContainerState::Queued && world.in_flight.contains(*uuid),
    };
    let in_vain = |(uuid, _): &(&ContainerUuid, &Known)| {
        let waits = world.waiting.get(*uuid);
        waits.is_some_and(|waits| waits.in_vain_since.is_some())
    };
    let (idle, waiting): (Vec<_>, Vec<_>) =
        world.containers.iter().filter(pending).partition(in_vain);
    // What cannot start takes the place of what could, only once there is very much of it.
    let idle = idle.len().saturating_sub(policy.max_pending);
    let room = policy.max_pending.saturating_sub(waiting.len() + idle);
    let queue = queue(world, policy, |known, facts| {
        known.holder == Holder::Nobody
            && known.fit == Fit::Now
            && facts.presence() == Presence::Gone
    });
    actions.extend(
        queue
            .into_iter()
            .take(room)
            .filter_map(|(uuid, known)| start_one(world, uuid, known)),
    );
}

/// A container is locked once no token of an earlier attempt can change it any more.
fn start_one(world: &World, uuid: &ContainerUuid, known: &Known) -> Option<Action> {
    let container = uuid.clone();
    match world.left_over.get(uuid) {
        None => Some(Action::Start {
            container,
            etag: known.etag.clone(),
        }),
        // The token may hold the lock by now: only a record read since then tells.
        Some(since) if known.seen < *since => None,
        Some(_) => Some(Action::EndLeftOver { container }),
    }
}

/// The containers that wait for nothing but a place, as far as `also` holds, in the order in which they get one.
pub fn queue<'a>(
    world: &'a World,
    policy: &Policy,
    also: impl Fn(&Known, Facts<'_>) -> bool,
) -> Vec<(&'a ContainerUuid, &'a Known)> {
    let mut queue: Vec<_> = Facts::of_all(world)
        .filter(|(known, facts)| {
            known.state == ContainerState::Queued
                && known.priority > 0
                && !facts.in_flight
                // The old attempt must be ended, and its job gone, before the container is locked again. One whose
                // answer was lost has given its token to nobody yet, and goes on with it.
                && facts.attempt.is_none_or(|old| matches!(old.phase, Phase::Unclear(_)))
                && facts.retry_at.is_none_or(|at| at <= world.now)
                && also(known, *facts)
        })
        .map(|(known, facts)| (facts.uuid, known))
        .collect();
    // Stable, so that equals stay in the order of their uuids.
    queue.sort_by_key(|(_, known)| Reverse(known.priority));
    let mut supervisors = room_for_supervisors(world, policy);
    queue.retain(|(_, known)| {
        let may = !known.needs.supervisor || supervisors > 0;
        supervisors -= usize::from(may && known.needs.supervisor);
        may
    });
    queue
}

/// How many more workflow runners may start: they wait for containers they ask for, which need room too.
fn room_for_supervisors(world: &World, policy: &Policy) -> usize {
    let begun = world.containers.iter().filter(|(uuid, known)| {
        known.needs.supervisor
            && match known.holder {
                Holder::Ours(_) => true,
                // On its way.
                _ => known.state == ContainerState::Queued && world.in_flight.contains(*uuid),
            }
    });
    policy.max_supervisors.saturating_sub(begun.count())
}

#[cfg(test)]
pub(crate) mod tests;
