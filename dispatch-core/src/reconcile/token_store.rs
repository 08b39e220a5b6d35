//! The attempt tokens that the dispatcher knows, and the tasks that renew and revoke them.
//!
//! A token is in one of three places: with its attempt, among the orphans, or among the disabled
//! ones. After a restart, attempts are known before their tokens: by the job that names the holder
//! of the lock, or by the server's list of tokens, which has no secrets. Each such token is read by
//! its UUID.

use std::collections::{BTreeMap, BTreeSet};

use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::attempt_token::AttemptToken;
use crate::model::container_view::ContainerView;
use crate::model::job_presence::JobPresence;
use crate::model::task::{OrphanToken, Task};
use crate::model::world::{MonotonicTime, World};
use crate::plan::MAX_REQUEST_DELAY;
use crate::reconcile::Reconciler;
use crate::reconcile::unread_tokens::UnreadTokens;

/// Attempt tokens by container.
#[derive(Debug, Default)]
pub(crate) struct TokenStore {
    /// Tokens of the attempts in [`World::attempts`].
    attempts: BTreeMap<ContainerUuid, AttemptToken>,
    /// Tokens of this dispatcher that are not known to hold a lock, for the containers in
    /// [`World::orphan_since`]. A lock requested with one may still be granted. Then the token is
    /// an attempt again.
    orphans: BTreeMap<ContainerUuid, Vec<AttemptToken>>,
    /// Disabled orphaned tokens and the time of disabling. They do not block new attempts. A lock
    /// requested earlier with one may still be granted. Then the token is enabled again.
    disabled: BTreeMap<ContainerUuid, Vec<(AttemptToken, MonotonicTime)>>,
    /// Attempts of earlier runs that have a job directory, until their records are read.
    left_over: BTreeMap<ContainerUuid, TokenUuid>,
    /// Tokens of earlier runs to read by UUID.
    unread: UnreadTokens,
    /// While the server lists tokens: those that have ended since. The list may show them.
    ended: Option<BTreeSet<(ContainerUuid, TokenUuid)>>,
    /// Disabled tokens that were granted the lock all the same. They are enabled again to unlock.
    locked_late: BTreeSet<TokenUuid>,
}

impl TokenStore {
    /// The token of the container's attempt.
    pub(crate) fn of(&self, container: &ContainerUuid) -> Option<&AttemptToken> {
        self.attempts.get(container)
    }

