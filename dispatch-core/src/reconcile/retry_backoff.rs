//! Retry delays of containers. Input: failed attempts. Output: the time of the next attempt.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::model::world::MonotonicTime;

/// Maximum delay between two attempts at one container. The delay doubles with each failure.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// Failure counters of containers.
#[derive(Debug)]
pub struct RetryBackoff {
    /// Delay after the first failure of a container.
    initial: Duration,
    /// Number of failures, and the time of the next attempt.
    failures: BTreeMap<ContainerUuid, (u32, MonotonicTime)>,
}

impl RetryBackoff {
    /// No failures yet. A container that fails waits for `initial`, and the delay doubles with each
    /// failure.
    pub fn new(initial: Duration) -> Self {
        Self {
            initial,
            failures: BTreeMap::new(),
        }
    }

    /// Records that a container failed before it ran, after this number of attempts of any process.
    /// Returns the time of the next attempt.
    pub fn record_failure(
        &mut self,
        container: &ContainerUuid,
        attempts: u32,
        now: MonotonicTime,
    ) -> MonotonicTime {
        let entry = self.failures.entry(container.clone()).or_insert((0, now));
        // A restart does not make it quicker: the server allows few locks.
        entry.0 = entry.0.max(attempts.saturating_sub(1));
        let delay = self.initial.saturating_mul(1 << entry.0.min(16));
        let delay = delay.min(MAX_DELAY.max(self.initial));
        *entry = (entry.0 + 1, MonotonicTime(now.0 + delay));
        entry.1
    }

    /// Removes the failures of containers whose last delay ended long ago.
    pub fn prune(&mut self, now: MonotonicTime) {
        self.failures
            .retain(|_, (_, until)| now.since(*until) < 2 * MAX_DELAY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delays_of_one_container_double_up_to_ten_minutes() {
        let (uuid, now) = (
            ContainerUuid::generate("zzzzz"),
            MonotonicTime(Duration::from_secs(100)),
        );
        let mut backoff = RetryBackoff::new(Duration::from_secs(2));
        let delays: Vec<u64> = (0..11)
            .map(|_| backoff.record_failure(&uuid, 1, now).since(now).as_secs())
            .collect();
        assert_eq!(delays, [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        let mut restarted = RetryBackoff::new(Duration::from_secs(2));
        let delays: Vec<u64> = (4..7)
            .map(|attempts| restarted.record_failure(&uuid, attempts, now))
            .map(|until| until.since(now).as_secs())
            .collect();
        assert_eq!(delays, [16, 32, 64]);
    }
}
