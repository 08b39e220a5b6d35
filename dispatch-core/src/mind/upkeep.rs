//! Tokens: those that are needed longer are renewed, those that are left over from earlier attempts are ended.

use std::collections::BTreeSet;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};

use super::Mind;
use crate::act::{Leavings, LeftOver, Task};
use crate::attempts::AttemptToken;
use crate::facts::{Facts, Presence};
use crate::world::Moment;

/// Time after which a request that the server took up before its token was disabled has come to its end.
const LATE_LOCK: Duration = Duration::from_secs(120);

impl Mind {
    /// A token that holds no lock as far as is known.
    pub(super) fn leave(&mut self, container: ContainerUuid, token: AttemptToken, now: Moment) {
        let tokens = self.left_over.entry(container.clone()).or_default();
        if tokens.iter().all(|known| known.uuid != token.uuid) {
            tokens.push(token);
            self.world.left_over.insert(container, now);
        }
    }

    /// This token is not left over any more.
    pub(super) fn clear_left_over(&mut self, container: &ContainerUuid, token: &TokenUuid) {
        let Some(tokens) = self.left_over.get_mut(container) else {
            return;
        };
        tokens.retain(|known| known.uuid != *token);
        if tokens.is_empty() {
            self.left_over.remove(container);
            self.world.left_over.remove(container);
        }
    }

    /// This left-over token is disabled: nothing can be asked with it any more.
    pub(super) fn keep_disabled(
        &mut self,
        container: ContainerUuid,
        token: AttemptToken,
        now: Moment,
    ) {
        self.clear_left_over(&container, &token.uuid);
        self.clear_disabled(&container, &token.uuid);
        self.disabled
            .entry(container)
            .or_default()
            .push((token, now));
    }

    /// This disabled token is ended, or enabled again.
    pub(super) fn clear_disabled(&mut self, container: &ContainerUuid, token: &TokenUuid) {
        self.granted_late.remove(token);
        let Some(tokens) = self.disabled.get_mut(container) else {
            return;
        };
        tokens.retain(|(known, _)| known.uuid != *token);
        if tokens.is_empty() {
            self.disabled.remove(container);
        }
    }

    /// Ends the disabled tokens with which no lock can be granted any more.
    fn end_disabled(&self, now: Moment) -> impl Iterator<Item = Task> {
        self.disabled.iter().filter_map(move |(container, tokens)| {
            let is_late =
                |(token, _): &&(AttemptToken, Moment)| self.granted_late.contains(&token.uuid);
            let late = tokens.iter().find(is_late);
            let (token, since) = late.or(tokens.first())?;
            let is_due = late.is_some() || now.since(*since) >= LATE_LOCK;
            (is_due && !self.is_busy(container, now)).then(|| {
                Task::Sweep(LeftOver {
                    container: container.clone(),
                    token: token.clone(),
                    leavings: Leavings::Keep,
                    may_lock: late.is_some(),
                })
            })
        })
    }

    /// Tokens to be renewed before they end, as afterwards nobody could record a result, and left-over ones to be
    /// ended.
    pub(super) fn upkeep(&self, now: Moment, due: impl Fn(&AttemptToken) -> bool) -> Vec<Task> {
        let renew = self
            .tokens
            .iter()
            .filter(|(container, token)| !self.is_busy(container, now) && due(token))
            .map(|(container, token)| Task::Renew(container.clone(), token.clone()));
        let sweep = self.left_over.keys().filter_map(|container| {
            let task = self.sweep(container)?;
            (!self.is_busy(container, now)).then_some(task)
        });
        let mut seen = BTreeSet::new();
        renew
            .chain(sweep)
            .chain(self.end_disabled(now))
            .filter(|task| seen.insert(task.containers()[0].clone()))
            .collect()
    }

    /// Ends a left-over token of this container, if a record that was read since it is known does not show that it
    /// holds the lock.
    pub(super) fn sweep(&self, container: &ContainerUuid) -> Option<Task> {
        let since = self.world.left_over.get(container)?;
        let (seen, may_lock) = match self.world.containers.get(container) {
            Some(known) => (known.seen, !known.state.is_final()),
            None if self.world.deleted.contains(container) => (self.looking, false),
            None => return None,
        };
        let token = self.left_over.get(container)?.first()?.clone();
        let leavings = match self.world.attempts.contains_key(container) {
            true => Leavings::Keep,
            // A job of it may need what is left, or is being stopped.
            false if Facts::of(&self.world, container).presence() != Presence::Gone => return None,
            false => Leavings::Remove,
        };
        let left_over = LeftOver {
            container: container.clone(),
            token,
            leavings,
            may_lock,
        };
        (seen >= *since).then_some(Task::Sweep(left_over))
    }
}
