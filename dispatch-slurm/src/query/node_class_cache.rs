//! Cache of the cluster's capacity, refreshed from `sinfo` and `scontrol show partition`.
//!
//! Input: the needs of a container. Output: whether it could ever run here, and for how long.

use std::time::Duration;

use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::scheduler::cached_query::{CachedQuery, answer};

use crate::query::node_classes::{GrantedKinds, NodeClasses};
use crate::query::partition_times::{PartitionTimes, fixed_partitions};
use crate::query::sinfo::{SINFO_FORMAT, parse_partitions};
use crate::settings::Settings;

/// The cached capacity.
#[derive(Debug)]
pub struct NodeClassCache {
    requested: GrantedKinds,
    /// Partitions that the admin's arguments name.
    fixed_partitions: Vec<String>,
    /// Partitions that the admin's arguments name for preemptible containers.
    preemptible_partitions: Vec<String>,
    cache: CachedQuery<NodeClasses>,
}

impl NodeClassCache {
    /// An empty cache, for jobs with these settings.
    pub fn new(settings: &Settings) -> Self {
        Self {
            requested: GrantedKinds::from_settings(settings),
            fixed_partitions: fixed_partitions(&settings.arguments),
            preemptible_partitions: fixed_partitions(&settings.preemptible_arguments),
            cache: CachedQuery::default(),
        }
    }

    /// Whether a container could ever run here. An empty cache admits every container.
    pub fn fit(&self, needs: &ResourceRequest) -> Admission {
        self.cache
            .fit(|capacity| capacity.fit(needs, self.requested))
    }

    /// See [`NodeClasses::lack_scratch`].
    pub fn lack_scratch(&self) -> bool {
        let lacks = self.cache.read(|nodes| nodes.lack_scratch(self.requested));
        lacks.unwrap_or(false)
    }

    /// The partitions of a container's job; empty means the default one.
    pub fn partitions_of(&self, needs: &ResourceRequest) -> Vec<String> {
        match needs.preemptible && !self.preemptible_partitions.is_empty() {
            true => self.preemptible_partitions.clone(),
            false => self.requested.partitions_of(needs, &self.fixed_partitions),
        }
    }

    /// The least number of nodes that fit a container; 0 if none is known.
    pub fn fitting_nodes(&self, needs: &ResourceRequest) -> u64 {
        let count = |capacity: &NodeClasses| {
            let partitions = self.partitions_of(needs);
            capacity.fitting_nodes(needs, self.requested, &partitions)
        };
        self.cache.read(count).unwrap_or_default()
    }

    /// The time limits of the partitions where a container could run. Unlimited if they are not
    /// known.
    pub fn times(&self, needs: &ResourceRequest) -> PartitionTimes {
        let times = |capacity: &NodeClasses| {
            let partitions = self.partitions_of(needs);
            capacity.times(needs, self.requested, &partitions)
        };
        self.cache.read(times).unwrap_or_default()
    }

    /// Makes the next refresh query again, because a submission failed.
    pub fn invalidate(&self) {
        self.cache.invalidate();
    }

    /// Queries `sinfo` and `scontrol` if the cache has expired.
    pub async fn refresh(&self, settings: &Settings, timeout: Duration) {
        let sinfo = settings.client("sinfo");
        let sinfo = sinfo.args(["--noheader", "--all", "--exact", "--format", SINFO_FORMAT]);
        let scontrol = settings.client("scontrol");
        let scontrol = scontrol.args(["--all", "--oneliner", "show", "partition"]);
        let query = async {
            let visible = answer(sinfo, timeout, NodeClasses::parse).await?;
            let all = answer(scontrol, timeout, |answer| Some(parse_partitions(answer))).await?;
            Ok::<_, String>(visible.with_partitions(&all))
        };
        if let Err(error) = self.cache.refresh(query).await {
            tracing::warn!(
                error,
                "sinfo or scontrol does not report the nodes; using their capacity of the last hour, or else submitting all containers"
            );
        }
    }
}
