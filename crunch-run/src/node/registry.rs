//! The crunch-runs of this node, for `--list` and `--kill`.
//!
//! Every run holds the lock of a file of its own in one directory per user. The kernel releases the
//! lock with the process, so an unlocked file belongs to a dead run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use host_state::file::create_private_dir;
use host_state::lock::is_acquired;
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
        return "/run/lock/crunch-run".into();
    }
    match env("XDG_RUNTIME_DIR").filter(|dir| dir.starts_with('/')) {
        Some(dir) => PathBuf::from(dir).join("crunch-run"),
        None => crate::environment::temp_dir().join(format!("crunch-run-list-{}", uid.as_raw())),
    }
}

/// Registers this process.
pub fn register(dir: &Path, uuid: &ContainerUuid, paths: Option<RunPaths>) -> io::Result<RunGuard> {
    create_private_dir(dir)?;
    check_owner(dir)?;
    // No run may register while another looks for dead runs.
    let registry_lock = registry_lock(dir)?;
    registry_lock.lock_shared()?;
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
            return Ok(RunGuard {
                path,
                entry,
                file: lock,
                stays: false,
            });
        }
    }
}

/// Name of the lock file, which is not an entry's name.
const REGISTRY_LOCK: &str = "gate";

fn registry_lock(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(dir.join(REGISTRY_LOCK))
}

/// Killed runs that left something. While this is held, no run registers and no other process
/// cleans up.
#[derive(Debug)]
pub struct DeadRuns {
    _registry_lock: File,
    entries: Vec<(PathBuf, RunEntry)>,
}

impl DeadRuns {
    /// `None` if another process is cleaning up.
    pub fn find(dir: &Path) -> io::Result<Option<Self>> {
        check_owner(dir)?;
        let registry_lock = registry_lock(dir)?;
        if !is_acquired(registry_lock.try_lock())? {
            return Ok(None);
        }
        let RunList {
            alive,
            dead: mut entries,
        } = read_all(dir)?;
        // A later attempt at the same container is alive and cleaned up itself.
        entries.retain(|(_, dead)| alive.iter().all(|entry| entry.uuid != dead.uuid));
        Ok(Some(Self {
            _registry_lock: registry_lock,
            entries,
        }))
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

/// Checks the owner, because another user may have created the directory. Signals go only to pids
/// from this user's entries.
fn check_owner(dir: &Path) -> io::Result<()> {
    let facts = fs::symlink_metadata(dir)?;
    if facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} is not a directory of this user",
        dir.display()
    )))
}

