//! Which partitions the pool has, where the submit lines say what a partition is.
//!
//! Another dispatcher on the same queue may serve the others. Input: the partitions of containers
//! that wait, and answers about their slots. Output: what to ask, and whether containers for these
//! partitions are admitted. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dispatch_core::model::resources::Admission;
use parking_lot::Mutex;

use crate::query::better_analyze::MatchVerdict;

/// Time for which it is known that a slot has the partitions, or that HTCondor does not tell.
const KNOWN_FOR: Duration = Duration::from_secs(600);
/// Time until it is asked again for partitions that no slot has: machines join.
const MISSING_FOR: Duration = Duration::from_secs(60);
/// Maximum number of lists of partitions; containers for further ones wait.
const MAX_LISTS: usize = 1000;
/// Maximum number of questions of one upkeep.
const MAX_QUESTIONS: usize = 4;
/// The lists of partitions that containers have named.
#[derive(Debug, Default)]
pub struct PartitionSlots(Mutex<BTreeMap<Vec<String>, Known>>);

/// What is known of one list.
#[derive(Debug)]
struct Known {
    /// None: not asked yet.
    verdict: Option<MatchVerdict>,
    ask_at: Instant,
    /// When a container for these partitions last waited.
    wanted: Instant,
}

impl PartitionSlots {
    /// Whether a container for these partitions may be taken. Remembers the question.
    pub fn fit(&self, partitions: &[String], now: Instant) -> Admission {
        let mut lists = self.0.lock();
        lists.retain(|_, known| now.duration_since(known.wanted) < KNOWN_FOR);
        let is_full = lists.len() >= MAX_LISTS;
        let verdict = match lists.get_mut(partitions) {
            Some(known) => {
                known.wanted = now;
                known.verdict.clone()
            }
            None if is_full => None,
            None => {
                let known = Known {
                    verdict: None,
                    ask_at: now,
                    wanted: now,
                };
                lists.insert(partitions.to_vec(), known);
                None
            }
        };
        match verdict {
            Some(MatchVerdict::Matches | MatchVerdict::Unknown) => Admission::Now,
            None => Admission::Later("HTCondor is asked for slots of its partitions first".into()),
            Some(MatchVerdict::Never(reason)) => Admission::Later(format!(
                "no slot of this HTCondor pool is in partition {} ({reason}); it is left to other dispatchers, and the pool is looked at again each minute",
                partitions.join(", ")
            )),
        }
    }

    /// The lists to ask about now.
    pub fn due(&self, now: Instant) -> Vec<Vec<String>> {
        let lists = self.0.lock();
        let due = lists.iter().filter(|(_, known)| known.ask_at <= now);
        due.map(|(partitions, _)| partitions.clone())
            .take(MAX_QUESTIONS)
            .collect()
    }

    /// Records an answer. Once a slot had the partitions, only a clear answer changes that.
    pub fn answered(&self, partitions: &[String], verdict: MatchVerdict, now: Instant) {
        let mut lists = self.0.lock();
        let Some(known) = lists.get_mut(partitions) else {
            return;
        };
        known.ask_at = match &verdict {
            MatchVerdict::Never(_) | MatchVerdict::Unknown => now + MISSING_FOR,
            MatchVerdict::Matches => now + KNOWN_FOR,
        };
        match (&known.verdict, &verdict) {
            (Some(_), MatchVerdict::Unknown) => return,
            (None, MatchVerdict::Unknown) => tracing::warn!(
                partitions = partitions.join(","),
                "HTCondor does not tell which slots are in these partitions; their containers are submitted"
            ),
            _ => {}
        }
        known.verdict = Some(verdict);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_for_partitions_that_no_slot_has_wait() {
        use MatchVerdict::{Matches, Never, Unknown};
        let slots = PartitionSlots::default();
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let main = ["main".to_owned()];
        let waits = |second| match slots.fit(&main, at(second)) {
            Admission::Later(why) => Some(why),
            _ => None,
        };
        assert!(waits(0).is_some_and(|why| why.contains("asked for slots")));
        let no = || Never("none is".into());
        // When it is asked, the answer, whether it waits then, and when it is asked again.
        for (second, answer, then_waits, again) in [
            (0, no(), true, 60),
            (60, Unknown, true, 120),
            (120, Matches, false, 720),
            (720, Unknown, false, 780),
            (780, no(), true, 840),
        ] {
            assert_eq!(slots.due(at(second)), [&main[..]], "second {second}");
            slots.answered(&main, answer, at(second));
            assert_eq!(waits(second).is_some(), then_waits, "second {second}");
            assert!(slots.due(at(again - 1)).is_empty(), "second {second}");
            waits(again - 1);
        }
        assert!(waits(840).is_some_and(|why| why.contains("partition main (none is)")));
        // Nobody asks for it any more.
        slots.fit(&["other".to_owned()], at(840 + 600));
        assert_eq!(slots.due(at(9000)), [["other".to_owned()]]);
    }

    #[test]
    fn without_an_answer_containers_are_submitted() {
        let slots = PartitionSlots::default();
        let (main, now) = (["main".to_owned()], Instant::now());
        slots.fit(&main, now);
        slots.answered(&main, MatchVerdict::Unknown, now);
        assert_eq!(slots.fit(&main, now), Admission::Now);
    }
}
