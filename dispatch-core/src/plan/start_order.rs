//! Which containers start first, and how many: in the order of `places.rs`, up to the limits of the
//! [`Policy`] and of `workflow_runners.rs`.

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use super::places::{self, Entry};
use super::workflow_runners::RunnerPlaces;
use super::{Action, Policy};
use crate::model::container_view::ContainerView;
use crate::model::job_presence::JobPresence;
use crate::model::resources::Admission;
use crate::model::world::{LockHolder, ObservedContainer, Phase, World};

/// Starts Queued containers in their order, as far as there are places.
pub fn plan_starts(world: &World, policy: &Policy, actions: &mut Vec<Action>) {
    if !policy.may_start {
        return;
    }
    let queue = startable(world, policy, |known, view| {
        known.holder == LockHolder::Nobody
            && known.fit == Admission::Now
            && view.job_presence() == JobPresence::Absent
    });
    let started = places::take(world, policy, queue).into_iter();
    actions.extend(started.filter_map(|(uuid, known)| plan_start(world, uuid, known)));
}

/// Cancels what workflows wait for and nobody can start.
pub fn plan_cancelled_steps(world: &World, policy: &Policy, actions: &mut Vec<Action>) {
    let steps = waiting(world, policy, |known, view| {
        known.holder == LockHolder::Nobody
            && known.requested_by.is_some()
            && view.attempt.is_none()
            && view.job_presence() == JobPresence::Absent
    });
    actions.extend(steps.into_iter().filter_map(|(uuid, known)| {
        let Admission::Impossible(reason) = &known.fit else {
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
) -> Vec<Entry<'a>> {
    let mut queue = waiting(world, policy, also);
    let mut places = RunnerPlaces::new(world, policy);
    queue.retain(|(_, known)| places.take(known));
    queue
}

/// The containers that wait and may start here some time, in the order in which they get a place.
pub fn waiting_in_order<'a>(
    world: &'a World,
    policy: &Policy,
) -> impl Iterator<Item = &'a ContainerUuid> {
    let queue = waiting(world, policy, |known, _| {
        known.holder == LockHolder::Nobody && known.fit.never().is_none()
    });
    queue.into_iter().map(|(uuid, _)| uuid)
}

/// The workflow runners that wait until others have ended, in the order in which they start.
pub fn held_supervisors(world: &World, policy: &Policy) -> Vec<ContainerUuid> {
    let mut places = RunnerPlaces::new(world, policy);
    let queue = waiting(world, policy, |known, _| known.needs.supervisor).into_iter();
    queue
        .filter(|(_, known)| !places.take(known))
        .map(|(uuid, _)| uuid.clone())
        .collect()
}

/// The containers that no earlier attempt and no retry delay holds up and that satisfy `also`, in
/// the order in which they get a place.
fn waiting<'a>(
    world: &'a World,
    policy: &Policy,
    also: impl Fn(&ObservedContainer, ContainerView<'_>) -> bool,
) -> Vec<Entry<'a>> {
    let queue = ContainerView::all(world).filter(|(known, view)| {
        known.state == ContainerState::Queued
            && known.priority > 0
            && !view.in_flight
            && !world.may_have_unread_token(view.uuid, known)
            // The old attempt must be ended, and its job absent, before the container is locked
            // again. An attempt with a lost lock answer has not used its token, so it continues
            // with that token.
            && view.attempt.is_none_or(|old| matches!(old.phase, Phase::LockUnknown(_)))
            && view.retry_at.is_none_or(|at| at <= world.now)
            && also(known, *view)
    });
    let queue = queue.map(|(known, view)| (view.uuid, known)).collect();
    places::in_order(world, policy, queue)
}
