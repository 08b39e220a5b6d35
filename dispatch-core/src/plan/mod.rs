//! The plan: a pure function from the [`World`] to the [`Action`]s to take, each with its reason.
//!
//! | container | lock | this dispatcher's attempt | job | priority > 0 | priority 0 |
//! |---|---|---|---|---|---|
//! | Queued | none | none | absent | start, by turns of owners and by priority, as far as admitted; cancel what a workflow waits for and is impossible | wait |
//! | Queued | none | any, with an orphaned token of an earlier attempt | absent | revoke that token instead of the start | revoke it when there is time |
//! | Queued | none | lock requested, answer lost | absent | start again with the same token | end the attempt after two minutes |
//! | Queued | none | over, or its revocation not confirmed | absent, unknown | end the attempt | the same |
//! | Queued | any | any | present | stop the job: its attempt does not hold the lock | the same |
//! | Locked | ours | not submitted, also if the answer to lock was lost | – | submit | unlock |
//! | Locked | ours | being submitted | – | wait for the answer | the same |
//! | Locked | ours | submitted, adopted | present | wait | stop the job |
//! | Locked | ours | submitted, adopted | present, cannot start, start timeout passed | stop the job | stop the job |
//! | Locked | ours | submitted, adopted | absent | unlock; cancel if the record says that no attempt can succeed | the same |
//! | Running | ours | any | present | wait | stop the job |
//! | Running | ours | any | absent | cancel the record, with the scheduler's verdict | the same |
//! | Running | ours | its results are on its node | absent | wait for their delivery; cancel when the time for it is over | cancel |
//! | Locked, Running | other | any | present, of another attempt than the holder | stop the job: its attempt lost the lock | the same |
//! | Locked, Running | other | any | present, of an unknown attempt | wait: it may be the holder | the same |
//! | Locked, Running | other | lock requested, answer lost | absent, unknown | end the attempt after two minutes | the same |
//! | Locked, Running | other | any other | absent, unknown | end the attempt | the same |
//! | final, deleted | – | any | present | stop the job | the same |
//! | final, deleted | – | any | absent, unknown | end the attempt | the same |
//! | any | ours | any | unknown | wait | wait |
//! | not known to this version | any | any | any | wait | wait |
//!
//! Words for the job:
//!
//! - *Present*: the newest listing shows the job.
//! - *Absent*: two complete listings do not show the job, and the record was read after the second
//!   began. Both listings began after the attempt could last have been submitted.
//! - *Unknown*: any other case: no listing, a failed one, or one older than the submission. A
//!   record older than the listing counts too.
//!
//! A second job of a container is stopped wherever the first is kept. A container with an action
//! under way gets no other action. So a container with an orphaned token is locked only after the
//! server has confirmed that it rejects that token. A container that was locked before is locked
//! only after the tokens of earlier runs were listed and read once.
//!
//! A job whose attempt is the holder of the lock makes that attempt this dispatcher's, also if its
//! token is not known (`reconcile/apply_snapshot.rs`). So no job is stopped because a list of
//! tokens lacks one: a server may list only a part of them, or none to another user.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::container_view::ContainerView;
use crate::model::job_presence::JobPresence;
use crate::model::reason::Reason;
use crate::model::world::{Job, JobId, LockHolder, MonotonicTime, ObservedContainer, Phase, World};

/// Maximum delay after which a request with a lost answer may still take effect on the server.
pub const MAX_REQUEST_DELAY: Duration = Duration::from_secs(120);

/// Limits of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Maximum number of containers that are Locked (submitted and not running) at once.
    pub max_pending: usize,
    /// Maximum number of workflow runners of users that are Locked or Running at once.
    pub max_supervisors: usize,
    /// Maximum memory of more than one of them, in bytes; half of it for the runners that they ask
    /// for, and so on.
    pub max_supervisor_ram: Option<u64>,
    /// Time after which a job that cannot start by itself is stopped; `None` means never.
    pub start_timeout: Option<Duration>,
    /// Whether running containers count in the turns of owners. True where the scheduler does not
    /// queue jobs, and so has no fair share of its own.
    pub counts_running: bool,
    /// Whether new containers may be locked or submitted. False while the circuit breaker is
    /// open, or this host has a fault.
    pub may_start: bool,
}

