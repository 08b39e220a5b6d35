//! Which nodes swallow jobs: a node on which several containers came to nothing before they ran is left out of new
//! submissions for a while, so that it does not eat the whole queue, one attempt after the other. But only while
//! another node is known to work: what fails everywhere is not the nodes' fault.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::world::Moment;

/// So many different containers must come to nothing on a node, within [`WINDOW`].
const FAILURES: usize = 3;
/// See [`FAILURES`].
const WINDOW: Duration = Duration::from_secs(3600);
/// How long the node is left out then.
const SHUNNED: Duration = Duration::from_secs(3600);
/// So many nodes at most: what fails everywhere is not the nodes' fault. The first ones are let in again.
const MOST: usize = 16;

/// What is remembered of nodes.
#[derive(Debug, Default)]
pub struct Nodes {
    failures: BTreeMap<String, BTreeMap<ContainerUuid, Moment>>,
    /// When a container was last seen running there.
    working: BTreeMap<String, Moment>,
    shunned: Vec<(String, Moment)>,
}

impl Nodes {
    /// A container runs on `node`.
    pub fn works(&mut self, node: &str, now: Moment) {
        self.failures.remove(node);
        self.working.insert(node.to_owned(), now);
        self.working.retain(|_, at| now.since(*at) < WINDOW);
    }

    /// A container came to nothing on `node` before it ran. True if the node is left out from now on.
    pub fn failed(&mut self, node: String, container: &ContainerUuid, now: Moment) -> bool {
        self.failures.retain(|_, seen| {
            seen.retain(|_, at| now.since(*at) < WINDOW);
            !seen.is_empty()
        });
        let seen = self.failures.entry(node.clone()).or_default();
        seen.insert(container.clone(), now);
        let other = |(name, at): (&String, &Moment)| *name != node && now.since(*at) < WINDOW;
        if seen.len() < FAILURES || !self.working.iter().any(other) {
            return false;
        }
        self.failures.remove(&node);
        self.shunned.retain(|(known, _)| *known != node);
        self.shunned.push((node, Moment(now.0 + SHUNNED)));
        if self.shunned.len() > MOST {
            self.shunned.remove(0);
        }
        true
    }

    /// The nodes to leave out now.
    pub fn shunned(&self, now: Moment) -> impl Iterator<Item = &str> {
        let out = self.shunned.iter().filter(move |(_, until)| *until > now);
        out.map(|(node, _)| node.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn container(n: u32) -> ContainerUuid {
        ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
    }

    #[test]
    fn three_containers_within_an_hour_close_a_node_for_an_hour() {
        let mut nodes = Nodes::default();
        nodes.works("b", at(3000));
        let fail = |nodes: &mut Nodes, n, s| nodes.failed("a".into(), &container(n), at(s));
        assert!(!fail(&mut nodes, 1, 0));
        assert!(!fail(&mut nodes, 1, 1), "the container's own fault");
        assert!(!fail(&mut nodes, 2, 10));
        assert!(!fail(&mut nodes, 3, 3605), "the first was long ago");
        assert!(fail(&mut nodes, 4, 3606));
        assert_eq!(nodes.shunned(at(7205)).collect::<Vec<_>>(), ["a"]);
        assert_eq!(nodes.shunned(at(7206)).count(), 0);
    }

    #[test]
    fn what_fails_everywhere_does_not_close_everything() {
        let mut nodes = Nodes::default();
        for n in 0..5 {
            nodes.failed("only".into(), &container(n), at(1));
        }
        assert_eq!(nodes.shunned(at(2)).count(), 0, "no other is known to work");
        nodes.works("good", at(4));
        for node in 0..40 {
            for n in 0..3 {
                nodes.failed(format!("n{node}"), &container(n), at(5));
            }
        }
        let out: Vec<&str> = nodes.shunned(at(6)).collect();
        assert_eq!((out.len(), out[0]), (MOST, "n24"));
    }
}
