//! Chooses the request of the next API poll ([`SnapshotRequest`]) and applies the answer
//! ([`ApiSnapshot`]) to the reconciler's state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::ContainerSnapshot;
use crate::model::decision::Decision;
use crate::model::resources::{Admission, ResourceRequest};
use crate::model::snapshot::{
    ApiSnapshot, Known, MAX_NAMED_PER_QUERY, PendingChanges, SnapshotRequest,
};
use crate::model::world::{
    Attempt, JobListing, LockHolder, MonotonicTime, ObservedContainer, Phase,
};
use crate::plan::start_order;
use crate::reconcile::Reconciler;
use crate::reconcile::newest_change::NewestChange;

/// Number of queue listings after which everything is requested, because not every change updates
/// `modified_at`.
const FULL_SNAPSHOT_PERIOD: u64 = 20;
/// Number of further pages in a poll interval while nothing known can ever run here.
const SWEEPS_PER_POLL_INTERVAL: u32 = 4;

impl Reconciler {
    /// Records that the poll under way failed. Changes reported by events stay pending. If a full
    /// poll failed, the next one asks only for changes, which the server may still be able to
    /// answer.
    pub fn snapshot_failed(&mut self) {
        self.poll.full_poll_failed = !self.poll.is_partial && self.poll.only_named.is_none();
        self.poll.queue.listed_at = None;
    }

    /// Builds the request of the poll that begins now. `named` are the changes reported since the
    /// last.
    pub fn next_request(&mut self, now: MonotonicTime, named: PendingChanges) -> SnapshotRequest {
        self.poll.began = now;
        self.poll.acted_since.clone_from(&self.world.in_flight);
        self.poll.pending_changes.merge(named);
        if !self.should_list_queue(now) {
            return self.request_named();
        }
        self.poll.only_named = None;
        self.poll.queue.listed_at = Some(now);
        self.poll.queue.locked_since_listing = false;
        let everything = self.poll.pending_changes.everything
            || self.poll.count.is_multiple_of(FULL_SNAPSHOT_PERIOD);
        let followed = self.followed_containers();
        self.poll.is_partial = followed.len() > self.settings.asked_by_name
            && self.poll.newest_change.is_some()
            && (!everything || self.poll.full_poll_failed);
        self.poll.count += 1;
        let since = self
            .poll
            .newest_change
            .as_ref()
            .filter(|_| self.poll.is_partial);
        let mut named: BTreeSet<ContainerUuid> = match self.poll.is_partial {
            false => followed,
            true => followed
                .into_iter()
                .filter(|c| {
                    self.has_pending_change(c)
                        || self.needs_record(c)
                        || self.poll.missing.contains_key(c)
                })
                .collect(),
        };
        // What can run here is kept, wherever in the queue it is.
        if self.poll.queue.sweep.is_under_way() {
            let (world, policy) = (&self.world, self.policy());
            let waiting = start_order::waiting_in_order(world, &policy).cloned();
            named.extend(waiting.take(MAX_NAMED_PER_QUERY));
        }
        SnapshotRequest {
            named,
            since: since.and_then(NewestChange::all_seen_before),
            queue: self.poll.queue.sweep.read(),
            needs: self.poll.known_needs.clone(),
        }
    }

    /// Whether the poll that begins now lists the queue. It does so:
    ///
    /// - once every poll interval;
    /// - when changes may have been missed, or too many containers changed to ask for by name;
    /// - when every container of the known pages is taken and the queue has more;
    /// - sooner, while nothing at the head of the queue can ever run here.
    fn should_list_queue(&self, now: MonotonicTime) -> bool {
        // Slightly less than the interval, so that a poll that is a moment early is not put off by
        // a whole interval.
        let interval = self.settings.poll_interval.mul_f32(0.9);
        let is_due = |at: MonotonicTime| now.since(at) >= interval;
        self.poll.queue.listed_at.is_none_or(is_due)
            || self.poll.pending_changes.everything
            || self.poll.pending_changes.containers.len() > MAX_NAMED_PER_QUERY
            || self.needs_next_page(now)
            || self.is_sweep_due(now)
    }