/// One action to take. A later poll observes its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Mints an attempt token and locks with it, if the record still has this etag.
    Start {
        /// The container.
        container: ContainerUuid,
        /// Version of the record that was seen.
        etag: String,
    },
    /// Revokes a token of an earlier attempt. The container can be started after that.
    RevokeOrphan {
        /// The container.
        container: ContainerUuid,
    },
    /// Queued → Cancelled: it can never start, and a workflow waits for it.
    CancelQueued {
        /// The container.
        container: ContainerUuid,
        /// Why it cannot start.
        reason: String,
    },
    /// Submits the attempt to the scheduler.
    Submit {
        /// The container.
        container: ContainerUuid,
        /// The attempt that holds the lock.
        attempt: TokenUuid,
    },
    /// Stops a job of this dispatcher.
    StopJob {
        /// Container that the job runs.
        container: ContainerUuid,
        /// Job to stop.
        job: JobId,
        /// Reason of the stop.
        reason: Reason,
    },
    /// Locked → Queued with the attempt's token, then revokes the token.
    Unlock {
        /// The container.
        container: ContainerUuid,
        /// The attempt that holds the lock.
        attempt: TokenUuid,
        /// Reason of the unlock.
        reason: Reason,
    },
    /// Running → Cancelled with the scheduler's verdict.
    Cancel {
        /// The container.
        container: ContainerUuid,
        /// The attempt that holds the lock.
        attempt: TokenUuid,
        /// Reason of the cancellation.
        reason: Reason,
    },
    /// Revokes the attempt's token and forgets the attempt.
    EndAttempt {
        /// The container.
        container: ContainerUuid,
        /// Uuid of the token to revoke.
        attempt: TokenUuid,
        /// Final state of the record, if the end was not reported yet.
        ended: Option<ContainerState>,
    },
}

impl Action {
    /// Container of the action.
    pub fn container(&self) -> &ContainerUuid {
        match self {
            Action::Start { container, .. }
            | Action::RevokeOrphan { container }
            | Action::CancelQueued { container, .. }
            | Action::Submit { container, .. }
            | Action::StopJob { container, .. }
            | Action::Unlock { container, .. }
            | Action::Cancel { container, .. }
            | Action::EndAttempt { container, .. } => container,
        }
    }
}

/// The actions to take now. The same world and policy give the same actions in the same order. The
/// iterator is lazy, so a caller that can take only a few actions does not compute the rest.
pub fn plan<'a>(world: &'a World, policy: &'a Policy) -> impl Iterator<Item = Action> + 'a {
    let followed = ContainerView::all(world).flat_map(|(known, view)| {
        let mut actions = Vec::new();
        if !view.in_flight {
            plan_container(world.now, policy, known, view, &mut actions);
        }
        actions
    });
    let deleted = world.deleted.iter().flat_map(|uuid| {
        let mut actions = Vec::new();
        let view = ContainerView::of(world, uuid);
        if !view.in_flight && !world.containers.contains_key(uuid) {
            stop_jobs(view, Reason::ContainerDeleted, &mut actions);
            end_attempt(view, None, &mut actions);
        }
        actions
    });
    let started = std::iter::once_with(|| {
        let mut actions = Vec::new();
        start_order::plan_starts(world, policy, &mut actions);
        start_order::plan_cancelled_steps(world, policy, &mut actions);
        actions
    });
    followed.chain(deleted).chain(started.flatten())
}

/// Applies the rows of the table to one container, except those that start it.
fn plan_container(
    now: MonotonicTime,
    policy: &Policy,
    known: &ObservedContainer,
    view: ContainerView<'_>,
    actions: &mut Vec<Action>,
) {
    match (&known.state, &known.holder) {
        (ContainerState::Unknown(_), _) => {}
        (ContainerState::Complete | ContainerState::Cancelled, _) => {
            stop_jobs(view, Reason::ContainerFinal, actions);
            end_attempt(view, Some(&known.state), actions)
        }
        // The token must stay valid. If the lost request takes effect after all, only that token
        // can use the lock or release it.
        (_, LockHolder::Other | LockHolder::Nobody) if may_still_be_locked(now, known, view) => {
            stop_jobs_without_lock(known, view, actions)
        }
        (ContainerState::Queued, _) | (_, LockHolder::Other | LockHolder::Nobody) => {
            stop_jobs_without_lock(known, view, actions);
            end_attempt(view, None, actions)
        }
        (_, LockHolder::Ours(attempt)) => plan_held(now, policy, known, view, attempt, actions),
    }
}