    /// The token of the container's attempt, if the attempt is `attempt`.
    pub(crate) fn matching(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> Option<&AttemptToken> {
        self.of(container).filter(|token| token.uuid == *attempt)
    }

    /// Sets the token of the container's attempt. Returns the earlier one.
    pub(crate) fn insert(
        &mut self,
        container: ContainerUuid,
        token: AttemptToken,
    ) -> Option<AttemptToken> {
        self.attempts.insert(container, token)
    }

    /// Removes the token of the container's attempt.
    pub(crate) fn remove(&mut self, container: &ContainerUuid) -> Option<AttemptToken> {
        self.attempts.remove(container)
    }

    /// Whether the secret of this token of the container is known.
    fn has(&self, container: &ContainerUuid, token: &TokenUuid) -> bool {
        self.matching(container, token).is_some()
            || self.orphan(container, token).is_some()
            || self.is_disabled(container, token)
    }

    /// Whether the token of this attempt is not known yet, but may be soon.
    pub(crate) fn is_unread(&self, container: &ContainerUuid, attempt: &TokenUuid) -> bool {
        !self.has(container, attempt) && self.unread.is_awaited(container, attempt)
    }

    /// Whether the container has an orphaned or disabled token, or a directory of an earlier run.
    pub(crate) fn has_leftovers(&self, container: &ContainerUuid) -> bool {
        self.orphans.contains_key(container)
            || self.disabled.contains_key(container)
            || self.left_over.contains_key(container)
    }

    /// The containers for which [`Self::has_leftovers`] holds.
    pub(crate) fn containers_with_leftovers(&self) -> impl Iterator<Item = &ContainerUuid> {
        let tokens = self.orphans.keys().chain(self.disabled.keys());
        tokens.chain(self.left_over.keys())
    }

    /// Takes the attempt whose directory the container has from an earlier run.
    pub(crate) fn take_left_over(&mut self, container: &ContainerUuid) -> Option<TokenUuid> {
        self.left_over.remove(container)
    }

    /// The orphaned token of the container with this UUID.
    pub(crate) fn orphan(
        &self,
        container: &ContainerUuid,
        token: &TokenUuid,
    ) -> Option<&AttemptToken> {
        let orphans = self.orphans.get(container)?;
        orphans.iter().find(|known| known.uuid == *token)
    }

    /// Whether the container has this disabled token.
    pub(crate) fn is_disabled(&self, container: &ContainerUuid, token: &TokenUuid) -> bool {
        let mut disabled = self.disabled.get(container).into_iter().flatten();
        disabled.any(|(known, _)| known.uuid == *token)
    }

    /// Records that a disabled token of the container was granted the lock, if `token` is one.
    pub(crate) fn record_late_lock(&mut self, container: &ContainerUuid, token: &TokenUuid) {
        if self.is_disabled(container, token) {
            self.locked_late.insert(token.clone());
        }
    }

    /// Adds an orphaned token. False if it was known.
    fn add_orphan(&mut self, container: &ContainerUuid, token: AttemptToken) -> bool {
        let orphans = self.orphans.entry(container.clone()).or_default();
        let is_new = orphans.iter().all(|known| known.uuid != token.uuid);
        if is_new {
            orphans.push(token);
        }
        is_new
    }

    /// Removes an orphaned token. True if it was the last one of the container.
    fn remove_orphan(&mut self, container: &ContainerUuid, token: &TokenUuid) -> bool {
        let Some(orphans) = self.orphans.get_mut(container) else {
            return false;
        };
        orphans.retain(|known| known.uuid != *token);
        let was_last = orphans.is_empty();
        if was_last {
            self.orphans.remove(container);
        }
        was_last
    }

    /// Removes a token that was revoked or enabled again from the disabled ones.
    pub(crate) fn remove_disabled(&mut self, container: &ContainerUuid, token: &TokenUuid) {
        self.locked_late.remove(token);
        let Some(disabled) = self.disabled.get_mut(container) else {
            return;
        };
        disabled.retain(|(known, _)| known.uuid != *token);
        if disabled.is_empty() {
            self.disabled.remove(container);
        }
    }

    /// The orphaned token of this container to revoke next. `None` unless the record was read after
    /// the token became known, so that the record shows whether the token holds the lock.
    /// `poll_began` is the start of the last API poll.
    pub(crate) fn orphan_to_revoke(
        &self,
        world: &World,
        poll_began: MonotonicTime,
        container: &ContainerUuid,
    ) -> Option<OrphanToken> {
        let since = world.orphan_since.get(container)?;
        let (seen, may_lock) = match world.containers.get(container) {
            Some(known) => (known.seen, !known.state.is_final()),
            None if world.deleted.contains(container) => (poll_began, false),
            None => return None,
        };
        let token = self.orphans.get(container)?.first()?.clone();
        let presence = || ContainerView::of(world, container).job_presence();
        let removes_dir = !world.attempts.contains_key(container);
        // A job of the attempt may need the remaining files, or is being stopped.
        if removes_dir && presence() != JobPresence::Absent {
            return None;
        }
        (seen >= *since).then(|| OrphanToken {
            container: container.clone(),
            token,
            removes_dir,
            may_lock,
        })
    }

    /// The disabled tokens with which no lock can be granted any more, at most one of each
    /// container. A token that was granted the lock late comes first.
    fn disabled_to_revoke(&self, now: MonotonicTime) -> impl Iterator<Item = OrphanToken> {
        self.disabled.iter().filter_map(move |(container, tokens)| {
            let is_late = |(token, _): &&(AttemptToken, MonotonicTime)| {
                self.locked_late.contains(&token.uuid)
            };
            let late = tokens.iter().find(is_late);
            let (token, since) = late.or(tokens.first())?;
            let is_due = late.is_some() || now.since(*since) >= MAX_REQUEST_DELAY;
            is_due.then(|| OrphanToken {
                container: container.clone(),
                token: token.clone(),
                removes_dir: false,
                may_lock: late.is_some(),
            })
        })
    }
}

impl Reconciler {
    /// Records that the server begins to list tokens.
    pub fn token_list_begins(&mut self) {
        self.tokens.ended = Some(BTreeSet::new());
    }

    /// Adds attempts of an earlier run that the server's list of tokens shows. `is_complete`: the
    /// list has all of them.
    pub fn apply_token_list(&mut self, ours: Vec<(ContainerUuid, TokenUuid)>, is_complete: bool) {
        for (container, token) in ours {
            self.read_later(container, token);
        }
        self.tokens.ended = None;
        self.world.tokens_listed |= is_complete;
    }

    /// Adds attempts of earlier runs that have a job directory. The next poll reads the records of
    /// their containers.
    pub fn apply_left_over(&mut self, attempts: Vec<(ContainerUuid, TokenUuid)>) {
        let known = &self.world.attempts;
        let left_over = attempts
            .into_iter()
            .filter(|(container, _)| !known.contains_key(container));
        self.tokens.left_over.extend(left_over);
    }

    /// Notes whether a token of the container may still be read.
    fn note_unread(&mut self, container: &ContainerUuid) {
        let tokens = &self.tokens;
        let mut awaited = tokens.unread.expected_of(container);
        if awaited.any(|token| !tokens.has(container, token)) {
            self.world.unread_tokens.insert(container.clone());
        } else {
            self.world.unread_tokens.remove(container);
        }
    }

    /// Waits no longer for a token that has ended: nothing needs its secret.
    pub(super) fn forget_unread(&mut self, container: &ContainerUuid, token: &TokenUuid) {
        self.tokens.unread.found(container, token);
        if let Some(ended) = &mut self.tokens.ended {
            ended.insert((container.clone(), token.clone()));
        }
        self.note_unread(container);
    }

