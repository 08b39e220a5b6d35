//! How much is asked of others: scheduler commands by the second, API calls at once.

use std::time::Duration;

use crate::world::Moment;

/// A bucket of permissions to run a scheduler's command.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Commands a second; 0 is no limit.
    rate: f64,
    /// Commands at once after a quiet time.
    burst: f64,
    left: f64,
    at: Moment,
}

impl Pace {
    /// `rate` commands a second, `burst` of them at once; a rate of 0 is no limit.
    pub fn new(rate: f64, burst: u32) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            rate: rate.max(0.0),
            burst,
            left: burst,
            at: Moment::default(),
        }
    }

    fn refill(&mut self, now: Moment) {
        let gained = now.since(self.at).as_secs_f64() * self.rate;
        self.left = (self.left + gained).min(self.burst);
        self.at = now;
    }

    /// Whether a command may run now.
    pub fn may(&mut self, now: Moment) -> bool {
        self.refill(now);
        self.rate == 0.0 || self.left >= 1.0
    }

    /// Whether a command may run now; if so it counts.
    pub fn take(&mut self, now: Moment) -> bool {
        let may = self.may(now);
        if may {
            self.left -= 1.0;
        }
        may
    }

    /// Counts a command that runs whatever the bucket says: the listing, once an interval.
    pub fn spend(&mut self, now: Moment) {
        self.refill(now);
        self.left -= 1.0;
    }

    /// How long until the next command may run.
    pub fn wait(&self, now: Moment) -> Duration {
        if self.rate == 0.0 {
            return Duration::ZERO;
        }
        let gained = now.since(self.at).as_secs_f64() * self.rate;
        Duration::from_secs_f64(((1.0 - self.left - gained) / self.rate).max(0.0))
    }
}

/// How many actions are under way at once: halved when the API asks for less (429, 503), then grown again one by one.
#[derive(Debug, Clone)]
pub struct Width {
    most: usize,
    now: usize,
    since: usize,
}

impl Width {
    /// At most `most`.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            now: most.max(1),
            since: 0,
        }
    }

    /// How many.
    pub fn hands(&self) -> usize {
        self.now
    }

    /// An action ended; whether the API asked for less.
    pub fn learn(&mut self, overloaded: bool) {
        if overloaded {
            self.now = (self.now / 2).max(1);
            self.since = 0;
            return;
        }
        self.since += 1;
        if self.since >= self.now && self.now < self.most {
            self.now += 1;
            self.since = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment(Duration::from_millis(milliseconds))
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut pace = Pace::new(2.0, 3);
        let taken = |pace: &mut Pace, ms| (0..10).filter(|_| pace.take(at(ms))).count();
        assert_eq!(taken(&mut pace, 0), 3);
        assert_eq!(pace.wait(at(0)), Duration::from_millis(500));
        assert_eq!(taken(&mut pace, 499), 0);
        assert_eq!(taken(&mut pace, 1000), 2);
        pace.spend(at(1000));
        assert_eq!(pace.wait(at(1000)), Duration::from_secs(1));
        assert_eq!(taken(&mut pace, 3_600_000), 3, "no more than the burst");
        let mut free = Pace::new(0.0, 1);
        assert_eq!(taken(&mut free, 0), 10);
        assert_eq!(free.wait(at(0)), Duration::ZERO);
    }

    #[test]
    fn an_overloaded_server_gets_fewer_calls_at_once() {
        let mut width = Width::new(8);
        let mut hands = Vec::new();
        for overloaded in [true, true, true, true, false, false, false, false] {
            width.learn(overloaded);
            hands.push(width.hands());
        }
        assert_eq!(hands, [4, 2, 1, 1, 2, 2, 3, 3]);
        (0..100).for_each(|_| width.learn(false));
        assert_eq!(width.hands(), 8);
    }
}
