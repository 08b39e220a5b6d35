//! One sample of a container's resource use, and its lines in crunchstat.txt.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use cgroup::{Cgroup, MemoryUse, Processes, Scope};

use super::process_tree::{CumulativeUsage, TreeUsage};
use super::{
    Block, Cpu, Disk, Interval, Network, SampleTarget, UsageSource, memory_line, process_memory,
};

/// Device of process I/O: the kernel counts it per process, not per device.
const ALL_DEVICES: &str = "0:0";

/// Resource use at one moment.
#[derive(Debug, Clone)]
pub struct Sample {
    pub taken: Instant,
    pub memory: MemoryUse,
    pub cpu: Option<Cpu>,
    /// By `major:minor`.
    pub blocks: BTreeMap<String, Block>,
    /// By interface, without the loopback.
    pub networks: BTreeMap<String, Network>,
    pub disk: Option<Disk>,
    /// Resident memory of named processes in bytes.
    pub processes: Vec<(&'static str, u64)>,
    pub process_limit: Processes,
}

impl Sample {
    /// Reads the control group or the processes, the network of the first process, and the file
    /// system of the scratch directory.
    pub fn take(target: &mut SampleTarget) -> Self {
        let used = match &mut target.source {
            UsageSource::Group(group, reach) => UsageReadings::by_group(group, *reach),
            UsageSource::Processes(tree) => UsageReadings::by_tree(&tree.measure()),
        };
        Self {
            taken: Instant::now(),
            memory: used.memory,
            cpu: used.cpu,
            blocks: used.blocks,
            networks: target
                .pid
                .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/net/dev")).ok())
                .map(|text| networks(&text))
                .unwrap_or_default(),
            disk: rustix::fs::statvfs(&target.scratch).ok().map(|fs| Disk {
                available: fs.f_bavail.saturating_mul(fs.f_frsize),
                used: fs
                    .f_blocks
                    .saturating_sub(fs.f_bfree)
                    .saturating_mul(fs.f_frsize),
                total: fs.f_blocks.saturating_mul(fs.f_frsize),
            }),
            processes: target
                .processes
                .iter()
                .filter_map(|(name, pid)| Some((*name, resident(*pid)?)))
                .collect(),
            process_limit: used.process_limit,
        }
    }

    /// The lines in upstream's order, with changes since `before`.
    pub fn lines(&self, before: Option<&Sample>) -> Vec<String> {
        let seconds = before.map_or(0.0, |b| (self.taken - b.taken).as_secs_f64());
        fn since<T>(seconds: f64, before: Option<T>) -> Option<Interval<T>> {
            before.map(|before| Interval { seconds, before })
        }
        let mut lines: Vec<String> = memory_line(&self.memory).into_iter().collect();
        lines.extend(process_memory(&self.processes));
        if let Some(cpu) = &self.cpu {
            lines.push(cpu.line(since(seconds, before.and_then(|b| b.cpu))));
        }
        for (device, block) in &self.blocks {
            let earlier = before.and_then(|b| b.blocks.get(device).copied());
            lines.push(block.line(device, since(seconds, earlier)));
        }
        for (interface, network) in &self.networks {
            let earlier = before.and_then(|b| b.networks.get(interface).copied());
            lines.push(network.line(interface, since(seconds, earlier)));
        }
        if let Some(disk) = &self.disk {
            lines.push(disk.line(since(seconds, before.and_then(|b| b.disk))));
        }
        lines
    }
}

/// Figures whose source is the control group or the processes.
struct UsageReadings {
    memory: MemoryUse,
    cpu: Option<Cpu>,
    blocks: BTreeMap<String, Block>,
    process_limit: Processes,
}

impl UsageReadings {
    fn by_group(group: &Cgroup, reach: Scope) -> Self {
        Self {
            memory: group.memory(reach).unwrap_or_default(),
            cpu: group.cpu(reach).map(|used| Cpu {
                user: used.user,
                system: used.system,
                cpus: group.cpus(),
            }),
            blocks: group
                .block_io(reach)
                .into_iter()
                .map(|io| {
                    let (written, read) = (io.written, io.read);
                    (io.device, Block { written, read })
                })
                .collect(),
            process_limit: group.process_limit(),
        }
    }

