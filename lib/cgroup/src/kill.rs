//! Kills all processes of a control group and removes its directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use exp_backoff::Backoff;
use rustix::process::{Pid, Signal, kill_process};

use super::Cgroup;

/// Intervals at which the kernel is asked again.
const BACKOFF: Backoff = Backoff::new(Duration::from_micros(200), Duration::from_millis(20));

#[derive(Debug, thiserror::Error)]
pub enum KillError {
    #[error("processes {pids:?} of control group {dir} do not end after KILL")]
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
        // All hierarchies list the same processes, except while one is being moved.
        for dir in self.dirs() {
            processes_below(dir, &mut pids);
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Moves a process into the group; its later children are in it too.
    pub fn enter(&self, pid: Pid) -> io::Result<()> {
        for dir in self.dirs() {
            // v1 refuses processes in a group without CPUs and memory nodes.
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

    /// Sends a signal to every process of the group, except those for which `except` is true.
    pub fn signal(&self, signal: Signal, except: impl Fn(u32) -> bool) {
        for pid in self.processes().into_iter().filter(|pid| !except(*pid)) {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                // A process that has ended needs no signal.
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Sends KILL to all processes until none is left, for at most `timeout`.
    pub fn kill(&self, timeout: Duration) -> Result<(), KillError> {
        let deadline = Instant::now() + timeout;
        let mut backoff = BACKOFF;
        loop {
            let pids = self.processes();
            if pids.is_empty() {
                return Ok(());
            }
            let kill_file = self.v2.as_ref().map(|dir| dir.join("cgroup.kill"));
            let kills_at_once =
                self.v1.is_empty() && kill_file.is_some_and(|file| fs::write(file, "1").is_ok());
            if !kills_at_once {
                self.signal(Signal::KILL, |_| false);
            }
            if Instant::now() >= deadline {
                let dir = self.dirs().first().map(PathBuf::from).unwrap_or_default();
                return Err(KillError::StillAlive { dir, pids });
            }
            thread::sleep(backoff.next_delay());
        }
    }

    /// Removes the directories; missing ones are no error. Retries for at most `timeout`: the
    /// kernel reports a directory as busy for a moment after its last process died.
    pub fn remove(&self, timeout: Duration) -> Result<(), KillError> {
        let deadline = Instant::now() + timeout;
        for dir in self.dirs() {
            let mut backoff = BACKOFF;
            loop {
                match remove_tree(dir) {
                    Ok(()) => break,
                    Err(source) if Instant::now() >= deadline => {
                        return Err(KillError::Remove {
                            dir: dir.to_path_buf(),
                            source,
                        });
                    }
                    Err(_) => thread::sleep(backoff.next_delay()),
                }
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
