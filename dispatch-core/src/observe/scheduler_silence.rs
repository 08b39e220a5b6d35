//! Whether the scheduler has an outage: it has not answered for too long. Pure: callers pass the
//! time.
//!
//! Input: when listings of jobs begin, and when one is complete. Output: when the silence becomes
//! an outage, and the sentence about it for users.
//!
//! Clients of a scheduler try again for as long as 20 s before they fail. So an outage begins by
//! the clock, and not when a listing fails.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Time without a complete listing after which there is an outage, if listings do not take that
/// long anyway.
const MIN_SILENCE: Duration = Duration::from_secs(10);

/// Listings without an answer.
#[derive(Debug, Default)]
pub struct SchedulerSilence {
    /// When the first listing since the last complete one began.
    began: Option<(Instant, Timestamp)>,
    /// Duration of the last complete listing.
    took: Duration,
    /// Whether the silence counts as an outage.
    is_outage: bool,
}

impl SchedulerSilence {
    /// Records the start of a listing.
    pub fn listing_began(&mut self, now: Instant, time: Timestamp) {
        self.began.get_or_insert((now, time));
    }

    /// Records a complete listing, and how long it took. Returns whether it ends an outage.
    pub fn listing_done(&mut self, took: Duration) -> bool {
        (self.began, self.took) = (None, took);
        std::mem::take(&mut self.is_outage)
    }

    /// When the silence becomes an outage; none if it is one, or if the scheduler answers.
    pub fn outage_begins(&self) -> Option<Instant> {
        let (began, _) = self.began.filter(|_| !self.is_outage)?;
        Some(began + MIN_SILENCE.max(2 * self.took))
    }

    /// Begins the outage, and describes it. `scheduler` is the name of the scheduler.
    pub fn begin_outage(&mut self, scheduler: &str) -> Option<String> {
        let (_, since) = self.began?;
        self.is_outage = true;
        Some(format!(
            "the {scheduler} scheduler has not answered since {}; nothing is lost: what runs goes on, and the rest \
             starts by itself when it answers",
            since.strftime("%Y-%m-%d %H:%M:%S UTC")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_begins_once_and_ends_with_a_complete_listing() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let time = Timestamp::UNIX_EPOCH;
        let mut silence = SchedulerSilence::default();
        assert_eq!(silence.outage_begins(), None);
        // Start of a listing, how long the one before took, when an outage begins.
        for (began, took, expected) in [(0, None, 10), (20, Some(1), 30), (40, Some(12), 64)] {
            if let Some(took) = took {
                assert!(!silence.listing_done(Duration::from_secs(took)));
            }
            silence.listing_began(at(began), time);
            // One that follows a failed one says nothing new.
            silence.listing_began(at(began + 5), time);
            assert_eq!(silence.outage_begins(), Some(at(expected)), "{began}");
        }
        let text = silence.begin_outage("slurm").unwrap();
        assert!(text.contains("since 1970-01-01 00:00:00 UTC;"), "{text}");
        assert_eq!(silence.outage_begins(), None);
        assert!(silence.listing_done(Duration::ZERO));
        assert!(!silence.listing_done(Duration::ZERO));
        assert_eq!(silence.begin_outage("slurm"), None);
    }
}
