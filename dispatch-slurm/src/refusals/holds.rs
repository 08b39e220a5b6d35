//! What is held back, for how long, and how it is let go again. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use dispatch_core::needs::Needs;

/// Between two questions; twice as long each time, up to the last.
const FIRST: Duration = Duration::from_secs(5);
const LAST: Duration = Duration::from_secs(60);
/// The question is not quite what a container would be: after so long one is tried in earnest, and another after twice
/// that. Each costs a lock, of which a container has but a few.
const HOLDS: Duration = Duration::from_secs(600);
/// Where so many were taken in a row there is room again.
const ENOUGH: usize = 128;
/// What was let go and not heard of again for so long was not submitted.
const LOST: Duration = Duration::from_secs(60);

/// Jobs that are held back together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All that name these partitions: account and quality of service follow from these.
    Partitions(Vec<String>),
    /// All that need the very same.
    Exactly(Needs),
}

impl Kind {
    /// The kinds a container is of, the larger first.
    pub fn both(needs: &Needs) -> [Self; 2] {
        [
            Self::Partitions(needs.partitions.clone()),
            Self::Exactly(needs.clone()),
        ]
    }

    /// Of what is asked whether Slurm would take it.
    pub fn trial(&self) -> Needs {
        match self {
            Self::Partitions(partitions) => Needs {
                cpus: 1,
                ram: 64 << 20,
                partitions: partitions.clone(),
                ..Needs::default()
            },
            Self::Exactly(needs) => needs.clone(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partitions(none) if none.is_empty() => f.write_str("that name no partition"),
            Self::Partitions(names) => write!(f, "for {}", names.join(", ")),
            Self::Exactly(needs) => {
                let (cpus, ram, gpus) = (needs.cpus, needs.ram >> 20, needs.gpus);
                write!(
                    f,
                    "of {cpus} CPUs, {ram} MiB, {gpus} GPUs and what else one asked for"
                )
            }
        }
    }
}

/// Why they are, and until when.
#[derive(Debug)]
pub struct Hold {
    words: String,
    /// When one may be tried in earnest.
    earnest_at: Instant,
    earnest_wait: Duration,
    ask_at: Instant,
    wait: Duration,
}

impl Hold {
    /// Slurm said `words`.
    pub fn new(words: String, now: Instant) -> Self {
        Self {
            words,
            earnest_at: now + HOLDS,
            earnest_wait: HOLDS,
            ask_at: now + FIRST,
            wait: FIRST,
        }
    }

    /// Whether it is time to ask.
    pub fn is_due(&self, now: Instant) -> bool {
        self.ask_at <= now
    }

    /// It was asked, and did not say yes.
    pub fn refused(&mut self, words: Option<String>, now: Instant) {
        if let Some(words) = words {
            self.words = words;
        }
        self.wait = (2 * self.wait).min(LAST);
        self.ask_at = now + self.wait;
    }

    /// Slurm's words; none for the one that is tried in earnest.
    pub fn says(&mut self, now: Instant) -> Option<&str> {
        if now >= self.earnest_at {
            self.earnest_wait *= 2;
            self.earnest_at = now + self.earnest_wait;
            return None;
        }
        Some(&self.words)
    }
}

/// How many may be tried at once, after a hold.
#[derive(Debug)]
pub struct Ramp {
    most: usize,
    /// Let go, and when.
    under_way: BTreeMap<ContainerUuid, Instant>,
}

impl Default for Ramp {
    fn default() -> Self {
        Self {
            most: 1,
            under_way: BTreeMap::new(),
        }
    }
}

impl Ramp {
    /// Whether this one may be tried.
    pub fn admits(&mut self, container: &ContainerUuid, now: Instant) -> bool {
        self.under_way
            .retain(|_, since| now.duration_since(*since) < LOST);
        if self.under_way.contains_key(container) {
            return true;
        }
        let may = self.under_way.len() < self.most;
        if may {
            self.under_way.insert(container.clone(), now);
        }
        may
    }

    /// It was taken: twice as many. Whether that is enough.
    pub fn took(&mut self, container: &ContainerUuid) -> bool {
        self.under_way.remove(container);
        self.most *= 2;
        self.most >= ENOUGH
    }

    /// It was refused: one at a time again.
    pub fn lost(&mut self, container: &ContainerUuid) {
        self.under_way.remove(container);
        self.most = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_is_asked_ever_more_rarely() {
        let start = Instant::now();
        let mut hold = Hold::new("no".into(), start);
        let mut asked = Vec::new();
        for second in 0..300 {
            let now = start + Duration::from_secs(second);
            if hold.is_due(now) {
                asked.push(second);
                hold.refused(None, now);
            }
        }
        assert_eq!(asked, [5, 15, 35, 75, 135, 195, 255]);
        hold.refused(Some("still no".into()), start);
        assert_eq!(hold.says(start), Some("still no"));
    }

    #[test]
    fn one_is_tried_in_earnest_ever_more_rarely() {
        let start = Instant::now();
        let mut hold = Hold::new("no".into(), start);
        let mut tried = Vec::new();
        for minute in 0..=100 {
            let now = start + Duration::from_secs(60 * minute);
            // Of many that wait at this moment one only.
            let free = (0..5).filter(|_| hold.says(now).is_none()).count();
            tried.extend(std::iter::repeat_n(minute, free));
        }
        assert_eq!(tried, [10, 30, 70]);
    }

    #[test]
    fn what_is_let_go_and_lost_makes_room() {
        let now = Instant::now();
        let [a, b, c] = [(); 3].map(|()| ContainerUuid::generate("zzzzz"));
        let mut ramp = Ramp::default();
        assert!(ramp.admits(&a, now) && ramp.admits(&a, now) && !ramp.admits(&b, now));
        // Another dispatcher had its lock: nothing is heard of it.
        assert!(ramp.admits(&b, now + LOST));
        assert!(!ramp.took(&b));
        let later = now + LOST;
        assert!(ramp.admits(&a, later) && ramp.admits(&c, later) && !ramp.admits(&b, later));
        ramp.lost(&a);
        assert!(!ramp.admits(&a, later) && ramp.admits(&c, later));
        let taken = (0..7).filter(|_| ramp.took(&c)).count();
        assert_eq!(taken, 1);
    }
}