    fn by_tree(used: &TreeUsage) -> Self {
        let CumulativeUsage {
            user_seconds,
            system_seconds,
            written,
            read,
            ..
        } = used.cumulative;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            memory: memory_of_tree(used),
            cpu: Some(Cpu {
                user: user_seconds,
                system: system_seconds,
                cpus: cpus as f64,
            }),
            blocks: [(ALL_DEVICES.to_owned(), Block { written, read })].into(),
            process_limit: Processes::default(),
        }
    }
}

/// The memory of a process tree in the figures of a control group.
pub fn memory_of_tree(used: &TreeUsage) -> MemoryUse {
    let memory = used.memory.map(|memory| MemoryUse {
        cache: None,
        swap: Some(memory.swap),
        pgmajfault: Some(used.cumulative.page_faults),
        rss: Some(memory.rss),
    });
    memory.unwrap_or_default()
}

/// Resident memory of a process in bytes; `None` if the process does not exist.
fn resident(pid: u32) -> Option<u64> {
    let pages = procfs::process::Process::new(i32::try_from(pid).ok()?)
        .and_then(|process| process.statm())
        .ok()?
        .resident;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// `/proc/PID/net/dev`.
fn networks(text: &str) -> BTreeMap<String, Network> {
    text.lines()
        .filter_map(|line| {
            let (name, numbers) = line.split_once(':')?;
            let numbers: Vec<u64> = numbers
                .split_whitespace()
                .map(str::parse)
                .collect::<Result<_, _>>()
                .ok()?;
            let network = Network {
                received: *numbers.first()?,
                sent: *numbers.get(8)?,
            };
            Some((name.trim().to_owned(), network))
        })
        .filter(|(name, _)| name != "lo")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ProcessTree;
    use std::time::Duration;

    #[test]
    fn interfaces_are_read_without_the_loopback() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    \
            lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n  eth0: 4000 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0\n";
        let eth0 = Network {
            sent: 300,
            received: 4000,
        };
        assert_eq!(networks(text), BTreeMap::from([("eth0".into(), eth0)]));
    }

    #[test]
    fn a_first_sample_says_totals_and_a_second_what_changed() {
        let first = Sample {
            taken: Instant::now(),
            memory: MemoryUse {
                rss: Some(5),
                ..MemoryUse::default()
            },
            cpu: Some(Cpu {
                user: 1.0,
                system: 0.5,
                cpus: 2.0,
            }),
            blocks: BTreeMap::new(),
            networks: BTreeMap::new(),
            disk: None,
            processes: vec![],
            process_limit: Processes::default(),
        };
        let mut second = first.clone();
        second.taken += Duration::from_secs(10);
        second.blocks.insert(
            "254:0".into(),
            Block {
                written: 7,
                read: 0,
            },
        );
        assert_eq!(
            first.lines(None),
            ["mem 5 rss", "cpu 1.0000 user 0.5000 sys 2.00 cpus"]
        );
        let lines = second.lines(Some(&first));
        assert_eq!(
            lines[1],
            "cpu 1.0000 user 0.5000 sys 2.00 cpus -- interval 10.0000 seconds 0.0000 user 0.0000 sys"
        );
        // A device that was not there before has no interval.
        assert_eq!(lines[2], "blkio:254:0 7 write 0 read");
    }

    #[test]
    fn this_very_process_can_be_looked_at() {
        let own = std::process::id();
        let mut target = SampleTarget {
            source: UsageSource::Group(Cgroup::of_process(own).unwrap(), Scope::Nearest),
            pid: Some(own),
            scratch: "/".into(),
            memory_limit: 0,
            processes: vec![("crunch-run", own), ("gone", u32::MAX)],
        };
        let sample = Sample::take(&mut target);
        assert!(sample.disk.is_some_and(|d| d.total > 0));
        // A process that is not there is left out.
        let [(name, bytes)] = sample.processes[..] else {
            panic!("{:?}", sample.processes)
        };
        assert_eq!(name, "crunch-run");
        assert!((1 << 20..1 << 30).contains(&bytes), "{bytes}");
        let lines = sample.lines(None);
        let line = format!("procmem {bytes} crunch-run");
        assert!(lines.contains(&line), "{lines:?}");

        // The same sample without a control group.
        target.source = UsageSource::Processes(ProcessTree::of_process(own).unwrap());
        let lines = Sample::take(&mut target).lines(None);
        for (line, words) in lines.iter().zip(["mem ", "procmem ", "cpu ", "blkio:0:0 "]) {
            assert!(line.starts_with(words), "{lines:?}");
        }
    }
}
