//! A token bucket that limits the rate of scheduler commands.

use std::time::Duration;

use crate::model::world::MonotonicTime;

/// A token bucket for scheduler commands.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    /// Commands a second; 0 means no limit.
    rate: f64,
    /// Maximum number of commands in a burst after a quiet time.
    burst: f64,
    left: f64,
    at: MonotonicTime,
}

impl TokenBucket {
    /// A full bucket: `rate` commands a second, `burst` of them at once. A rate of 0 means no
    /// limit.
    pub fn new(rate: f64, burst: u32) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            rate: rate.max(0.0),
            burst,
            left: burst,
            at: MonotonicTime::default(),
        }
    }

    fn refill(&mut self, now: MonotonicTime) {
        let gained = now.since(self.at).as_secs_f64() * self.rate;
        self.left = (self.left + gained).min(self.burst);
        self.at = now;
    }

    /// Whether a command may run now.
    pub fn is_available(&mut self, now: MonotonicTime) -> bool {
        self.refill(now);
        self.rate == 0.0 || self.left >= 1.0
    }

    /// Whether a command may run now. If so, the command is charged.
    pub fn try_acquire(&mut self, now: MonotonicTime) -> bool {
        let may = self.is_available(now);
        if may {
            self.left -= 1.0;
        }
        may
    }

    /// Charges a command that runs regardless of the limit, such as the listing once an interval.
    pub fn charge(&mut self, now: MonotonicTime) {
        self.refill(now);
        self.left -= 1.0;
    }

    /// Time until the next command may run.
    pub fn time_until_available(&self, now: MonotonicTime) -> Duration {
        if self.rate == 0.0 {
            return Duration::ZERO;
        }
        let gained = now.since(self.at).as_secs_f64() * self.rate;
        Duration::from_secs_f64(((1.0 - self.left - gained) / self.rate).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> MonotonicTime {
        MonotonicTime(Duration::from_millis(milliseconds))
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = TokenBucket::new(2.0, 3);
        let taken =
            |bucket: &mut TokenBucket, ms| (0..10).filter(|_| bucket.try_acquire(at(ms))).count();
        assert_eq!(taken(&mut bucket, 0), 3);
        assert_eq!(
            bucket.time_until_available(at(0)),
            Duration::from_millis(500)
        );
        assert_eq!(taken(&mut bucket, 499), 0);
        assert_eq!(taken(&mut bucket, 1000), 2);
        bucket.charge(at(1000));
        assert_eq!(
            bucket.time_until_available(at(1000)),
            Duration::from_secs(1)
        );
        assert_eq!(taken(&mut bucket, 3_600_000), 3, "no more than the burst");
        let mut free = TokenBucket::new(0.0, 1);
        assert_eq!(taken(&mut free, 0), 10);
        assert_eq!(free.time_until_available(at(0)), Duration::ZERO);
    }
}
