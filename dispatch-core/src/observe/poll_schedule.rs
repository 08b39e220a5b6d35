//! Schedules polls and job listings. Pure: callers pass the time.
//!
//! Input: poll interval, durations and failures of polls and listings. Output: the delay until the
//! next poll, and whether to list jobs.
//!
//! Polls follow the poll interval, or come sooner while a change awaits confirmation. Minimum
//! intervals protect server and scheduler from overload.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum delay from the first job listing of a process to the second. Nothing starts before the
/// second one.
const SECOND_LISTING_DELAY: Duration = Duration::from_millis(250);

/// Schedule of polls and job listings.
#[derive(Debug)]
pub struct PollSchedule {
    /// Interval between polls when there is no reason to poll sooner.
    interval: Duration,
    /// Minimum interval between polls.
    shortest: Duration,
    /// Duration of the last poll.
    poll_time: Duration,
    has_polled: bool,
    /// Earliest start of the next poll. Set while the last poll has failed.
    not_before: Option<Instant>,
    /// Start time of the last job listing.
    last_listing: Option<Instant>,
    /// Whether exactly one listing has succeeded and none has failed since.
    listed_once: bool,
    /// Whether the last listing failed.
    failed: bool,
}

impl PollSchedule {
    /// Creates the schedule of a process that has not polled yet.
    pub fn new(interval: Duration, shortest: Duration) -> Self {
        Self {
            interval,
            shortest,
            poll_time: Duration::ZERO,
            has_polled: false,
            not_before: None,
            last_listing: None,
            listed_once: false,
            failed: false,
        }
    }

    /// Whether a poll has ended.
    pub fn has_polled(&self) -> bool {
        self.has_polled
    }

    /// Records a successful poll and its duration.
    pub fn poll_done(&mut self, took: Duration) {
        self.poll_time = took;
        self.has_polled = true;
        self.not_before = None;
    }

    /// Records a failed poll. The next one waits for a poll interval, so that it does not burden a
    /// server that is down or overloaded. It waits longer if the server asked for that
    /// (`retry_after`).
    pub fn poll_failed(&mut self, now: Instant, retry_after: Option<Duration>) {
        let wait = self.interval.max(retry_after.unwrap_or_default());
        self.not_before = Some(now + wait);
    }

    /// Records a complete job listing. `first`: it is the first one of this process.
    pub fn listing_done(&mut self, first: bool) {
        self.listed_once = first;
        self.failed = false;
    }

    /// Records a failed job listing.
    pub fn listing_failed(&mut self) {
        self.listed_once = false;
        self.failed = true;
    }

    /// Minimum delay until the next poll. After a slow poll it is twice the duration of that poll,
    /// but at most the poll interval. After a failed poll it lasts until the time that the failure
    /// set.
    pub fn min_interval(&self, now: Instant) -> Duration {
        let wait = self.not_before.map(|at| at.saturating_duration_since(now));
        let interval = self.shortest.max(2 * self.poll_time).min(self.interval);
        interval.max(wait.unwrap_or_default())
    }

    /// Delay until the next poll, shorter while a change awaits confirmation (`is_urgent`): a job
    /// that the last listing lacked, for example.
    /// `woken`: a change was reported during the last poll, which may have missed it.
    /// `min_listing`: the scheduler's minimum interval between listings.
    pub fn next_poll_in(
        &self,
        now: Instant,
        woken: bool,
        is_urgent: bool,
        min_listing: Duration,
    ) -> Duration {
        let min = self.min_interval(now);
        let delay = match (woken, is_urgent) {
            (true, _) => min,
            (false, true) => self
                .min_listing_interval(min_listing)
                .max(self.shortest * 4),
            (false, false) => self.interval,
        };
        match self.not_before {
            Some(_) => delay.max(min),
            None => delay.min(self.interval),
        }
    }

    /// Minimum interval between two listings while a change awaits confirmation.
    fn min_listing_interval(&self, min_listing: Duration) -> Duration {
        match (self.failed, self.listed_once) {
            // Early retries do not help a scheduler that is down.
            (true, _) => min_listing.max(self.interval),
            (false, true) => min_listing.min(SECOND_LISTING_DELAY),
            (false, false) => min_listing,
        }
    }