    /// Whether it is time for one more page behind a head of the queue that can never run here.
    pub(crate) fn is_sweep_due(&self, now: MonotonicTime) -> bool {
        self.poll.queue.sweep.is_urgent() && self.may_sweep(now)
    }

    /// Whether the last such page was read long enough ago.
    pub(crate) fn may_sweep(&self, now: MonotonicTime) -> bool {
        let interval = self.settings.poll_interval / SWEEPS_PER_POLL_INTERVAL;
        let is_past = |at| now.since(at) >= interval;
        self.poll.queue.listed_at.is_none_or(is_past)
    }

    /// Requests only containers that events named, and those that need a record.
    fn request_named(&mut self) -> SnapshotRequest {
        let followed = self.followed_containers().into_iter();
        let mut named: BTreeSet<ContainerUuid> = followed
            .filter(|c| self.needs_record(c) || self.poll.missing.contains_key(c))
            .collect();
        named.extend(self.poll.pending_changes.containers.iter().cloned());
        self.poll.is_partial = false;
        self.poll.only_named = Some(named.clone());
        SnapshotRequest {
            named,
            needs: self.poll.known_needs.clone(),
            ..SnapshotRequest::default()
        }
    }

    /// The containers with an attempt, a job or a token of this dispatcher. Their records are
    /// needed in every state.
    fn followed_containers(&self) -> BTreeSet<ContainerUuid> {
        let jobs = self.world.listing.iter().flat_map(JobListing::containers);
        let attempts = self.world.attempts.keys();
        let tokens = self.tokens.containers_with_leftovers();
        attempts.chain(jobs).chain(tokens).cloned().collect()
    }

    /// Whether the container's record must be read even if no change was reported.
    fn needs_record(&self, container: &ContainerUuid) -> bool {
        let listing = self.world.listing.as_ref();
        let job = listing.is_some_and(|listing| listing.live(container).next().is_some());
        let known = self.world.containers.get(container);
        let runs = job && known.is_some_and(|k| matches!(k.holder, LockHolder::Ours(_)));
        // The end of the container is known and its token is revoked. The job listing is older.
        let is_over = known.is_some_and(|k| k.state.is_final())
            && !self.world.attempts.contains_key(container);
        !runs && !is_over
    }

