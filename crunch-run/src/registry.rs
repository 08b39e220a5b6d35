//! Which crunch-runs there are on this node: `--list` and `--kill`, for whoever started them without a job directory
//! of their own to look into, like upstream's cloud dispatcher.
//!
//! Every run holds the lock of a file of its own in one directory per user. The kernel frees the lock with the
//! process, so that a file nobody holds is a note of the past.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};

/// How long a process may take to end after a signal, before it counts as alive.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

/// A run, as its file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    #[serde(rename = "UUID")]
    pub uuid: ContainerUuid,
    #[serde(rename = "PID")]
    pub pid: u32,
}

/// A run's own entry; gone with it.
#[derive(Debug)]
pub struct Registered {
    path: PathBuf,
    _lock: File,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Root's runs are known to the node, anybody else's to that user. `env` looks a variable up.
pub fn directory(env: impl Fn(&str) -> Option<String>) -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return "/run/lock/crunch-run".into();
    }
    match env("XDG_RUNTIME_DIR").filter(|dir| dir.starts_with('/')) {
        Some(dir) => PathBuf::from(dir).join("crunch-run"),
        None => std::env::temp_dir().join(format!("crunch-run-{}", uid.as_raw())),
    }
}

/// Puts this process into the list.
pub fn register(dir: &Path, uuid: &ContainerUuid) -> io::Result<Registered> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    check_owner(dir)?;
    let pid = std::process::id();
    let path = dir.join(format!("{uuid}.{pid}"));
    let entry = Entry {
        uuid: uuid.clone(),
        pid,
    };
    let text = format!("{}\n", serde_json::to_string(&entry)?);
    loop {
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        lock.write_all(text.as_bytes())?;
        // Whoever made a list between the two calls took it for a note of the past.
        if path.exists() {
            return Ok(Registered { path, _lock: lock });
        }
    }
}

/// In a directory of everybody's, somebody else may have been first; signals go only where our own notes say.
fn check_owner(dir: &Path) -> io::Result<()> {
    let facts = fs::symlink_metadata(dir)?;
    if facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} is no directory of this user",
        dir.display()
    )))
}

/// Every run that is alive. Notes of the past are removed.
pub fn list(dir: &Path) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    match check_owner(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    }
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Ok(mut file) = File::open(&path) else {
            continue;
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                let _ = fs::remove_file(&path);
            }
            Err(_) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                // One that begins at this moment has not written its name yet.
                found.extend(serde_json::from_str::<Entry>(&text));
            }
        }
    }
    found.sort_by(|one, other| (&one.uuid, one.pid).cmp(&(&other.uuid, other.pid)));
    Ok(found)
}

/// Sends a signal to every run of a container, and tells whether all of them ended at once. There may be none.
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
    let until = Instant::now() + PATIENCE;
    while pids.iter().any(|pid| test_kill_process(*pid).is_ok()) {
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
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
        let me = register(&dir, &uuid).unwrap();
        let entry = Entry {
            uuid: uuid.clone(),
            pid: std::process::id(),
        };
        assert_eq!(list(&dir).unwrap(), [entry]);
        // Left by one that was killed.
        let dead = dir.join(format!("{uuid}.1"));
        fs::write(&dead, format!("{{\"UUID\":\"{uuid}\",\"PID\":1}}")).unwrap();
        assert_eq!(list(&dir).unwrap().len(), 1);
        assert!(!dead.exists());
        drop(me);
        assert_eq!(list(&dir).unwrap(), []);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        // Nobody to kill is as good as dead.
        assert!(kill(&dir, &uuid, Signal::TERM).unwrap());
    }

    #[test]
    fn what_another_user_wrote_sends_no_signal() {
        let dir = tempfile::tempdir().unwrap();
        let uuid = ContainerUuid::generate("zzzzz");
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        // Only root can give something away.
        if std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).is_ok() {
            for refused in [
                register(&theirs, &uuid).map(drop),
                list(&theirs).map(drop),
                kill(&theirs, &uuid, Signal::TERM).map(drop),
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("no directory of this user"), "{error}");
            }
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(list(&link).is_err());
    }
}
