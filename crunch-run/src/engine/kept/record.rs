//! A note for each container that exists on this node, so that what a killed attempt left behind can be
//! found by the container's name.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::members;
use crate::cgroup::{Cgroup, Layout};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub group: Cgroup,
    /// Directories to remove.
    pub dirs: Vec<PathBuf>,
    /// Where there is no control group, the container ends with this process.
    pub keeper: Option<Keeper>,
}

/// A process that cannot be mistaken for a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    pid: u32,
    /// In the kernel's ticks since the machine started.
    started: u64,
}

impl Keeper {
    pub fn of_process(pid: u32) -> Option<Self> {
        let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
        let started = process.stat().ok()?.starttime;
        Some(Self { pid, started })
    }

    /// Kills it if it is there, and waits until its container is gone with it.
    fn end(self) -> io::Result<bool> {
        // Opened first: then the number cannot pass to another process unseen.
        let Some(keeper) = open_process(self.pid) else {
            return Ok(false);
        };
        if Self::of_process(self.pid) != Some(self) {
            return Ok(false);
        }
        let mut all: Vec<OwnedFd> = members::children(self.pid)
            .into_iter()
            .filter_map(open_process)
            .collect();
        rustix::process::pidfd_send_signal(&keeper, rustix::process::Signal::KILL)?;
        all.push(keeper);
        let deadline = Instant::now() + PATIENCE;
        for process in &all {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            if poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left))? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("its keeper (process {}) does not die", self.pid),
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
pub fn leaf(name: &str, attempt: &str) -> String {
    format!("{}{attempt}", leaf_prefix(name))
}

fn leaf_prefix(name: &str) -> String {
    format!("crunch-run-{name}-")
}

impl Record {
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)?;
            let found = fs::symlink_metadata(dir)?;
            if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("{} belongs to somebody else", dir.display()),
                ));
            }
        }
        let partial = path.with_extension("partial");
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(partial, path)
    }
}

/// Kills and removes what is left of containers called `name`. Says what it removed.
pub fn recover(run_dir: &Path, name: &str) -> io::Result<Vec<String>> {
    let mut removed = Vec::new();
    let layout = Layout::of_this_process()?;
    let prefix = leaf_prefix(name);
    for entry in fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let file_name = entry.file_name();
        let is_ours = file_name.to_str().is_some_and(|f| f.starts_with(&prefix));
        if !is_ours {
            continue;
        }
        let text = match fs::read(&path) {
            // A keeper without its crunch-run tidies up too, perhaps at this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        if let Ok(record) = serde_json::from_slice::<Record>(&text) {
            end_group(&record.group, &mut removed)?;
            if let Some(keeper) = record.keeper
                && keeper.end()?
            {
                removed.push("a running container".to_owned());
            }
            for dir in record.dirs {
                if dir.exists() {
                    unless_gone(remove_tree(&dir))?;
                    removed.push(format!("directory {}", dir.display()));
                }
            }
        }
        // Hardly ever there, and then empty by now.
        let _ = layout
            .named_group(&file_name.to_string_lossy())
            .remove(PATIENCE);
        unless_gone(fs::remove_file(&path))?;
    }
    // Groups whose note is gone, say with a cleared /run.
    let mut parents: Vec<PathBuf> = layout
        .accounting()
        .map(|h| h.parent_of_containers())
        .collect();
    parents.dedup();
    for parent in parents {
        for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
            let leaf = entry.file_name();
            if let Some(leaf) = leaf.to_str().filter(|l| l.starts_with(&prefix)) {
                end_group(&layout.container_group(leaf), &mut removed)?;
            }
        }
    }
    Ok(removed)
}

fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Also where directories do not let their owner in, as those that overlayfs works in.
fn remove_tree(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(dir)?;
            fs::remove_dir_all(dir)
        }
        done => done,
    }
}

fn open_up(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

fn end_group(group: &Cgroup, removed: &mut Vec<String>) -> io::Result<()> {
    if !group.exists() {
        return Ok(());
    }
    let processes = group.processes().len();
    group
        .kill(PATIENCE)
        .and_then(|()| group.remove(PATIENCE))
        .map_err(io::Error::other)?;
    if processes > 0 {
        let plural = if processes == 1 {
            "process"
        } else {
            "processes"
        };
        removed.push(format!("{processes} running {plural}"));
    }
    if let Some(dir) = group.dirs().first() {
        removed.push(format!("control group {}", dir.display()));
    }
    Ok(())
}
