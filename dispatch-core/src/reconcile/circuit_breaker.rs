//! The circuit breakers that stop new attempts: one for the containers of each user that are
//! charged alike, and one for all. Input: rejected and accepted submissions. Output: whether new
//! attempts may start.
//!
//! A scheduler may reject the jobs of one account or user and accept others. So a rejected
//! submission counts for its own class only, and only if the scheduler accepts a test of such jobs:
//! otherwise tests tell when to go on. What stops everything counts for all: the API server mints
//! no tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::charge_class::UserClass;
use crate::model::world::MonotonicTime;

/// Number of consecutive failed submissions that opens the breaker.
const FAILURE_THRESHOLD: u32 = 5;
/// Time for which the breaker opens at first. Each further time in a row is twice as long.
const INITIAL_OPEN_TIME: Duration = Duration::from_secs(30);
/// Maximum time for which the breaker opens.
const MAX_OPEN_TIME: Duration = Duration::from_secs(600);
/// Maximum number of classes with failures. Failures of further classes are not counted.
const MAX_CLASSES: usize = 10_000;

/// The breakers of all classes.
#[derive(Debug, Default)]
pub struct CircuitBreakers {
    all: CircuitBreaker,
    /// Classes whose last submission failed.
    classes: BTreeMap<UserClass, CircuitBreaker>,
}

impl CircuitBreakers {
    /// Records a failure that concerns all containers. True if it stops new attempts.
    pub fn record_failure(&mut self, now: MonotonicTime) -> bool {
        self.all.record_failure(now)
    }

    /// Records a failed submission. True if it stops new attempts of its class.
    pub fn record_failure_of(&mut self, class: UserClass, now: MonotonicTime) -> bool {
        let is_known = self.classes.contains_key(&class);
        if !is_known && self.classes.len() >= MAX_CLASSES {
            return false;
        }
        self.classes.entry(class).or_default().record_failure(now)
    }

    /// Records that a submission became a job.
    pub fn record_success(&mut self, class: &UserClass) {
        self.all.record_success();
        self.classes.remove(class);
    }

    /// Whether new containers may start, unless their class may not.
    pub fn is_closed(&self, now: MonotonicTime) -> bool {
        self.all.is_closed(now)
    }

    /// Time until new containers of the class may start, if they may not now.
    pub fn opened_for(&self, class: &UserClass, now: MonotonicTime) -> Option<Duration> {
        let breaker = self.classes.get(class)?;
        (!breaker.is_closed(now)).then(|| breaker.open_until.since(now))
    }
}

/// Consecutive failures of submissions.
#[derive(Debug, Default)]
struct CircuitBreaker {
    failures: u32,
    openings: u32,
    open_until: MonotonicTime,
}

impl CircuitBreaker {
    /// Records a failed submission. True if it opens the breaker.
    fn record_failure(&mut self, now: MonotonicTime) -> bool {
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
    fn record_success(&mut self) {
        self.failures = 0;
        self.openings = 0;
    }

    /// Whether new containers may start.
    fn is_closed(&self, now: MonotonicTime) -> bool {
        now >= self.open_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::charge_class::ChargeClass;

    #[test]
    fn the_failures_of_one_class_stop_no_other() {
        let mut breakers = CircuitBreakers::default();
        let at = |seconds| MonotonicTime(Duration::from_secs(seconds));
        let class = |partition: &str| UserClass {
            charged: ChargeClass {
                partitions: vec![partition.to_owned()],
                ..ChargeClass::default()
            },
            user: None,
        };
        for n in 1..=5 {
            let opens = breakers.record_failure_of(class("full"), at(100));
            assert_eq!(opens, n == 5);
            breakers.record_failure_of(class(&n.to_string()), at(100));
        }
        assert!(breakers.is_closed(at(100)));
        assert_eq!(breakers.opened_for(&class("1"), at(100)), None);
        let left = breakers.opened_for(&class("full"), at(110));
        assert_eq!(left, Some(Duration::from_secs(20)));
        // The success of another class says nothing about this one.
        breakers.record_success(&class("1"));
        assert!(breakers.opened_for(&class("full"), at(110)).is_some());
        breakers.record_success(&class("full"));
        assert_eq!(breakers.opened_for(&class("full"), at(110)), None);
        let opened = (0..5).filter(|_| breakers.record_failure(at(200))).count();
        assert_eq!(opened, 1);
        assert!(!breakers.is_closed(at(200)));
    }

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
