//! What a look is to ask the API for, and what is made of what it saw.

use std::collections::{BTreeMap, BTreeSet};

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use jiff::{SignedDuration, Timestamp};

use super::Mind;
use crate::api::Record;
use crate::events::Event;
use crate::needs::Fit;
use crate::news::Named;
use crate::observe::{Interest, Look};
use crate::world::{Attempt, Holder, Known, Listing, Moment, Phase};

/// Every so many looks everything is asked for: not every change shows in `modified_at`.
const FULL: u64 = 20;
/// A change becomes visible so long after its `modified_at` at the latest: transactions end out of order.
const OVERLAP: SignedDuration = SignedDuration::from_secs(60);

/// The newest change seen at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Newest {
    /// By the server's clock.
    at: Timestamp,
    /// When the first look that saw it ended: the server's clock was at `at` or later.
    first: Moment,
    /// When the last complete look began.
    last: Moment,
}

impl Newest {
    /// After a complete look, from `began` to `ended`, that saw `change` as the newest.
    fn after(
        known: Option<Self>,
        change: Option<Timestamp>,
        began: Moment,
        ended: Moment,
    ) -> Option<Self> {
        match (known, change) {
            (Some(known), change) if change.is_none_or(|change| change <= known.at) => Some(Self {
                last: began,
                ..known
            }),
            (_, Some(at)) => Some(Self {
                at,
                first: ended,
                last: began,
            }),
            (known, None) => known,
        }
    }

    /// Every change before this was visible to the last look.
    fn all_seen_before(&self) -> Option<Timestamp> {
        let passed = SignedDuration::try_from(self.last.since(self.first)).ok()?;
        let unsure = OVERLAP.checked_sub(passed)?.max(SignedDuration::ZERO);
        self.at.checked_sub(unsure).ok()
    }
}

impl Mind {
    /// The look under way failed. What was heard is still to be seen; but a server that cannot tell everything may be
    /// able to tell what changed.
    pub fn look_failed(&mut self) {
        self.failed = !self.partial;
    }

    /// What the look that begins now should ask the API for, where these changed.
    pub fn interest(&mut self, now: Moment, named: Named) -> Interest {
        self.looking = now;
        self.locked = false;
        self.touched.clone_from(&self.world.in_flight);
        self.unseen.take_in(named);
        let everything = self.unseen.everything || self.looks.is_multiple_of(FULL);
        let followed = self.followed();
        self.partial = followed.len() > self.settings.asked_by_name
            && self.newest.is_some()
            && (!everything || self.failed);
        self.looks += 1;
        let since = self.newest.as_ref().filter(|_| self.partial);
        let asked = match self.partial {
            false => followed,
            true => followed
                .into_iter()
                .filter(|c| self.is_unseen(c) || self.is_doubtful(c))
                .collect(),
        };
        Interest {
            asked,
            since: since.and_then(Newest::all_seen_before),
            steps: self.steps,
        }
    }

    /// The containers whose record matters wherever they are.
    fn followed(&self) -> BTreeSet<ContainerUuid> {
        let jobs = self.world.listing.iter().flat_map(Listing::containers);
        let left_over = self.left_over.keys();
        let attempts = self.world.attempts.keys();
        attempts.chain(jobs).chain(left_over).cloned().collect()
    }

    /// Whether more is to be known of a container than that nothing was seen to change.
    fn is_doubtful(&self, container: &ContainerUuid) -> bool {
        let listing = self.world.listing.as_ref();
        let job = listing.is_some_and(|listing| listing.live(container).next().is_some());
        let known = self.world.containers.get(container);
        !(job && known.is_some_and(|k| matches!(k.holder, Holder::Ours(_))))
    }

