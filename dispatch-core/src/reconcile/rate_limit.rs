//! A token bucket that limits the rate of scheduler commands.

use std::time::Duration;

use crate::config::settings::CommandRate;
use crate::model::world::MonotonicTime;

/// A token bucket for scheduler commands.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    /// Commands a second; `None` means no limit.
    rate: Option<f64>,
    /// Maximum number of commands in a burst after a quiet time.
    burst: f64,
    left: f64,
    at: MonotonicTime,
}

impl TokenBucket {
    /// A full bucket: commands of this rate, `burst` of them at once.
    pub fn new(rate: CommandRate, burst: u32) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            rate: match rate {
                CommandRate::Unlimited => None,
                CommandRate::PerSecond(rate) => Some(rate),
            },
            burst,
            left: burst,
            at: MonotonicTime::default(),
        }
    }

    fn refill(&mut self, now: MonotonicTime) {
        let gained = now.since(self.at).as_secs_f64() * self.rate.unwrap_or_default();
        self.left = (self.left + gained).min(self.burst);
        self.at = now;
    }

    /// Whether a command may run now.
    pub fn is_available(&mut self, now: MonotonicTime) -> bool {
        self.refill(now);
        self.rate.is_none() || self.left >= 1.0
    }

    /// Whether a command may run now. If so, the command is charged.
    pub fn try_acquire(&mut self, now: MonotonicTime) -> bool {
        let may = self.is_available(now);
        if may {
            self.left -= 1.0;
        }
        may
    }

    /// Charges a command that ran regardless of the limit. Of many such commands, only as many
    /// count as a burst has: others must not wait without end.
    pub fn charge(&mut self, now: MonotonicTime) {
        self.refill(now);
        self.left = (self.left - 1.0).max(-self.burst);
    }

    /// Time until the next command may run.
    pub fn time_until_available(&self, now: MonotonicTime) -> Duration {
        let Some(rate) = self.rate else {
            return Duration::ZERO;
        };
        let gained = now.since(self.at).as_secs_f64() * rate;
        Duration::from_secs_f64(((1.0 - self.left - gained) / rate).max(0.0))
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
        let mut bucket = TokenBucket::new(CommandRate::PerSecond(2.0), 3);
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
        // A thousand charges delay the next command by a burst, not by eight minutes.
        (0..1000).for_each(|_| bucket.charge(at(3_600_000)));
        assert_eq!(
            bucket.time_until_available(at(3_600_000)),
            Duration::from_secs(2)
        );
        let mut free = TokenBucket::new(CommandRate::Unlimited, 1);
        assert_eq!(taken(&mut free, 0), 10);
        assert_eq!(free.time_until_available(at(0)), Duration::ZERO);
    }
}
