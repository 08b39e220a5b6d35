//! State files: one for each container on this node, by which the leftovers of a killed attempt are
//! found and removed.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host_state::file::{self, Durability};
use host_state::{private_dir, trash};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::processes;
use super::protocol::is_readable_within;
use cgroup::{Cgroup, Layout};

const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize, Deserialize)]
pub struct StateFile {
    pub group: Cgroup,
    /// Directories to remove.
    pub dirs: Vec<PathBuf>,
    /// Set without a control group: then the container ends with this process.
    #[serde(rename = "keeper")]
    pub shim: Option<ShimProcess>,
}

/// Identity of the shim process, safe against reuse of the pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimProcess {
    pid: u32,
    /// Start of the process in ticks since boot.
    #[serde(rename = "started")]
    start_time: u64,
}

impl ShimProcess {
    pub fn of_process(pid: u32) -> Option<Self> {
        let start_time = host_state::start_time(pid)?;
        Some(Self { pid, start_time })
    }

    /// Kills the shim if it still runs, and waits until its container is gone.
    fn kill(self) -> io::Result<bool> {
        // Opened before the check, so that a reused pid is noticed.
        let Some(shim) = open_process(self.pid) else {
            return Ok(false);
        };
        if Self::of_process(self.pid) != Some(self) {
            return Ok(false);
        }
        let mut all: Vec<OwnedFd> = processes::children(self.pid)
            .into_iter()
            .filter_map(open_process)
            .collect();
        rustix::process::pidfd_send_signal(&shim, rustix::process::Signal::KILL)?;
        all.push(shim);
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        for process in &all {
            // A shim that lost its crunch-run cleans up too, perhaps right now.
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_readable_within(process, left)? {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("its shim (process {}) does not die", self.pid),
                ));
            }
        }
        Ok(true)
    }
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    pidfd_open(
        Pid::from_raw(i32::try_from(pid).ok()?)?,
        PidfdFlags::empty(),
    )
    .ok()
}

/// The name of a container's control group. `attempt` keeps two attempts at one container apart.
pub fn cgroup_name(name: &str, attempt: &str) -> String {
    format!("{}{attempt}", cgroup_name_prefix(name))
}

/// Directory of what is mounted for a container with users of its own.
pub fn mounts_dir(run_dir: &Path, cgroup_name: &str) -> PathBuf {
    run_dir.join(format!("mounts-{cgroup_name}"))
}

fn cgroup_name_prefix(name: &str) -> String {
    format!("crunch-run-{name}-")
}

impl StateFile {
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(dir) = path.parent() {
            private_dir::create(dir)?;
        }
        file::replace(path, &serde_json::to_vec(self)?, Durability::Process)
    }
}

/// Kills and removes what is left of containers called `name`; returns what it removed. Files in
/// `run_dir` name it, and files in the directories that were used instead. None of another user is
/// read.
pub fn remove_leftovers(run_dir: &Path, name: &str) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    let layout = Layout::of_this_process()?;
    let prefix = cgroup_name_prefix(name);
    let run_dirs = private_dir::existing(run_dir);
    for entry in run_dirs.flat_map(fs::read_dir).flatten().flatten() {
        let path = entry.path();
        let run_dir = path.parent().unwrap_or(run_dir);
        let file_name = entry.file_name();
        let is_ours = file_name.to_str().is_some_and(|f| f.starts_with(&prefix));
        if !is_ours {
            continue;
        }
        let Some(text) = private_dir::read(&path)? else {
            continue;
        };
        if let Ok(state) = serde_json::from_slice::<StateFile>(&text) {
            remove_cgroup(&state.group, &mut removed)?;
            if let Some(shim) = state.shim
                && shim.kill()?
            {
                removed.push("a running container".to_owned());
            }
            for dir in state.dirs {
                if dir.exists() {
                    trash::discard(&dir)?;
                    removed.push(format!("directory {}", dir.display()));
                }
            }
        }
        // The mounts in it ended with the shim.
        let _ = fs::remove_dir(mounts_dir(run_dir, &file_name.to_string_lossy()));
        // Rarely present, and empty by now.
        let _ = layout
            .named_group(&file_name.to_string_lossy())
            .remove(REMOVE_TIMEOUT);
        file::ignore_missing(fs::remove_file(&path))?;
    }
    // Control groups without a state file, for example after /run was cleared.
    let mut parents: Vec<PathBuf> = layout
        .accounting()
        .map(|h| h.parent_of_containers())
        .collect();
    parents.dedup();
    for parent in parents {
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let cgroup_name = entry.file_name();
            if let Some(cgroup_name) = cgroup_name.to_str().filter(|l| l.starts_with(&prefix)) {
                remove_cgroup(&layout.container_group(cgroup_name), &mut removed)?;
            }
        }
    }
    Ok(removed)
}

fn remove_cgroup(group: &Cgroup, removed: &mut Vec<String>) -> io::Result<()> {
    if !group.exists() {
        return Ok(());
    }
    let processes = group.processes().len();
    group
        .kill(REMOVE_TIMEOUT)
        .and_then(|()| group.remove(REMOVE_TIMEOUT))
        .map_err(io::Error::other)?;
    match processes {
        0 => {}
        1 => removed.push("1 running process".to_owned()),
        more => removed.push(format!("{more} running processes")),
    }
    if let Some(dir) = group.dirs().first() {
        removed.push(format!("control group {}", dir.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn the_files_of_another_user_remove_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (run_dir, precious) = (dir.path().join("run"), dir.path().join("precious"));
        let state = StateFile {
            group: Cgroup::default(),
            dirs: vec![precious.clone()],
            shim: None,
        };
        let path = run_dir.join("crunch-run-x-0");
        let set_up = || {
            fs::create_dir_all(&precious).unwrap();
            state.write(&path).unwrap();
        };
        set_up();
        assert_eq!(remove_leftovers(&run_dir, "x").unwrap().len(), 1);
        assert!(!precious.exists());
        set_up();
        // A link to a file of this user, which another has made.
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(remove_leftovers(&run_dir, "x").is_err() && precious.exists());
        if rustix::process::geteuid().is_root() {
            fs::rename(&elsewhere, &path).unwrap();
            chown(&path, Some(4711), None).unwrap();
            assert!(remove_leftovers(&run_dir, "x").is_err() && precious.exists());
            chown(&path, Some(0), None).unwrap();
            chown(&run_dir, Some(4711), None).unwrap();
            assert_eq!(remove_leftovers(&run_dir, "x").unwrap(), [""; 0]);
            assert!(precious.exists() && path.exists());
        }
    }
}
