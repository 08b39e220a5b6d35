//! How soon squeue is asked again after an epilog has rung: at once, and again soon, so that a job that ended is
//! seen to be gone within a second. Slurm is asked no more for that than it can bear, however often the bell rings. Pure.

use std::time::{Duration, Instant};

/// Between two listings, else.
const GAP: Duration = Duration::from_secs(2);
/// Between two of those that follow closely.
const SHORT_GAP: Duration = Duration::from_millis(250);
/// After a ring a job is expected to go for so long.
const EXPECTED: Duration = Duration::from_secs(30);
/// So many may follow closely; each is earned again after so long.
const MOST: u32 = 8;
const EARNED_AFTER: Duration = Duration::from_secs(5);

/// What is known of rings and listings.
#[derive(Debug, Default)]
pub struct Haste {
    rung: Option<Instant>,
    listed: Option<Instant>,
    /// Listings that followed closely and are not earned again yet.
    spent: u32,
    earning_since: Option<Instant>,
}

impl Haste {
    /// The bell has rung.
    pub fn rang(&mut self, now: Instant) {
        self.rung = Some(now);
    }

    /// A listing begins.
    pub fn lists(&mut self, now: Instant) {
        self.earn(now);
        let last = self.listed.replace(now);
        if last.is_some_and(|last| now - last < GAP) {
            self.spent += 1;
            self.earning_since.get_or_insert(now);
        }
    }

    fn earn(&mut self, now: Instant) {
        while let Some(since) = self.earning_since
            && now - since >= EARNED_AFTER
        {
            self.spent -= 1;
            self.earning_since = (self.spent > 0).then_some(since + EARNED_AFTER);
        }
    }

    /// How long after the last listing the next one may begin.
    pub fn gap(&mut self, now: Instant) -> Duration {
        self.earn(now);
        match self.expects(now) && self.spent < MOST {
            true => SHORT_GAP,
            false => GAP,
        }
    }

    fn expects(&self, now: Instant) -> bool {
        self.rung.is_some_and(|rung| now - rung < EXPECTED)
    }

    /// Whether it is time to look again for a job that rang and is still being put away: its epilog is its last but one act.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let gap = self.gap(now);
        self.expects(now) && self.listed.is_some_and(|listed| now - listed >= gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_ring_a_few_listings_follow_closely() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut haste = Haste::default();
        haste.lists(at(0));
        assert_eq!(haste.gap(at(5000)), GAP);
        assert!(!haste.is_due(at(5000)));
        haste.rang(at(10_000));
        // The first comes long after the one before; so many more cost something.
        for n in 0..=u64::from(MOST) {
            let now = at(10_000 + 250 * n);
            assert_eq!(haste.gap(now), SHORT_GAP, "{n}");
            assert!(haste.is_due(now), "{n}");
            haste.lists(now);
        }
        assert_eq!(haste.gap(at(12_300)), GAP);
        assert!(!haste.is_due(at(12_300)));
        assert!(haste.is_due(at(14_000)));
        // One is earned again.
        assert_eq!(haste.gap(at(15_300)), SHORT_GAP);
        // And the bell is forgotten.
        assert_eq!(haste.gap(at(40_000)), GAP);
        assert!(!haste.is_due(at(60_000)));
    }

    #[test]
    fn a_bell_that_never_stops_has_slurm_asked_little_more() {
        let (start, mut haste) = (Instant::now(), Haste::default());
        let (mut listings, mut last) = (0, None);
        for milliseconds in (0..600_000).step_by(50) {
            let now = start + Duration::from_millis(milliseconds);
            haste.rang(now);
            let gap = haste.gap(now);
            if last.is_none_or(|last| now - last >= gap) {
                haste.lists(now);
                last = Some(now);
                listings += 1;
            }
        }
        // 300 without a bell.
        assert!((300..440).contains(&listings), "{listings}");
    }
}
