//! Measures the processes of a container that has no control group of its own, by reading /proc.

use host_state::start_time;
use procfs::WithCurrentSystemInfo;
use procfs::process::{Process, Stat};
use rustix::process::Pid;

use container_engine::{Container, ContainerProcesses, RuntimeProcesses};

/// Type of a file system in memory, of linux/magic.h.
pub const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Maximum number of processes in which a /dev/shm of the container is looked for: the first ones
/// may be those of the engine.
const MAX_LOOKED_AT: usize = 20;

/// A first process and its descendants.
#[derive(Debug, Clone)]
pub struct ProcessTree {
    first: Pid,
    /// Start time, because a later process may get the same pid.
    started: Option<u64>,
    /// Their memory does not count: it is not the command's.
    runtime: RuntimeProcesses,
    cumulative: CumulativeUsage,
}

/// Counters that only grow, as the kernel reports them. Counters of ended processes are added to
/// the process that waited for them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CumulativeUsage {
    pub user_seconds: f64,
    pub system_seconds: f64,
    pub page_faults: u64,
    pub written: u64,
    pub read: u64,
}

/// Resource use of the tree at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TreeUsage {
    /// `None` if no process of the command runs.
    pub memory: Option<ResidentMemory>,
    pub cumulative: CumulativeUsage,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResidentMemory {
    /// Shared memory counts once.
    pub rss: u64,
    /// The part of it that several processes may share, if it is known.
    pub shared: u64,
    pub swap: u64,
}

impl ResidentMemory {
    /// Adds files in memory, as far as no process has them mapped.
    fn add_files(&mut self, bytes: u64) {
        self.rss = self.rss.saturating_add(bytes.saturating_sub(self.shared));
    }
}

impl ProcessTree {
    pub fn of_process(first: u32) -> Option<Self> {
        Some(Self {
            first: Pid::from_raw(i32::try_from(first).ok()?)?,
            started: start_time(first),
            runtime: RuntimeProcesses::default(),
            cumulative: CumulativeUsage::default(),
        })
    }

    /// The processes of a container that runs.
    pub fn of_container(container: &dyn Container) -> Option<Self> {
        let mut tree = Self::of_process(container.pid()?)?;
        tree.runtime = container.runtime_processes();
        Some(tree)
    }

    pub fn first(&self) -> u32 {
        self.first.as_raw_nonzero().get().unsigned_abs()
    }

    /// The first process and its descendants; none when it has ended.
    pub fn processes(&self) -> Vec<u32> {
        let is_there = self.started.is_some() && start_time(self.first()) == self.started;
        match is_there {
            true => ContainerProcesses::Tree(self.first).processes(),
            false => Vec::new(),
        }
    }

    /// Sums up all processes. When they have ended, the last totals remain.
    pub fn measure(&mut self) -> TreeUsage {
        self.sum_up(resident)
    }

    /// The same without the memory of mapped files, which the kernel can take back, and with the
    /// files in the container's /dev/shm. Below 90 % of `limit`, shared memory counts for each
    /// process that has it: the exact figures take long for large processes.
    pub fn measure_unreclaimable(&mut self, limit: u64) -> TreeUsage {
        let files = self.files_in_memory();
        let mut usage = self.sum_up(|process, _| upper_unreclaimable(process));
        let add_files = |usage: &mut TreeUsage| {
            let memory = usage.memory.as_mut();
            memory.map_or(0, |memory| {
                memory.add_files(files);
                memory.rss + memory.swap
            })
        };
        if add_files(&mut usage) >= limit / 10 * 9 {
            usage = self.sum_up(|process, _| unreclaimable(process));
            add_files(&mut usage);
        }
        usage
    }

    /// Bytes of files in /dev/shm of the container, unless that is the host's.
    fn files_in_memory(&self) -> u64 {
        let device = |path: &str| rustix::fs::stat(path).map(|facts| facts.st_dev).ok();
        let host = device("/dev/shm");
        let all = ContainerProcesses::Tree(self.first).processes();
        let own = all
            .into_iter()
            .map(|pid| format!("/proc/{pid}/root/dev/shm"));
        let own = own.take(MAX_LOOKED_AT).find(|path| {
            let device = device(path);
            device.is_some() && device != host
        });
        let usage = own.and_then(|path| rustix::fs::statfs(path.as_str()).ok());
        // A directory of another file system is not in memory.
        usage
            .filter(|usage| usage.f_type == TMPFS_MAGIC)
            .map_or(0, |usage| {
                let used = usage.f_blocks.saturating_sub(usage.f_bfree);
                used.saturating_mul(u64::try_from(usage.f_bsize).unwrap_or(0))
            })
    }

