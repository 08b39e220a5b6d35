//! Reads the kernel's accounts of a control group.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Cgroup;

/// Memory use in bytes, except `pgmajfault`. `None` if the kernel does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    pub cache: Option<u64>,
    pub swap: Option<u64>,
    pub pgmajfault: Option<u64>,
    /// Anonymous memory, which cannot be reclaimed without swap.
    pub rss: Option<u64>,
}

/// Seconds of CPU time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuUse {
    pub user: f64,
    pub system: f64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockIo {
    /// `major:minor`
    pub device: String,
    pub read: u64,
    pub written: u64,
}

/// Limit of processes and threads, and how often it was hit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// Number of refused forks.
    pub refused: u64,
    pub limit: Option<u64>,
}

impl Processes {
    /// Merges two readings of one group, of which either may have been too late.
    pub fn or(self, other: Self) -> Self {
        Self {
            refused: self.refused.max(other.refused),
            limit: self.limit.or(other.limit),
        }
    }
}

/// The group whose figures are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Figures of the group itself.
    Own,
    /// Figures of the nearest ancestor that has any: a login session seldom has controllers of its
    /// own.
    Nearest,
}

impl Scope {
    /// The directory with this file, from `dir` upwards.
    fn dir_with(self, dir: &Path, file: &str) -> Option<PathBuf> {
        dir.ancestors()
            .take(match self {
                Self::Own => 1,
                Self::Nearest => usize::MAX,
            })
            .take_while(|dir| self == Self::Own || dir.join("cgroup.procs").exists())
            .find(|dir| dir.join(file).exists())
            .map(Path::to_path_buf)
    }
}

impl Cgroup {
    pub fn memory(&self, scope: Scope) -> Option<MemoryUse> {
        let dir = scope.dir_with(self.dir("memory")?, "memory.stat")?;
        let stat = fs::read_to_string(dir.join("memory.stat")).ok()?;
        Some(if self.is_v1("memory") {
            memory_v1(&stat)
        } else {
            MemoryUse {
                cache: flat(&stat, "file"),
                swap: number(&dir.join("memory.swap.current")),
                pgmajfault: flat(&stat, "pgmajfault"),
                rss: flat(&stat, "anon"),
            }
        })
    }

    /// Memory charged to the group, page cache included.
    pub fn memory_current(&self) -> Option<u64> {
        self.memory_number("memory.usage_in_bytes", "memory.current")
    }

    /// Peak of the memory charged to the group, if the kernel keeps it.
    pub fn memory_peak(&self) -> Option<u64> {
        self.memory_number("memory.max_usage_in_bytes", "memory.peak")
    }

    fn memory_number(&self, v1: &str, v2: &str) -> Option<u64> {
        let name = if self.is_v1("memory") { v1 } else { v2 };
        number(&self.dir("memory")?.join(name))
    }

    /// Number of processes of the group that the kernel killed for lack of memory. `None` if it
    /// does not count them.
    pub fn oom_kills(&self) -> Option<u64> {
        let name = if self.is_v1("memory") {
            "memory.oom_control"
        } else {
            "memory.events"
        };
        let text = fs::read_to_string(self.dir("memory")?.join(name)).ok()?;
        flat(&text, "oom_kill")
    }

    pub fn process_limit(&self) -> Processes {
        let Some(dir) = self.dir("pids") else {
            return Processes::default();
        };
        let events = fs::read_to_string(dir.join("pids.events")).unwrap_or_default();
        Processes {
            refused: flat(&events, "max").unwrap_or(0),
            limit: number(&dir.join("pids.max")),
        }
    }

    pub fn cpu(&self, scope: Scope) -> Option<CpuUse> {
        if let Some(dir) = self.v1.get("cpuacct") {
            let dir = scope.dir_with(dir, "cpuacct.usage_user")?;
            let nanos = |name| number(&dir.join(name)).map(|n| n as f64 / 1e9);
            return Some(CpuUse {
                user: nanos("cpuacct.usage_user")?,
                system: nanos("cpuacct.usage_sys")?,
            });
        }
        let dir = scope.dir_with(self.v2.as_ref()?, "cpu.stat")?;
        let stat = fs::read_to_string(dir.join("cpu.stat")).ok()?;
        let micros = |key| flat(&stat, key).map(|n| n as f64 / 1e6);
        Some(CpuUse {
            user: micros("user_usec")?,
            system: micros("system_usec")?,
        })
    }

