//! What the processes of a container use that has no control group of its own: looked up in /proc, each of them.

use procfs::WithCurrentSystemInfo;
use procfs::process::{Process, Stat};
use rustix::process::Pid;

use crate::engine::kept::members::Members;

/// A first process and its descendants.
#[derive(Debug)]
pub struct Tree {
    first: Pid,
    /// A later process may have its number.
    started: Option<u64>,
    most: Counted,
}

/// What only grows, as the kernel counts it. Who ends passes it on to whoever waited for it, which is in the tree as
/// well, so that little is lost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counted {
    pub user_seconds: f64,
    pub system_seconds: f64,
    pub page_faults: u64,
    pub written: u64,
    pub read: u64,
}

/// At one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TreeUse {
    /// None when nothing runs any more.
    pub memory: Option<Resident>,
    pub counted: Counted,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// What several share counts once.
    pub rss: u64,
    pub swap: u64,
}

impl Tree {
    pub fn below(first: u32) -> Option<Self> {
        Some(Self {
            first: Pid::from_raw(i32::try_from(first).ok()?)?,
            started: started(first),
            most: Counted::default(),
        })
    }

    pub fn first(&self) -> u32 {
        self.first.as_raw_nonzero().get().unsigned_abs()
    }

    /// Adds up what all of them use. After their end, what they had used stays.
    pub fn look(&mut self) -> TreeUse {
        let (mut now, mut memory) = (Counted::default(), None::<Resident>);
        let is_there = self.started.is_some() && started(self.first()) == self.started;
        let all = match is_there {
            true => Members::Tree(self.first).processes(),
            false => Vec::new(),
        };
        for pid in all {
            // Each may end at any moment.
            let Some(process) = i32::try_from(pid).ok().and_then(|p| Process::new(p).ok()) else {
                continue;
            };
            let Ok(stat) = process.stat() else {
                continue;
            };
            now.add(&stat, &process);
            if let Some(resident) = resident(&process, &stat) {
                let all = memory.get_or_insert_default();
                all.rss = all.rss.saturating_add(resident.rss);
                all.swap = all.swap.saturating_add(resident.swap);
            }
        }
        self.most = self.most.at_least(now);
        TreeUse {
            memory,
            counted: self.most,
        }
    }
}

fn started(pid: u32) -> Option<u64> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    Some(process.stat().ok()?.starttime)
}

impl Counted {
    /// Of one process, and of those that it has waited for.
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

    fn at_least(self, now: Self) -> Self {
        Self {
            user_seconds: self.user_seconds.max(now.user_seconds),
            system_seconds: self.system_seconds.max(now.system_seconds),
            page_faults: self.page_faults.max(now.page_faults),
            written: self.written.max(now.written),
            read: self.read.max(now.read),
        }
    }
}

/// None of one that has ended. Where the kernel does not say what is shared, all counts as its own.
fn resident(process: &Process, stat: &Stat) -> Option<Resident> {
    if matches!(stat.state, 'Z' | 'X') {
        return None;
    }
    let rolled_up = process.smaps_rollup().ok();
    let map = rolled_up
        .as_ref()
        .and_then(|all| all.memory_map_rollup.0.first())
        .map(|map| &map.extension.map);
    let of = |name: &str| map.and_then(|map| map.get(name).copied());
    match of("Pss") {
        Some(rss) => Some(Resident {
            rss,
            swap: of("SwapPss").unwrap_or_default(),
        }),
        None => Some(Resident {
            rss: stat.rss_bytes().get(),
            swap: 0,
        }),
    }
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
        let mut said = String::new();
        let stdout = shell.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        let mut tree = Tree::below(shell.id()).unwrap();
        let alive = tree.look();
        let rss = alive.memory.unwrap().rss;
        assert!((10_000..100 << 20).contains(&rss), "{rss}");
        // Of the child that is gone.
        assert!(alive.counted.user_seconds > 0.0, "{alive:?}");
        shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        shell.wait().unwrap();
        let ended = tree.look();
        assert_eq!(ended.memory, None);
        assert_eq!(ended.counted, alive.counted);
    }

    #[test]
    fn counters_never_go_back() {
        let more = Counted {
            user_seconds: 2.0,
            written: 5,
            ..Counted::default()
        };
        let less = Counted {
            user_seconds: 1.0,
            read: 7,
            ..Counted::default()
        };
        let most = more.at_least(less);
        assert_eq!((most.user_seconds, most.written, most.read), (2.0, 5, 7));
    }
}