    fn sum_up(
        &mut self,
        resident: impl Fn(&Process, &Stat) -> Option<ResidentMemory>,
    ) -> TreeUsage {
        let (mut now, mut memory) = (CumulativeUsage::default(), None::<ResidentMemory>);
        for pid in self.processes() {
            // A process may end at any moment.
            let Some(process) = i32::try_from(pid).ok().and_then(|p| Process::new(p).ok()) else {
                continue;
            };
            let Ok(stat) = process.stat() else {
                continue;
            };
            now.add(&stat, &process);
            if self.runtime.contains(pid) {
                continue;
            }
            if let Some(resident) = resident(&process, &stat) {
                let all = memory.get_or_insert_default();
                all.rss = all.rss.saturating_add(resident.rss);
                all.shared = all.shared.saturating_add(resident.shared);
                all.swap = all.swap.saturating_add(resident.swap);
            }
        }
        self.cumulative = self.cumulative.max_of(now);
        TreeUsage {
            memory,
            cumulative: self.cumulative,
        }
    }
}

impl CumulativeUsage {
    /// Adds one process and the processes it waited for.
    fn add(&mut self, stat: &Stat, process: &Process) {
        let seconds = |own: u64, waited_for: i64| {
            (own as f64 + waited_for.max(0) as f64) / procfs::ticks_per_second() as f64
        };
        self.user_seconds += seconds(stat.utime, stat.cutime);
        self.system_seconds += seconds(stat.stime, stat.cstime);
        self.page_faults += stat.majflt + stat.cmajflt;
        if let Ok(io) = process.io() {
            self.written += io.write_bytes;
            self.read += io.read_bytes;
        }
    }

    fn max_of(self, now: Self) -> Self {
        Self {
            user_seconds: self.user_seconds.max(now.user_seconds),
            system_seconds: self.system_seconds.max(now.system_seconds),
            page_faults: self.page_faults.max(now.page_faults),
            written: self.written.max(now.written),
            read: self.read.max(now.read),
        }
    }
}

/// Memory that the kernel cannot take back; shared memory counts whole. `None` for an ended
/// process.
fn upper_unreclaimable(process: &Process) -> Option<ResidentMemory> {
    let status = process.status().ok()?;
    let bytes = |kib: Option<u64>| kib.unwrap_or_default().saturating_mul(1024);
    Some(ResidentMemory {
        rss: bytes(status.rssanon) + bytes(status.rssshmem),
        shared: bytes(status.rssshmem),
        swap: bytes(status.vmswap),
    })
}

/// The same, with the share of the process in shared memory, if the kernel tells it.
fn unreclaimable(process: &Process) -> Option<ResidentMemory> {
    let share = || {
        let rolled_up = process.smaps_rollup().ok()?;
        let map = &rolled_up.memory_map_rollup.0.first()?.extension.map;
        let of = |name: &str| map.get(name).copied();
        Some(ResidentMemory {
            rss: of("Pss_Anon")? + of("Pss_Shmem")?,
            shared: of("Pss_Shmem")?,
            swap: of("SwapPss").unwrap_or_default(),
        })
    };
    share().or_else(|| upper_unreclaimable(process))
}

/// `None` for an ended process. Without shared-memory figures, all its memory counts.
fn resident(process: &Process, stat: &Stat) -> Option<ResidentMemory> {
    if matches!(stat.state, 'Z' | 'X') {
        return None;
    }
    let rolled_up = process.smaps_rollup().ok();
    let map = rolled_up
        .as_ref()
        .and_then(|all| all.memory_map_rollup.0.first())
        .map(|map| &map.extension.map);
    let of = |name: &str| map.and_then(|map| map.get(name).copied());
    let share = of("Pss");
    let swap = of("SwapPss").filter(|_| share.is_some());
    Some(ResidentMemory {
        rss: share.unwrap_or_else(|| stat.rss_bytes().get()),
        shared: 0,
        swap: swap.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_was_used_stays_when_they_have_ended() {
        let busy = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
        let script = format!("sh -c '{busy}'; echo ready; read line");
        let mut shell = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = shell.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let mut tree = ProcessTree::of_process(shell.id()).unwrap();
        let alive = tree.measure();
        let rss = alive.memory.unwrap().rss;
        assert!((10_000..100 << 20).contains(&rss), "{rss}");
        // CPU time of the child that has ended.
        assert!(alive.cumulative.user_seconds > 0.0, "{alive:?}");
        shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        shell.wait().unwrap();
        let ended = tree.measure();
        assert_eq!(ended.memory, None);
        assert_eq!(ended.cumulative, alive.cumulative);
    }

    #[test]
    fn files_in_memory_count_as_far_as_no_process_has_them_mapped() {
        for (rss, shared, files, expected) in [
            (100, 0, 0, 100),
            (100, 0, 50, 150),
            (100, 30, 50, 120),
            (100, 60, 50, 100),
        ] {
            let mut memory = ResidentMemory {
                rss,
                shared,
                swap: 0,
            };
            memory.add_files(files);
            assert_eq!(memory.rss, expected, "{rss} {shared} {files}");
        }
    }

    #[test]
    fn counters_never_go_back() {
        let more = CumulativeUsage {
            user_seconds: 2.0,
            written: 5,
            ..CumulativeUsage::default()
        };
        let less = CumulativeUsage {
            user_seconds: 1.0,
            read: 7,
            ..CumulativeUsage::default()
        };
        let cumulative = more.max_of(less);
        assert_eq!(
            (cumulative.user_seconds, cumulative.written, cumulative.read),
            (2.0, 5, 7)
        );
    }
}