    /// Applies a complete snapshot. The snapshot is ignored for containers with an action since the
    /// poll began, because the known state of those is newer.
    pub fn apply_snapshot(&mut self, now: MonotonicTime, snapshot: ApiSnapshot) -> Vec<Decision> {
        let named = self.poll.only_named.take();
        if named.is_none() {
            let newest = self.poll.newest_change.take();
            self.poll.newest_change =
                NewestChange::after(newest, snapshot.newest_change(), self.poll.began, now);
            self.poll.queue.has_more = snapshot.more_queued;
            self.poll.queue.read_to = Some(snapshot.next_page);
        }
        if snapshot.missed_changes {
            self.poll.count = 0;
        }
        let touched = &self.poll.acted_since;
        self.poll
            .pending_changes
            .containers
            .retain(|uuid| touched.contains(uuid));
        self.poll.pending_changes.everything &= self.poll.is_partial;
        self.poll.full_poll_failed = false;
        let deleted = self.confirm_deleted(&snapshot.missing);
        let old = std::mem::take(&mut self.world.containers);
        let kept = |uuid: &ContainerUuid, known: &ObservedContainer| {
            let ours = matches!(known.holder, LockHolder::Ours(_));
            let is_unrequested = match &named {
                Some(requested) => ours || !requested.contains(uuid),
                None => ours && self.poll.is_partial,
            };
            let is_kept = is_unrequested || snapshot.missing.contains(uuid);
            self.poll.acted_since.contains(uuid) || (is_kept && !deleted.contains(uuid))
        };
        // It takes no place from others until the scheduler is asked again.
        let never_fits = |(uuid, known): (&ContainerUuid, &ObservedContainer)| {
            known.fit.never()?;
            Some((uuid.clone(), known.fit.clone()))
        };
        let mut never: BTreeMap<ContainerUuid, Admission> =
            old.iter().filter_map(never_fits).collect();
        let mut containers: BTreeMap<ContainerUuid, ObservedContainer> = old
            .into_iter()
            .filter(|(uuid, known)| kept(uuid, known))
            .collect();
        for (uuid, record) in snapshot.containers {
            let queued = record.state == ContainerState::Queued && record.priority > 0;
            let is_relevant = queued || self.is_followed(&uuid);
            if let Some(needs) = &record.needs {
                let known = Known {
                    modified_at: record.modified_at,
                    needs: ResourceRequest {
                        charged_to: snapshot.charges.get(&uuid).cloned(),
                        ..needs.clone()
                    },
                    owner: snapshot.owners.get(&uuid).cloned().flatten(),
                    requested_by: snapshot.requested_by.get(&uuid).cloned(),
                };
                Arc::make_mut(&mut self.poll.known_needs).insert(uuid.clone(), known);
            }
            if is_relevant && !self.poll.acted_since.contains(&uuid) {
                self.adopt_lock_holder(now, &record);
                let mut known = self.observed(record);
                known.fit = never.remove(&uuid).unwrap_or(known.fit);
                containers.insert(uuid, known);
            }
        }
        self.world.containers = containers;
        if named.is_none() {
            let (known, followed) = (&self.world.containers, self.followed_containers());
            Arc::make_mut(&mut self.poll.known_needs)
                .retain(|uuid, _| known.contains_key(uuid) || followed.contains(uuid));
        }
        self.record_healthy_nodes(now);
        self.remember_jobs();
        for container in &deleted {
            self.tokens.take_left_over(container);
        }
        self.world.deleted = deleted;
        self.world
            .deleted
            .retain(|uuid| !self.poll.acted_since.contains(uuid));
        let readable = &self.world.containers;
        let is_partly_read = self.poll.queue.sweep.is_under_way();
        self.reports.retain(is_partly_read, |uuid| {
            readable.contains_key(uuid) || snapshot.malformed.contains_key(uuid)
        });
        let refused = snapshot.malformed.into_iter().filter_map(|(uuid, why)| {
            self.reports
                .record_not_run(uuid, format!("cannot parse its record: {why}"))
        });
        refused.collect()
    }

    /// The containers that count as deleted: every poll within the refusal window missed them. A
    /// server may not find a record for a while, as after a restart of its database.
    fn confirm_deleted(&mut self, missing: &BTreeSet<ContainerUuid>) -> BTreeSet<ContainerUuid> {
        self.poll.missing.retain(|uuid, _| missing.contains(uuid));
        for uuid in missing {
            self.poll
                .missing
                .entry(uuid.clone())
                .or_insert(self.poll.began);
        }
        let is_over =
            |since: &MonotonicTime| self.poll.began.since(*since) >= self.settings.refusal_window;
        let deleted = self.poll.missing.iter().filter(|(_, since)| is_over(since));
        deleted.map(|(uuid, _)| uuid.clone()).collect()
    }

    /// Remembers the job of each attempt, and its node.
    fn remember_jobs(&mut self) {
        let attempts = &self.world.attempts;
        self.last_jobs.retain(|uuid, _| attempts.contains_key(uuid));
        for job in self.world.listing.iter().flat_map(JobListing::jobs) {
            let is_news = match self.last_jobs.get(&job.container) {
                None => true,
                Some(known) if known.id == job.id => known.node.is_none() && job.node.is_some(),
                Some(_) => !job.ended,
            };
            if is_news && attempts.contains_key(&job.container) {
                self.last_jobs.insert(job.container.clone(), job.clone());
            }
        }
    }

    /// Marks the nodes of running containers as healthy.
    fn record_healthy_nodes(&mut self, now: MonotonicTime) {
        let running = |known: &ObservedContainer| known.state == ContainerState::Running;
        for job in self.world.listing.iter().flat_map(JobListing::jobs) {
            let known = self.world.containers.get(&job.container);
            if let (Some(node), Some(true)) = (&job.node, known.map(running)) {
                self.submits.node_health.mark_healthy(node, now);
            }
        }
        let (containers, waiting) = (&self.world.containers, &self.world.retry_at);
        self.submits
            .ignores_exclusions
            .retain(|uuid| containers.contains_key(uuid) || waiting.contains_key(uuid));
    }