    /// Has the token of an attempt read by its UUID, unless it is known or has ended.
    pub(super) fn read_later(&mut self, container: ContainerUuid, token: TokenUuid) {
        let attempt = (container, token);
        let has_ended = |ended: &BTreeSet<_>| ended.contains(&attempt);
        if !self.tokens.has(&attempt.0, &attempt.1)
            && !self.tokens.ended.as_ref().is_some_and(has_ended)
        {
            let (container, token) = attempt;
            self.tokens.unread.add(container.clone(), token);
            self.note_unread(&container);
        }
    }

    /// At most `max` tokens to read now. A token of a container with a task under way may be the
    /// one that the task is minting.
    pub fn tokens_to_read(
        &mut self,
        now: MonotonicTime,
        max: usize,
    ) -> Vec<(ContainerUuid, TokenUuid)> {
        let attempts = &self.world.attempts;
        self.tokens.unread.retain_hidden(|container, token| {
            let attempt = attempts.get(container);
            attempt.is_some_and(|attempt| attempt.token == *token)
        });
        let in_flight = &self.world.in_flight;
        let is_idle = |container: &ContainerUuid| !in_flight.contains(container);
        self.tokens.unread.due(now, max, is_idle)
    }

    /// Records that the read of a token failed.
    pub fn token_read_failed(
        &mut self,
        now: MonotonicTime,
        container: &ContainerUuid,
        token: &TokenUuid,
    ) {
        self.tokens.unread.failed(container, token, now);
    }

    /// Applies the read of a token: the token, if it was found, and whether the server showed it to
    /// the dispatch token. True if an attempt has just turned out to have a token that the dispatch
    /// token cannot see.
    pub fn apply_read_token(
        &mut self,
        now: MonotonicTime,
        container: ContainerUuid,
        token: TokenUuid,
        read: Option<AttemptToken>,
        is_shown: bool,
    ) -> bool {
        if self.world.in_flight.contains(&container) {
            return false;
        }
        let attempt = self.world.attempts.get(&container);
        let is_current = attempt.is_some_and(|attempt| attempt.token == token);
        let is_known = self.tokens.has(&container, &token);
        match read {
            // The expiry time may be new.
            Some(read) if is_current && (is_shown || !is_known) => {
                self.tokens.insert(container.clone(), read);
            }
            // The next poll shows whether it holds the lock.
            Some(read) if !is_known => self.add_orphan(container.clone(), read, now),
            Some(_) | None => {}
        }
        let unread = &mut self.tokens.unread;
        let is_newly_hidden = if is_shown {
            unread.found(&container, &token);
            false
        } else {
            unread.missed(&container, &token, now, self.settings.refusal_window)
        };
        self.note_unread(&container);
        is_newly_hidden && is_current
    }

    /// Adds a token that is not known to hold a lock.
    pub(super) fn add_orphan(
        &mut self,
        container: ContainerUuid,
        token: AttemptToken,
        now: MonotonicTime,
    ) {
        if self.tokens.add_orphan(&container, token) {
            self.world.orphan_since.insert(container, now);
        }
    }

    /// Removes a token from the orphaned ones.
    pub(super) fn remove_orphan(&mut self, container: &ContainerUuid, token: &TokenUuid) {
        if self.tokens.remove_orphan(container, token) {
            self.world.orphan_since.remove(container);
        }
    }

    /// Moves an orphaned token to the disabled ones. The server rejects new requests with it.
    pub(super) fn add_disabled(
        &mut self,
        container: ContainerUuid,
        token: AttemptToken,
        now: MonotonicTime,
    ) {
        self.remove_orphan(&container, &token.uuid);
        self.tokens.remove_disabled(&container, &token.uuid);
        let disabled = self.tokens.disabled.entry(container).or_default();
        disabled.push((token, now));
    }

    /// Tasks that renew tokens and revoke orphaned ones, at most one of each container. After a
    /// token expired, no result could be recorded with it. `needs_renewal` says whether a token
    /// expires soon.
    pub(super) fn token_tasks(
        &self,
        now: MonotonicTime,
        needs_renewal: impl Fn(&AttemptToken) -> bool,
    ) -> Vec<Task> {
        let is_free = |container: &ContainerUuid| !self.is_busy(container, now);
        let renew = self.tokens.attempts.iter();
        let renew = renew
            .filter(|(container, token)| is_free(container) && needs_renewal(token))
            .map(|(container, token)| Task::Renew(container.clone(), token.clone()));
        let orphans = self.tokens.orphans.keys().filter_map(|container| {
            let tokens = &self.tokens;
            tokens.orphan_to_revoke(&self.world, self.poll.began, container)
        });
        let disabled = self.tokens.disabled_to_revoke(now);
        let revoke = orphans
            .chain(disabled)
            .filter(|orphan| is_free(&orphan.container));
        let mut seen = BTreeSet::new();
        renew
            .chain(revoke.map(Task::RevokeOrphan))
            .filter(|task| seen.insert(task.containers()[0].clone()))
            .collect()
    }
}
