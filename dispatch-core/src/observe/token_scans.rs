//! Schedules the scans for attempt tokens, and the reads of what the server can do. Pure: callers
//! pass the time.
//!
//! Input: poll interval, time and duration of each scan. Output: whether one is due, and how far
//! back it reads.
//!
//! A scan finds orphaned tokens. A mint request whose answer was lost makes one, or a person does.
//! The server accepts them. So a later attempt at the same container is not safe from them before a
//! scan has shown them. The first scan reads the whole list, later ones only the newest tokens: a
//! server may have many thousands, most of them of other programs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Number of polls from one scan to the next, if the list of tokens is short.
const POLLS_PER_SCAN: u32 = 3;
/// Minimum interval between scans, in durations of a scan: scans take at most 1 % of the time.
const MIN_INTERVAL_IN_SCANS: u32 = 100;
/// The same before the whole list was read once.
const MIN_FIRST_INTERVAL_IN_SCANS: u32 = 5;
/// Maximum interval between two scans, and the interval between reads of what the server can do.
const MAX_INTERVAL: Duration = Duration::from_secs(600);

/// Interval between two scans of the whole list, which find what the others missed: a token that is
/// revoked during a scan hides another one.
const FULL_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// Time by which a scan overlaps the one before. A token may be committed after a newer one.
const OVERLAP: SignedDuration = SignedDuration::from_mins(1);

/// Schedule of the token scans of one process.
#[derive(Debug)]
pub struct TokenScans {
    poll_interval: Duration,
    /// End of the last scan, successful or not.
    last: Option<Instant>,
    /// End of the last scan of the whole list.
    last_full: Option<Instant>,
    /// Creation time of the newest token in the last complete scan, by the server's clock.
    newest: Option<Timestamp>,
    /// Duration of the last scan, unless it read the whole list: others read less.
    took: Duration,
    /// Time of the last read of what the server can do.
    last_server_read: Option<Instant>,
}

impl TokenScans {
    /// The schedule of a process that has not scanned yet.
    pub fn new(poll_interval: Duration) -> Self {
        Self {
            poll_interval,
            last: None,
            last_full: None,
            newest: None,
            took: Duration::ZERO,
            last_server_read: None,
        }
    }

    /// Whether the whole list was read once.
    pub fn has_succeeded(&self) -> bool {
        self.last_full.is_some()
    }

    /// Whether a scan is due.
    pub fn is_due(&self, now: Instant) -> bool {
        let in_scans = match self.has_succeeded() {
            true => MIN_INTERVAL_IN_SCANS,
            // Containers wait for the first one.
            false => MIN_FIRST_INTERVAL_IN_SCANS,
        };
        let interval = (self.poll_interval * POLLS_PER_SCAN)
            .max(self.took.saturating_mul(in_scans))
            .min(MAX_INTERVAL);
        self.last
            .is_none_or(|at| now.duration_since(at) >= interval)
    }

    /// Creation time of the oldest tokens that a scan which starts now reads. None: all tokens.
    pub fn since(&self, now: Instant) -> Option<Timestamp> {
        let is_recent = |at: Instant| now.duration_since(at) < FULL_INTERVAL;
        self.last_full.filter(|at| is_recent(*at))?;
        self.newest?.checked_sub(OVERLAP).ok()
    }

    /// Records a complete scan and its duration. `since` is what it read, and `newest` the creation
    /// time of the newest token that it found.
    pub fn succeeded(
        &mut self,
        now: Instant,
        took: Duration,
        since: Option<Timestamp>,
        newest: Option<Timestamp>,
    ) {
        self.last = Some(now);
        self.newest = self.newest.max(newest);
        self.took = match since {
            Some(_) => took,
            None => {
                self.last_full = Some(now);
                Duration::ZERO
            }
        };
    }

    /// Records a scan that failed or was incomplete, and its duration.
    pub fn failed(&mut self, now: Instant, took: Duration) {
        self.last = Some(now);
        self.took = took;
    }

    /// Whether the server has told once what it can do.
    pub fn is_server_known(&self) -> bool {
        self.last_server_read.is_some()
    }

    /// Whether a poll that starts now reads what the server can do: its limits for bulk calls, and
    /// whether the user of the dispatch token is an administrator. Each poll does before the first
    /// success.
    pub fn is_server_read_due(&self, now: Instant) -> bool {
        let last = self.last_server_read;
        last.is_none_or(|at| now.duration_since(at) >= MAX_INTERVAL)
    }

    /// Records that the server told what it can do, or that it did once and a later read failed.
    pub fn server_read(&mut self, now: Instant) {
        self.last_server_read = Some(now);
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
            assert!(scans.is_due(now));
            let took = Duration::from_secs_f64(took);
            scans.succeeded(now, Duration::ZERO, None, None);
            scans.succeeded(now, took, Some(Timestamp::UNIX_EPOCH), None);
            let due_after = |seconds| scans.is_due(now + Duration::from_secs_f64(seconds));
            assert!(due_after(interval), "{poll} {took:?}");
            assert!(!due_after(interval - 0.001), "{poll} {took:?}");
        }
    }

    #[test]
    fn a_scan_that_failed_is_repeated_no_sooner_than_another() {
        let mut scans = TokenScans::new(Duration::from_secs(10));
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        scans.failed(now, Duration::ZERO);
        assert!(!scans.is_due(at(29)) && scans.is_due(at(30)));
        scans.failed(now, Duration::from_secs(2));
        assert!(!scans.is_due(at(29)) && scans.is_due(at(30)));
        scans.failed(now, Duration::from_secs(20));
        assert!(!scans.is_due(at(99)) && scans.is_due(at(100)));
        // The whole list says nothing about the time that its newest part takes.
        scans.succeeded(now, Duration::from_secs(2), None, None);
        assert!(scans.is_due(at(30)));
    }

    #[test]
    fn only_a_complete_scan_lets_the_next_ones_read_the_newest_tokens() {
        let mut scans = TokenScans::new(Duration::from_secs(10));
        let now = Instant::now();
        let after = |hours: u64| now + Duration::from_secs(hours * 3600);
        let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        assert_eq!(scans.since(now), None);
        scans.failed(now, Duration::ZERO);
        assert_eq!(scans.since(now), None);
        scans.succeeded(now, Duration::ZERO, None, time("2026-11-28T12:00:00Z"));
        assert_eq!(scans.since(now), time("2026-11-28T11:59:00Z"));
        // A token that was revoked does not turn the time back.
        let since = scans.since(now);
        scans.succeeded(
            after(5),
            Duration::ZERO,
            since,
            time("2026-11-28T11:55:00Z"),
        );
        assert_eq!(scans.since(after(5)), since);
        assert_eq!(scans.since(after(6)), None);
    }

    #[test]
    fn the_server_is_asked_what_it_can_do_every_ten_minutes() {
        let mut scans = TokenScans::new(Duration::from_secs(10));
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        assert!(scans.is_server_read_due(now) && !scans.is_server_known());
        scans.server_read(now);
        assert!(!scans.is_server_read_due(at(599)) && scans.is_server_known());
        assert!(scans.is_server_read_due(at(600)));
    }
}
