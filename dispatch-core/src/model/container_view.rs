//! A joined view of one container: attempt, jobs, orphaned token, retry time and pending reason.
//!
//! Input: the maps of [`World`]. Output: one [`ContainerView`] for each container, read by the
//! plan.
//!
//! All maps are sorted by container uuid. [`ContainerView::all`] walks them side by side with one
//! step for each container, instead of searching five trees.

use std::iter::Peekable;

use arvados_client::ContainerUuid;

use crate::model::world::{
    Attempt, Job, JobListing, MonotonicTime, ObservedContainer, PendingSince, World,
};

/// The state of one container, without its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerView<'a> {
    /// Uuid of the container.
    pub uuid: &'a ContainerUuid,
    /// This dispatcher's attempt at the container, if there is one.
    pub attempt: Option<&'a Attempt>,
    /// Time at which an orphaned token of an earlier attempt became known. The server may still
    /// accept that token.
    pub orphan_since: Option<MonotonicTime>,
    /// An action for the container is under way.
    pub in_flight: bool,
    /// The container must not be locked before this time.
    pub retry_at: Option<MonotonicTime>,
    /// The reason for which the container's job is pending.
    pub pending: Option<&'a PendingSince>,
    /// Start of the newest complete listing and the container's jobs in it, ended ones included.
    pub(super) newest: Option<(MonotonicTime, &'a [Job])>,
    /// The same for the complete listing before the newest.
    pub(super) previous: Option<(MonotonicTime, &'a [Job])>,
}

impl<'a> ContainerView<'a> {
    /// Joins the data of one container by searching each map.
    pub fn of(world: &'a World, uuid: &'a ContainerUuid) -> Self {
        let jobs = |listing: &'a Option<JobListing>| {
            let listing = listing.as_ref()?;
            Some((listing.began, listing.of(uuid)))
        };
        Self {
            uuid,
            attempt: world.attempts.get(uuid),
            orphan_since: world.orphan_since.get(uuid).copied(),
            in_flight: world.in_flight.contains(uuid),
            retry_at: world.retry_at.get(uuid).copied(),
            pending: world.pending.get(uuid),
            newest: jobs(&world.listing),
            previous: jobs(&world.previous),
        }
    }

    /// Joins the data of every container with a known record, in the order of their uuids. Each
    /// item includes the record.
    pub fn all(
        world: &'a World,
    ) -> impl Iterator<Item = (&'a ObservedContainer, ContainerView<'a>)> {
        let mut attempts = SortedCursor::new(world.attempts.iter());
        let mut orphans = SortedCursor::new(world.orphan_since.iter());
        let mut in_flight = SortedCursor::new(world.in_flight.iter().map(|uuid| (uuid, ())));
        let mut retry_at = SortedCursor::new(world.retry_at.iter());
        let mut pending = SortedCursor::new(world.pending.iter());
        let with_cursor =
            |listing: &'a JobListing| (listing.began, SortedCursor::new(listing.by_container()));
        let mut newest = world.listing.as_ref().map(with_cursor);
        let mut previous = world.previous.as_ref().map(with_cursor);
        world.containers.iter().map(move |(uuid, known)| {
            let view = ContainerView {
                uuid,
                attempt: attempts.at(uuid),
                orphan_since: orphans.at(uuid).copied(),
                in_flight: in_flight.at(uuid).is_some(),
                retry_at: retry_at.at(uuid).copied(),
                pending: pending.at(uuid),
                newest: newest
                    .as_mut()
                    .map(|(began, jobs)| (*began, jobs.at(uuid).unwrap_or_default())),
                previous: previous
                    .as_mut()
                    .map(|(began, jobs)| (*began, jobs.at(uuid).unwrap_or_default())),
            };
            (known, view)
        })
    }

    /// The container's jobs in the newest listing that have not ended.
    pub fn live(&self) -> impl Iterator<Item = &'a Job> + use<'a> {
        live(self.newest.map_or(&[], |(_, jobs)| jobs))
    }

    /// Start of the newest listing.
    pub fn listed(&self) -> Option<MonotonicTime> {
        self.newest.map(|(began, _)| began)
    }
}

/// Those of the jobs that have not ended.
pub(super) fn live(jobs: &[Job]) -> impl Iterator<Item = &Job> {
    jobs.iter().filter(|job| !job.ended)
}

/// A cursor over a sorted map that is read beside another map with the same keys (merge join).
struct SortedCursor<'a, V, I: Iterator<Item = (&'a ContainerUuid, V)>>(Peekable<I>);

impl<'a, V, I: Iterator<Item = (&'a ContainerUuid, V)>> SortedCursor<'a, V, I> {
    fn new(entries: I) -> Self {
        Self(entries.peekable())
    }

    /// The value of `key`, if the map has one. Successive calls must pass ascending keys.
    fn at(&mut self, key: &ContainerUuid) -> Option<V> {
        while let Some((next, value)) = self.0.next_if(|(next, _)| *next <= key) {
            if next == key {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::any_world;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_and_of_return_the_same(world in any_world()) {
            let walked: Vec<_> = ContainerView::all(&world).collect();
            prop_assert_eq!(walked.len(), world.containers.len());
            for (known, view) in walked {
                prop_assert_eq!(&world.containers[view.uuid], known);
                prop_assert_eq!(view, ContainerView::of(&world, view.uuid));
            }
        }
    }
}
