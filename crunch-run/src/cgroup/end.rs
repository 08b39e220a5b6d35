//! Ends a control group: kills everything in it and removes its directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Cgroup;

#[derive(Debug, thiserror::Error)]
pub enum EndError {
    #[error("processes {pids:?} of control group {dir} do not die")]
    StillAlive { dir: PathBuf, pids: Vec<u32> },
    #[error("control group {dir} cannot be removed: {source}")]
    Remove {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Cgroup {
    /// The processes in the group and in the groups below it.
    pub fn processes(&self) -> Vec<u32> {
        let mut pids = Vec::new();
        // Every hierarchy holds the same processes, unless one of them was being moved just then.
        for dir in self.dirs() {
            processes_below(dir, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Puts a process into the group; what it starts from then on is in it too.
    pub fn enter(&self, pid: Pid) -> io::Result<()> {
        for dir in self.dirs() {
            // v1 lets nobody into a group that has been given no CPUs and no memory nodes.
            for name in ["cpuset.cpus", "cpuset.mems"] {
                let own = fs::read_to_string(dir.join(name));
                if own.is_ok_and(|own| own.trim().is_empty())
                    && let Some(parent) = dir.parent()
                {
                    fs::write(dir.join(name), fs::read(parent.join(name))?)?;
                }
            }
            fs::write(dir.join("cgroup.procs"), pid.as_raw_nonzero().to_string())?;
        }
        Ok(())
    }

    /// Sends a signal to every process of the group, except those that `keep` names.
    pub fn signal(&self, signal: Signal, keep: impl Fn(u32) -> bool) {
        for pid in self.processes().into_iter().filter(|pid| !keep(*pid)) {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                // One that is gone by now needs no signal.
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// KILL to everything, until nothing is left or `patience` is over.
    pub fn kill(&self, patience: Duration) -> Result<(), EndError> {
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_micros(200);
        loop {
            let pids = self.processes();
            if pids.is_empty() {
                return Ok(());
            }
            let at_once = self.v1.is_empty()
                && self
                    .v2
                    .as_ref()
                    .is_some_and(|dir| fs::write(dir.join("cgroup.kill"), "1").is_ok());
            if !at_once {
                self.signal(Signal::KILL, |_| false);
            }
            if Instant::now() >= deadline {
                let dir = self
                    .dirs()
                    .first()
                    .map(|d| d.to_path_buf())
                    .unwrap_or_default();
                return Err(EndError::StillAlive { dir, pids });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Removes the directories; those that are gone already are no error. The kernel may call a
    /// directory busy for a moment after its last process died.
    pub fn remove(&self, patience: Duration) -> Result<(), EndError> {
        let deadline = Instant::now() + patience;
        for dir in self.dirs() {
            let mut pause = Duration::from_micros(200);
            loop {
                match remove_tree(dir) {
                    Ok(()) => break,
                    Err(source) if Instant::now() >= deadline => {
                        return Err(EndError::Remove {
                            dir: dir.to_path_buf(),
                            source,
                        });
                    }
                    Err(_) => thread::sleep(pause),
                }
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    pub fn exists(&self) -> bool {
        self.dirs().iter().any(|dir| dir.exists())
    }
}

fn processes_below(dir: &Path, pids: &mut Vec<u32>) {
    let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) else {
        return;
    };
    pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    for child in sub_directories(dir) {
        processes_below(&child, pids);
    }
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    for child in sub_directories(dir) {
        remove_tree(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn sub_directories(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
