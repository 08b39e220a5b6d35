//! Memory of a control group that a container shares with its job: the effective limit, and kills
//! for lack of memory while the container ran.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Cgroup;
use super::read::number;

/// Smallest value by which the kernel means "no limit".
const NO_LIMIT: u64 = 1 << 62;

/// The group of a process, and its count of kills at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedMemory {
    group: Cgroup,
    kills_before: u64,
    /// True if all processes of the group belonged to this job.
    was_alone: bool,
}

/// Kills in a shared group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedKills {
    pub kills: u64,
    /// True if all processes of the group belonged to this job, so no other job's was killed.
    pub is_alone: bool,
    pub memory: GroupMemory,
}

/// Smallest memory limit above a process in bytes, and the peak use of the group that has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMemory {
    pub limit: Option<u64>,
    pub peak: Option<u64>,
}

impl SharedMemory {
    /// The group of a process, before it or its children run a command; `executor` is the process
    /// that the job belongs to. `None` where the kernel does not count kills.
    pub fn of_process(pid: u32, executor: u32) -> Option<Self> {
        Self::of_group(Cgroup::of_process(pid).ok()?, executor)
    }

    fn of_group(group: Cgroup, executor: u32) -> Option<Self> {
        // Other hierarchies may hold the whole machine's processes in one group.
        let group = group.only("memory");
        Some(Self {
            kills_before: group.oom_kills()?,
            was_alone: is_alone(&group, executor),
            group,
        })
    }

    /// The kernel's kills since then. `None` if there were none.
    pub fn kills(&self, executor: u32) -> Option<SharedKills> {
        let kills = self.group.oom_kills()?.checked_sub(self.kills_before)?;
        (kills > 0).then(|| SharedKills {
            kills,
            is_alone: self.was_alone && is_alone(&self.group, executor),
            memory: self.group.shared_memory(),
        })
    }
}

impl Cgroup {
    /// The smallest memory limit of the group and those above it.
    pub fn shared_memory(&self) -> GroupMemory {
        let (limit, peak) = match self.is_v1("memory") {
            true => ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            false => ("memory.max", "memory.peak"),
        };
        let Some(own) = self.dir("memory") else {
            return GroupMemory::default();
        };
        let smallest = own
            .ancestors()
            .take_while(|dir| dir.join("cgroup.procs").exists())
            .filter_map(|dir| Some((number(&dir.join(limit))?, dir)))
            .filter(|(bytes, _)| *bytes < NO_LIMIT)
            // Of equal limits the nearest counts: groups above it may hold other steps of the job.
            .min_by_key(|(bytes, _)| *bytes);
        let limited: PathBuf = smallest.map_or(own, |(_, dir)| dir).to_owned();
        GroupMemory {
            limit: smallest.map(|(bytes, _)| bytes),
            peak: number(&limited.join(peak)),
        }
    }
}

/// Whether every process of the group is an ancestor or a descendant of `executor`.
fn is_alone(group: &Cgroup, executor: u32) -> bool {
    let ancestors: BTreeSet<u32> = lineage(executor).collect();
    group
        .processes()
        .into_iter()
        .all(|pid| ancestors.contains(&pid) || lineage(pid).any(|of| of == executor))
}

