//! Finds nodes on which jobs keep failing. Input: failures and running containers by node. Output:
//! the nodes that new submissions exclude for a while.
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

/// Failures and successes of nodes.
#[derive(Debug, Default)]
pub struct NodeHealth {
    failures: BTreeMap<String, BTreeMap<ContainerUuid, MonotonicTime>>,
    /// Time at which a container was last seen running on the node.
    healthy: BTreeMap<String, MonotonicTime>,
    excluded_until: Vec<(String, MonotonicTime)>,
}

impl NodeHealth {
    /// Records that a container runs on `node`.
    pub fn mark_healthy(&mut self, node: &str, now: MonotonicTime) {
        self.failures.remove(node);
        self.healthy.insert(node.to_owned(), now);
        self.healthy.retain(|_, at| now.since(*at) < FAILURE_WINDOW);
    }

    /// Records that a container failed on `node` before it ran. True if the node is excluded from
    /// now on.
    pub fn record_failure(
        &mut self,
        node: String,
        container: &ContainerUuid,
        now: MonotonicTime,
    ) -> bool {
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
        self.excluded_until.retain(|(known, _)| *known != node);
        self.excluded_until
            .push((node, MonotonicTime(now.0 + EXCLUSION_TIME)));
        if self.excluded_until.len() > MAX_EXCLUDED {
            self.excluded_until.remove(0);
        }
        true
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
