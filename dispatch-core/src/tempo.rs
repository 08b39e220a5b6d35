//! When to look next, and when to ask the scheduler for its jobs: as seldom as an interval says, sooner where something
//! waits to be confirmed, and never so often that server or scheduler have nothing else to do. Pure: time is given.

use std::time::Duration;

use tokio::time::Instant;

/// From the first listing of a life to the second, at most: nothing is started before that.
const SECOND_LISTING: Duration = Duration::from_millis(250);

/// The pace of looks and listings.
#[derive(Debug)]
pub struct Tempo {
    /// Between looks, when nothing says to look sooner.
    interval: Duration,
    /// Between looks, at least.
    shortest: Duration,
    /// How long the last look took.
    took: Duration,
    /// It failed: none is begun before this.
    not_before: Option<Instant>,
    /// When the scheduler was last asked for its jobs.
    asked: Option<Instant>,
    /// It has answered once, and not failed since.
    listed_once: bool,
    /// It failed when it was asked last.
    failed: bool,
}

impl Tempo {
    /// Before the first look.
    pub fn new(interval: Duration, shortest: Duration) -> Self {
        Self {
            interval,
            shortest,
            took: Duration::ZERO,
            not_before: None,
            asked: None,
            listed_once: false,
            failed: false,
        }
    }

    /// A look has ended, and took so long.
    pub fn looked(&mut self, took: Duration) {
        self.took = took;
        self.not_before = None;
    }

    /// A look failed. A server that is away or has too much to do is no sooner well for being asked; it may have said
    /// when it wants to be asked again.
    pub fn look_failed(&mut self, now: Instant, wanted: Option<Duration>) {
        let wait = self.interval.max(wanted.unwrap_or_default());
        self.not_before = Some(now + wait);
    }

    /// A listing is complete; `first`: none was before it.
    pub fn listed(&mut self, first: bool) {
        self.listed_once = first;
        self.failed = false;
    }

    /// A listing failed.
    pub fn listing_failed(&mut self) {
        self.listed_once = false;
        self.failed = true;
    }

    /// Between two looks at least. A server that takes long for a look is not asked for the next one at once.
    pub fn gap(&self, now: Instant) -> Duration {
        let wait = self.not_before.map(|at| at.saturating_duration_since(now));
        let gap = self.shortest.max(2 * self.took).min(self.interval);
        gap.max(wait.unwrap_or_default())
    }

    /// How long until the next look: sooner while something waits to be confirmed (`hurry`). `woken`: something happened
    /// while the last one was under way, which may not have seen it. `gap`: what the scheduler wants between listings.
    pub fn pause(&self, now: Instant, woken: bool, hurry: bool, gap: Duration) -> Duration {
        let least = self.gap(now);
        let pause = match (woken, hurry) {
            (true, _) => least,
            (false, true) => self.listing_gap(gap).max(self.shortest * 4),
            (false, false) => self.interval,
        };
        match self.not_before {
            Some(_) => pause.max(least),
            None => pause.min(self.interval),
        }
    }

    /// Between two listings where something waits to be confirmed by one.
    fn listing_gap(&self, gap: Duration) -> Duration {
        match (self.failed, self.listed_once) {
            // One that is away is no sooner back for being asked.
            (true, _) => gap.max(self.interval),
            (false, true) => gap.min(SECOND_LISTING),
            (false, false) => gap,
        }
    }

    /// Whether it is time to ask the scheduler for its jobs: each interval, sooner in a hurry, but never too often. If so,
    /// it counts as asked.
    pub fn may_list(&mut self, now: Instant, hurry: bool, gap: Duration) -> bool {
        let least = match hurry {
            true => self.listing_gap(gap).min(self.interval),
            // A little less, or a look that comes a moment early puts it off for a whole interval.
            false => self.interval.mul_f32(0.9),
        };
        let may = self.asked.is_none_or(|at| now - at >= least);
        if may {
            self.asked = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_secs(2);

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn tempo() -> Tempo {
        let mut tempo = Tempo::new(ms(10_000), ms(20));
        tempo.listed(false);
        tempo
    }

    #[test]
    fn looks_come_each_interval_and_sooner_for_a_reason() {
        let mut first = tempo();
        first.listed(true);
        let mut failed = tempo();
        failed.listing_failed();
        let mut slow = tempo();
        slow.looked(ms(3000));
        let mut slower = tempo();
        slower.looked(ms(30_000));
        #[rustfmt::skip]
        let rows = [
            // woken, hurry, until the next
            (tempo(), false, false, 10_000),
            (tempo(), false, true, 2000),
            (tempo(), true, true, 20),
            (first, false, true, 250),
            (failed, false, true, 10_000),
            (slow, true, false, 6000),
            (slower, true, false, 10_000),
        ];
        for (n, (tempo, woken, hurry, until)) in rows.into_iter().enumerate() {
            let got = tempo.pause(Instant::now(), woken, hurry, GAP);
            assert_eq!(got, ms(until), "row {n}");
        }
    }

    #[test]
    fn a_server_that_failed_is_left_alone_for_an_interval_or_as_long_as_it_wants() {
        let now = Instant::now();
        for (wanted, seconds) in [(None, 10), (Some(ms(1000)), 10), (Some(ms(45_000)), 45)] {
            let mut tempo = tempo();
            tempo.look_failed(now, wanted);
            for (woken, hurry) in [(true, true), (true, false), (false, true), (false, false)] {
                let pause = tempo.pause(now, woken, hurry, GAP);
                assert_eq!(pause, ms(seconds * 1000), "{wanted:?} {woken} {hurry}");
            }
            assert_eq!(tempo.gap(now + ms(4000)), ms(seconds * 1000 - 4000));
            assert_eq!(tempo.gap(now + ms(60_000)), ms(20));
            tempo.looked(ms(5));
            assert_eq!(tempo.gap(now), ms(20));
        }
    }

    #[test]
    fn a_scheduler_is_asked_once_an_interval_unless_there_is_a_hurry() {
        let begun = Instant::now();
        let mut tempo = tempo();
        #[rustfmt::skip]
        let rows = [
            (0, false, true), (5000, false, false), (8999, false, false), (9000, false, true),
            (10_999, true, false), (11_000, true, true),
        ];
        for (at, hurry, asked) in rows {
            assert_eq!(tempo.may_list(begun + ms(at), hurry, GAP), asked, "{at}");
        }
        // A first answer is soon confirmed, and one that failed is not asked for in a hurry.
        tempo.listed(true);
        assert!(tempo.may_list(begun + ms(11_250), true, GAP));
        tempo.listing_failed();
        assert!(!tempo.may_list(begun + ms(21_000), true, GAP));
        assert!(tempo.may_list(begun + ms(21_250), true, GAP));
    }
}