    /// Whether a job listing is due: once per poll interval, sooner if `is_urgent`, but no sooner
    /// than the minimum interval. A true result counts as the start of a listing.
    pub fn should_list(&mut self, now: Instant, is_urgent: bool, min_listing: Duration) -> bool {
        let min = match is_urgent {
            true => self.min_listing_interval(min_listing).min(self.interval),
            // The margin of 10 % covers a poll that comes slightly early. Without it, that poll
            // would delay the listing by a whole interval.
            false => self.interval.mul_f32(0.9),
        };
        let is_due = self.last_listing.is_none_or(|at| now - at >= min);
        if is_due {
            self.last_listing = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_LISTING: Duration = Duration::from_secs(2);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn schedule() -> PollSchedule {
        let mut schedule = PollSchedule::new(ms(10_000), ms(20));
        schedule.listing_done(false);
        schedule
    }

    #[test]
    fn polls_come_each_interval_and_sooner_for_a_reason() {
        let mut first = schedule();
        first.listing_done(true);
        let mut failed = schedule();
        failed.listing_failed();
        let mut slow = schedule();
        slow.poll_done(ms(3000));
        let mut slower = schedule();
        slower.poll_done(ms(30_000));
        #[rustfmt::skip]
        let rows = [
            // schedule, woken, is_urgent, expected delay in ms
            (schedule(), false, false, 10_000),
            (schedule(), false, true, 2000),
            (schedule(), true, true, 20),
            (first, false, true, 250),
            (failed, false, true, 10_000),
            (slow, true, false, 6000),
            (slower, true, false, 10_000),
        ];
        for (n, (schedule, woken, is_urgent, until)) in rows.into_iter().enumerate() {
            let got = schedule.next_poll_in(Instant::now(), woken, is_urgent, MIN_LISTING);
            assert_eq!(got, ms(until), "row {n}");
        }
    }

    #[test]
    fn a_failed_server_is_polled_after_an_interval_or_after_the_time_it_asked_for() {
        let now = Instant::now();
        for (retry_after, seconds) in [(None, 10), (Some(ms(1000)), 10), (Some(ms(45_000)), 45)] {
            let mut schedule = schedule();
            schedule.poll_failed(now, retry_after);
            for (woken, is_urgent) in [(true, true), (true, false), (false, true), (false, false)] {
                let delay = schedule.next_poll_in(now, woken, is_urgent, MIN_LISTING);
                assert_eq!(
                    delay,
                    ms(seconds * 1000),
                    "{retry_after:?} {woken} {is_urgent}"
                );
            }
            assert_eq!(
                schedule.min_interval(now + ms(4000)),
                ms(seconds * 1000 - 4000)
            );
            assert_eq!(schedule.min_interval(now + ms(60_000)), ms(20));
            schedule.poll_done(ms(5));
            assert_eq!(schedule.min_interval(now), ms(20));
        }
    }

    #[test]
    fn jobs_are_listed_once_an_interval_unless_it_is_urgent() {
        let begun = Instant::now();
        let mut schedule = schedule();
        #[rustfmt::skip]
        let rows = [
            (0, false, true), (5000, false, false), (8999, false, false), (9000, false, true),
            (10_999, true, false), (11_000, true, true),
        ];
        for (at, is_urgent, expected) in rows {
            assert_eq!(
                schedule.should_list(begun + ms(at), is_urgent, MIN_LISTING),
                expected,
                "{at}"
            );
        }
        // A second listing follows the first one soon. A failed listing is not repeated early.
        schedule.listing_done(true);
        assert!(schedule.should_list(begun + ms(11_250), true, MIN_LISTING));
        schedule.listing_failed();
        assert!(!schedule.should_list(begun + ms(21_000), true, MIN_LISTING));
        assert!(schedule.should_list(begun + ms(21_250), true, MIN_LISTING));
    }
}
