//! Retry delays: each is twice the one before, up to a maximum.

use std::time::Duration;

/// The delays of one operation.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Delays from `initial` to `max`.
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            next: initial,
        }
    }

    /// Returns the delay before the next attempt, and doubles the one after it.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.max);
        delay
    }

    /// Starts with the initial delay again.
    pub fn reset(&mut self) {
        self.next = self.initial;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_a_limit_until_they_are_reset() {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        let delays = [(); 9].map(|()| backoff.next_delay().as_millis());
        assert_eq!(
            delays,
            [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000]
        );
        backoff.reset();
        assert_eq!(backoff.next_delay().as_millis(), 200);
    }
}
