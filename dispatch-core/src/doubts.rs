//! Containers of which it is not certain that, or how, their job ended: asked about ever more seldom, and for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::world::{Job, Moment};

/// Before the second question, doubled each time.
const FIRST: Duration = Duration::from_secs(2);
/// Between two questions at most.
const LONGEST: Duration = Duration::from_secs(60);

/// The containers in doubt.
#[derive(Debug, Default)]
pub struct Doubts(BTreeMap<ContainerUuid, Doubted>);

#[derive(Debug, Clone, Copy, Default)]
struct Doubted {
    /// Since when it is only the results that are in doubt.
    results: Option<Moment>,
    questions: u32,
}

impl Doubts {
    /// The scheduler was asked in vain, once more, about the whole end or about `results` only; how long it is not to be
    /// asked again.
    pub fn again(&mut self, container: &ContainerUuid, results: bool, now: Moment) -> Duration {
        let doubted = self.0.entry(container.clone()).or_default();
        doubted.results = results.then(|| doubted.results.unwrap_or(now));
        let rest = FIRST * 2u32.saturating_pow(doubted.questions).min(60);
        doubted.questions = doubted.questions.saturating_add(1);
        rest.min(LONGEST)
    }

    /// Whether it is in doubt.
    pub fn has(&self, container: &ContainerUuid) -> bool {
        self.0.contains_key(container)
    }

    /// For how long by now it is only the results that are in doubt.
    pub fn lasted(&self, container: &ContainerUuid, now: Moment) -> Duration {
        let since = self.0.get(container).and_then(|doubted| doubted.results);
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// It is known now, or does not matter any more.
    pub fn end(&mut self, container: &ContainerUuid) {
        self.0.remove(container);
    }

    /// What a complete listing shows is not in doubt; which of them that were.
    pub fn listed(&mut self, jobs: &[Job]) -> Vec<ContainerUuid> {
        let live = jobs.iter().filter(|job| !job.ended);
        let ended = live.filter(|job| self.0.remove(&job.container).is_some());
        ended.map(|job| job.container.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::JobId;

    #[test]
    fn it_is_asked_ever_more_seldom_until_it_is_known() {
        let (mut doubts, container) = (Doubts::default(), ContainerUuid::generate("zzzzz"));
        let at = |seconds| Moment(Duration::from_secs(seconds));
        assert_eq!(doubts.lasted(&container, at(5)), Duration::ZERO);
        assert_eq!(doubts.again(&container, false, at(5)).as_secs(), 2);
        assert_eq!(doubts.lasted(&container, at(70)), Duration::ZERO);
        doubts.end(&container);
        let rests: Vec<u64> = (0..40)
            .map(|n| doubts.again(&container, true, at(10 + n)).as_secs())
            .collect();
        assert_eq!(rests[..7], [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(rests[39], 60);
        assert_eq!(doubts.lasted(&container, at(70)), Duration::from_secs(60));
        let job = |ended| Job {
            id: JobId("1".into()),
            container: container.clone(),
            attempt: None,
            ended,
            node: None,
        };
        doubts.again(&container, false, at(71));
        assert_eq!(doubts.lasted(&container, at(72)), Duration::ZERO, "anew");
        assert_eq!(doubts.listed(&[job(true)]), []);
        assert!(doubts.has(&container));
        assert_eq!(
            doubts.listed(&[job(false)]).as_slice(),
            std::slice::from_ref(&container)
        );
        assert!(!doubts.has(&container));
        assert_eq!(doubts.again(&container, true, at(99)).as_secs(), 2);
        doubts.end(&container);
        assert!(!doubts.has(&container));
    }
}
