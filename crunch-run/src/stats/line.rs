//! Formats the lines of crunchstat.txt and hoststat.txt, without timestamps. Pure.
//!
//! The first sample has totals only; later samples add the change since the previous one.

use std::fmt;

use cgroup::MemoryUse;

/// The previous sample and the time since then.
#[derive(Debug, Clone, Copy)]
pub struct Interval<T> {
    pub seconds: f64,
    pub before: T,
}

/// `mem …`. Figures that the kernel does not provide are left out; `None` if no figure is known.
pub fn memory_line(memory: &MemoryUse) -> Option<String> {
    let fields = [
        (memory.cache, "cache"),
        (memory.swap, "swap"),
        (memory.pgmajfault, "pgmajfault"),
        (memory.rss, "rss"),
    ];
    let known = fields.iter();
    let known = known.filter_map(|(value, name)| Some(format!(" {} {name}", (*value)?)));
    let text: String = known.collect();
    (!text.is_empty()).then(|| format!("mem{text}"))
}

/// `procmem …`: the resident memory of named processes, sorted by name.
pub fn process_memory(processes: &[(&str, u64)]) -> Option<String> {
    let mut sorted = processes.to_vec();
    sorted.sort_unstable();
    let text: String = sorted
        .iter()
        .map(|(name, bytes)| format!(" {bytes} {name}"))
        .collect();
    (!text.is_empty()).then(|| format!("procmem{text}"))
}

/// Seconds of CPU time, and how many CPUs may be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cpu {
    pub user: f64,
    pub system: f64,
    pub cpus: f64,
}

impl Cpu {
    pub fn line(&self, since: Option<Interval<Cpu>>) -> String {
        let total = format!(
            "cpu {:.4} user {:.4} sys {:.2} cpus",
            self.user, self.system, self.cpus
        );
        with_interval(total, since, |before| {
            format!(
                "{:.4} user {:.4} sys",
                self.user - before.user,
                self.system - before.system
            )
        })
    }
}

/// Bytes written to and read from one block device since the container began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub written: u64,
    pub read: u64,
}

impl Block {
    /// `device` is `major:minor`.
    pub fn line(&self, device: &str, since: Option<Interval<Block>>) -> String {
        let total = format!("blkio:{device} {} write {} read", self.written, self.read);
        with_interval(total, since, |before| {
            format!(
                "{} write {} read",
                change(before.written, self.written),
                change(before.read, self.read)
            )
        })
    }
}

/// Bytes through one network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    pub sent: u64,
    pub received: u64,
}

impl Network {
    pub fn line(&self, interface: &str, since: Option<Interval<Network>>) -> String {
        let total = format!("net:{interface} {} tx {} rx", self.sent, self.received);
        with_interval(total, since, |before| {
            format!(
                "{} tx {} rx",
                change(before.sent, self.sent),
                change(before.received, self.received)
            )
        })
    }
}

/// The file system of the temporary directory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    pub available: u64,
    pub used: u64,
    pub total: u64,
}

impl Disk {
    pub fn line(&self, since: Option<Interval<Disk>>) -> String {
        let total = format!(
            "statfs {} available {} used {} total",
            self.available, self.used, self.total
        );
        with_interval(total, since, |before| {
            format!("{} used", change(before.used, self.used))
        })
    }
}

fn with_interval<T>(
    total: String,
    since: Option<Interval<T>>,
    delta: impl FnOnce(T) -> String,
) -> String {
    match since {
        Some(Interval { seconds, before }) => {
            format!("{total} -- interval {seconds:.4} seconds {}", delta(before))
        }
        None => total,
    }
}

/// Signed, because files are removed and counters restart when a device is removed.
fn change(before: u64, now: u64) -> impl fmt::Display {
    i128::from(now) - i128::from(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after<T>(before: T) -> Option<Interval<T>> {
        Some(Interval {
            seconds: 10.00004,
            before,
        })
    }

    #[test]
    fn memory_leaves_out_what_is_not_known() {
        let all = MemoryUse {
            cache: Some(1),
            swap: Some(0),
            pgmajfault: Some(3),
            rss: Some(4),
        };
        let cases = [
            (all, Some("mem 1 cache 0 swap 3 pgmajfault 4 rss")),
            (
                MemoryUse { cache: None, ..all },
                Some("mem 0 swap 3 pgmajfault 4 rss"),
            ),
            (
                MemoryUse {
                    rss: Some(9),
                    ..MemoryUse::default()
                },
                Some("mem 9 rss"),
            ),
            (MemoryUse::default(), None),
        ];
        for (memory, expected) in cases {
            assert_eq!(memory_line(&memory).as_deref(), expected);
        }
    }

    #[test]
    fn processes_are_sorted_by_name() {
        assert_eq!(
            process_memory(&[("crunch-run", 7), ("arv-mount", 9)]).as_deref(),
            Some("procmem 9 arv-mount 7 crunch-run")
        );
        assert_eq!(process_memory(&[]), None);
    }

    #[test]
    fn lines_are_those_that_tools_parse() {
        let cpu = Cpu {
            user: 12.5,
            system: 0.25,
            cpus: 1.5,
        };
        let cpu_before = Cpu {
            user: 2.25,
            system: 0.0,
            cpus: 1.5,
        };
        let block = Block {
            written: 100,
            read: 20,
        };
        let net = Network {
            sent: 300,
            received: 4000,
        };
        let disk = Disk {
            available: 70,
            used: 30,
            total: 100,
        };
        let cases = [
            (cpu.line(None), "cpu 12.5000 user 0.2500 sys 1.50 cpus"),
            (
                cpu.line(after(cpu_before)),
                "cpu 12.5000 user 0.2500 sys 1.50 cpus -- interval 10.0000 seconds 10.2500 user 0.2500 sys",
            ),
            (block.line("254:0", None), "blkio:254:0 100 write 20 read"),
            (
                block.line(
                    "254:0",
                    after(Block {
                        written: 40,
                        read: 20,
                    }),
                ),
                "blkio:254:0 100 write 20 read -- interval 10.0000 seconds 60 write 0 read",
            ),
            (net.line("eth0", None), "net:eth0 300 tx 4000 rx"),
            (
                net.line(
                    "eth0",
                    after(Network {
                        sent: 0,
                        received: 1,
                    }),
                ),
                "net:eth0 300 tx 4000 rx -- interval 10.0000 seconds 300 tx 3999 rx",
            ),
            (disk.line(None), "statfs 70 available 30 used 100 total"),
            (
                disk.line(after(Disk { used: 45, ..disk })),
                "statfs 70 available 30 used 100 total -- interval 10.0000 seconds -15 used",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(line, expected);
        }
    }
}
