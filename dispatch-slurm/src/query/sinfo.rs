//! Parsers of `sinfo` and `scontrol show partition`. Pure.
//!
//! Input: the output of these commands. Output: node classes, and the partitions with their number
//! of nodes.

use std::collections::BTreeMap;

use dispatch_core::scheduler::slurm_answer::strip_cluster_heading;

/// Partition, CPUs, MiB of memory, MiB of scratch space, time limit, number of nodes, GRES. `sinfo`
/// writes one line for each class of nodes in each partition.
pub const SINFO_FORMAT: &str = "%R|%c|%m|%d|%l|%D|%G";

/// Nodes with equal resources in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeClass {
    pub partition: String,
    pub cpus: u64,
    pub memory: u64,
    pub scratch: u64,
    /// Time limit in minutes; none means unlimited.
    pub time: Option<u64>,
    pub gpus: u64,
    /// Number of these nodes.
    pub nodes: u64,
}

/// Parses the lines of `sinfo`. One that cannot be parsed is left out: its partition then has more
/// nodes than were seen, so nothing is refused there.
pub fn parse_node_classes(answer: &str) -> Vec<NodeClass> {
    let lines = strip_cluster_heading(answer).lines();
    lines.filter_map(parse_node_class).collect()
}

/// A partition, as `scontrol show partition` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// Number of its nodes.
    pub nodes: u64,
    /// Time limit in minutes of jobs that ask for none; `MaxTime` applies without it.
    pub default_time: Option<u64>,
    /// Whether jobs that name no partition go there.
    pub is_default: bool,
}

/// Parses the partitions from `scontrol --oneliner show partition`.
pub fn parse_partitions(answer: &str) -> BTreeMap<String, Partition> {
    let partition = |line: &str| {
        let value = |key: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        let partition = Partition {
            nodes: value("TotalNodes")?.parse().ok()?,
            default_time: value("DefaultTime").and_then(parse_time_limit).flatten(),
            is_default: value("Default") == Some("YES"),
        };
        Some((value("PartitionName")?.to_owned(), partition))
    };
    answer.lines().filter_map(partition).collect()
}

fn parse_node_class(line: &str) -> Option<NodeClass> {
    let fields: Vec<&str> = line.splitn(7, '|').map(str::trim).collect();
    let [partition, cpus, memory, scratch, time, nodes, gres] = fields[..] else {
        return None;
    };
    Some(NodeClass {
        partition: partition.to_owned(),
        cpus: parse_count(cpus)?,
        memory: parse_count(memory)?,
        scratch: parse_count(scratch)?,
        time: parse_time_limit(time)?,
        gpus: count_gpus(gres)?,
        nodes: parse_count(nodes)?,
    })
}

/// Parses `8`, or `8+` where one line covers different nodes.
fn parse_count(text: &str) -> Option<u64> {
    text.trim_end_matches('+').parse().ok()
}

/// Parses `infinite`, `MM:SS`, `HH:MM:SS` or `D-HH:MM:SS`.
fn parse_time_limit(text: &str) -> Option<Option<u64>> {
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
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    Some(Some(hours.checked_mul(60)?.checked_add(minutes)?))
}

/// Sums the GPUs of a node over all types: `gpu:a100:4(S:0-1),gpu:2,shard:8`.
fn count_gpus(gres: &str) -> Option<u64> {
    let mut sum = 0_u64;
    let mut depth = 0_u32;
    // The commas of `(S:0,2)` separate sockets.
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
            // An entry without a number is one GPU, as in `gpu` and `gpu:a100`.
            let count = words.next_back().and_then(|word| word.parse::<u64>().ok());
            sum = sum.checked_add(count.unwrap_or(1))?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(count_gpus(gres), Some(count), "{gres}");
        }
        let listing = "PartitionName=short DefaultTime=00:02:00 MaxTime=1-00:00:00 TotalNodes=2\n\
                       PartitionName=main DefaultTime=NONE MaxTime=UNLIMITED TotalNodes=2\n";
        let partitions = parse_partitions(listing);
        assert_eq!(partitions["short"].default_time, Some(2));
        assert_eq!(partitions["main"].default_time, None);
        let max = u64::MAX;
        assert_eq!(count_gpus(&format!("gpu:{max},gpu")), None);
        for (text, expected) in [
            ("infinite", Some(None)),
            ("30:00", Some(Some(30))),
            ("2:30:00", Some(Some(150))),
            ("1-00:00:00", Some(Some(1440))),
            ("soon", None),
            ("18446744073709551615-00:00:00", None),
            ("18446744073709551615:00:00", None),
        ] {
            assert_eq!(parse_time_limit(text), expected, "{text}");
        }
    }
}