    /// A complete look at the API; what it says of a container with an action since it began is older than what is
    /// known.
    pub fn looked(&mut self, now: Moment, look: Look) -> Vec<Event> {
        let newest = self.newest.take();
        self.newest = Newest::after(newest, look.newest_change(), self.looking, now);
        if look.missed_changes {
            self.looks = 0;
        }
        let touched = &self.touched;
        self.unseen.containers.retain(|uuid| touched.contains(uuid));
        self.unseen.everything &= self.partial;
        self.failed = false;
        self.more_queued = look.more_queued;
        let old = std::mem::take(&mut self.world.containers);
        let kept = |uuid: &ContainerUuid, known: &Known| {
            let unasked = self.partial
                && !look.deleted.contains(uuid)
                && matches!(known.holder, Holder::Ours(_));
            self.touched.contains(uuid) || unasked
        };
        let mut containers: BTreeMap<ContainerUuid, Known> = old
            .into_iter()
            .filter(|(uuid, known)| kept(uuid, known))
            .collect();
        for (uuid, record) in look.containers {
            let queued = record.state == ContainerState::Queued && record.priority > 0;
            let wanted = queued || self.is_followed(&uuid);
            if wanted && !self.touched.contains(&uuid) {
                self.promote(now, &record);
                containers.insert(uuid, self.known(record));
            }
        }
        self.world.containers = containers;
        self.see_nodes(now);
        self.world.deleted = look.deleted;
        self.world
            .deleted
            .retain(|uuid| !self.touched.contains(uuid));
        let readable = &self.world.containers;
        self.told
            .retain(|uuid, _| readable.contains_key(uuid) || look.unreadable.contains_key(uuid));
        let refused = look.unreadable.into_iter().filter_map(|(uuid, why)| {
            self.not_run(uuid, format!("its record cannot be read: {why}"))
        });
        refused.collect()
    }

    /// Where a container runs, others may.
    fn see_nodes(&mut self, now: Moment) {
        let running = |known: &Known| known.state == ContainerState::Running;
        for job in self.world.listing.iter().flat_map(Listing::jobs) {
            let known = self.world.containers.get(&job.container);
            if let (Some(node), Some(true)) = (&job.node, known.map(running)) {
                self.nodes.works(node, now);
            }
        }
        let (containers, waiting) = (&self.world.containers, &self.world.retry_at);
        self.unplaceable
            .retain(|uuid| containers.contains_key(uuid) || waiting.contains_key(uuid));
    }

    fn is_followed(&self, container: &ContainerUuid) -> bool {
        let listing = self.world.listing.as_ref();
        self.world.attempts.contains_key(container)
            || self.left_over.contains_key(container)
            || listing.is_some_and(|listing| listing.has(container))
    }

    /// A left-over token that holds its container's lock after all is that container's attempt.
    fn promote(&mut self, now: Moment, record: &Record) {
        let Some(tokens) = self.left_over.get_mut(&record.uuid) else {
            return;
        };
        let holder = record.locked_by.as_ref();
        let Some(at) = tokens.iter().position(|(t, _)| holder == Some(&t.uuid)) else {
            return;
        };
        let (token, _) = tokens.swap_remove(at);
        let attempt = Attempt {
            token: token.uuid.clone(),
            phase: Phase::Adopted(now),
        };
        self.world.attempts.insert(record.uuid.clone(), attempt);
        if let Some(other) = self.tokens.insert(record.uuid.clone(), token) {
            self.leave(record.uuid.clone(), other, now);
        }
    }

    fn known(&self, record: Record) -> Known {
        let attempt = self.world.attempts.get(&record.uuid);
        let holder = match &record.locked_by {
            None => Holder::Nobody,
            Some(token) if attempt.is_some_and(|a| a.token == *token) => {
                Holder::Ours(token.clone())
            }
            Some(_) => Holder::Other,
        };
        Known {
            state: record.state,
            priority: record.priority,
            etag: record.etag,
            holder,
            needs: record.needs.and_ram(self.settings.reserve_ram),
            fit: Fit::Later("not looked at yet".into()),
            seen: self.looking,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn changes_are_asked_for_again_until_none_of_their_time_can_be_late() {
        let second = |n: i64| Timestamp::from_second(1000 + n).unwrap();
        let began = |n: u64| Moment(Duration::from_secs(n));
        let mut newest = None;
        for (look, change, asked) in [
            (0, None, None),
            (5, Some(second(0)), Some(second(-60))),
            (15, None, Some(second(-51))),
            (25, Some(second(-30)), Some(second(-41))),
            (66, None, Some(second(0))),
            (500, None, Some(second(0))),
            (510, Some(second(7)), Some(second(-53))),
        ] {
            newest = Newest::after(newest, change, began(look), began(look + 1));
            let since = newest.as_ref().and_then(Newest::all_seen_before);
            assert_eq!(since, asked, "after the look at {look} s");
        }
    }
}
