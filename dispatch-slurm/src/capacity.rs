//! What the cluster has, and whether a container could ever run on it. Pure.
//!
//! Nodes that are down or drained count: they come back. What is not known to be impossible is left to Slurm: nodes that
//! it starts when a job asks for them may be hidden from sinfo until then (`PrivateData=cloud`).

use std::collections::BTreeMap;

use dispatch_core::needs::{Fit, Needs};

use crate::settings::Settings;
use crate::squeue::without_heading;

const MIB: u64 = 1 << 20;

/// Partition, CPUs, MiB of memory, MiB of scratch space, time limit, how many there are, GRES. One line for each kind
/// of node in each partition.
pub const FORMAT: &str = "%R|%c|%m|%d|%l|%D|%G";

/// A kind of node in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    partition: String,
    cpus: u64,
    memory: u64,
    scratch: u64,
    /// Minutes; none is no limit.
    time: Option<u64>,
    gpus: u64,
    /// How many nodes.
    nodes: u64,
}

/// All of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    kinds: Vec<Kind>,
    /// Partitions that have nodes of which nothing is known.
    hidden: Vec<String>,
}

/// Which needs sbatch is told of: what an admin left out of its arguments is not Slurm's to grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    cpus: bool,
    memory: bool,
    scratch: bool,
    /// Minutes on top of a run time limit.
    time: Option<u64>,
    gpus: bool,
    partitions: bool,
}

