//! What is known of the job of a container: there, gone, or unknown. Unknown is never gone.

use arvados_client::ContainerUuid;

use crate::world::{Job, Listing, Moment, Phase, World};

/// What the scheduler's listings prove about a container's job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence<'a> {
    /// The newest listing shows it.
    There(&'a Job),
    /// Two complete listings, both begun after the last moment it could have been submitted, do not show it.
    Gone,
    /// Anything else.
    Unknown,
}

/// The presence of `uuid`'s job.
pub fn presence<'a>(world: &'a World, uuid: &ContainerUuid) -> Presence<'a> {
    let Some(newest) = &world.listing else {
        return Presence::Unknown;
    };
    if let Some(job) = newest.live(uuid).next() {
        return Presence::There(job);
    }
    let since = match world.attempts.get(uuid).map(|a| a.phase) {
        Some(Phase::Submitted(at) | Phase::Adopted(at) | Phase::Unclear(at)) => at,
        // Not submitted yet: no listing can speak of it.
        Some(Phase::Locked | Phase::Submitting) => return Presence::Unknown,
        Some(Phase::Ending) | None => Moment::default(),
    };
    let agrees = |listing: &Listing| listing.began > since && listing.live(uuid).next().is_none();
    match &world.previous {
        Some(previous) if agrees(previous) && agrees(newest) => Presence::Gone,
        _ => Presence::Unknown,
    }
}
