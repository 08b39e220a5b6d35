//! Which crunch-runs there are on this node: `--list` and `--kill`, for whoever started them without a job directory
//! of their own to look into, like upstream's cloud dispatcher.
//!
//! Every run holds the lock of a file of its own in one directory per user. The kernel frees the lock with the
//! process, so that a file nobody holds is a note of the past.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::engine::EngineNote;

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
    /// For whoever tidies up after it, should it be killed.
    #[serde(default, rename = "Places", skip_serializing_if = "Option::is_none")]
    pub places: Option<Places>,
    /// What runs its container, from when that is known on.
    #[serde(default, rename = "Engine", skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineNote>,
}

/// Where a run has its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    pub job_dir: PathBuf,
    /// The job directory was made by the run itself, and nobody else will remove it.
    pub own: bool,
    /// Where it makes its scratch directory, if not in the job directory.
    pub scratch: Option<PathBuf>,
}

/// A run's own entry; gone with it.
#[derive(Debug)]
pub struct Registered {
    path: PathBuf,
    entry: Entry,
    /// Held as long as this is.
    file: File,
}

impl Registered {
    /// Before the engine makes anything.
    pub fn note_engine(&self, engine: EngineNote) -> io::Result<()> {
        let entry = Entry {
            engine: Some(engine),
            ..self.entry.clone()
        };
        // More text than there was, in one piece: whoever is killed here leaves the one or the other.
        self.file.write_all_at(line(&entry)?.as_bytes(), 0)
    }
}

fn line(entry: &Entry) -> io::Result<String> {
    Ok(format!("{}\n", serde_json::to_string(entry)?))
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
        None => crate::environment::temp_dir().join(format!("crunch-run-list-{}", uid.as_raw())),
    }
}

/// Puts this process into the list.
pub fn register(
    dir: &Path,
    uuid: &ContainerUuid,
    places: Option<Places>,
) -> io::Result<Registered> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;
    check_owner(dir)?;
    // Nobody begins while somebody looks who is dead.
    let gate = gate(dir)?;
    flock(&gate, FlockOperation::LockShared)?;
    let pid = std::process::id();
    let path = dir.join(format!("{uuid}.{pid}"));
    let entry = Entry {
        uuid: uuid.clone(),
        pid,
        places,
        engine: None,
    };
    let text = line(&entry)?;
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
            return Ok(Registered {
                path,
                entry,
                file: lock,
            });
        }
    }
}

/// The name of no entry.
const GATE: &str = "gate";

fn gate(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(dir.join(GATE))
}

/// Runs that were killed, and have left something. While this is held nobody registers, and nobody else has one.
#[derive(Debug)]
pub struct Dead {
    _gate: File,
    entries: Vec<(PathBuf, Entry)>,
}