impl Asked {
    /// By the templates of sbatch's arguments.
    pub fn by(settings: &Settings) -> Self {
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

impl Capacity {
    /// From the answer of `sinfo`; none if it cannot be read, or says nothing.
    pub fn parse(answer: &str) -> Option<Self> {
        let kinds = without_heading(answer)
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(kind)
            .collect::<Option<Vec<_>>>()?;
        let hidden = Vec::new();
        (!kinds.is_empty()).then_some(Self { kinds, hidden })
    }

    /// With the number of nodes that each partition has in all.
    pub fn of(self, totals: &BTreeMap<String, u64>) -> Self {
        let seen = |partition: &str| -> u64 {
            let kinds = self.kinds.iter();
            let its = kinds.filter(|kind| kind.partition == partition);
            its.map(|kind| kind.nodes).sum()
        };
        let hidden = totals
            .iter()
            .filter(|(partition, total)| seen(partition) < **total)
            .map(|(partition, _)| partition.clone());
        Self {
            hidden: hidden.collect(),
            ..self
        }
    }

    /// Whether a container could run here if everything were free and in order.
    pub fn fit(&self, needs: &Needs, asked: Asked) -> Fit {
        let may_be_in = |partition: &String| {
            !asked.partitions || needs.partitions.is_empty() || needs.partitions.contains(partition)
        };
        if self.hidden.iter().any(may_be_in) {
            return Fit::Now;
        }
        let chosen = |kind: &&Kind| may_be_in(&kind.partition);
        let kinds: Vec<&Kind> = self.kinds.iter().filter(chosen).collect();
        if kinds.is_empty() {
            let mut known: Vec<&str> = self.kinds.iter().map(|k| k.partition.as_str()).collect();
            known.dedup();
            let (wanted, known) = (needs.partitions.join(", "), known.join(", "));
            return Fit::Never(format!(
                "Slurm has no partition {wanted} here; it has: {known}"
            ));
        }
        let wants = wants(needs, asked);
        let fits = |kind: &Kind| wants.iter().all(|want| want.amount <= (want.of)(kind));
        if kinds.iter().any(|kind| fits(kind)) {
            return Fit::Now;
        }
        let mut why = too_much(&wants, &kinds);
        if asked.scratch && kinds.iter().all(|kind| kind.scratch == 0) {
            why += "; no node says in slurm.conf what it has (TmpDisk): add that, or leave --tmp=%T out of SbatchArgumentsList";
        }
        Fit::Never(why)
    }
}

/// How many nodes each partition has, by `scontrol --oneliner show partition`.
pub fn total_nodes(answer: &str) -> BTreeMap<String, u64> {
    let total = |line: &str| {
        let value = |key: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        Some((
            value("PartitionName")?.to_owned(),
            value("TotalNodes")?.parse().ok()?,
        ))
    };
    answer.lines().filter_map(total).collect()
}

/// One thing that a container asks for.
struct Want {
    amount: u64,
    of: fn(&Kind) -> u64,
    unit: &'static str,
}

fn wants(needs: &Needs, asked: Asked) -> Vec<Want> {
    let want = |asked: bool, amount, of, unit| asked.then_some(Want { amount, of, unit });
    let limit = needs.max_run_time.zip(asked.time);
    let minutes = limit.map_or(0, |(seconds, more)| {
        seconds.div_ceil(60).saturating_add(more)
    });
    [
        want(asked.cpus, needs.cpus.into(), |k| k.cpus, "CPUs"),
        want(
            asked.memory,
            needs.ram.div_ceil(MIB),
            |k| k.memory,
            "MiB of memory",
        ),
        want(
            asked.scratch,
            needs.disk().div_ceil(MIB),
            |k| k.scratch,
            "MiB of scratch space",
        ),
        want(asked.gpus, needs.gpus.into(), |k| k.gpus, "GPUs"),
        want(
            asked.time.is_some(),
            minutes,
            |k| k.time.unwrap_or(u64::MAX),
            "minutes",
        ),
    ]
    .into_iter()
    .flatten()
    .filter(|want| want.amount > 0)
    .collect()
}

/// What no node has; or, where each has some of it, what the best of them has.
fn too_much(wants: &[Want], kinds: &[&Kind]) -> String {
    let largest = |want: &Want| kinds.iter().map(|kind| (want.of)(kind)).max().unwrap_or(0);
    let beyond: Vec<&Want> = wants.iter().filter(|w| w.amount > largest(w)).collect();
    if !beyond.is_empty() {
        let said = beyond.iter().map(|want| {
            let (amount, unit, largest) = (want.amount, want.unit, largest(want));
            format!("{amount} {unit}, where the most that one node gives is {largest}")
        });
        return format!("it asks for {}", said.collect::<Vec<_>>().join("; "));
    }
    let missed = |kind: &Kind| wants.iter().filter(|w| w.amount > (w.of)(kind)).count();
    let Some(nearest) = kinds.iter().min_by_key(|kind| missed(kind)) else {
        return "there are no nodes".to_owned();
    };
    let list = |of: &dyn Fn(&Want) -> u64| {
        let each = wants
            .iter()
            .map(|want| format!("{} {}", of(want), want.unit));
        each.collect::<Vec<_>>().join(", ")
    };
    format!(
        "no one node gives all that it asks for ({}); the nearest, in partition {}, gives {}",
        list(&|want| want.amount),
        nearest.partition,
        list(&|want| (want.of)(nearest)),
    )
}

fn kind(line: &str) -> Option<Kind> {
    let fields: Vec<&str> = line.splitn(7, '|').map(str::trim).collect();
    let [partition, cpus, memory, scratch, time, nodes, gres] = fields[..] else {
        return None;
    };
    Some(Kind {
        partition: partition.to_owned(),
        cpus: number(cpus)?,
        memory: number(memory)?,
        scratch: number(scratch)?,
        time: minutes(time)?,
        gpus: gpus(gres)?,
        nodes: number(nodes)?,
    })
}

/// `8`; `8+` where nodes of several kinds are on one line.
fn number(text: &str) -> Option<u64> {
    text.trim_end_matches('+').parse().ok()
}

/// `infinite`, `MM:SS`, `HH:MM:SS` or `D-HH:MM:SS`.
fn minutes(text: &str) -> Option<Option<u64>> {
    if matches!(text, "infinite" | "UNLIMITED" | "n/a") {
        return Some(None);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let parts: Vec<u64> = clock
        .split(':')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let (hours, minutes) = match parts[..] {
        [hours, minutes, _] => (hours, minutes),
        [minutes, _] => (0, minutes),
        _ => return None,
    };
    Some(Some((days * 24 + hours) * 60 + minutes))
}

/// All GPUs of a node, whatever their type: `gpu:a100:4(S:0-1),gpu:2,shard:8`.
fn gpus(gres: &str) -> Option<u64> {
    let mut sum = 0;
    let mut depth = 0_u32;
    // The commas of `(S:0,2)` are between sockets.
    let mut is_outside = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    };
    let plain: String = gres.chars().filter(|c| is_outside(*c)).collect();
    for entry in plain.split(',') {
        let mut words = entry.split(':');
        if words.next() == Some("gpu") {
            // Without a number it is one, as in `gpu` and `gpu:a100`.
            let count = words.next_back().and_then(|word| word.parse::<u64>().ok());
            sum += count.unwrap_or(1);
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINFO: &str = "main|4|4000|100000|infinite|3|gpu:fake:2(S:0,1)\nmain|64|256000|0|infinite|1|(null)\nshort|8|8000|50000|1-00:30:00|2|(null)\n";
    const ALL: Asked = Asked {
        cpus: true,
        memory: true,
        scratch: true,
        time: Some(0),
        gpus: true,
        partitions: true,
    };

    fn never(needs: &Needs, asked: Asked) -> Option<String> {
        match Capacity::parse(SINFO).unwrap().fit(needs, asked) {
            Fit::Now => None,
            Fit::Never(why) => Some(why),
            Fit::Later(why) => panic!("{why}"),
        }
    }

    #[test]
    fn what_no_node_has_can_never_run() {
        let needs = Needs {
            cpus: 2,
            ram: 1000 * MIB,
            ..Needs::default()
        };
        let within = |partition: &str, needs: Needs| Needs {
            partitions: vec![partition.into()],
            ..needs
        };
        #[rustfmt::skip]
        let rows = [
            (needs.clone(), None),
            (Needs { cpus: 64, ram: 256_000 * MIB, ..needs.clone() }, None),
            (Needs { scratch: 100_000 * MIB, gpus: 2, ..needs.clone() }, None),
            (within("nosuch", needs.clone()), Some("Slurm has no partition nosuch here; it has: main, short")),
            (Needs { partitions: vec!["nosuch".into(), "short".into()], ..needs.clone() }, None),
            (Needs { cpus: 65, ..needs.clone() }, Some("it asks for 65 CPUs, where the most that one node gives is 64")),
            (within("short", Needs { ram: 8000 * MIB + 1, ..needs.clone() }), Some("it asks for 8001 MiB of memory, where the most that one node gives is 8000")),
            (Needs { gpus: 3, scratch: 200_000 * MIB, ..needs.clone() }, Some("it asks for 200000 MiB of scratch space, where the most that one node gives is 100000; 3 GPUs, where the most that one node gives is 2")),
            (Needs { gpus: 1, cpus: 8, ..needs.clone() }, Some("no one node gives all that it asks for (8 CPUs, 1000 MiB of memory, 1 GPUs); the nearest, in partition main, gives 4 CPUs, 4000 MiB of memory, 2 GPUs")),
            (within("short", Needs { max_run_time: Some(86_400 + 1800), ..needs.clone() }), None),
            (within("short", Needs { max_run_time: Some(86_400 + 1801), ..needs.clone() }), Some("it asks for 1471 minutes, where the most that one node gives is 1470")),
            (Needs { max_run_time: Some(1 << 40), ..needs }, None),
        ];
        for (needs, expected) in rows {
            assert_eq!(never(&needs, ALL).as_deref(), expected, "{needs:?}");
        }
    }

    #[test]
    fn what_sbatch_is_not_told_is_not_asked_for() {
        let arguments = ["--mem=%M".to_owned(), "--partition=gpu".to_owned()];
        let asked = Asked::by(&Settings {
            arguments: [arguments.to_vec(), vec!["--time=60".to_owned()]].concat(),
            gpu_arguments: vec!["--gpus=%G".to_owned()],
            ..Settings::default()
        });
        let needs = Needs {
            cpus: 1000,
            scratch: u64::MAX,
            partitions: vec!["nosuch".into()],
            max_run_time: Some(u64::MAX),
            ..Needs::default()
        };
        assert_eq!(never(&needs, asked), None);
        let gpus = Needs { gpus: 3, ..needs };
        assert!(never(&gpus, asked).unwrap().contains("3 GPUs"));
    }

    #[test]
    fn times_are_compared_as_sbatch_is_told() {
        let short = |staging_minutes, argument: &str| {
            let settings = Settings {
                arguments: vec!["--partition=%P".to_owned(), argument.to_owned()],
                staging_minutes,
                ..Settings::default()
            };
            let needs = Needs {
                max_run_time: Some(86_400),
                partitions: vec!["short".into()],
                ..Needs::default()
            };
            never(&needs, Asked::by(&settings))
        };
        assert_eq!(short(30, "--mem=%M"), None);
        let over = "it asks for 1471 minutes, where the most that one node gives is 1470";
        assert_eq!(short(31, "--mem=%M").as_deref(), Some(over));
        assert_eq!(short(31, "--time=%W"), None);
        assert_eq!(short(31, "-t20"), None);
    }

    /// Seen on Slurm 22.05: `cloud|0|0|0|infinite|0|(null)`, while sbatch takes the job and starts a node.
    #[test]
    fn nodes_that_are_not_shown_may_have_anything() {
        let needs = |partition: &str, cpus| Needs {
            cpus,
            partitions: vec![partition.into()],
            ..Needs::default()
        };
        let seen = format!("{SINFO}cloud|0|0|0|infinite|0|(null)\n");
        let told = "PartitionName=main AllowGroups=ALL TotalCPUs=76 TotalNodes=4\nPartitionName=short TotalNodes=9\n\
                    PartitionName=cloud State=UP TotalNodes=2\n";
        let capacity = Capacity::parse(&seen).unwrap().of(&total_nodes(told));
        let fits = |partition, cpus| capacity.fit(&needs(partition, cpus), ALL) == Fit::Now;
        assert!(fits("cloud", 8) && fits("short", 999));
        assert!(fits("main", 64) && !fits("main", 65));
        assert!(
            Capacity::parse(&seen)
                .unwrap()
                .of(&BTreeMap::new())
                .fit(&needs("cloud", 1), ALL)
                != Fit::Now
        );
    }

    #[test]
    fn a_cluster_without_tmpdisk_is_told_what_to_do() {
        let capacity = Capacity::parse("main|4|4000|0|infinite|1|(null)\n").unwrap();
        let needs = Needs {
            cpus: 1,
            cache_disk: MIB,
            ..Needs::default()
        };
        match capacity.fit(&needs, ALL) {
            Fit::Never(why) => assert!(why.contains("leave --tmp=%T out"), "{why}"),
            other => panic!("{other:?}"),
        }
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
            assert_eq!(Capacity::parse(answer), None, "{answer:?}");
        }
        assert!(Capacity::parse("main|4+|4000+|0|n/a|2|\n").is_some());
    }

    #[test]
    fn gpus_and_times_as_slurm_writes_them() {
        for (gres, count) in [
            ("(null)", 0),
            ("", 0),
            ("gpu", 1),
            ("gpu:a100", 1),
            ("gpu:2", 2),
            ("gpu:a100:4(S:0,1),gpu:fake:2(S:0-1),shard:8", 6),
            ("craynetwork:4", 0),
        ] {
            assert_eq!(gpus(gres), Some(count), "{gres}");
        }
        for (text, expected) in [
            ("infinite", Some(None)),
            ("30:00", Some(Some(30))),
            ("2:30:00", Some(Some(150))),
            ("1-00:00:00", Some(Some(1440))),
            ("soon", None),
        ] {
            assert_eq!(minutes(text), expected, "{text}");
        }
    }
}
