//! The crunch-runs of this node, for `--list` and `--kill`.
//!
//! Every run holds the lock of a file of its own in one directory per user. The kernel releases the
//! lock with the process, so an unlocked file belongs to a dead run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use host_state::file::if_present;
use host_state::lock::{acquire_within, is_acquired};
use host_state::private_dir;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};

use container_engine::EngineRef;

/// Timeout of a process's end after a signal.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
const KILL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A run as its file describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEntry {
    #[serde(rename = "UUID")]
    pub uuid: ContainerUuid,
    #[serde(rename = "PID")]
    pub pid: u32,
    /// Its directories, for cleanup if it is killed.
    #[serde(default, rename = "Places", skip_serializing_if = "Option::is_none")]
    pub paths: Option<RunPaths>,
    /// Its engine, once chosen.
    #[serde(default, rename = "Engine", skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineRef>,
}

/// Directories of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPaths {
    pub job_dir: PathBuf,
    /// Whether the run created the job directory itself.
    pub own: bool,
    /// Parent of its scratch directory, if that is not in the job directory.
    pub scratch: Option<PathBuf>,
}

/// This run's entry, removed when dropped.
#[derive(Debug)]
pub struct RunGuard {
    path: PathBuf,
    entry: RunEntry,
    /// The open file holds the lock.
    file: File,
    /// Whether the entry outlives the run.
    stays: bool,
}

impl RunGuard {
    /// Leaves the entry, because files of this run are left; the next run removes both.
    pub fn leave(mut self) {
        self.stays = true;
    }

    /// Records the engine. Call it before the engine creates anything.
    pub fn record_engine(&self, engine: EngineRef) -> io::Result<()> {
        let entry = RunEntry {
            engine: Some(engine),
            ..self.entry.clone()
        };
        // Longer text in one write: a kill leaves the old or the new entry.
        self.file.write_all_at(to_line(&entry)?.as_bytes(), 0)
    }
}

fn to_line(entry: &RunEntry) -> io::Result<String> {
    Ok(format!("{}\n", serde_json::to_string(entry)?))
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Directory of the entries: one for root, one for each other user. `env` looks up a variable.
pub fn directory(env: impl Fn(&str) -> Option<String>) -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return "/run/crunch-run/list".into();
    }
    let runtime_dir = env("XDG_RUNTIME_DIR").filter(|dir| dir.starts_with('/'));
    if let Some(dir) = runtime_dir {
        return PathBuf::from(dir).join("crunch-run");
    }
    let base = crate::environment::temp_dir().join(format!("crunch-run-list-{uid}"));
    // Whoever uses it says why it cannot be.
    private_dir::create_beside(&base).unwrap_or(base)
}

/// Registers this process.
pub fn register(dir: &Path, uuid: &ContainerUuid, paths: Option<RunPaths>) -> io::Result<RunGuard> {
    private_dir::create(dir)?;
    let pid = std::process::id();
    let path = dir.join(format!("{uuid}.{pid}"));
    let entry = RunEntry {
        uuid: uuid.clone(),
        pid,
        paths,
        engine: None,
    };
    let text = to_line(&entry)?;
    loop {
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        lock.lock()?;
        lock.write_all(text.as_bytes())?;
        // A concurrent list may have removed the file as stale.
        if path.exists() {
            wait_for_cleanup(dir, uuid)?;
            return Ok(RunGuard {
                path,
                entry,
                file: lock,
                stays: false,
            });
        }
    }
}

/// Name of the lock of the process that cleans up, which is not an entry's name.
const REGISTRY_LOCK: &str = "gate";

/// Longest wait for the cleanup of an earlier attempt at the same container.
const CLEANUP_WAIT: Duration = Duration::from_secs(60);

/// Path of the lock that is held while the leftovers of this container are removed.
fn cleanup_lock(dir: &Path, uuid: &ContainerUuid) -> PathBuf {
    dir.join(format!("cleanup-{uuid}"))
}

fn open_lock(path: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new()
        .create(create)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Waits until no process removes what earlier attempts at this container left. The entry of this
/// run exists already, so nobody begins to.
fn wait_for_cleanup(dir: &Path, uuid: &ContainerUuid) -> io::Result<()> {
    let Some(lock) = if_present(open_lock(&cleanup_lock(dir, uuid), false))? else {
        return Ok(());
    };
    match acquire_within(CLEANUP_WAIT, || lock.try_lock_shared())? {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "another crunch-run has been removing the files of an earlier attempt at {uuid} for {} s",
            CLEANUP_WAIT.as_secs()
        ))),
    }
}

