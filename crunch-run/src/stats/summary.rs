//! Totals and peaks of a container's resource use, for the end of the log.

use std::collections::BTreeMap;

use super::{Block, Sample};
use cgroup::{MemoryUse, Processes};

/// The highest values seen and the last totals.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    last: Option<Sample>,
    peak_rss: Option<u64>,
    peak_cache: Option<u64>,
    peak_swap: Option<u64>,
    peak_faults: Option<u64>,
    /// Used and total bytes of the disk at the time of the highest use.
    peak_disk: Option<(u64, u64)>,
    /// Highest resident memory of named processes in bytes.
    peak_processes: BTreeMap<&'static str, u64>,
    /// Kept from the last sample that could read the control group.
    process_limit: Processes,
}

impl Summary {
    pub fn add(&mut self, sample: Sample) {
        self.peak_memory(sample.memory);
        self.peak_disk = self
            .peak_disk
            .max(sample.disk.map(|disk| (disk.used, disk.total)));
        for (name, bytes) in &sample.processes {
            let peak = self.peak_processes.entry(name).or_default();
            *peak = (*peak).max(*bytes);
        }
        self.process_limit = self.process_limit.or(sample.process_limit);
        self.last = Some(sample);
    }

    /// Adds a sample of memory only.
    pub fn peak_memory(&mut self, memory: MemoryUse) {
        self.peak_rss = self.peak_rss.max(memory.rss);
        self.peak_cache = self.peak_cache.max(memory.cache);
        self.peak_swap = self.peak_swap.max(memory.swap);
        self.peak_faults = self.peak_faults.max(memory.pgmajfault);
    }

    /// Adds the peak of one process as the kernel counted it between samples.
    pub fn largest_process(&mut self, bytes: Option<u64>) {
        self.peak_rss = self.peak_rss.max(bytes);
    }

    /// Seconds of CPU time, user and system.
    pub fn cpu_seconds(&self) -> Option<f64> {
        self.last
            .as_ref()
            .and_then(|sample| sample.cpu)
            .map(|cpu| cpu.user + cpu.system)
    }

    pub fn peak_rss(&self) -> Option<u64> {
        self.peak_rss
    }

    /// Bytes written to and read from all block devices, if known.
    pub fn block_io(&self) -> Option<Block> {
        let blocks = &self.last.as_ref()?.blocks;
        let total = |of: fn(&Block) -> u64| blocks.values().map(of).sum();
        (!blocks.is_empty()).then(|| Block {
            written: total(|block| block.written),
            read: total(|block| block.read),
        })
    }

    pub fn process_limit(&self) -> Processes {
        self.process_limit
    }

    /// Resource use of crunch-run, in upstream's words.
    pub fn process_lines(&self) -> Vec<String> {
        self.peak_processes
            .iter()
            .map(|(name, bytes)| format!("Maximum {name} memory rss usage was {bytes} bytes"))
            .collect()
    }

    /// The summary in upstream's words. `limit` is the requested memory in bytes.
    pub fn lines(&self, limit: u64) -> Vec<String> {
        let mut lines = Vec::new();
        let Some(last) = &self.last else {
            return lines;
        };
        if let Some(cpu) = last.cpu {
            lines.push(format!(
                "Total CPU usage was {:.6} user and {:.6} sys on {:.2} CPUs",
                cpu.user, cpu.system, cpu.cpus
            ));
        }
        for (device, block) in &last.blocks {
            lines.push(format!(
                "Total disk I/O on {device} was {} bytes written and {} bytes read",
                block.written, block.read
            ));
        }
        if let Some((used, total)) = self.peak_disk.filter(|(_, total)| *total > 0) {
            lines.push(format!(
                "Maximum disk usage was {}%, {used}/{total} bytes",
                percent(used, total)
            ));
        }
        let rss = match (self.peak_rss, limit) {
            (Some(peak), 1..) => Some(format!("{}%, {peak}/{limit} bytes", percent(peak, limit))),
            (peak, _) => peak.map(|peak| format!("{peak} bytes")),
        };
        for (name, usage) in [
            ("cache", self.peak_cache.map(|n| format!("{n} bytes"))),
            ("swap", self.peak_swap.map(|n| format!("{n} bytes"))),
            (
                "pgmajfault",
                self.peak_faults.map(|n| format!("{n} faults")),
            ),
            ("rss", rss),
        ] {
            lines.extend(
                usage.map(|usage| format!("Maximum container memory {name} usage was {usage}")),
            );
        }
        for (interface, network) in &last.networks {
            lines.push(format!(
                "Total network I/O on {interface} was {} bytes sent and {} bytes received",
                network.sent, network.received
            ));
        }
        lines
    }
}

