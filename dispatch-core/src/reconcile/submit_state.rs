//! The state of submissions: answers that were lost, failures, and the nodes and times that new
//! submissions avoid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::model::charge_class::UserClass;
use crate::model::world::MonotonicTime;
use crate::reconcile::circuit_breaker::CircuitBreakers;
use crate::reconcile::node_health::NodeHealth;
use crate::reconcile::retry_backoff::RetryBackoff;

/// The state of submissions.
#[derive(Debug)]
pub(crate) struct SubmitState {
    /// Why this host cannot submit, if that is so.
    pub(crate) host_fault: Option<String>,
    /// That the scheduler does not answer, if that is so.
    pub(crate) outage: Option<String>,
    /// Submissions whose answer was lost, until a listing shows the job, and whether tests tell
    /// when such jobs are accepted.
    pub(crate) unknown: BTreeMap<ContainerUuid, bool>,
    pub(crate) backoff: RetryBackoff,
    pub(crate) breakers: CircuitBreakers,
    pub(crate) node_health: NodeHealth,
    /// Containers that may run on excluded nodes too, because no other node may fit them.
    pub(crate) ignores_exclusions: BTreeSet<ContainerUuid>,
}

impl SubmitState {
    /// Nothing was submitted yet. `retry_period` is the delay after the first failure of a
    /// container.
    pub(crate) fn new(retry_period: Duration) -> Self {
        Self {
            host_fault: None,
            outage: None,
            unknown: BTreeMap::new(),
            backoff: RetryBackoff::new(retry_period),
            breakers: CircuitBreakers::default(),
            node_health: NodeHealth::default(),
            ignores_exclusions: BTreeSet::new(),
        }
    }

    /// Why nothing can be started now, whatever it is.
    pub(crate) fn obstacle(&self) -> Option<&String> {
        self.host_fault.as_ref().or(self.outage.as_ref())
    }

    /// Nodes that a submission of the container excludes.
    pub(crate) fn nodes_to_avoid(
        &self,
        container: &ContainerUuid,
        now: MonotonicTime,
    ) -> Vec<String> {
        self.unless_ignored(container, self.node_health.excluded(now))
    }

    /// Nodes on which its last attempts failed, which a submission excludes if another node fits.
    pub(crate) fn failed_nodes(
        &self,
        container: &ContainerUuid,
        now: MonotonicTime,
    ) -> Vec<String> {
        self.unless_ignored(container, self.node_health.failed_on(container, now))
    }

    /// These nodes, or none if the container may run on any.
    fn unless_ignored<'a>(
        &self,
        container: &ContainerUuid,
        nodes: impl Iterator<Item = &'a str>,
    ) -> Vec<String> {
        match self.ignores_exclusions.contains(container) {
            true => Vec::new(),
            false => nodes.map(str::to_owned).collect(),
        }
    }

    /// Records a rejected submission of the container, and lets it run on any node: the excluded
    /// nodes may be the only ones that fit it.
    pub(crate) fn record_rejection_of(
        &mut self,
        container: &ContainerUuid,
        class: UserClass,
        now: MonotonicTime,
    ) {
        let text = class.to_string();
        if self.breakers.record_failure_of(class, now) {
            tracing::error!(
                "several attempts in a row at containers {text} failed before they ran; starting no others of these for a while"
            );
        }
        let mut avoided = self.node_health.excluded(now);
        let mut failed = self.node_health.failed_on(container, now);
        if avoided.next().is_some() || failed.next().is_some() {
            self.ignores_exclusions.insert(container.clone());
        }
    }

    /// Records a failure that concerns all containers. Logs if new attempts stop for a while
    /// because of it.
    pub(crate) fn record_rejection(&mut self, now: MonotonicTime) {
        if self.breakers.record_failure(now) {
            tracing::error!(
                "several attempts in a row failed before their containers ran; starting no new containers for a while"
            );
        }
    }

    /// Records that a container failed on `node` before it ran.
    pub(crate) fn record_node_failure(
        &mut self,
        node: String,
        container: &ContainerUuid,
        now: MonotonicTime,
    ) {
        if self
            .node_health
            .record_failure(node.clone(), container, now)
        {
            tracing::warn!(
                node,
                "several containers failed on this node before they ran; excluding it from submissions for an hour"
            );
        }
    }
}