/// A process and its parents.
fn lineage(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(pid), |pid| {
        let process = procfs::process::Process::new(i32::try_from(*pid).ok()?).ok()?;
        u32::try_from(process.stat().ok()?.ppid).ok()
    })
    .take_while(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::{Child, Command};

    use super::*;

    /// A tree of groups like Slurm's: of the job, its step and its task.
    struct Tree {
        _top: tempfile::TempDir,
        job: PathBuf,
        task: PathBuf,
        is_v1: bool,
    }

    impl Tree {
        fn new(is_v1: bool) -> Self {
            let top = tempfile::tempdir().unwrap();
            let job = top.path().join("slurm/uid_1000/job_7");
            let task = job.join("step_batch/task_0");
            fs::create_dir_all(&task).unwrap();
            let is_of_tree = |dir: &&Path| dir.starts_with(top.path());
            for dir in task.ancestors().take_while(is_of_tree) {
                fs::write(dir.join("cgroup.procs"), "").unwrap();
            }
            let (_top, tree) = (top, (job, task));
            let tree = Self {
                _top,
                job: tree.0,
                task: tree.1,
                is_v1,
            };
            for dir in tree.task.ancestors().take(3) {
                let unlimited = ["max", "9223372036854771712"][usize::from(is_v1)];
                tree.set(dir, "memory.max", unlimited);
            }
            tree.count(0);
            tree
        }

        /// A file by its name in version 2.
        fn set(&self, dir: &Path, name: &str, text: &str) {
            let name = match (self.is_v1, name) {
                (true, "memory.max") => "memory.limit_in_bytes",
                (true, "memory.peak") => "memory.max_usage_in_bytes",
                (true, "memory.events") => "memory.oom_control",
                _ => name,
            };
            fs::write(dir.join(name), text).unwrap();
        }

        fn count(&self, kills: u64) {
            self.set(&self.task, "memory.events", &format!("oom_kill {kills}\n"));
        }

        fn processes(&self, pids: &[u32]) {
            let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
            fs::write(self.task.join("cgroup.procs"), text).unwrap();
        }

        fn group(&self) -> Cgroup {
            Cgroup {
                v1: match self.is_v1 {
                    true => [("memory".to_owned(), self.task.clone())].into(),
                    false => Default::default(),
                },
                v2: (!self.is_v1).then(|| self.task.clone()),
            }
        }

        fn memory(&self, executor: u32) -> SharedMemory {
            SharedMemory::of_group(self.group(), executor).unwrap()
        }
    }

    fn sleep() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    #[test]
    fn a_kill_of_the_job_is_told_with_the_limit_that_holds() {
        for is_v1 in [true, false] {
            let tree = Tree::new(is_v1);
            // Kills of an earlier step in the same group.
            tree.count(2);
            tree.set(&tree.job, "memory.max", "33554432\n");
            tree.set(&tree.job, "memory.peak", "33550336\n");
            tree.set(&tree.task, "memory.peak", "1\n");
            let own = std::process::id();
            tree.processes(&[own]);
            let memory = tree.memory(own);
            assert_eq!(memory.kills(own), None);
            tree.count(3);
            let expected = SharedKills {
                kills: 1,
                is_alone: true,
                memory: GroupMemory {
                    limit: Some(33_554_432),
                    peak: Some(33_550_336),
                },
            };
            assert_eq!(memory.kills(own), Some(expected), "v1: {is_v1}");
        }
    }

    #[test]
    fn the_nearest_of_the_smallest_limits_holds() {
        for is_v1 in [true, false] {
            let tree = Tree::new(is_v1);
            let none = tree.group().shared_memory();
            assert_eq!((none.limit, none.peak), (None, None));
            for dir in [&tree.job, &tree.task] {
                tree.set(dir, "memory.max", "500\n");
            }
            tree.set(&tree.job, "memory.peak", "490\n");
            tree.set(&tree.task, "memory.peak", "480\n");
            let both = tree.group().shared_memory();
            assert_eq!((both.limit, both.peak), (Some(500), Some(480)));
        }
    }

    #[test]
    fn a_group_with_a_process_of_another_job_is_shared() {
        let tree = Tree::new(true);
        let (own, mut child) = (std::process::id(), sleep());
        let parent = std::os::unix::process::parent_id();
        for (executor, processes, is_alone) in [
            (own, &[own, child.id(), parent][..], true),
            (child.id(), &[child.id(), own], true),
            (child.id(), &[child.id(), 2], false),
        ] {
            tree.count(0);
            tree.processes(processes);
            let memory = tree.memory(executor);
            tree.count(1);
            let found = memory.kills(executor).unwrap();
            assert_eq!(found.is_alone, is_alone, "{executor} {processes:?}");
        }
        // Two executors of one dispatcher.
        let mut sibling = sleep();
        tree.count(0);
        tree.processes(&[child.id(), sibling.id()]);
        let memory = tree.memory(child.id());
        tree.count(1);
        assert!(!memory.kills(child.id()).unwrap().is_alone);
        for process in [&mut child, &mut sibling] {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    #[test]
    fn a_kernel_that_counts_no_kills_tells_nothing() {
        let tree = Tree::new(true);
        tree.set(&tree.task, "memory.events", "oom_kill_disable 0\n");
        assert_eq!(SharedMemory::of_group(tree.group(), 1), None);
    }
}
