//! Whether a container could ever run on this cluster. Pure.
//!
//! Input: node classes of [`crate::query::sinfo`] and the needs of a container. Output: that it
//! fits, or why no node can run it. Nodes that are down or drained count, because they come back.
//! What is not certainly impossible is left to Slurm: nodes that it starts on demand may be hidden
//! from `sinfo` until then (`PrivateData=cloud`).

use std::collections::BTreeMap;

use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::scheduler::misfit::{Requirement, explain_misfit, is_met};

use crate::query::partition_times::PartitionTimes;
use crate::query::sinfo::{NodeClass, Partition, parse_node_classes};
use crate::settings::Settings;

const MIB: u64 = 1 << 20;

/// Node classes of the whole cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeClasses {
    classes: Vec<NodeClass>,
    /// Partitions with nodes that `sinfo` does not show.
    hidden: Vec<String>,
    /// Partition of jobs that name none.
    default_partition: Option<String>,
    /// Time limits in minutes of jobs that ask for none, by partition.
    default_times: BTreeMap<String, u64>,
}

/// Resources that sbatch is asked for: Slurm grants no resource that the admin left out of its
/// arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantedKinds {
    cpus: bool,
    memory: bool,
    scratch: bool,
    time: bool,
    gpus: bool,
    partitions: bool,
}

impl GrantedKinds {
    /// Reads the templates of sbatch's arguments.
    pub fn from_settings(settings: &Settings) -> Self {
        let (arguments, gpu_arguments) = (&settings.arguments, &settings.gpu_arguments);
        let has =
            |list: &[String], token: &str| list.iter().any(|argument| argument.contains(token));
        let is_time =
            |argument: &String| argument.starts_with("--time=") || argument.starts_with("-t");
        let time = match arguments.iter().find(|argument| is_time(argument)) {
            Some(theirs) => theirs.contains("%W"),
            None => true,
        };
        Self {
            cpus: has(arguments, "%C"),
            memory: has(arguments, "%M"),
            scratch: has(arguments, "%T"),
            time,
            gpus: has(gpu_arguments, "%G"),
            partitions: has(arguments, "%P"),
        }
    }
}

/// What to do about nodes without TmpDisk.
pub const SCRATCH_REMEDY: &str = "add it, or remove --tmp=%T from SbatchArgumentsList";

impl NodeClasses {
    /// Parses the output of `sinfo`; none if it has no line that can be parsed.
    pub fn parse(answer: &str) -> Option<Self> {
        let classes = parse_node_classes(answer);
        (!classes.is_empty()).then(|| Self {
            classes,
            ..Self::default()
        })
    }

    /// Records the default partition, and marks partitions as hidden that have more nodes than
    /// `sinfo` shows.
    pub fn with_partitions(self, partitions: &BTreeMap<String, Partition>) -> Self {
        let visible_nodes = |partition: &str| -> u64 {
            let classes = self.classes.iter();
            let its = classes.filter(|class| class.partition == partition);
            its.map(|class| class.nodes).fold(0, u64::saturating_add)
        };
        let hidden = partitions
            .iter()
            .filter(|(name, partition)| visible_nodes(name) < partition.nodes)
            .map(|(name, _)| name.clone());
        let default = partitions
            .iter()
            .find(|(_, partition)| partition.is_default);
        let default_time = |(name, partition): (&String, &Partition)| {
            Some((name.clone(), partition.default_time?))
        };
        let default_times = partitions.iter().filter_map(default_time);
        Self {
            hidden: hidden.collect(),
            default_partition: default.map(|(name, _)| name.clone()),
            default_times: default_times.collect(),
            ..self
        }
    }

    /// Whether a container could run if all nodes were idle and up.
    pub fn fit(&self, needs: &ResourceRequest, requested: GrantedKinds) -> Admission {
        let may_be_in = |partition: &String| {
            !requested.partitions
                || needs.partitions.is_empty()
                || needs.partitions.contains(partition)
        };
        if self.hidden.iter().any(may_be_in) {
            return Admission::Now;
        }
        let chosen = |class: &&NodeClass| may_be_in(&class.partition);
        let classes: Vec<&NodeClass> = self.classes.iter().filter(chosen).collect();
        if classes.is_empty() {
            let mut partitions: Vec<&str> =
                self.classes.iter().map(|k| k.partition.as_str()).collect();
            partitions.dedup();
            let (wanted, partitions) = (needs.partitions.join(", "), partitions.join(", "));
            return Admission::Never(format!(
                "Slurm has no partition {wanted}; its partitions are {partitions}"
            ));
        }
        let requirements = requirements(needs, requested);
        if classes.iter().any(|class| is_met(&requirements, class)) {
            return Admission::Now;
        }
        let place = |class: &NodeClass| format!(", in partition {},", class.partition);
        let mut why = explain_misfit(&requirements, &classes, place);
        if requested.scratch && classes.iter().all(|class| class.scratch == 0) {
            why += &format!("; no node has TmpDisk in slurm.conf: {SCRATCH_REMEDY}");
        }
        Admission::Never(why)
    }

