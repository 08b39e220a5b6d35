//! Finds nodes on which jobs keep failing. Input: failures and running containers by node. Output:
//! the nodes that new submissions exclude for a while.
//!
//! The next attempt of a container avoids the nodes on which the last ones failed before they ran.
//!
//! A node is excluded when several containers failed on it before they ran. Otherwise it could fail
//! the whole queue, one attempt after the other. A node is excluded only while another node is
//! known to be healthy, because failures on all nodes have another cause.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::model::world::MonotonicTime;

/// Number of different containers that must fail on a node within [`FAILURE_WINDOW`].
const FAILURE_THRESHOLD: usize = 3;
/// Time within which failures on a node are counted together.
const FAILURE_WINDOW: Duration = Duration::from_secs(3600);
/// Time for which the node is excluded then.
const EXCLUSION_TIME: Duration = Duration::from_secs(3600);
/// Maximum number of excluded nodes, because failures on all nodes have another cause. When the
/// number is exceeded, the oldest exclusion ends.
const MAX_EXCLUDED: usize = 16;

/// Maximum number of nodes that the attempts of one container avoid, beside the excluded ones.
const MAX_FAILED_ON: usize = 3;

/// Failures and successes of nodes.
#[derive(Debug, Default)]
pub struct NodeHealth {
    failures: BTreeMap<String, BTreeMap<ContainerUuid, MonotonicTime>>,
    /// Time at which a container was last seen running on the node.
    healthy: BTreeMap<String, MonotonicTime>,
    excluded_until: Vec<(String, MonotonicTime)>,
    /// Nodes on which attempts of a container failed before they ran, the newest last.
    failed_on: BTreeMap<ContainerUuid, Vec<(String, MonotonicTime)>>,
}

impl NodeHealth {
    /// Records that a container runs on `node`.
    pub fn mark_healthy(&mut self, node: &str, now: MonotonicTime) {
        self.failures.remove(node);
        self.healthy.insert(node.to_owned(), now);
        self.healthy.retain(|_, at| now.since(*at) < FAILURE_WINDOW);
    }

    /// Nodes that the next attempt of the container avoids, where another node is possible.
    pub fn failed_on(
        &self,
        container: &ContainerUuid,
        now: MonotonicTime,
    ) -> impl Iterator<Item = &str> {
        let nodes = self.failed_on.get(container).into_iter().flatten();
        nodes
            .filter(move |(_, at)| now.since(*at) < FAILURE_WINDOW)
            .map(|(node, _)| node.as_str())
    }

    fn record_failure_of(&mut self, container: &ContainerUuid, node: &str, now: MonotonicTime) {
        self.failed_on.retain(|_, nodes| {
            nodes.retain(|(_, at)| now.since(*at) < FAILURE_WINDOW);
            !nodes.is_empty()
        });
        let nodes = self.failed_on.entry(container.clone()).or_default();
        nodes.retain(|(known, _)| known != node);
        nodes.push((node.to_owned(), now));
        if nodes.len() > MAX_FAILED_ON {
            nodes.remove(0);
        }
    }

    /// Records that a container failed on `node` before it ran. True if the node is excluded from
    /// now on, and was not before.
    pub fn record_failure(
        &mut self,
        node: String,
        container: &ContainerUuid,
        now: MonotonicTime,
    ) -> bool {
        self.record_failure_of(container, &node, now);
        self.failures.retain(|_, seen| {
            seen.retain(|_, at| now.since(*at) < FAILURE_WINDOW);
            !seen.is_empty()
        });
        let seen = self.failures.entry(node.clone()).or_default();
        seen.insert(container.clone(), now);
        let other = |(name, at): (&String, &MonotonicTime)| {
            *name != node && now.since(*at) < FAILURE_WINDOW
        };
        if seen.len() < FAILURE_THRESHOLD || !self.healthy.iter().any(other) {
            return false;
        }
        self.failures.remove(&node);
        let was_excluded = self.excluded(now).any(|known| known == node);
        self.excluded_until.retain(|(known, _)| *known != node);
        self.excluded_until
            .push((node, MonotonicTime(now.0 + EXCLUSION_TIME)));
        if self.excluded_until.len() > MAX_EXCLUDED {
            self.excluded_until.remove(0);
        }
        !was_excluded
    }

    /// The nodes that are excluded at `now`.
    pub fn excluded(&self, now: MonotonicTime) -> impl Iterator<Item = &str> {
        let out = self
            .excluded_until
            .iter()
            .filter(move |(_, until)| *until > now);
        out.map(|(node, _)| node.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(Duration::from_secs(seconds))
    }

    fn container(n: u32) -> ContainerUuid {
        ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
    }

    #[test]
    fn three_failed_containers_within_an_hour_exclude_a_node_for_an_hour() {
        let mut nodes = NodeHealth::default();
        nodes.mark_healthy("b", at(3000));
        let fail =
            |nodes: &mut NodeHealth, n, s| nodes.record_failure("a".into(), &container(n), at(s));
        assert!(!fail(&mut nodes, 1, 0));
        assert!(!fail(&mut nodes, 1, 1), "the same container again");
        assert!(!fail(&mut nodes, 2, 10));
        assert!(!fail(&mut nodes, 3, 3605), "the first was long ago");
        assert!(fail(&mut nodes, 4, 3606));
        assert_eq!(nodes.excluded(at(7205)).collect::<Vec<_>>(), ["a"]);
        assert_eq!(nodes.excluded(at(7206)).count(), 0);
    }

    #[test]
    fn a_container_avoids_the_nodes_of_its_last_attempts() {
        let mut nodes = NodeHealth::default();
        for (second, node) in ["a", "b", "a", "c", "d"].into_iter().enumerate() {
            nodes.record_failure(node.into(), &container(1), at(second as u64));
        }
        nodes.record_failure("z".into(), &container(2), at(4));
        let avoided = |n, now| nodes.failed_on(&container(n), at(now)).collect::<Vec<_>>();
        assert_eq!(avoided(1, 5), ["a", "c", "d"], "the last three");
        assert_eq!(avoided(1, 3603), ["d"], "an hour later");
        assert_eq!(avoided(2, 5), ["z"]);
        assert!(avoided(3, 5).is_empty());
    }

    #[test]
    fn an_excluded_node_is_told_of_once() {
        let mut nodes = NodeHealth::default();
        nodes.mark_healthy("b", at(0));
        let told: Vec<u32> = (0..9)
            .filter(|n| nodes.record_failure("a".into(), &container(*n), at(1)))
            .collect();
        assert_eq!(told, [2]);
    }

    #[test]
    fn failures_on_all_nodes_do_not_exclude_all() {
        let mut nodes = NodeHealth::default();
        for n in 0..5 {
            nodes.record_failure("only".into(), &container(n), at(1));
        }
        assert_eq!(
            nodes.excluded(at(2)).count(),
            0,
            "no other node is known to be healthy"
        );
        nodes.mark_healthy("good", at(4));
        for node in 0..40 {
            for n in 0..3 {
                nodes.record_failure(format!("n{node}"), &container(n), at(5));
            }
        }
        let out: Vec<&str> = nodes.excluded(at(6)).collect();
        assert_eq!((out.len(), out[0]), (MAX_EXCLUDED, "n24"));
    }
}
