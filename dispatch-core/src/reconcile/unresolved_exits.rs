//! Containers whose job's end, or its results, could not be queried. Input: failed queries and
//! listings. Output: growing delays between queries, and how long results have been unknown.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::model::world::{Job, MonotonicTime};

/// Delay before the second query; it doubles with each query.
const INITIAL_BACKOFF: Duration = Duration::from_secs(2);
/// Maximum delay between two queries.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The containers with an unresolved exit.
#[derive(Debug, Default)]
pub struct UnresolvedExits(BTreeMap<ContainerUuid, UnresolvedExit>);

#[derive(Debug, Clone, Copy, Default)]
struct UnresolvedExit {
    /// Time since which only the results are unknown.
    results: Option<MonotonicTime>,
    queries: u32,
}

impl UnresolvedExits {
    /// Records a failed query about the whole end, or about the `results` only. Returns the delay
    /// before the next query.
    pub fn record_failed_query(
        &mut self,
        container: &ContainerUuid,
        results: bool,
        now: MonotonicTime,
    ) -> Duration {
        let unresolved = self.0.entry(container.clone()).or_default();
        unresolved.results = results.then(|| unresolved.results.unwrap_or(now));
        let delay = INITIAL_BACKOFF * 2u32.saturating_pow(unresolved.queries).min(60);
        unresolved.queries = unresolved.queries.saturating_add(1);
        delay.min(MAX_BACKOFF)
    }

    /// Whether the exit of this container is unresolved.
    pub fn contains(&self, container: &ContainerUuid) -> bool {
        self.0.contains_key(container)
    }

    /// Time for which only the results have been unknown.
    pub fn results_unknown_for(&self, container: &ContainerUuid, now: MonotonicTime) -> Duration {
        let since = self
            .0
            .get(container)
            .and_then(|unresolved| unresolved.results);
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Removes a container whose exit is known or does not matter any more.
    pub fn resolve(&mut self, container: &ContainerUuid) {
        self.0.remove(container);
    }

    /// Removes the containers whose job the listing shows as live. Returns those removed.
    pub fn apply_listing(&mut self, jobs: &[Job]) -> Vec<ContainerUuid> {
        let live = jobs.iter().filter(|job| !job.ended);
        let ended = live.filter(|job| self.0.remove(&job.container).is_some());
        ended.map(|job| job.container.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::world::JobId;

    #[test]
    fn delays_between_queries_double_until_the_exit_is_resolved() {
        let (mut exits, container) = (UnresolvedExits::default(), ContainerUuid::generate("zzzzz"));
        let at = |seconds| MonotonicTime(Duration::from_secs(seconds));
        assert_eq!(exits.results_unknown_for(&container, at(5)), Duration::ZERO);
        assert_eq!(
            exits
                .record_failed_query(&container, false, at(5))
                .as_secs(),
            2
        );
        assert_eq!(
            exits.results_unknown_for(&container, at(70)),
            Duration::ZERO
        );
        exits.resolve(&container);
        let delays: Vec<u64> = (0..40)
            .map(|n| {
                exits
                    .record_failed_query(&container, true, at(10 + n))
                    .as_secs()
            })
            .collect();
        assert_eq!(delays[..7], [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(delays[39], 60);
        assert_eq!(
            exits.results_unknown_for(&container, at(70)),
            Duration::from_secs(60)
        );
        let job = |ended| Job {
            id: JobId("1".into()),
            container: container.clone(),
            attempt: None,
            ended,
            node: None,
        };
        exits.record_failed_query(&container, false, at(71));
        assert_eq!(
            exits.results_unknown_for(&container, at(72)),
            Duration::ZERO,
            "anew"
        );
        assert_eq!(exits.apply_listing(&[job(true)]), []);
        assert!(exits.contains(&container));
        assert_eq!(
            exits.apply_listing(&[job(false)]).as_slice(),
            std::slice::from_ref(&container)
        );
        assert!(!exits.contains(&container));
        assert_eq!(
            exits
                .record_failed_query(&container, true, at(99))
                .as_secs(),
            2
        );
        exits.resolve(&container);
        assert!(!exits.contains(&container));
    }
}
