//! The circuit breaker that stops all new attempts. Input: rejected and accepted submissions.
//! Output: whether new attempts may start.

use std::time::Duration;

use crate::model::world::MonotonicTime;

/// Number of consecutive failed submissions that opens the breaker.
const FAILURE_THRESHOLD: u32 = 5;
/// Time for which the breaker opens at first. Each further time in a row is twice as long.
const INITIAL_OPEN_TIME: Duration = Duration::from_secs(30);
/// Maximum time for which the breaker opens.
const MAX_OPEN_TIME: Duration = Duration::from_secs(600);

/// Consecutive failures of submissions, of any containers.
#[derive(Debug, Default)]
pub struct CircuitBreaker {
    failures: u32,
    openings: u32,
    open_until: MonotonicTime,
}

impl CircuitBreaker {
    /// Records a failed submission. True if it opens the breaker.
    pub fn record_failure(&mut self, now: MonotonicTime) -> bool {
        // The attempt was submitted before the breaker opened, perhaps together with those that
        // opened it.
        if !self.is_closed(now) {
            return false;
        }
        self.failures += 1;
        let opens = self.failures >= FAILURE_THRESHOLD;
        if opens {
            self.failures = 0;
            let open_time = INITIAL_OPEN_TIME.saturating_mul(1 << self.openings.min(16));
            self.openings += 1;
            self.open_until = MonotonicTime(now.0 + open_time.min(MAX_OPEN_TIME));
        }
        opens
    }

    /// Records that a submission became a job. Resets the counters.
    pub fn record_success(&mut self) {
        self.failures = 0;
        self.openings = 0;
    }

    /// Whether new containers may start.
    pub fn is_closed(&self, now: MonotonicTime) -> bool {
        now >= self.open_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_in_a_row_open_the_breaker_for_a_while() {
        let mut breaker = CircuitBreaker::default();
        let at = |seconds| MonotonicTime(Duration::from_secs(seconds));
        for _ in 0..4 {
            assert!(!breaker.record_failure(at(100)));
        }
        breaker.record_success();
        for _ in 0..4 {
            assert!(!breaker.record_failure(at(100)));
        }
        assert!(breaker.record_failure(at(100)));
        // Four hundred submissions of the same moment count as one failure.
        assert!((0..400).all(|_| !breaker.record_failure(at(101))));
        assert!(!breaker.is_closed(at(129)));
        assert!(breaker.is_closed(at(130)));
        let opens = (0..5).filter(|_| breaker.record_failure(at(200))).count();
        assert_eq!(opens, 1);
        assert!(!breaker.is_closed(at(259)));
        assert!(breaker.is_closed(at(260)));
    }
}
