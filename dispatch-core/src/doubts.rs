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

#[derive(Debug, Clone, Copy)]
struct Doubted {
    since: Moment,
    questions: u32,
}

impl Doubts {
    /// The scheduler was asked in vain, once more; how long it is not to be asked again.
    pub fn again(&mut self, container: &ContainerUuid, now: Moment) -> Duration {
        let doubted = self.0.entry(container.clone()).or_insert(Doubted {
            since: now,
            questions: 0,
        });
        let rest = FIRST * 2u32.saturating_pow(doubted.questions).min(60);
        doubted.questions += 1;
        rest.min(LONGEST)
    }

    /// Whether it is in doubt.
    pub fn has(&self, container: &ContainerUuid) -> bool {
        self.0.contains_key(container)
    }

    /// For how long by now.
    pub fn lasted(&self, container: &ContainerUuid, now: Moment) -> Duration {
        let since = self.0.get(container).map(|doubted| doubted.since);
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// It is known now, or does not matter any more.
    pub fn end(&mut self, container: &ContainerUuid) {
        self.0.remove(container);
    }

    /// What a complete listing shows is not in doubt.
    pub fn listed(&mut self, jobs: &[Job]) {
        for job in jobs.iter().filter(|job| !job.ended) {
            self.end(&job.container);
        }
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
        let rests: Vec<u64> = (0..40)
            .map(|n| doubts.again(&container, at(10 + n)).as_secs())
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
        doubts.listed(&[job(true)]);
        assert!(doubts.has(&container));
        doubts.listed(&[job(false)]);
        assert!(!doubts.has(&container));
        assert_eq!(doubts.again(&container, at(99)).as_secs(), 2);
        doubts.end(&container);
        assert!(!doubts.has(&container));
    }
}