    /// Whether jobs ask for scratch space and no node is said to have any, so that nothing can run.
    pub fn lack_scratch(&self, requested: GrantedKinds) -> bool {
        let has_none = |class: &NodeClass| class.scratch == 0;
        requested.scratch && !self.classes.is_empty() && self.classes.iter().all(has_none)
    }
}

impl GrantedKinds {
    /// The partitions of a container's job; empty means the default one. The admin's arguments name
    /// `fixed` for every job.
    pub fn partitions_of(self, needs: &ResourceRequest, fixed: &[String]) -> Vec<String> {
        match self.partitions && !needs.partitions.is_empty() {
            true => needs.partitions.clone(),
            false => fixed.to_vec(),
        }
    }
}

impl NodeClasses {
    /// These partitions, or the default one if none is named.
    fn or_default<'a>(&'a self, partitions: &'a [String]) -> &'a [String] {
        match partitions {
            [] => self.default_partition.as_slice(),
            named => named,
        }
    }

    /// The time limits of these partitions for a container; an empty list means the default one.
    pub fn times(
        &self,
        needs: &ResourceRequest,
        requested: GrantedKinds,
        partitions: &[String],
    ) -> PartitionTimes {
        let partitions = self.or_default(partitions);
        let default = partitions
            .iter()
            .filter_map(|name| self.default_times.get(name));
        let default = default.min().copied();
        // Their nodes may have other limits.
        if partitions.iter().any(|name| self.hidden.contains(name)) {
            return PartitionTimes::default().with_default(default);
        }
        let fitting = self.fitting(needs, requested, partitions);
        let limits: Vec<_> = fitting.map(|class| class.time).collect();
        PartitionTimes::of(&limits).with_default(default)
    }

    /// The least number of nodes in these partitions that fit a container. A node may be in several
    /// partitions, so the largest of them counts.
    pub fn fitting_nodes(
        &self,
        needs: &ResourceRequest,
        requested: GrantedKinds,
        partitions: &[String],
    ) -> u64 {
        let partitions = self.or_default(partitions);
        let mut nodes: BTreeMap<&str, u64> = BTreeMap::new();
        for class in self.fitting(needs, requested, partitions) {
            let count = nodes.entry(&class.partition).or_default();
            *count = count.saturating_add(class.nodes);
        }
        nodes.into_values().max().unwrap_or(0)
    }

    fn fitting<'a>(
        &'a self,
        needs: &ResourceRequest,
        requested: GrantedKinds,
        partitions: &'a [String],
    ) -> impl Iterator<Item = &'a NodeClass> {
        let requirements = requirements(needs, requested);
        self.classes.iter().filter(move |class| {
            partitions.contains(&class.partition) && is_met(&requirements, class)
        })
    }
}

fn requirements(needs: &ResourceRequest, requested: GrantedKinds) -> Vec<Requirement<NodeClass>> {
    let requirement = |requested: bool, amount, of: fn(&NodeClass) -> u64, unit| {
        requested.then_some(Requirement {
            amount,
            of,
            unit,
            giver: "one node has",
        })
    };
    let minutes = needs.max_run_time.map_or(0, |seconds| seconds.div_ceil(60));
    let time = requested.time.then_some(Requirement {
        amount: minutes,
        of: |k: &NodeClass| k.time.unwrap_or(u64::MAX),
        unit: "minutes",
        giver: "a partition gives",
    });
    [
        requirement(requested.cpus, needs.cpus.into(), |k| k.cpus, "CPUs"),
        requirement(
            requested.memory,
            needs.ram.div_ceil(MIB),
            |k| k.memory,
            "MiB of memory",
        ),
        requirement(
            requested.scratch,
            needs.disk().div_ceil(MIB),
            |k| k.scratch,
            "MiB of scratch space",
        ),
        requirement(requested.gpus, needs.gpus.into(), |k| k.gpus, "GPUs"),
        time,
    ]
    .into_iter()
    .flatten()
    .filter(|requirement| requirement.amount > 0)
    .collect()
}

#[cfg(test)]
mod tests;