    fn is_followed(&self, container: &ContainerUuid) -> bool {
        let listing = self.world.listing.as_ref();
        self.world.attempts.contains_key(container)
            || self.tokens.has_leftovers(container)
            || listing.is_some_and(|listing| listing.has(container))
    }

    /// Makes the holder of the lock the container's attempt again, if it is one of this dispatcher:
    /// an orphaned token, or the attempt that a job or a job directory of this dispatcher names.
    /// The token of the latter need not be known.
    fn adopt_lock_holder(&mut self, now: MonotonicTime, record: &ContainerSnapshot) {
        let container = &record.uuid;
        let left_over = self.tokens.take_left_over(container);
        let Some(holder) = &record.locked_by else {
            return;
        };
        let attempt = self.world.attempts.get(container);
        let is_attempt = attempt.is_some_and(|attempt| attempt.token == *holder);
        let is_of_job = {
            let listings = [&self.world.listing, &self.world.previous];
            let mut jobs = listings
                .into_iter()
                .flatten()
                .flat_map(|one| one.of(container));
            jobs.any(|job| job.attempt.as_ref() == Some(holder))
        };
        match self.tokens.orphan(container, holder).cloned() {
            Some(token) => self.adopt_token(container, token, now),
            None if self.tokens.is_disabled(container, holder) => {
                self.tokens.record_late_lock(container, holder);
            }
            None if (is_of_job || left_over.as_ref() == Some(holder)) && !is_attempt => {
                let known = self.tokens.remove(container);
                self.adopt_attempt(container, holder.clone(), known, now);
                self.read_later(container.clone(), holder.clone());
            }
            None => {}
        }
    }

    /// Makes the orphaned `token`, which holds the lock, the attempt of the container.
    pub(crate) fn adopt_token(
        &mut self,
        container: &ContainerUuid,
        token: AttemptToken,
        now: MonotonicTime,
    ) {
        self.remove_orphan(container, &token.uuid);
        let attempt = token.uuid.clone();
        let other = self.tokens.insert(container.clone(), token);
        self.adopt_attempt(container, attempt, other, now);
    }

    /// Makes `attempt` that of the container. `other` is the token of its attempt until now.
    fn adopt_attempt(
        &mut self,
        container: &ContainerUuid,
        attempt: TokenUuid,
        other: Option<AttemptToken>,
        now: MonotonicTime,
    ) {
        let attempt = Attempt {
            token: attempt,
            phase: Phase::Adopted(now),
        };
        self.world.attempts.insert(container.clone(), attempt);
        if let Some(other) = other {
            self.add_orphan(container.clone(), other, now);
        }
    }

    fn observed(&self, record: ContainerSnapshot) -> ObservedContainer {
        let attempt = self.world.attempts.get(&record.uuid);
        let holder = match &record.locked_by {
            None => LockHolder::Nobody,
            Some(token) if attempt.is_some_and(|a| a.token == *token) => {
                LockHolder::Ours(token.clone())
            }
            Some(_) => LockHolder::Other,
        };
        let end = (record.has_end && record.state.is_final()).then(|| record.end());
        let known = self.poll.known_needs.get(&record.uuid);
        let owner = known.and_then(|known| known.owner.clone());
        let requested_by = known.and_then(|known| known.requested_by.clone());
        let needs = known.map(|known| known.needs.clone()).unwrap_or_default();
        ObservedContainer {
            state: record.state,
            priority: record.priority,
            etag: record.etag,
            holder,
            needs: needs.with_reserved_ram(self.settings.reserve_ram),
            end,
            owner,
            requested_by,
            created_at: record.created_at,
            locks: record.locks,
            fit: Admission::Later("the scheduler has not decided on its admission yet".into()),
            seen: self.poll.began,
        }
    }
}
