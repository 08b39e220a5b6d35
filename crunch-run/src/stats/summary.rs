//! What a container used in all, for the end of the log.

use super::{Memory, Sample};

/// The highest values seen and the last totals.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    last: Option<Sample>,
    peak_rss: Option<u64>,
    peak_cache: Option<u64>,
    peak_swap: Option<u64>,
    peak_faults: Option<u64>,
    /// Used and total bytes when the most was used.
    peak_disk: Option<(u64, u64)>,
}

impl Summary {
    pub fn add(&mut self, sample: Sample) {
        self.peak_memory(sample.memory);
        self.peak_disk = self
            .peak_disk
            .max(sample.disk.map(|disk| (disk.used, disk.total)));
        self.last = Some(sample);
    }

    /// A look at the memory alone.
    pub fn peak_memory(&mut self, memory: Memory) {
        self.peak_rss = self.peak_rss.max(memory.rss);
        self.peak_cache = self.peak_cache.max(memory.cache);
        self.peak_swap = self.peak_swap.max(memory.swap);
        self.peak_faults = self.peak_faults.max(memory.pgmajfault);
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

    /// Upstream's sentences, which people know. `limit` is the memory asked for, in bytes.
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
        for (name, peak) in [
            ("cache", self.peak_cache),
            ("swap", self.peak_swap),
            ("rss", self.peak_rss),
        ] {
            match peak {
                Some(peak) if limit > 0 => lines.push(format!(
                    "Maximum container memory {name} usage was {}%, {peak}/{limit} bytes",
                    percent(peak, limit)
                )),
                Some(peak) => lines.push(format!(
                    "Maximum container memory {name} usage was {peak} bytes"
                )),
                None => {}
            }
        }
        if let Some(faults) = self.peak_faults {
            lines.push(format!(
                "Maximum container memory pgmajfault usage was {faults} faults"
            ));
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
    use crate::stats::{Cpu, Disk};
    use std::collections::BTreeMap;
    use std::time::Instant;

    fn sample(rss: u64, used: u64, user: f64) -> Sample {
        Sample {
            taken: Instant::now(),
            memory: Memory {
                rss: Some(rss),
                ..Memory::default()
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
    }
}