/// Applies the rows for a container that `attempt`, one of this dispatcher's, holds.
fn plan_held(
    now: MonotonicTime,
    policy: &Policy,
    known: &ObservedContainer,
    view: ContainerView<'_>,
    attempt: &TokenUuid,
    actions: &mut Vec<Action>,
) {
    let running = known.state == ContainerState::Running;
    let ours = view.attempt.filter(|a| a.token == *attempt);
    let phase = ours.map(|a| a.phase);
    let unsubmitted = matches!(phase, Some(Phase::Locked | Phase::LockUnknown(_))) && !running;
    let unlock = |reason| Action::Unlock {
        container: view.uuid.clone(),
        attempt: attempt.clone(),
        reason,
    };
    if unsubmitted {
        match known.priority > 0 {
            true if policy.may_start => actions.push(Action::Submit {
                container: view.uuid.clone(),
                attempt: attempt.clone(),
            }),
            true => {}
            false => actions.push(unlock(Reason::PriorityZero)),
        }
        return;
    }
    match view.job_presence() {
        JobPresence::Unknown => {}
        // crunch-run's last update may be newer than the record that was read.
        JobPresence::Absent if view.listed().is_none_or(|listed| known.seen < listed) => {}
        JobPresence::Absent if running => {
            let reason = match phase {
                Some(Phase::Undelivered(until)) if known.priority > 0 && now < until => return,
                Some(Phase::Undelivered(_)) => Reason::Undelivered,
                _ if known.priority <= 0 => Reason::PriorityZero,
                _ => Reason::JobGone,
            };
            actions.push(Action::Cancel {
                container: view.uuid.clone(),
                attempt: attempt.clone(),
                reason,
            });
        }
        JobPresence::Absent => actions.push(unlock(Reason::JobGone)),
        JobPresence::Present(_) if known.priority <= 0 => {
            stop_jobs(view, Reason::PriorityZero, actions)
        }
        JobPresence::Present(_) if !running && start_timed_out(now, policy, view) => {
            stop_jobs(view, Reason::StartTimeout, actions)
        }
        JobPresence::Present(_) => stop_duplicates(view, attempt, actions),
    }
}

/// Whether the container's job has been unable to start for longer than the start timeout.
fn start_timed_out(now: MonotonicTime, policy: &Policy, view: ContainerView<'_>) -> bool {
    let since = view.pending.and_then(|pending| pending.blocked_since);
    match (since, policy.start_timeout) {
        (Some(since), Some(timeout)) => now.since(since) >= timeout,
        _ => false,
    }
}

/// Whether a lost lock request may still take effect, or the lock is to be requested again with the
/// same token.
fn may_still_be_locked(
    now: MonotonicTime,
    known: &ObservedContainer,
    view: ContainerView<'_>,
) -> bool {
    view.attempt.is_some_and(|attempt| match attempt.phase {
        Phase::LockUnknown(requested) => {
            let again = known.state == ContainerState::Queued && known.priority > 0;
            again || now.since(requested) < MAX_REQUEST_DELAY
        }
        _ => false,
    })
}

/// Ends the attempt at a container that this dispatcher does not hold, after its last job. `ended`
/// is the final state of the container, if it has one.
fn end_attempt(view: ContainerView<'_>, ended: Option<&ContainerState>, actions: &mut Vec<Action>) {
    if view.live().next().is_none()
        && let Some(attempt) = view.attempt
        // A submission is under way. Its job must still be found and stopped.
        && attempt.phase != Phase::Submitting
    {
        actions.push(Action::EndAttempt {
            container: view.uuid.clone(),
            attempt: attempt.token.clone(),
            // The end of an attempt in `Revoking` was already reported. An attempt that may never
            // have held the lock has no part in the end.
            ended: ended
                .filter(|_| !matches!(attempt.phase, Phase::LockUnknown(_) | Phase::Revoking))
                .cloned(),
        });
    }
}

/// Stops the jobs whose attempts certainly do not hold the lock. A job that does not show its
/// attempt may be the holder's, unless nobody holds the lock.
fn stop_jobs_without_lock(
    known: &ObservedContainer,
    view: ContainerView<'_>,
    actions: &mut Vec<Action>,
) {
    let is_free = known.state == ContainerState::Queued;
    let lost = view.live().filter(|job| is_free || job.attempt.is_some());
    actions.extend(lost.map(|job| Action::StopJob {
        container: view.uuid.clone(),
        job: job.id.clone(),
        reason: Reason::LockLost,
    }));
}

fn stop_jobs(view: ContainerView<'_>, reason: Reason, actions: &mut Vec<Action>) {
    actions.extend(view.live().map(|job| Action::StopJob {
        container: view.uuid.clone(),
        job: job.id.clone(),
        reason,
    }));
}

/// Keeps one job of the attempt and stops the rest. If the scheduler does not show attempts, keeps
/// any one job.
fn stop_duplicates(view: ContainerView<'_>, attempt: &TokenUuid, actions: &mut Vec<Action>) {
    let is_mine = |job: &Job| job.attempt.as_ref() == Some(attempt);
    let mine = view.live().position(is_mine);
    let keep = mine.or_else(|| view.live().position(|job| job.attempt.is_none()));
    for (n, job) in view.live().enumerate() {
        if keep != Some(n) {
            let is_of_another_attempt = job.attempt.is_some() && !is_mine(job);
            actions.push(Action::StopJob {
                container: view.uuid.clone(),
                job: job.id.clone(),
                reason: match is_of_another_attempt {
                    true => Reason::LockLost,
                    false => Reason::DuplicateJob,
                },
            });
        }
    }
}

pub mod admission_candidates;
mod places;
pub mod queue_sweep;
pub(crate) mod start_order;
#[cfg(test)]
pub(crate) mod tests;
mod workflow_runners;