/// Killed runs that left something. While this is held, no other process cleans up.
#[derive(Debug)]
pub struct DeadRuns {
    _registry_lock: File,
    dir: PathBuf,
    entries: Vec<(PathBuf, RunEntry)>,
}

/// Permission to remove what killed runs of a container left. A run of this container that begins
/// meanwhile waits until this is dropped.
#[derive(Debug)]
pub struct Cleanup {
    path: PathBuf,
    _lock: File,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl DeadRuns {
    /// `None` if another process is cleaning up.
    pub fn find(dir: &Path) -> io::Result<Option<Self>> {
        private_dir::check(dir)?;
        let registry_lock = open_lock(&dir.join(REGISTRY_LOCK), true)?;
        if !is_acquired(registry_lock.try_lock())? {
            return Ok(None);
        }
        Ok(Some(Self {
            _registry_lock: registry_lock,
            dir: dir.to_owned(),
            entries: read_all(dir)?.dead,
        }))
    }

    /// Permission to clean up after this run. `None` if a later attempt at the same container is
    /// alive: it cleaned up itself.
    pub fn begin(&self, dead: &RunEntry) -> io::Result<Option<Cleanup>> {
        let path = cleanup_lock(&self.dir, &dead.uuid);
        let lock = open_lock(&path, true)?;
        // Only runs of this container lock it, for a moment, and they are alive.
        if !is_acquired(lock.try_lock())? {
            return Ok(None);
        }
        let cleanup = Cleanup { path, _lock: lock };
        let alive = read_all(&self.dir)?.alive;
        let is_free = alive.iter().all(|entry| entry.uuid != dead.uuid);
        Ok(is_free.then_some(cleanup))
    }

    pub fn entries(&self) -> impl Iterator<Item = &RunEntry> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// Removes the entry of a run that is cleaned up.
    pub fn remove_entry(&self, gone: &RunEntry) -> io::Result<()> {
        for (path, entry) in &self.entries {
            if entry == gone {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

/// Lists live runs. Stale entries without directories are removed.
pub fn list(dir: &Path) -> io::Result<Vec<RunEntry>> {
    if if_present(private_dir::check(dir))?.is_none() {
        return Ok(Vec::new());
    }
    let mut found = read_all(dir)?.alive;
    found.sort_by(|one, other| (&one.uuid, one.pid).cmp(&(&other.uuid, other.pid)));
    Ok(found)
}

/// Killed runs that left something.
pub fn dead_runs(dir: &Path) -> io::Result<Vec<RunEntry>> {
    private_dir::check(dir)?;
    let dead = read_all(dir)?.dead.into_iter();
    Ok(dead.map(|(_, entry)| entry).collect())
}

/// Killed runs of one container.
pub fn dead_runs_of(dir: &Path, uuid: &ContainerUuid) -> io::Result<Vec<RunEntry>> {
    let mut dead = dead_runs(dir)?;
    dead.retain(|entry| entry.uuid == *uuid);
    Ok(dead)
}

#[derive(Debug, Default)]
struct RunList {
    alive: Vec<RunEntry>,
    /// Dead runs that left something, with their files.
    dead: Vec<(PathBuf, RunEntry)>,
}

/// Whether the name is one of an entry.
fn is_entry(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.rsplit_once('.'))
        .is_some_and(|(uuid, pid)| ContainerUuid::parse(uuid).is_ok() && pid.parse::<u32>().is_ok())
}

fn read_all(dir: &Path) -> io::Result<RunList> {
    let mut all = RunList::default();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if !is_entry(&path) {
            continue;
        }
        let Ok(Some(mut file)) = private_dir::open(&path) else {
            continue;
        };
        let is_dead = file.try_lock_shared().is_ok();
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let entry = serde_json::from_str::<RunEntry>(&text);
        match entry {
            // A run that just started has not written its entry yet.
            entry if !is_dead => all.alive.extend(entry),
            Ok(entry) if entry.paths.is_some() => all.dead.push((path, entry)),
            _ => drop(fs::remove_file(&path)),
        }
    }
    Ok(all)
}

/// Sends a signal to all runs of a container. Returns whether all of them ended in time.
pub fn kill(dir: &Path, uuid: &ContainerUuid, signal: Signal) -> io::Result<bool> {
    let pids: Vec<Pid> = list(dir)?
        .into_iter()
        .filter(|entry| entry.uuid == *uuid)
        .filter_map(|entry| Pid::from_raw(i32::try_from(entry.pid).ok()?))
        .collect();
    for pid in &pids {
        match kill_process(*pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let until = Instant::now() + KILL_TIMEOUT;
    while pids.iter().any(|pid| test_kill_process(*pid).is_ok()) {
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(KILL_POLL_INTERVAL);
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