impl Dead {
    /// `None` if somebody else is at it.
    pub fn find(dir: &Path) -> io::Result<Option<Self>> {
        check_owner(dir)?;
        let gate = gate(dir)?;
        match flock(&gate, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let All {
            alive,
            dead: mut entries,
        } = read_all(dir)?;
        // Another attempt at the same container is alive, and has tidied up by itself.
        entries.retain(|(_, dead)| alive.iter().all(|entry| entry.uuid != dead.uuid));
        Ok(Some(Self {
            _gate: gate,
            entries,
        }))
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// Nothing is left of it.
    pub fn forget(&self, gone: &Entry) -> io::Result<()> {
        for (path, entry) in &self.entries {
            if entry == gone {
                fs::remove_file(path)?;
            }
        }
        Ok(())
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

/// Every run that is alive. Notes of the past that say nothing more are removed.
pub fn list(dir: &Path) -> io::Result<Vec<Entry>> {
    match check_owner(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let mut found = read_all(dir)?.alive;
    found.sort_by(|one, other| (&one.uuid, one.pid).cmp(&(&other.uuid, other.pid)));
    Ok(found)
}

/// The runs of one container that were killed. Whoever begins with it asks their engines at once.
pub fn killed(dir: &Path, uuid: &ContainerUuid) -> io::Result<Vec<Entry>> {
    check_owner(dir)?;
    let dead = read_all(dir)?.dead.into_iter().map(|(_, entry)| entry);
    Ok(dead.filter(|entry| entry.uuid == *uuid).collect())
}

#[derive(Debug, Default)]
struct All {
    alive: Vec<Entry>,
    /// Those that have left something, with their files.
    dead: Vec<(PathBuf, Entry)>,
}

/// Named like a run: what else is there is none of ours.
fn is_entry(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.rsplit_once('.'))
        .is_some_and(|(uuid, pid)| ContainerUuid::parse(uuid).is_ok() && pid.parse::<u32>().is_ok())
}

fn read_all(dir: &Path) -> io::Result<All> {
    let mut all = All::default();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if !is_entry(&path) {
            continue;
        }
        let Ok(mut file) = File::open(&path) else {
            continue;
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                match serde_json::from_str::<Entry>(&text) {
                    Ok(entry) if entry.places.is_some() => all.dead.push((path, entry)),
                    _ => {
                        let _ = fs::remove_file(&path);
                    }
                }
            }
            Err(_) => {
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                // One that begins at this moment has not written its name yet.
                all.alive.extend(serde_json::from_str::<Entry>(&text));
            }
        }
    }
    Ok(all)
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
        let me = register(&dir, &uuid, None).unwrap();
        let entry = Entry {
            uuid: uuid.clone(),
            pid: std::process::id(),
            places: None,
            engine: None,
        };
        assert_eq!(list(&dir).unwrap(), [entry]);
        let anothers = dir.join(format!("crunch-run-{uuid}-1"));
        fs::write(&anothers, "{}").unwrap();
        // Left by one that was killed.
        let dead = dir.join(format!("{uuid}.1"));
        fs::write(&dead, format!("{{\"UUID\":\"{uuid}\",\"PID\":1}}")).unwrap();
        assert_eq!(list(&dir).unwrap().len(), 1);
        assert!(!dead.exists());
        drop(me);
        assert_eq!(list(&dir).unwrap(), []);
        fs::remove_file(anothers).expect("it is no entry");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "the gate");
        // Nobody to kill is as good as dead.
        assert!(kill(&dir, &uuid, Signal::TERM).unwrap());
    }

    #[test]
    fn who_was_killed_is_known_to_one_at_a_time_until_nothing_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let uuids = [(); 2].map(|()| ContainerUuid::generate("zzzzz"));
        let note = |uuid: &ContainerUuid| Entry {
            uuid: uuid.clone(),
            pid: 1,
            places: Some(Places {
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
        let alive = register(dir, &uuids[0], note(&uuids[0]).places).unwrap();
        assert_eq!(list(dir).unwrap().len(), 1);
        // What another test starts has a copy of the gate for a moment, too.
        let find = || {
            let until = Instant::now() + Duration::from_secs(60);
            loop {
                match Dead::find(dir).unwrap() {
                    Some(dead) => return dead,
                    None => assert!(Instant::now() < until, "the gate stays shut"),
                }
                std::thread::sleep(LOOK);
            }
        };
        let dead = find();
        let entries: Vec<_> = dead.entries().cloned().collect();
        assert_eq!(entries, [note(&uuids[1])]);
        assert!(Dead::find(dir).unwrap().is_none());
        dead.forget(&entries[0]).unwrap();
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
        let places = Places {
            job_dir: "/nowhere".into(),
            own: false,
            scratch: None,
        };
        let engine = EngineNote {
            name: "docker".to_owned(),
            socket: Some("/run/docker.sock".into()),
        };
        let run = register(dir, &uuid, Some(places)).unwrap();
        run.note_engine(engine.clone()).unwrap();
        assert_eq!(list(dir).unwrap()[0].engine, Some(engine.clone()));
        assert_eq!(killed(dir, &uuid).unwrap(), []);
        // As the kernel does it.
        let Registered { path, .. } = &run;
        let kept = dir.join(format!("{uuid}.1"));
        fs::copy(path, &kept).unwrap();
        let found = killed(dir, &uuid).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].engine, Some(engine));
        assert_eq!(killed(dir, &other).unwrap(), []);
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
                register(&theirs, &uuid, None).map(drop),
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
