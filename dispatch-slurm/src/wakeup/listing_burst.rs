//! Limits how soon `squeue` runs again after an epilog: at once and shortly after, so that an ended
//! job is seen within a second. Pure.
//!
//! Input: times of epilogs and listings. Output: the minimum interval to the next listing. A burst
//! limit bounds the load on slurmctld, however many epilogs run.

use std::time::{Duration, Instant};

/// Minimum interval between `squeue` calls outside a burst.
const LISTING_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum interval between `squeue` calls during a burst.
const BURST_INTERVAL: Duration = Duration::from_millis(250);
/// Time within which a job is expected to leave the queue after its epilog.
const EXIT_WINDOW: Duration = Duration::from_secs(30);
/// Maximum number of `squeue` calls in a burst; each is available again after `BURST_REFILL`.
const BURST_SIZE: u32 = 8;
const BURST_REFILL: Duration = Duration::from_secs(5);

/// State of the burst limit.
#[derive(Debug, Default)]
pub struct ListingBurst {
    last_job_end: Option<Instant>,
    last_listing: Option<Instant>,
    /// Number of burst calls that are not refilled yet.
    spent: u32,
    refill_since: Option<Instant>,
}

impl ListingBurst {
    /// Records that an epilog ran.
    pub fn job_ended(&mut self, now: Instant) {
        self.last_job_end = Some(now);
    }

    /// Records that a listing begins.
    pub fn record_listing(&mut self, now: Instant) {
        self.refill(now);
        let last = self.last_listing.replace(now);
        if last.is_some_and(|last| now - last < LISTING_INTERVAL) {
            self.spent += 1;
            self.refill_since.get_or_insert(now);
        }
    }

    fn refill(&mut self, now: Instant) {
        while let Some(since) = self.refill_since
            && now - since >= BURST_REFILL
        {
            self.spent -= 1;
            self.refill_since = (self.spent > 0).then_some(since + BURST_REFILL);
        }
    }

    /// Minimum interval between the last listing and the next one.
    pub fn min_interval(&mut self, now: Instant) -> Duration {
        self.refill(now);
        match self.expects_exit(now) && self.spent < BURST_SIZE {
            true => BURST_INTERVAL,
            false => LISTING_INTERVAL,
        }
    }

    fn expects_exit(&self, now: Instant) -> bool {
        self.last_job_end
            .is_some_and(|last_job_end| now - last_job_end < EXIT_WINDOW)
    }

    /// Whether to list again for a job whose epilog ran but which is still completing: the epilog
    /// runs shortly before its end.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let gap = self.min_interval(now);
        self.expects_exit(now)
            && self
                .last_listing
                .is_some_and(|last_listing| now - last_listing >= gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_listings_follows_an_epilog() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut burst = ListingBurst::default();
        burst.record_listing(at(0));
        assert_eq!(burst.min_interval(at(5000)), LISTING_INTERVAL);
        assert!(!burst.is_due(at(5000)));
        burst.job_ended(at(10_000));
        // The first listing comes long after the one before and costs nothing; the others are
        // charged.
        for n in 0..=u64::from(BURST_SIZE) {
            let now = at(10_000 + 250 * n);
            assert_eq!(burst.min_interval(now), BURST_INTERVAL, "{n}");
            assert!(burst.is_due(now), "{n}");
            burst.record_listing(now);
        }
        assert_eq!(burst.min_interval(at(12_300)), LISTING_INTERVAL);
        assert!(!burst.is_due(at(12_300)));
        assert!(burst.is_due(at(14_000)));
        // One call is refilled.
        assert_eq!(burst.min_interval(at(15_300)), BURST_INTERVAL);
        // The last epilog is too long ago.
        assert_eq!(burst.min_interval(at(40_000)), LISTING_INTERVAL);
        assert!(!burst.is_due(at(60_000)));
    }

    #[test]
    fn epilogs_without_end_add_few_listings() {
        let (start, mut burst) = (Instant::now(), ListingBurst::default());
        let (mut listings, mut last) = (0, None);
        for milliseconds in (0..600_000).step_by(50) {
            let now = start + Duration::from_millis(milliseconds);
            burst.job_ended(now);
            let gap = burst.min_interval(now);
            if last.is_none_or(|last| now - last >= gap) {
                burst.record_listing(now);
                last = Some(now);
                listings += 1;
            }
        }
        // Without epilogs there are 300 listings.
        assert!((300..440).contains(&listings), "{listings}");
    }
}