    /// Number of CPUs the group may use: its quota, else its CPU set, else the node's.
    pub fn cpus(&self) -> f64 {
        let limits = [self.cpu_quota(), self.cpuset_size()];
        let machine = || std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
        let least = limits.into_iter().flatten().reduce(f64::min);
        least.unwrap_or_else(machine)
    }

    /// Number of CPUs in the group's set, or in that of the nearest ancestor that has one.
    pub fn cpuset_size(&self) -> Option<f64> {
        let cpus = super::limit_support::parse_cpus(&self.cpuset(Scope::Nearest)?)?;
        Some(cpus.len() as f64).filter(|n| *n > 0.0)
    }

    /// The CPUs that the group may use, as a list like `0,2-3`.
    pub fn cpuset(&self, scope: Scope) -> Option<String> {
        let dir = self.dir("cpuset")?;
        let names = [
            "cpuset.cpus.effective",
            "cpuset.effective_cpus",
            "cpuset.cpus",
        ];
        let list = names.iter().find_map(|name| {
            let dir = scope.dir_with(dir, name)?;
            fs::read_to_string(dir.join(name)).ok()
        })?;
        Some(list.trim().to_owned())
    }

    /// The smallest CPU quota of the group and those above it.
    pub fn cpu_quota(&self) -> Option<f64> {
        let mut least: Option<f64> = None;
        for dir in self.dir("cpu")?.ancestors() {
            let quota = if self.is_v1("cpu") {
                let Some(period) = number(&dir.join("cpu.cfs_period_us")) else {
                    break;
                };
                number(&dir.join("cpu.cfs_quota_us")).map(|quota| (quota, period))
            } else {
                if !dir.join("cgroup.procs").exists() {
                    break;
                }
                fs::read_to_string(dir.join("cpu.max"))
                    .ok()
                    .and_then(|text| {
                        let (quota, period) = text.trim().split_once(' ')?;
                        Some((quota.parse().ok()?, period.parse().ok()?))
                    })
            };
            if let Some((quota, period)) = quota
                && period > 0
            {
                let cpus = quota as f64 / period as f64;
                least = Some(least.map_or(cpus, |l| l.min(cpus)));
            }
        }
        least
    }

    pub fn block_io(&self, scope: Scope) -> Vec<BlockIo> {
        let text = |dir: &Path, name: &str| {
            let dir = scope.dir_with(dir, name)?;
            fs::read_to_string(dir.join(name)).ok()
        };
        if let Some(dir) = self.v1.get("blkio") {
            return [
                "blkio.throttle.io_service_bytes_recursive",
                "blkio.throttle.io_service_bytes",
                "blkio.io_service_bytes_recursive",
                "blkio.io_service_bytes",
            ]
            .iter()
            .find_map(|name| text(dir, name))
            .map(|text| block_io_v1(&text))
            .unwrap_or_default();
        }
        self.v2
            .as_ref()
            .and_then(|dir| text(dir, "io.stat"))
            .map(|text| block_io_v2(&text))
            .unwrap_or_default()
    }
}

fn memory_v1(stat: &str) -> MemoryUse {
    // The total_ figures include groups below this one.
    let get = |key: &str| flat(stat, &format!("total_{key}")).or_else(|| flat(stat, key));
    MemoryUse {
        cache: get("cache"),
        swap: get("swap"),
        pgmajfault: get("pgmajfault"),
        rss: get("rss"),
    }
}

/// `8:0 Read 4096` lines.
fn block_io_v1(text: &str) -> Vec<BlockIo> {
    let mut devices: Vec<BlockIo> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        let (Some(device), Some(what), Some(Ok(bytes))) =
            (fields.next(), fields.next(), fields.next().map(str::parse))
        else {
            continue;
        };
        let known = devices.iter().position(|d| d.device == device);
        let index = known.unwrap_or_else(|| {
            devices.push(BlockIo {
                device: device.to_owned(),
                read: 0,
                written: 0,
            });
            devices.len() - 1
        });
        match what {
            "Read" => devices[index].read = bytes,
            "Write" => devices[index].written = bytes,
            _ => {}
        }
    }
    devices
}

