//! Whether a container could ever run on this cluster. Pure.
//!
//! Input: node classes of [`crate::query::sinfo`] and the needs of a container. Output: that it
//! fits, or why no node can run it. Nodes that are down or drained count, because they come back.
//! What is not certainly impossible is left to Slurm: nodes that it starts on demand may be hidden
//! from `sinfo` until then (`PrivateData=cloud`).

use std::collections::BTreeMap;

use dispatch_core::model::resources::{Admission, ResourceRequest};

use crate::query::sinfo::{NodeClass, parse_node_classes};
use crate::settings::Settings;

const MIB: u64 = 1 << 20;

/// Node classes of the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClasses {
    classes: Vec<NodeClass>,
    /// Partitions with nodes that `sinfo` does not show.
    hidden: Vec<String>,
}

/// Resources that sbatch is asked for: Slurm grants no resource that the admin left out of its
/// arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantedKinds {
    cpus: bool,
    memory: bool,
    scratch: bool,
    /// Minutes that are added to a run time limit.
    time: Option<u64>,
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
            Some(theirs) => theirs.contains("%W").then_some(0),
            None => Some(settings.staging_minutes),
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

impl NodeClasses {
    /// Parses the output of `sinfo`; none if it has no line that can be parsed.
    pub fn parse(answer: &str) -> Option<Self> {
        let classes = parse_node_classes(answer);
        let hidden = Vec::new();
        (!classes.is_empty()).then_some(Self { classes, hidden })
    }

