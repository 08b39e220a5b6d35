//! How long to wait before a program that died is started again.

use std::time::Duration;

/// After the first death.
const FIRST: Duration = Duration::from_millis(200);
/// However often it dies.
const LONGEST: Duration = Duration::from_secs(30);
/// Who ran this long had a good start, and the next wait is the first again.
const GOOD_START: Duration = Duration::from_secs(60);

/// The waits between starts.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// The wait after a run that lasted `ran`.
    pub fn after(&mut self, ran: Duration) -> Duration {
        if ran >= GOOD_START {
            self.next = FIRST;
        }
        let wait = self.next;
        self.next = (self.next * 2).min(LONGEST);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_a_good_start_resets_them() {
        let mut backoff = Backoff::default();
        let short = Duration::from_secs(1);
        let waits: Vec<u128> = (0..9).map(|_| backoff.after(short).as_millis()).collect();
        assert_eq!(
            waits,
            [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000]
        );
        assert_eq!(backoff.after(GOOD_START).as_millis(), 200);
    }
}
