//! What is known of one container, brought together from the maps of the world.
//!
//! A plan asks this of every container. The maps are sorted by the same key, so walking them side by side gives it
//! with one step each, where look-ups would search five trees for every container.

use std::iter::Peekable;

use arvados_client::ContainerUuid;

use crate::world::{Attempt, Job, Known, Listing, Moment, Phase, Waits, World};

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

/// What is known of one container, but for its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The container.
    pub uuid: &'a ContainerUuid,
    /// Our attempt at it, if there is one.
    pub attempt: Option<&'a Attempt>,
    /// A token of an earlier attempt may still be accepted: known since this moment.
    pub left_over: Option<Moment>,
    /// An action is under way.
    pub in_flight: bool,
    /// Not to be locked before this moment.
    pub retry_at: Option<Moment>,
    /// What its job waits for.
    pub waits: Option<&'a Waits>,
    /// Its jobs, ended ones too, and when they were asked for.
    newest: Option<(Moment, &'a [Job])>,
    /// The same of the complete listing before that.
    previous: Option<(Moment, &'a [Job])>,
}

impl<'a> Facts<'a> {
    /// Of one container, by look-ups.
    pub fn of(world: &'a World, uuid: &'a ContainerUuid) -> Self {
        let jobs = |listing: &'a Option<Listing>| {
            let listing = listing.as_ref()?;
            Some((listing.began, listing.of(uuid)))
        };
        Self {
            uuid,
            attempt: world.attempts.get(uuid),
            left_over: world.left_over.get(uuid).copied(),
            in_flight: world.in_flight.contains(uuid),
            retry_at: world.retry_at.get(uuid).copied(),
            waits: world.waiting.get(uuid),
            newest: jobs(&world.listing),
            previous: jobs(&world.previous),
        }
    }

    /// Of every container whose record is known, with the record, in the order of their uuids.
    pub fn of_all(world: &'a World) -> impl Iterator<Item = (&'a Known, Facts<'a>)> {
        let mut attempts = Beside::new(world.attempts.iter());
        let mut left_over = Beside::new(world.left_over.iter());
        let mut in_flight = Beside::new(world.in_flight.iter().map(|uuid| (uuid, ())));
        let mut retry_at = Beside::new(world.retry_at.iter());
        let mut waits = Beside::new(world.waiting.iter());
        let beside = |listing: &'a Listing| (listing.began, Beside::new(listing.by_container()));
        let mut newest = world.listing.as_ref().map(beside);
        let mut previous = world.previous.as_ref().map(beside);
        world.containers.iter().map(move |(uuid, known)| {
            let facts = Facts {
                uuid,
                attempt: attempts.at(uuid),
                left_over: left_over.at(uuid).copied(),
                in_flight: in_flight.at(uuid).is_some(),
                retry_at: retry_at.at(uuid).copied(),
                waits: waits.at(uuid),
                newest: newest
                    .as_mut()
                    .map(|(began, jobs)| (*began, jobs.at(uuid).unwrap_or_default())),
                previous: previous
                    .as_mut()
                    .map(|(began, jobs)| (*began, jobs.at(uuid).unwrap_or_default())),
            };
            (known, facts)
        })
    }

    /// Its jobs that have not ended, by the newest listing.
    pub fn live(&self) -> impl Iterator<Item = &'a Job> + use<'a> {
        live(self.newest.map_or(&[], |(_, jobs)| jobs))
    }

    /// When the newest listing was asked for.
    pub fn listed(&self) -> Option<Moment> {
        self.newest.map(|(began, _)| began)
    }

    /// What the listings prove about its job. Unknown is never gone.
    pub fn presence(&self) -> Presence<'a> {
        let (Some(newest), previous) = (self.newest, self.previous) else {
            return Presence::Unknown;
        };
        if let Some(job) = live(newest.1).next() {
            return Presence::There(job);
        }
        let since = match self.attempt.map(|attempt| attempt.phase) {
            Some(Phase::Submitted(at) | Phase::Adopted(at) | Phase::Unclear(at)) => at,
            // Not submitted yet: no listing can speak of it.
            Some(Phase::Locked | Phase::Submitting) => return Presence::Unknown,
            Some(Phase::Ending | Phase::Undelivered(_)) | None => Moment::default(),
        };
        let agrees =
            |(began, jobs): (Moment, &'a [Job])| began > since && live(jobs).next().is_none();
        match previous {
            Some(previous) if agrees(previous) && agrees(newest) => Presence::Gone,
            _ => Presence::Unknown,
        }
    }
}

fn live(jobs: &[Job]) -> impl Iterator<Item = &Job> {
    jobs.iter().filter(|job| !job.ended)
}

/// A sorted map, read beside another one with the same kind of key.
struct Beside<'a, V, I: Iterator<Item = (&'a ContainerUuid, V)>>(Peekable<I>);

impl<'a, V, I: Iterator<Item = (&'a ContainerUuid, V)>> Beside<'a, V, I> {
    fn new(entries: I) -> Self {
        Self(entries.peekable())
    }

    /// The value of this key, if it has one. The keys asked for must ascend.
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
        fn walking_tells_what_look_ups_tell(world in any_world()) {
            let walked: Vec<_> = Facts::of_all(&world).collect();
            prop_assert_eq!(walked.len(), world.containers.len());
            for (known, facts) in walked {
                prop_assert_eq!(&world.containers[facts.uuid], known);
                prop_assert_eq!(facts, Facts::of(&world, facts.uuid));
            }
        }
    }
}