    /// Marks partitions as hidden if they have more nodes than `sinfo` shows.
    pub fn with_partition_totals(self, totals: &BTreeMap<String, u64>) -> Self {
        let visible_nodes = |partition: &str| -> u64 {
            let classes = self.classes.iter();
            let its = classes.filter(|class| class.partition == partition);
            its.map(|class| class.nodes).fold(0, u64::saturating_add)
        };
        let hidden = totals
            .iter()
            .filter(|(partition, total)| visible_nodes(partition) < **total)
            .map(|(partition, _)| partition.clone());
        Self {
            hidden: hidden.collect(),
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
        let fits = |class: &NodeClass| {
            requirements
                .iter()
                .all(|requirement| requirement.amount <= (requirement.of)(class))
        };
        if classes.iter().any(|class| fits(class)) {
            return Admission::Now;
        }
        let mut why = explain_misfit(&requirements, &classes);
        if requested.scratch && classes.iter().all(|class| class.scratch == 0) {
            why += "; no node has TmpDisk in slurm.conf: add it, or remove --tmp=%T from SbatchArgumentsList";
        }
        Admission::Never(why)
    }
}

/// One resource that a container requires.
struct Requirement {
    amount: u64,
    of: fn(&NodeClass) -> u64,
    unit: &'static str,
}

fn requirements(needs: &ResourceRequest, requested: GrantedKinds) -> Vec<Requirement> {
    let requirement =
        |requested: bool, amount, of, unit| requested.then_some(Requirement { amount, of, unit });
    let limit = needs.max_run_time.zip(requested.time);
    let minutes = limit.map_or(0, |(seconds, more)| {
        seconds.div_ceil(60).saturating_add(more)
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
        requirement(
            requested.time.is_some(),
            minutes,
            |k| k.time.unwrap_or(u64::MAX),
            "minutes",
        ),
    ]
    .into_iter()
    .flatten()
    .filter(|requirement| requirement.amount > 0)
    .collect()
}

/// Names what exceeds every node, or what the nearest node has if each resource fits some node.
fn explain_misfit(requirements: &[Requirement], classes: &[&NodeClass]) -> String {
    let largest = |requirement: &Requirement| {
        classes
            .iter()
            .map(|class| (requirement.of)(class))
            .max()
            .unwrap_or(0)
    };
    let beyond: Vec<&Requirement> = requirements
        .iter()
        .filter(|w| w.amount > largest(w))
        .collect();
    if !beyond.is_empty() {
        let parts = beyond.iter().map(|requirement| {
            let (amount, unit, largest) =
                (requirement.amount, requirement.unit, largest(requirement));
            format!("{amount} {unit}, but one node has at most {largest}")
        });
        return format!("it requests {}", parts.collect::<Vec<_>>().join("; "));
    }
    let missed = |class: &NodeClass| {
        requirements
            .iter()
            .filter(|w| w.amount > (w.of)(class))
            .count()
    };
    let Some(nearest) = classes.iter().min_by_key(|class| missed(class)) else {
        return "there are no nodes".to_owned();
    };
    let list = |of: &dyn Fn(&Requirement) -> u64| {
        let each = requirements
            .iter()
            .map(|requirement| format!("{} {}", of(requirement), requirement.unit));
        each.collect::<Vec<_>>().join(", ")
    };
    format!(
        "no node has all that it requests ({}); the nearest, in partition {}, has {}",
        list(&|requirement| requirement.amount),
        nearest.partition,
        list(&|requirement| (requirement.of)(nearest)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::sinfo::parse_partition_totals;

    const SINFO: &str = "main|4|4000|100000|infinite|3|gpu:fake:2(S:0,1)\nmain|64|256000|0|infinite|1|(null)\nshort|8|8000|50000|1-00:30:00|2|(null)\n";
    const ALL: GrantedKinds = GrantedKinds {
        cpus: true,
        memory: true,
        scratch: true,
        time: Some(0),
        gpus: true,
        partitions: true,
    };

    fn never(needs: &ResourceRequest, requested: GrantedKinds) -> Option<String> {
        match NodeClasses::parse(SINFO).unwrap().fit(needs, requested) {
            Admission::Now => None,
            Admission::Never(why) => Some(why),
            Admission::Later(why) => panic!("{why}"),
        }
    }

    #[test]
    fn what_no_node_has_can_never_run() {
        let needs = ResourceRequest {
            cpus: 2,
            ram: 1000 * MIB,
            ..ResourceRequest::default()
        };
        let within = |partition: &str, needs: ResourceRequest| ResourceRequest {
            partitions: vec![partition.into()],
            ..needs
        };
        #[rustfmt::skip]
        let rows = [
            (needs.clone(), None),
            (ResourceRequest { cpus: 64, ram: 256_000 * MIB, ..needs.clone() }, None),
            (ResourceRequest { scratch: 100_000 * MIB, gpus: 2, ..needs.clone() }, None),
            (within("nosuch", needs.clone()), Some("Slurm has no partition nosuch; its partitions are main, short")),
            (ResourceRequest { partitions: vec!["nosuch".into(), "short".into()], ..needs.clone() }, None),
            (ResourceRequest { cpus: 65, ..needs.clone() }, Some("it requests 65 CPUs, but one node has at most 64")),
            (within("short", ResourceRequest { ram: 8000 * MIB + 1, ..needs.clone() }), Some("it requests 8001 MiB of memory, but one node has at most 8000")),
            (ResourceRequest { gpus: 3, scratch: 200_000 * MIB, ..needs.clone() }, Some("it requests 200000 MiB of scratch space, but one node has at most 100000; 3 GPUs, but one node has at most 2")),
            (ResourceRequest { gpus: 1, cpus: 8, ..needs.clone() }, Some("no node has all that it requests (8 CPUs, 1000 MiB of memory, 1 GPUs); the nearest, in partition main, has 4 CPUs, 4000 MiB of memory, 2 GPUs")),
            (within("short", ResourceRequest { max_run_time: Some(86_400 + 1800), ..needs.clone() }), None),
            (within("short", ResourceRequest { max_run_time: Some(86_400 + 1801), ..needs.clone() }), Some("it requests 1471 minutes, but one node has at most 1470")),
            (ResourceRequest { max_run_time: Some(1 << 40), ..needs }, None),
        ];
        for (needs, expected) in rows {
            assert_eq!(never(&needs, ALL).as_deref(), expected, "{needs:?}");
        }
    }

    #[test]
    fn what_sbatch_is_not_told_is_not_asked_for() {
        let arguments = ["--mem=%M".to_owned(), "--partition=gpu".to_owned()];
        let requested = GrantedKinds::from_settings(&Settings {
            arguments: [arguments.to_vec(), vec!["--time=60".to_owned()]].concat(),
            gpu_arguments: vec!["--gpus=%G".to_owned()],
            ..Settings::default()
        });
        let needs = ResourceRequest {
            cpus: 1000,
            scratch: u64::MAX,
            partitions: vec!["nosuch".into()],
            max_run_time: Some(u64::MAX),
            ..ResourceRequest::default()
        };
        assert_eq!(never(&needs, requested), None);
        let gpus = ResourceRequest { gpus: 3, ..needs };
        assert!(never(&gpus, requested).unwrap().contains("3 GPUs"));
    }

    #[test]
    fn times_are_compared_as_sbatch_is_told() {
        let short = |staging_minutes, argument: &str| {
            let settings = Settings {
                arguments: vec!["--partition=%P".to_owned(), argument.to_owned()],
                staging_minutes,
                ..Settings::default()
            };
            let needs = ResourceRequest {
                max_run_time: Some(86_400),
                partitions: vec!["short".into()],
                ..ResourceRequest::default()
            };
            never(&needs, GrantedKinds::from_settings(&settings))
        };
        assert_eq!(short(30, "--mem=%M"), None);
        let over = "it requests 1471 minutes, but one node has at most 1470";
        assert_eq!(short(31, "--mem=%M").as_deref(), Some(over));
        assert_eq!(short(31, "--time=%W"), None);
        assert_eq!(short(31, "-t20"), None);
    }

    /// Observed with Slurm 22.05: sinfo shows `cloud|0|0|0|infinite|0|(null)`, and sbatch accepts
    /// the job and starts a node.
    #[test]
    fn nodes_that_are_not_shown_may_have_anything() {
        let needs = |partition: &str, cpus| ResourceRequest {
            cpus,
            partitions: vec![partition.into()],
            ..ResourceRequest::default()
        };
        let visible_nodes = format!("{SINFO}cloud|0|0|0|infinite|0|(null)\n");
        let scontrol = "PartitionName=main AllowGroups=ALL TotalCPUs=76 TotalNodes=4\nPartitionName=short TotalNodes=9\n\
                    PartitionName=cloud State=UP TotalNodes=2\n";
        let capacity = NodeClasses::parse(&visible_nodes)
            .unwrap()
            .with_partition_totals(&parse_partition_totals(scontrol));
        let fits = |partition, cpus| capacity.fit(&needs(partition, cpus), ALL) == Admission::Now;
        assert!(fits("cloud", 8) && fits("short", 999));
        assert!(fits("main", 64) && !fits("main", 65));
        assert!(
            NodeClasses::parse(&visible_nodes)
                .unwrap()
                .with_partition_totals(&BTreeMap::new())
                .fit(&needs("cloud", 1), ALL)
                != Admission::Now
        );
    }

    #[test]
    fn a_cluster_without_tmpdisk_is_told_what_to_do() {
        let capacity = NodeClasses::parse("main|4|4000|0|infinite|1|(null)\n").unwrap();
        let needs = ResourceRequest {
            cpus: 1,
            cache_disk: MIB,
            ..ResourceRequest::default()
        };
        match capacity.fit(&needs, ALL) {
            Admission::Never(why) => assert!(why.contains("remove --tmp=%T"), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_refused_where_a_line_cannot_be_read() {
        let odd = "main|4|4000|0|infinite|1|(null)\nmain|4|4000|0|soon|1|(null)\n";
        let capacity = NodeClasses::parse(odd).unwrap();
        let totals = BTreeMap::from([("main".to_owned(), 2)]);
        let large = ResourceRequest {
            cpus: 9,
            ..ResourceRequest::default()
        };
        assert_ne!(capacity.fit(&large, ALL), Admission::Now);
        let capacity = capacity.with_partition_totals(&totals);
        assert_eq!(capacity.fit(&large, ALL), Admission::Now);
    }

    #[test]
    fn what_cannot_be_read_is_no_capacity() {
        for answer in [
            "",
            "\n",
            "main|4|4000\n",
            "main|4|4000|0|infinite|(null)\n",
            "main|x|1|1|infinite|1|\n",
            "sinfo: error\n",
        ] {
            assert_eq!(NodeClasses::parse(answer), None, "{answer:?}");
        }
        assert!(NodeClasses::parse("main|4+|4000+|0|n/a|2|\n").is_some());
    }
}