fn percent(part: u64, whole: u64) -> u128 {
    u128::from(part) * 100 / u128::from(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Cpu, Disk, Network};
    use std::time::Instant;

    fn sample(rss: u64, used: u64, user: f64) -> Sample {
        Sample {
            taken: Instant::now(),
            memory: MemoryUse {
                rss: Some(rss),
                ..MemoryUse::default()
            },
            cpu: Some(Cpu {
                user,
                system: 0.5,
                cpus: 2.0,
            }),
            blocks: BTreeMap::new(),
            networks: BTreeMap::new(),
            disk: Some(Disk {
                available: 100 - used,
                used,
                total: 100,
            }),
            processes: vec![("crunch-run", rss)],
            process_limit: Processes::default(),
        }
    }

    #[test]
    fn highest_values_and_last_totals() {
        let mut summary = Summary::default();
        assert!(summary.lines(1).is_empty() && summary.cpu_seconds().is_none());
        for (rss, used, user) in [(50, 10, 1.0), (90, 40, 2.0), (10, 20, 3.0)] {
            summary.add(sample(rss, used, user));
        }
        assert_eq!(summary.cpu_seconds(), Some(3.5));
        let processes = Processes {
            refused: 3,
            limit: Some(20),
        };
        let mut seen = sample(10, 20, 3.0);
        seen.process_limit = processes;
        summary.add(seen);
        // The control group is removed.
        summary.add(sample(10, 20, 3.0));
        assert_eq!(summary.process_limit(), processes);
        assert_eq!(
            summary.lines(200),
            [
                "Total CPU usage was 3.000000 user and 0.500000 sys on 2.00 CPUs",
                "Maximum disk usage was 40%, 40/100 bytes",
                "Maximum container memory rss usage was 45%, 90/200 bytes",
            ]
        );
        assert_eq!(
            summary.lines(0)[2],
            "Maximum container memory rss usage was 90 bytes"
        );
        assert_eq!(
            summary.process_lines(),
            ["Maximum crunch-run memory rss usage was 90 bytes"]
        );
        assert_eq!(summary.block_io(), None);
    }

    #[test]
    fn the_sentences_are_upstream_s() {
        let mut all = sample(12_591_513_600, 40, 0.0);
        all.memory.cache = Some(73_400_320);
        all.memory.swap = Some(320);
        all.memory.pgmajfault = Some(20);
        let (written, read) = (5, 7);
        all.blocks.insert("8:0".into(), Block { written, read });
        all.blocks.insert("8:16".into(), Block { written, read });
        let (sent, received) = (11, 13);
        let eth0 = Network { sent, received };
        all.networks.insert("eth0".into(), eth0);
        let mut summary = Summary::default();
        summary.add(all);
        assert_eq!(
            summary.lines(12_591_513_600 / 2 * 3)[1..],
            [
                "Total disk I/O on 8:0 was 5 bytes written and 7 bytes read",
                "Total disk I/O on 8:16 was 5 bytes written and 7 bytes read",
                "Maximum disk usage was 40%, 40/100 bytes",
                "Maximum container memory cache usage was 73400320 bytes",
                "Maximum container memory swap usage was 320 bytes",
                "Maximum container memory pgmajfault usage was 20 faults",
                "Maximum container memory rss usage was 66%, 12591513600/18887270400 bytes",
                "Total network I/O on eth0 was 11 bytes sent and 13 bytes received",
            ]
        );
        let io = summary.block_io().unwrap();
        assert_eq!((io.written, io.read), (10, 14));
    }
}
