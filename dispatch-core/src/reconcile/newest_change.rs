//! The newest change seen on the server. Input: the times of polls and of changes. Output: the time
//! from which the next poll lists changes.

use jiff::{SignedDuration, Timestamp};

use crate::model::world::MonotonicTime;

/// Maximum delay between a change's `modified_at` and its visibility. Transactions may commit out
/// of order.
const CHANGE_OVERLAP: SignedDuration = SignedDuration::from_secs(60);

/// The newest change seen on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewestChange {
    /// Time of the change by the server's clock.
    at: Timestamp,
    /// End of the first poll that saw the change. The server's clock had reached `at` by then.
    first: MonotonicTime,
    /// Start of the last complete poll.
    last: MonotonicTime,
}

impl NewestChange {
    /// Result of a complete poll from `began` to `ended` whose newest change was `change`.
    pub(crate) fn after(
        known: Option<Self>,
        change: Option<Timestamp>,
        began: MonotonicTime,
        ended: MonotonicTime,
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

    /// Time before which every change was visible to the last poll.
    pub(crate) fn all_seen_before(&self) -> Option<Timestamp> {
        let passed = SignedDuration::try_from(self.last.since(self.first)).ok()?;
        let unsure = CHANGE_OVERLAP
            .checked_sub(passed)?
            .max(SignedDuration::ZERO);
        self.at.checked_sub(unsure).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn changes_are_requested_again_until_none_of_their_time_can_be_late() {
        let second = |n: i64| Timestamp::from_second(1000 + n).unwrap();
        let began = |n: u64| MonotonicTime(Duration::from_secs(n));
        let mut newest = None;
        for (poll, change, expected) in [
            (0, None, None),
            (5, Some(second(0)), Some(second(-60))),
            (15, None, Some(second(-51))),
            (25, Some(second(-30)), Some(second(-41))),
            (66, None, Some(second(0))),
            (500, None, Some(second(0))),
            (510, Some(second(7)), Some(second(-53))),
        ] {
            newest = NewestChange::after(newest, change, began(poll), began(poll + 1));
            let since = newest.as_ref().and_then(NewestChange::all_seen_before);
            assert_eq!(since, expected, "after the poll at {poll} s");
        }
    }
}
