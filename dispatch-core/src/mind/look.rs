//! What a look is to ask the API for, and what is made of what it saw.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use jiff::{SignedDuration, Timestamp};

use super::Mind;
use crate::api::Record;
use crate::attempts::AttemptToken;
use crate::events::Event;
use crate::needs::Fit;
use crate::news::Named;
use crate::observe::{BATCH, Interest, Look};
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
        self.failed = !self.partial && self.quick.is_none();
        self.queue_listed = None;
    }

    /// What the look that begins now should ask the API for, where these changed.
    pub fn interest(&mut self, now: Moment, named: Named) -> Interest {
        self.looking = now;
        self.touched.clone_from(&self.world.in_flight);
        self.unseen.take_in(named);
        if !self.lists_queue(now) {
            return self.quick_look();
        }
        self.quick = None;
        self.queue_listed = Some(now);
        self.locked = false;
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
                .filter(|c| {
                    self.is_unseen(c) || self.is_doubtful(c) || self.missing.contains_key(c)
                })
                .collect(),
        };
        Interest {
            asked,
            since: since.and_then(Newest::all_seen_before),
            steps: self.steps,
            needs: self.needs.clone(),
        }
    }

    /// Whether the look that begins now lists the queue: once a poll interval, sooner where something may have happened
    /// to it that was not heard, and where all that was seen of it is taken.
    fn lists_queue(&self, now: Moment) -> bool {
        // A little less, or a look that comes a moment early puts it off for a whole interval.
        let interval = self.settings.poll_interval.mul_f32(0.9);
        let is_due = |at: Moment| now.since(at) >= interval;
        self.queue_listed.is_none_or(is_due)
            || self.unseen.everything
            || self.unseen.containers.len() > BATCH
            || self.has_used_up_the_queue()
    }

    /// Asks only for what was heard of, and for containers of which more is to be known than that they run.
    fn quick_look(&mut self) -> Interest {
        let followed = self.followed().into_iter();
        let mut asked: BTreeSet<ContainerUuid> = followed
            .filter(|c| self.is_doubtful(c) || self.missing.contains_key(c))
            .collect();
        asked.extend(self.unseen.containers.iter().cloned());
        self.partial = false;
        self.quick = Some(asked.clone());
        Interest {
            asked,
            needs: self.needs.clone(),
            ..Interest::default()
        }
    }

    /// The containers whose record matters wherever they are.
    fn followed(&self) -> BTreeSet<ContainerUuid> {
        let jobs = self.world.listing.iter().flat_map(Listing::containers);
        let left_over = self.left_over.keys();
        let attempts = self.world.attempts.keys();
        let disabled = self.disabled.keys();
        let all = attempts.chain(jobs).chain(left_over).chain(disabled);
        all.cloned().collect()
    }

    /// Whether more is to be known of a container than that nothing was seen to change.
    fn is_doubtful(&self, container: &ContainerUuid) -> bool {
        let listing = self.world.listing.as_ref();
        let job = listing.is_some_and(|listing| listing.live(container).next().is_some());
        let known = self.world.containers.get(container);
        let runs = job && known.is_some_and(|k| matches!(k.holder, Holder::Ours(_)));
        // Its end is known and its token revoked; only the listing of jobs is older than both.
        let is_over = known.is_some_and(|k| k.state.is_final())
            && !self.world.attempts.contains_key(container);
        !runs && !is_over
    }

    /// A complete look at the API; what it says of a container with an action since it began is older than what is
    /// known.
    pub fn looked(&mut self, now: Moment, look: Look) -> Vec<Event> {
        let quick = self.quick.take();
        if quick.is_none() {
            let newest = self.newest.take();
            self.newest = Newest::after(newest, look.newest_change(), self.looking, now);
            self.more_queued = look.more_queued;
        }
        if look.missed_changes {
            self.looks = 0;
        }
        let touched = &self.touched;
        self.unseen.containers.retain(|uuid| touched.contains(uuid));
        self.unseen.everything &= self.partial;
        self.failed = false;
        let deleted = self.believe_missing(&look.missing);
        let old = std::mem::take(&mut self.world.containers);
        let kept = |uuid: &ContainerUuid, known: &Known| {
            let ours = matches!(known.holder, Holder::Ours(_));
            let unasked = match &quick {
                Some(asked) => ours || !asked.contains(uuid),
                None => ours && self.partial,
            };
            let is_kept = unasked || look.missing.contains(uuid);
            self.touched.contains(uuid) || (is_kept && !deleted.contains(uuid))
        };
        let mut containers: BTreeMap<ContainerUuid, Known> = old
            .into_iter()
            .filter(|(uuid, known)| kept(uuid, known))
            .collect();
        for (uuid, record) in look.containers {
            let queued = record.state == ContainerState::Queued && record.priority > 0;
            let wanted = queued || self.is_followed(&uuid);
            if let Some(needs) = &record.needs {
                let needs = (record.modified_at, needs.clone());
                Arc::make_mut(&mut self.needs).insert(uuid.clone(), needs);
            }
            if wanted && !self.touched.contains(&uuid) {
                self.promote(now, &record);
                containers.insert(uuid, self.known(record));
            }
        }
        self.world.containers = containers;
        if quick.is_none() {
            let (known, followed) = (&self.world.containers, self.followed());
            Arc::make_mut(&mut self.needs)
                .retain(|uuid, _| known.contains_key(uuid) || followed.contains(uuid));
        }
        self.see_nodes(now);
        self.world.deleted = deleted;
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

    /// Which containers count as deleted: those that every look of the last minute missed. A server may not find a record
    /// for a while, as after a restart of its database.
    fn believe_missing(&mut self, missing: &BTreeSet<ContainerUuid>) -> BTreeSet<ContainerUuid> {
        self.missing.retain(|uuid, _| missing.contains(uuid));
        for uuid in missing {
            self.missing.entry(uuid.clone()).or_insert(self.looking);
        }
        let is_over = |since: &Moment| self.looking.since(*since) >= self.settings.refusal_window;
        let deleted = self.missing.iter().filter(|(_, since)| is_over(since));
        deleted.map(|(uuid, _)| uuid.clone()).collect()
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
            || self.disabled.contains_key(container)
            || listing.is_some_and(|listing| listing.has(container))
    }

    /// A left-over token that holds its container's lock after all is that container's attempt.
    fn promote(&mut self, now: Moment, record: &Record) {
        let tokens = self.left_over.get(&record.uuid);
        let holder = record.locked_by.as_ref();
        let holds = |token: &&AttemptToken| holder == Some(&token.uuid);
        if let Some(token) = tokens.and_then(|tokens| tokens.iter().find(holds)) {
            self.adopt(&record.uuid, token.clone(), now);
            return;
        }
        let disabled = self.disabled.get(&record.uuid).into_iter().flatten();
        let late = disabled.map(|(token, _)| token).find(holds).cloned();
        if let Some(token) = late {
            self.granted_late.insert(token.uuid);
        }
    }

    /// This left-over token holds the lock of its container.
    pub(super) fn adopt(&mut self, container: &ContainerUuid, token: AttemptToken, now: Moment) {
        self.clear_left_over(container, &token.uuid);
        let attempt = Attempt {
            token: token.uuid.clone(),
            phase: Phase::Adopted(now),
        };
        self.world.attempts.insert(container.clone(), attempt);
        if let Some(other) = self.tokens.insert(container.clone(), token) {
            self.leave(container.clone(), other, now);
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
        let end = (record.tells_end && record.state.is_final()).then(|| record.end());
        let needs = self.needs.get(&record.uuid).map(|(_, needs)| needs.clone());
        let needs = needs.unwrap_or_default();
        Known {
            state: record.state,
            priority: record.priority,
            etag: record.etag,
            holder,
            needs: needs.and_ram(self.settings.reserve_ram),
            end,
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
