//! Which containers start first, and how many: by priority, up to the limits of the [`Policy`].
//!
//! Workflow runners are limited, because the containers that they ask for need room, too. A runner
//! that another workflow asked for is not: that workflow waits for it, and holds its own place.

use std::cmp::Reverse;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use super::{Action, Policy};
use crate::model::container_view::ContainerView;
use crate::model::job_presence::JobPresence;
use crate::model::resources::Admission;
use crate::model::world::{LockHolder, ObservedContainer, Phase, World};

/// Starts Queued containers, highest priority first, as far as `max_pending` allows.
pub fn plan_starts(world: &World, policy: &Policy, actions: &mut Vec<Action>) {
    if !policy.may_start {
        return;
    }
    let pending = |(uuid, known): &(&ContainerUuid, &ObservedContainer)| match known.holder {
        LockHolder::Ours(_) => known.state == ContainerState::Locked,
        // The lock is being requested.
        _ => known.state == ContainerState::Queued && world.in_flight.contains(*uuid),
    };
    let is_blocked = |(uuid, _): &(&ContainerUuid, &ObservedContainer)| {
        let pending = world.pending.get(*uuid);
        pending.is_some_and(|pending| pending.blocked_since.is_some())
    };
    let (blocked, waiting): (Vec<_>, Vec<_>) = world
        .containers
        .iter()
        .filter(pending)
        .partition(is_blocked);
    // Jobs that cannot start take places from others only beyond `max_pending` such jobs.
    let excess = blocked.len().saturating_sub(policy.max_pending);
    let room = policy.max_pending.saturating_sub(waiting.len() + excess);
    let queue = startable(world, policy, |known, view| {
        known.holder == LockHolder::Nobody
            && known.fit == Admission::Now
            && view.job_presence() == JobPresence::Absent
    });
    actions.extend(
        queue
            .into_iter()
            .take(room)
            .filter_map(|(uuid, known)| plan_start(world, uuid, known)),
    );
}

/// Cancels what workflows wait for and can never start, if nobody else might start it.
pub fn plan_cancelled_steps(world: &World, policy: &Policy, actions: &mut Vec<Action>) {
    if !policy.cancels_impossible_steps {
        return;
    }
    let steps = waiting(world, |known, view| {
        known.holder == LockHolder::Nobody
            && known.requested_by.is_some()
            && view.attempt.is_none()
            && view.job_presence() == JobPresence::Absent
    });
    actions.extend(steps.into_iter().filter_map(|(uuid, known)| {
        let Admission::Never(reason) = &known.fit else {
            return None;
        };
        Some(Action::CancelQueued {
            container: uuid.clone(),
            reason: reason.clone(),
        })
    }));
}

/// Plans the start of one container. It is locked only when no token of an earlier attempt can
/// change it any more.
fn plan_start(world: &World, uuid: &ContainerUuid, known: &ObservedContainer) -> Option<Action> {
    let container = uuid.clone();
    match world.orphan_since.get(uuid) {
        None => Some(Action::Start {
            container,
            etag: known.etag.clone(),
        }),
        // The token may hold the lock now. Only a record read since then shows that.
        Some(since) if known.seen < *since => None,
        Some(_) => Some(Action::RevokeOrphan { container }),
    }
}

/// The containers that wait only for a place and satisfy `also`, in the order in which they get
/// one.
pub fn startable<'a>(
    world: &'a World,
    policy: &Policy,
    also: impl Fn(&ObservedContainer, ContainerView<'_>) -> bool,
) -> Vec<(&'a ContainerUuid, &'a ObservedContainer)> {
    let mut queue = waiting(world, also);
    let mut supervisors = Supervisors::begun(world);
    queue.retain(|(_, known)| !is_limited(known) || supervisors.take_place(known, policy));
    queue
}

/// The workflow runners that wait until others have ended, in the order in which they start.
pub fn held_supervisors(world: &World, policy: &Policy) -> Vec<ContainerUuid> {
    let mut supervisors = Supervisors::begun(world);
    let queue = waiting(world, |known, _| is_limited(known)).into_iter();
    queue
        .filter(|(_, known)| !supervisors.take_place(known, policy))
        .map(|(uuid, _)| uuid.clone())
        .collect()
}

/// The containers that no earlier attempt and no retry delay holds up and that satisfy `also`,
/// highest priority first.
fn waiting(
    world: &World,
    also: impl Fn(&ObservedContainer, ContainerView<'_>) -> bool,
) -> Vec<(&ContainerUuid, &ObservedContainer)> {
    let mut queue: Vec<_> = ContainerView::all(world)
        .filter(|(known, view)| {
            known.state == ContainerState::Queued
                && known.priority > 0
                && !view.in_flight
                // The old attempt must be ended, and its job absent, before the container is locked
                // again. An attempt with a lost lock answer has not used its token, so it continues
                // with that token.
                && view.attempt.is_none_or(|old| matches!(old.phase, Phase::LockUnknown(_)))
                && view.retry_at.is_none_or(|at| at <= world.now)
                && also(known, *view)
        })
        .map(|(known, view)| (view.uuid, known))
        .collect();
    // The sort is stable, so containers of equal priority stay in the order of their uuids.
    queue.sort_by_key(|(_, known)| Reverse(known.priority));
    queue
}

/// The limited workflow runners that are submitted or run, or are about to be locked.
struct Supervisors {
    count: usize,
    /// Their memory in bytes.
    ram: u64,
}

impl Supervisors {
    fn begun(world: &World) -> Self {
        let begun = world.containers.iter().filter(|(uuid, known)| {
            is_limited(known)
                && match known.holder {
                    LockHolder::Ours(_) => true,
                    // The lock is being requested.
                    _ => known.state == ContainerState::Queued && world.in_flight.contains(*uuid),
                }
        });
        begun.fold(Self { count: 0, ram: 0 }, |sum, (_, known)| Self {
            count: sum.count + 1,
            ram: sum.ram.saturating_add(known.needs.ram),
        })
    }

    /// Takes a place for one more, if there is one. The first may have as much memory as it needs.
    fn take_place(&mut self, known: &ObservedContainer, policy: &Policy) -> bool {
        let ram = self.ram.saturating_add(known.needs.ram);
        let has_room = policy.max_supervisor_ram.is_none_or(|max| ram <= max);
        let may = self.count < policy.max_supervisors && (has_room || self.count == 0);
        if may {
            *self = Self {
                count: self.count + 1,
                ram,
            };
        }
        may
    }
}

/// Whether it is a workflow runner that nobody but a user asked for.
fn is_limited(known: &ObservedContainer) -> bool {
    known.needs.supervisor && known.requested_by.is_none()
}
