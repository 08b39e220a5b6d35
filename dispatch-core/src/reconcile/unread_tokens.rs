//! The attempts of earlier runs whose tokens are still to be read by UUID. Pure.
//!
//! Input: attempts, and the answers of the server. Output: which tokens to read now, and whether
//! one may still be found. The server may refuse a valid token for a while, so only a lasting
//! refusal means that the dispatch token cannot see the token. Even then it is read again from time
//! to time.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::world::MonotonicTime;

/// Interval between two reads of a token that was not found or whose read failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between two reads of a token that the dispatch token cannot see.
const HIDDEN_INTERVAL: Duration = Duration::from_secs(600);

/// Tokens to read, by container. In shared mode, one token is that of many containers.
#[derive(Debug, Default)]
pub(crate) struct UnreadTokens(BTreeMap<ContainerUuid, BTreeMap<TokenUuid, Unread>>);

#[derive(Debug, Default)]
struct Unread {
    /// When it may be read again.
    not_before: MonotonicTime,
    /// First read that did not find it, since it was last found.
    missed_since: Option<MonotonicTime>,
    /// Whether reads have missed it for so long that it counts as hidden.
    is_hidden: bool,
}

impl UnreadTokens {
    /// Has a token read.
    pub(crate) fn add(&mut self, container: ContainerUuid, token: TokenUuid) {
        let of_container = self.0.entry(container).or_default();
        of_container.entry(token).or_default();
    }

    /// Whether this token may be known soon.
    pub(crate) fn is_awaited(&self, container: &ContainerUuid, token: &TokenUuid) -> bool {
        self.expected_of(container).any(|known| known == token)
    }

    /// The tokens of this container that may be known soon.
    pub(crate) fn expected_of(
        &self,
        container: &ContainerUuid,
    ) -> impl Iterator<Item = &TokenUuid> {
        let unread = self.0.get(container).into_iter().flatten();
        let awaited = unread.filter(|(_, unread)| !unread.is_hidden);
        awaited.map(|(token, _)| token)
    }

    /// At most `max` tokens to read now, of containers that `may_read` accepts.
    pub(crate) fn due(
        &self,
        now: MonotonicTime,
        max: usize,
        may_read: impl Fn(&ContainerUuid) -> bool,
    ) -> Vec<(ContainerUuid, TokenUuid)> {
        let idle = self.0.iter().filter(|(container, _)| may_read(container));
        let due = idle.flat_map(|(container, unread)| {
            let due = unread.iter().filter(|(_, unread)| unread.not_before <= now);
            due.map(|(token, _)| (container.clone(), token.clone()))
        });
        due.take(max).collect()
    }

    /// Removes a token that was read, or revoked.
    pub(crate) fn found(&mut self, container: &ContainerUuid, token: &TokenUuid) {
        let Some(unread) = self.0.get_mut(container) else {
            return;
        };
        unread.remove(token);
        if unread.is_empty() {
            self.0.remove(container);
        }
    }

    /// Puts off a token whose read failed.
    pub(crate) fn failed(
        &mut self,
        container: &ContainerUuid,
        token: &TokenUuid,
        now: MonotonicTime,
    ) {
        if let Some(unread) = self.of_token(container, token) {
            unread.not_before = MonotonicTime(now.0 + RETRY_INTERVAL);
        }
    }

    /// Records that a read did not find a token. True if reads have missed it for `window` now: it
    /// counts as hidden from this read on.
    pub(crate) fn missed(
        &mut self,
        container: &ContainerUuid,
        token: &TokenUuid,
        now: MonotonicTime,
        window: Duration,
    ) -> bool {
        let Some(unread) = self.of_token(container, token) else {
            return false;
        };
        let was_hidden = unread.is_hidden;
        let since = *unread.missed_since.get_or_insert(now);
        unread.is_hidden = now.since(since) >= window;
        let interval = match unread.is_hidden {
            true => HIDDEN_INTERVAL,
            false => RETRY_INTERVAL,
        };
        unread.not_before = MonotonicTime(now.0 + interval);
        unread.is_hidden && !was_hidden
    }

    /// Forgets hidden tokens of containers that `is_attempt` does not accept.
    pub(crate) fn retain_hidden(
        &mut self,
        is_attempt: impl Fn(&ContainerUuid, &TokenUuid) -> bool,
    ) {
        self.0.retain(|container, of_container| {
            of_container.retain(|token, unread| !unread.is_hidden || is_attempt(container, token));
            !of_container.is_empty()
        });
    }

    fn of_token(&mut self, container: &ContainerUuid, token: &TokenUuid) -> Option<&mut Unread> {
        self.0.get_mut(container)?.get_mut(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_token_that_is_missed_for_long_is_hidden_and_it_is_read_again() {
        let at = |seconds| MonotonicTime(Duration::from_secs(seconds));
        let window = Duration::from_secs(60);
        let container = ContainerUuid::generate("zzzzz");
        let [token, other] = [(); 2].map(|()| TokenUuid::generate("zzzzz"));
        let mut unread = UnreadTokens::default();
        unread.add(container.clone(), token.clone());
        unread.add(container.clone(), token.clone());
        let due = |unread: &UnreadTokens, now| unread.due(now, 9, |_| true).len();
        let awaited = |unread: &UnreadTokens| unread.expected_of(&container).count();
        assert_eq!((due(&unread, at(0)), awaited(&unread)), (1, 1));
        assert_eq!(
            unread
                .expected_of(&ContainerUuid::generate("zzzzz"))
                .count(),
            0
        );
        assert!(unread.due(at(0), 9, |_| false).is_empty());
        assert!(!unread.missed(&container, &token, at(0), window));
        assert_eq!((due(&unread, at(9)), due(&unread, at(10))), (0, 1));
        unread.failed(&container, &token, at(50));
        assert_eq!((due(&unread, at(59)), due(&unread, at(60))), (0, 1));
        assert!(unread.is_awaited(&container, &token));
        assert!(unread.missed(&container, &token, at(60), window));
        assert!(!unread.is_awaited(&container, &token) && awaited(&unread) == 0);
        assert_eq!((due(&unread, at(659)), due(&unread, at(660))), (0, 1));
        assert!(
            !unread.missed(&container, &token, at(660), window),
            "told once"
        );
        unread.add(container.clone(), other.clone());
        unread.retain_hidden(|_, attempt| *attempt == other);
        assert_eq!(due(&unread, at(9999)), 1);
        unread.found(&container, &other);
        assert!(awaited(&unread) == 0 && due(&unread, at(9999)) == 0);
    }
}