/// Lists live runs. Stale entries without directories are removed.
pub fn list(dir: &Path) -> io::Result<Vec<RunEntry>> {
    match check_owner(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let mut found = read_all(dir)?.alive;
    found.sort_by(|one, other| (&one.uuid, one.pid).cmp(&(&other.uuid, other.pid)));
    Ok(found)
}

/// Killed runs that left something.
pub fn dead_runs(dir: &Path) -> io::Result<Vec<RunEntry>> {
    check_owner(dir)?;
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
        let Ok(mut file) = File::open(&path) else {
            continue;
        };
        match file.try_lock_shared() {
            Ok(()) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                match serde_json::from_str::<RunEntry>(&text) {
                    Ok(entry) if entry.paths.is_some() => all.dead.push((path, entry)),
                    _ => {
                        let _ = fs::remove_file(&path);
                    }
                }
            }
            Err(_) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                // A run that just started has not written its entry yet.
                all.alive.extend(serde_json::from_str::<RunEntry>(&text));
            }
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
mod tests {
    use super::*;

    #[test]
    fn who_lives_is_listed_and_who_is_gone_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("list");
        assert_eq!(list(&dir).unwrap(), []);
        let uuid = ContainerUuid::generate("zzzzz");
        let me = register(&dir, &uuid, None).unwrap();
        let entry = RunEntry {
            uuid: uuid.clone(),
            pid: std::process::id(),
            paths: None,
            engine: None,
        };
        assert_eq!(list(&dir).unwrap(), [entry]);
        let anothers = dir.join(format!("crunch-run-{uuid}-1"));
        fs::write(&anothers, "{}").unwrap();
        // Entry of a killed run.
        let dead = dir.join(format!("{uuid}.1"));
        fs::write(&dead, format!("{{\"UUID\":\"{uuid}\",\"PID\":1}}")).unwrap();
        assert_eq!(list(&dir).unwrap().len(), 1);
        assert!(!dead.exists());
        drop(me);
        assert_eq!(list(&dir).unwrap(), []);
        fs::remove_file(anothers).expect("it is no entry");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "the gate");
        // A missing process counts as killed.
        assert!(kill(&dir, &uuid, Signal::TERM).unwrap());
    }

    #[test]
    fn who_was_killed_is_known_to_one_at_a_time_until_nothing_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let uuids = [(); 2].map(|()| ContainerUuid::generate("zzzzz"));
        let note = |uuid: &ContainerUuid| RunEntry {
            uuid: uuid.clone(),
            pid: 1,
            paths: Some(RunPaths {
                job_dir: "/nowhere".into(),
                own: true,
                scratch: None,
            }),
            engine: None,
        };
        for uuid in &uuids {
            let text = serde_json::to_string(&note(uuid)).unwrap();
            fs::write(dir.join(format!("{uuid}.1")), text).unwrap();
        }
        // Another attempt at one of them lives.
        let alive = register(dir, &uuids[0], note(&uuids[0]).paths).unwrap();
        assert_eq!(list(dir).unwrap().len(), 1);
        // A child of another test may have a copy of the lock for a moment.
        let find = || {
            let until = Instant::now() + Duration::from_secs(60);
            loop {
                match DeadRuns::find(dir).unwrap() {
                    Some(dead) => return dead,
                    None => assert!(Instant::now() < until, "the gate stays shut"),
                }
                std::thread::sleep(KILL_POLL_INTERVAL);
            }
        };
        let dead = find();
        let entries: Vec<_> = dead.entries().cloned().collect();
        assert_eq!(entries, [note(&uuids[1])]);
        assert!(DeadRuns::find(dir).unwrap().is_none());
        dead.remove_entry(&entries[0]).unwrap();
        drop(dead);
        assert_eq!(find().entries().count(), 0);
        drop(alive);
        assert_eq!(find().entries().count(), 1);
    }

    #[test]
    fn a_killed_run_is_known_by_its_container_and_with_its_engine() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (uuid, other) = (
            ContainerUuid::generate("zzzzz"),
            ContainerUuid::generate("zzzzz"),
        );
        let paths = RunPaths {
            job_dir: "/nowhere".into(),
            own: false,
            scratch: None,
        };
        let engine = EngineRef {
            name: "docker".to_owned(),
            socket: Some("/run/docker.sock".into()),
        };
        let run = register(dir, &uuid, Some(paths)).unwrap();
        run.record_engine(engine.clone()).unwrap();
        assert_eq!(list(dir).unwrap()[0].engine, Some(engine.clone()));
        assert_eq!(dead_runs_of(dir, &uuid).unwrap(), []);
        // Released as by the kernel when the process dies.
        let path = &run.path;
        let copy = dir.join(format!("{uuid}.1"));
        fs::copy(path, &copy).unwrap();
        let found = dead_runs_of(dir, &uuid).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].engine, Some(engine));
        assert_eq!(dead_runs_of(dir, &other).unwrap(), []);
    }

    #[test]
    fn what_another_user_wrote_sends_no_signal() {
        let dir = tempfile::tempdir().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        // Only root can change the owner of a file.
        if std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).is_ok() {
            for refused in [
                register(&theirs, &uuid, None).map(drop),
                list(&theirs).map(drop),
                kill(&theirs, &uuid, Signal::TERM).map(drop),
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("not a directory of this user"), "{error}");
            }
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(list(&link).is_err());
    }
}
