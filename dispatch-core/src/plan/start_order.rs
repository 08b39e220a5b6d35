//! Which containers start first, and how many: by priority, up to the limits of the [`Policy`].

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
    let mut supervisors = free_supervisor_slots(world, policy);
    queue.retain(|(_, known)| {
        let may = !known.needs.supervisor || supervisors > 0;
        supervisors -= usize::from(may && known.needs.supervisor);
        may
    });
    queue
}

/// Number of workflow runners that may still start. It is limited because the containers that they
/// request need room too.
fn free_supervisor_slots(world: &World, policy: &Policy) -> usize {
    let begun = world.containers.iter().filter(|(uuid, known)| {
        known.needs.supervisor
            && match known.holder {
                LockHolder::Ours(_) => true,
                // The lock is being requested.
                _ => known.state == ContainerState::Queued && world.in_flight.contains(*uuid),
            }
    });
    policy.max_supervisors.saturating_sub(begun.count())
}