/// `8:0 rbytes=4096 wbytes=0 …` lines.
fn block_io_v2(text: &str) -> Vec<BlockIo> {
    text.lines()
        .filter_map(|line| {
            let (device, rest) = line.split_once(' ')?;
            let get = |key: &str| {
                rest.split_whitespace()
                    .find_map(|field| field.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
            };
            Some(BlockIo {
                device: device.to_owned(),
                read: get("rbytes")?,
                written: get("wbytes")?,
            })
        })
        .collect()
}

/// The value of `key` in a text of `key value` lines.
fn flat(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

pub(super) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn group_with(files: &[(&str, &str)], v1: &[&str]) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let path: PathBuf = dir.path().to_owned();
        let group = Cgroup {
            v1: v1.iter().map(|c| ((*c).to_owned(), path.clone())).collect(),
            v2: v1.is_empty().then(|| path.clone()),
        };
        (dir, group)
    }

    #[test]
    fn v1_prefers_totals_and_counts_kills() {
        let (_dir, group) = group_with(
            &[
                (
                    "memory.stat",
                    "cache 1\nrss 2\nswap 3\npgmajfault 4\ntotal_cache 10\ntotal_rss 20\ntotal_pgmajfault 40\n",
                ),
                (
                    "memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
                ),
                ("memory.max_usage_in_bytes", "4096\n"),
                ("cpuacct.usage_user", "1500000000\n"),
                ("cpuacct.usage_sys", "250000000\n"),
                (
                    "blkio.throttle.io_service_bytes",
                    "8:0 Read 512\n8:0 Write 1024\n8:0 Total 1536\n8:16 Write 7\nTotal 1543\n",
                ),
            ],
            &["memory", "cpuacct", "blkio"],
        );
        assert_eq!(
            group.memory(Scope::Own).unwrap(),
            MemoryUse {
                cache: Some(10),
                swap: Some(3),
                pgmajfault: Some(40),
                rss: Some(20)
            }
        );
        assert_eq!(group.oom_kills(), Some(3));
        assert_eq!(group.memory_peak(), Some(4096));
        assert_eq!(
            group.cpu(Scope::Own).unwrap(),
            CpuUse {
                user: 1.5,
                system: 0.25
            }
        );
        let io = group.block_io(Scope::Own);
        assert_eq!(io.len(), 2);
        assert_eq!((io[0].read, io[0].written), (512, 1024));
        assert_eq!((io[1].read, io[1].written), (0, 7));
    }

    #[test]
    fn v2_reads_the_unified_files() {
        let (_dir, group) = group_with(
            &[
                ("memory.stat", "anon 20\nfile 10\npgmajfault 4\n"),
                ("memory.swap.current", "0\n"),
                ("memory.current", "31\n"),
                ("memory.peak", "99\n"),
                (
                    "memory.events",
                    "low 0\nhigh 0\nmax 5\noom 1\noom_kill 1\noom_group_kill 0\n",
                ),
                (
                    "cpu.stat",
                    "usage_usec 3\nuser_usec 2000000\nsystem_usec 500000\n",
                ),
                (
                    "io.stat",
                    "254:0 rbytes=5 wbytes=6 rios=1 wios=2 dbytes=0 dios=0\n253:0 \n",
                ),
                ("pids.events", "max 7\n"),
                ("pids.max", "64\n"),
                ("cgroup.procs", ""),
                ("cpu.max", "150000 100000\n"),
            ],
            &[],
        );
        assert_eq!(
            group.memory(Scope::Own).unwrap(),
            MemoryUse {
                cache: Some(10),
                swap: Some(0),
                pgmajfault: Some(4),
                rss: Some(20)
            }
        );
        assert_eq!(group.memory_current(), Some(31));
        assert_eq!(group.memory_peak(), Some(99));
        assert_eq!(group.oom_kills(), Some(1));
        assert_eq!(group.cpu(Scope::Own).unwrap().user, 2.0);
        assert_eq!(group.cpu_quota(), Some(1.5));
        let (refused, limit) = (7, Some(64));
        assert_eq!(group.process_limit(), Processes { refused, limit });
        assert_eq!(
            group.block_io(Scope::Own),
            [BlockIo {
                device: "254:0".into(),
                read: 5,
                written: 6
            }]
        );
    }

    #[test]
    fn no_quota_is_not_a_quota() {
        let (_dir, v1) = group_with(
            &[
                ("cpu.cfs_quota_us", "-1\n"),
                ("cpu.cfs_period_us", "100000\n"),
            ],
            &["cpu"],
        );
        assert_eq!(v1.cpu_quota(), None);
        let (_dir, v2) = group_with(&[("cpu.max", "max 100000\n"), ("cgroup.procs", "")], &[]);
        assert_eq!(v2.cpu_quota(), None);
        assert!(v2.cpus() >= 1.0);
    }
}
