//! Schedules the scans for attempt tokens, and the reads of what the server can do. Pure: callers
//! pass the time.
//!
//! Input: poll interval, time and duration of each scan. Output: whether one is due.
//!
//! A scan finds orphaned tokens. A mint request whose answer was lost makes one, or a person does.
//! The server accepts them. So a later attempt at the same container is not safe from them before a
//! scan has shown them.

use std::time::Duration;

use tokio::time::Instant;

/// Number of polls from one scan to the next, if the list of tokens is short.
const POLLS_PER_SCAN: u32 = 3;
/// Minimum interval between scans, in durations of a scan: scans take at most 1 % of the time.
const MIN_INTERVAL_IN_SCANS: u32 = 100;
/// Maximum interval between two scans, and the interval between reads of what the server can do.
const MAX_INTERVAL: Duration = Duration::from_secs(600);

/// Schedule of the token scans of one process.
#[derive(Debug)]
pub struct TokenScans {
    poll_interval: Duration,
    /// Whether a scan has succeeded.
    has_succeeded: bool,
    /// End of the last scan, successful or not.
    last: Option<Instant>,
    /// Duration of the last successful scan.
    took: Duration,
    /// Time of the last read of what the server can do.
    last_server_read: Option<Instant>,
}

impl TokenScans {
    /// The schedule of a process that has not scanned yet.
    pub fn new(poll_interval: Duration) -> Self {
        Self {
            poll_interval,
            has_succeeded: false,
            last: None,
            took: Duration::ZERO,
            last_server_read: None,
        }
    }

    /// Whether a scan has succeeded.
    pub fn has_succeeded(&self) -> bool {
        self.has_succeeded
    }

    /// Whether a poll that starts now scans. Each poll does before the first success. After that, a
    /// failed scan is repeated no sooner than another: a job listing waits for the scan, also while
    /// the server is away.
    pub fn is_due(&self, now: Instant) -> bool {
        let interval = (self.poll_interval * POLLS_PER_SCAN)
            .max(self.took.saturating_mul(MIN_INTERVAL_IN_SCANS))
            .min(MAX_INTERVAL);
        let is_over = self
            .last
            .is_none_or(|at| now.duration_since(at) >= interval);
        !self.has_succeeded || is_over
    }

    /// Whether a scan that starts now also reads what the server can do: its limits for bulk calls,
    /// and whether the user of the dispatch token is an administrator.
    pub fn is_server_read_due(&self, now: Instant) -> bool {
        let last = self.last_server_read;
        last.is_none_or(|at| now.duration_since(at) >= MAX_INTERVAL)
    }

    /// Records a successful scan, its duration, and whether it also read what the server can do.
    pub fn succeeded(&mut self, now: Instant, took: Duration, server_read: bool) {
        self.has_succeeded = true;
        self.last = Some(now);
        self.took = took;
        if server_read {
            self.last_server_read = Some(now);
        }
    }

    /// Records a failed scan.
    pub fn failed(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_follows_the_polls_and_the_duration_of_a_scan() {
        for (poll, took, interval) in [
            (10, 0.02, 30.0),
            (10, 0.5, 50.0),
            (10, 60.0, 600.0),
            (1, 0.0, 3.0),
            (900, 0.02, 600.0),
        ] {
            let mut scans = TokenScans::new(Duration::from_secs(poll));
            let now = Instant::now();
            assert!(scans.is_due(now) && !scans.has_succeeded());
            scans.succeeded(now, Duration::from_secs_f64(took), false);
            assert!(scans.has_succeeded());
            let due_after = |seconds| scans.is_due(now + Duration::from_secs_f64(seconds));
            assert!(due_after(interval), "{poll} {took}");
            assert!(!due_after(interval - 0.001), "{poll} {took}");
        }
    }

    #[test]
    fn polls_go_on_without_scans_that_fail() {
        let mut scans = TokenScans::new(Duration::from_secs(10));
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        scans.failed(now);
        assert!(scans.is_due(now) && !scans.has_succeeded());
        scans.succeeded(at(10), Duration::ZERO, true);
        scans.failed(at(40));
        assert!(scans.has_succeeded());
        assert!(!scans.is_due(at(69)));
        assert!(scans.is_due(at(70)));
    }

    #[test]
    fn the_server_is_asked_what_it_can_do_every_ten_minutes() {
        let mut scans = TokenScans::new(Duration::from_secs(10));
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(scans.is_server_read_due(now));
        scans.succeeded(now, Duration::ZERO, true);
        scans.succeeded(at(30), Duration::ZERO, false);
        assert!(!scans.is_server_read_due(at(599)));
        assert!(scans.is_server_read_due(at(600)));
    }
}
