//! When a container that failed may be tried again, and when to stop trying anything.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::world::Moment;

/// The waits after failures of one container double up to this.
const LAST: Duration = Duration::from_secs(600);
/// So many submissions in a row that came to nothing open the breaker, for this long; each time in a row for twice as
/// long, up to [`LAST`].
const BREAKER: u32 = 5;
const OPEN: Duration = Duration::from_secs(30);

/// Failures, counted.
#[derive(Debug)]
pub struct Backoff {
    /// The first wait of a container.
    first: Duration,
    failures: BTreeMap<ContainerUuid, (u32, Moment)>,
    in_a_row: u32,
    openings: u32,
    open_until: Moment,
}

impl Backoff {
    /// Nothing has failed yet; a container that fails waits for `first`, then for twice as long, and so on.
    pub fn new(first: Duration) -> Self {
        Self {
            first,
            failures: BTreeMap::new(),
            in_a_row: 0,
            openings: 0,
            open_until: Moment::default(),
        }
    }

    /// A container failed before it ran.
    pub fn failed(&mut self, container: &ContainerUuid, now: Moment) -> Moment {
        let entry = self.failures.entry(container.clone()).or_insert((0, now));
        let wait = (self.first).saturating_mul(1 << entry.0.min(16));
        let wait = wait.min(LAST.max(self.first));
        *entry = (entry.0 + 1, Moment(now.0 + wait));
        entry.1
    }

    /// A submission came to nothing. True if that opens the breaker.
    pub fn refused(&mut self, now: Moment) -> bool {
        // It was submitted before the breaker opened, perhaps together with those that opened it.
        if !self.is_closed(now) {
            return false;
        }
        self.in_a_row += 1;
        let opens = self.in_a_row >= BREAKER;
        if opens {
            self.in_a_row = 0;
            let wait = OPEN.saturating_mul(1 << self.openings.min(16)).min(LAST);
            self.openings += 1;
            self.open_until = Moment(now.0 + wait);
        }
        opens
    }

    /// A submission became a job.
    pub fn accepted(&mut self) {
        self.in_a_row = 0;
        self.openings = 0;
    }

    /// Whether the breaker lets new containers through.
    pub fn is_closed(&self, now: Moment) -> bool {
        now >= self.open_until
    }

    /// Forgets failures of containers whose last wait is long over.
    pub fn prune(&mut self, now: Moment) {
        self.failures
            .retain(|_, (_, until)| now.since(*until) < 2 * LAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waits_of_one_container_double_up_to_ten_minutes() {
        let (uuid, now) = (
            ContainerUuid::generate("zzzzz"),
            Moment(Duration::from_secs(100)),
        );
        let mut backoff = Backoff::new(Duration::from_secs(2));
        let waits: Vec<u64> = (0..11)
            .map(|_| backoff.failed(&uuid, now).since(now).as_secs())
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
    }

    #[test]
    fn five_refusals_in_a_row_open_the_breaker_for_a_while() {
        let mut backoff = Backoff::new(Duration::from_secs(2));
        let now = Moment(Duration::from_secs(100));
        for _ in 0..4 {
            assert!(!backoff.refused(now));
        }
        backoff.accepted();
        for _ in 0..4 {
            assert!(!backoff.refused(now));
        }
        assert!(backoff.refused(now));
        // Four hundred that went with them are the same failure.
        let with_them = Moment(Duration::from_secs(101));
        assert!((0..400).all(|_| !backoff.refused(with_them)));
        assert!(!backoff.is_closed(Moment(Duration::from_secs(129))));
        assert!(backoff.is_closed(Moment(Duration::from_secs(130))));
        let later = Moment(Duration::from_secs(200));
        let opens = (0..5).filter(|_| backoff.refused(later)).count();
        assert_eq!(opens, 1);
        assert!(!backoff.is_closed(Moment(Duration::from_secs(259))));
        assert!(backoff.is_closed(Moment(Duration::from_secs(260))));
    }
}
