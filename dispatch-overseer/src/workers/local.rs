//! Worker processes on this machine, each with a directory of its own.
//!
//! | file | is |
//! |---|---|
//! | `lock` | the worker's stdin, and held with flock for as long as it lives |
//! | `worker.json` | who it is: pid, start time and boot; and since when, with which command |
//! | `output.log` | what it says |
//!
//! The lock is held from before the worker starts, by a descriptor that the worker inherits: so a worker is known
//! although its overseer was killed before it could write down who it is. Nothing waits here, so nothing is ever stopped.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use demand::Worker;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::{StartError, Unknown, Workers, library_path};
use crate::job::{Job, State};

/// What workers get of our environment.
const ENVIRONMENT: [&str; 6] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR"];
/// Directories of workers that are over are kept for their output: so many of them.
const KEPT: usize = 20;

/// This machine.
#[derive(Debug)]
pub struct Local {
    /// Holds a directory for each worker.
    pub dir: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Notes {
    pid: u32,
    /// Field 22 of `/proc/PID/stat`: tells it from a later process with the same number.
    start_time: u64,
    boot_id: String,
    started_at: u64,
    mark: String,
}

impl Local {
    fn look(&self) -> io::Result<Vec<Job>> {
        let boot = boot_id()?;
        let (mut jobs, mut over) = (Vec::new(), Vec::new());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        // They begin with their time.
        names.sort();
        for name in names {
            let dir = self.dir.join(&name);
            let notes = notes(&dir);
            if is_locked(&dir)? || notes.as_ref().is_some_and(|notes| lives(notes, &boot)) {
                jobs.push(Job {
                    id: name,
                    state: State::Busy,
                    started_at: notes.as_ref().map(|notes| notes.started_at),
                    mark: notes.map(|notes| notes.mark).unwrap_or_default(),
                    held: None,
                });
            } else {
                over.push(dir);
            }
        }
        for dir in over.iter().take(over.len().saturating_sub(KEPT)) {
            fs::remove_dir_all(dir)?;
        }
        Ok(jobs)
    }

    fn start_one(&self, worker: &Worker) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_err(io::Error::other)?;
        let name = format!("{:012}-{:09}", now.as_secs(), now.subsec_nanos());
        let dir = self.dir.join(name);
        DirBuilder::new().mode(0o700).create(&dir)?;
        let started = self.spawn(worker, &dir, now);
        if started.is_err() {
            fs::remove_dir_all(&dir)?;
        }
        started
    }

    fn spawn(&self, worker: &Worker, dir: &Path, now: Duration) -> io::Result<()> {
        File::create_new(dir.join("lock"))?;
        // Read only: to the worker it is an empty stdin.
        let lock = File::open(dir.join("lock"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let output = File::create_new(dir.join("output.log"))?;
        let environment = ENVIRONMENT
            .iter()
            .filter_map(|name| Some((*name, std::env::var_os(name)?)));
        let mut command = Command::new(&worker.program);
        command
            .args(&worker.arguments)
            .env_clear()
            .envs(environment)
            .current_dir(dir)
            .stdin(Stdio::from(lock))
            .stdout(Stdio::from(output.try_clone()?))
            .stderr(Stdio::from(output))
            // Ctrl-C on our terminal is not meant for it.
            .process_group(0);
        if let Some(path) = library_path(worker) {
            command.env("LD_LIBRARY_PATH", path);
        }
        let child = command.spawn()?;
        // It ended already: then its directory says so.
        let Some(pid) = child.id() else {
            return Ok(());
        };
        let Some(start_time) = start_time(pid) else {
            return Ok(());
        };
        let notes = Notes {
            pid,
            start_time,
            boot_id: boot_id()?,
            started_at: now.as_secs(),
            mark: worker.mark(),
        };
        let fresh = dir.join("worker.new");
        fs::write(&fresh, serde_json::to_vec(&notes)?)?;
        fs::rename(fresh, dir.join("worker.json"))
    }
}

fn notes(dir: &Path) -> Option<Notes> {
    serde_json::from_slice(&fs::read(dir.join("worker.json")).ok()?).ok()
}

/// Whether a worker, or one of its children, holds the lock.
fn is_locked(dir: &Path) -> io::Result<bool> {
    let lock = match File::open(dir.join("lock")) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether the very process is there: a worker may have closed its stdin.
fn lives(notes: &Notes, boot: &str) -> bool {
    notes.boot_id == boot && start_time(notes.pid) == Some(notes.start_time)
}

/// None for a process that is gone or only waits to be collected.
fn start_time(pid: u32) -> Option<u64> {
    let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
    let stat = process.stat().ok()?;
    (!matches!(stat.state, 'Z' | 'X')).then_some(stat.starttime)
}

fn boot_id() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

impl Workers for Local {
    async fn list(&self) -> Result<Vec<Job>, Unknown> {
        self.look()
            .map_err(|error| Unknown(format!("{}: {error}", self.dir.display())))
    }

    async fn start(&self, count: u32, worker: &Worker) -> Result<(), StartError> {
        for _ in 0..count {
            self.start_one(worker).map_err(|error| {
                StartError::Refused(format!("{} could not be started: {error}", worker.program))
            })?;
        }
        Ok(())
    }

    async fn stop(&self, _jobs: &[String]) -> Result<(), Unknown> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn sh(script: &str) -> Worker {
        Worker {
            program: "/bin/sh".into(),
            libraries: vec!["/l/a.so".into()],
            arguments: vec!["-c".into(), script.into()],
        }
    }

    async fn wait_for(what: &str, mut done: impl AsyncFnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(300);
        while !done().await {
            assert!(Instant::now() < until, "waited for {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn pid(local: &Local, job: &Job) -> u32 {
        notes(&local.dir.join(&job.id)).unwrap().pid
    }

    fn kill(pid: u32) {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[tokio::test]
    async fn workers_are_known_by_their_lock_and_by_their_process() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local {
            dir: dir.path().to_owned(),
        };
        local.start(1, &sh("exec sleep 1000")).await.unwrap();
        local.start(1, &sh("exec sleep 1000 <&-")).await.unwrap();
        let jobs = local.list().await.unwrap();
        assert_eq!(jobs.len(), 2);
        assert!(
            jobs.iter()
                .all(|job| job.state == State::Busy && job.started_at.is_some())
        );
        let [locked, bare] = [pid(&local, &jobs[0]), pid(&local, &jobs[1])];
        wait_for("the second to close its lock", async || {
            !is_locked(&local.dir.join(&jobs[1].id)).unwrap()
        })
        .await;
        assert_eq!(local.list().await.unwrap(), jobs, "the process is there");
        // As if the overseer had been killed before it could write.
        for job in &jobs {
            fs::remove_file(local.dir.join(&job.id).join("worker.json")).unwrap();
        }
        // What another test starts has a copy of a lock, until it runs.
        wait_for("the locked one to be all", async || {
            local.list().await.unwrap().len() == 1
        })
        .await;
        let known = local.list().await.unwrap();
        assert_eq!((&known[0].id, known[0].started_at), (&jobs[0].id, None));
        kill(locked);
        kill(bare);
        wait_for("both to be gone", async || {
            local.list().await.unwrap().is_empty()
        })
        .await;
    }

    #[tokio::test]
    async fn a_worker_gets_its_words_its_libraries_and_no_token() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local {
            dir: dir.path().to_owned(),
        };
        let mut worker = sh("cat; echo \"$1\" \"$LD_LIBRARY_PATH\"; env | grep -c ^CARGO");
        worker.arguments.extend(["w".into(), "$(reboot)".into()]);
        local.start(1, &worker).await.unwrap();
        let said = || {
            let entry = fs::read_dir(&local.dir).unwrap().next().unwrap().unwrap();
            fs::read_to_string(entry.path().join("output.log")).unwrap()
        };
        wait_for("its end", async || local.list().await.unwrap().is_empty()).await;
        assert_eq!(said(), "$(reboot) /l\n0\n");
    }

    #[tokio::test]
    async fn what_cannot_start_leaves_nothing_and_what_ended_little() {
        let dir = tempfile::tempdir().unwrap();
        let local = Local {
            dir: dir.path().to_owned(),
        };
        let missing = Worker {
            program: "/no/such".into(),
            ..sh("")
        };
        let error = local.start(1, &missing).await.unwrap_err();
        assert!(matches!(error, StartError::Refused(_)), "{error}");
        let count = || fs::read_dir(&local.dir).unwrap().count();
        assert_eq!(count(), 0);
        local.start(KEPT as u32 + 5, &sh("exit 1")).await.unwrap();
        wait_for("only some to be kept", async || {
            local.list().await.unwrap().is_empty() && count() == KEPT
        })
        .await;
    }

    #[test]
    fn a_process_is_its_start_time_and_its_boot_too() {
        let boot = boot_id().unwrap();
        let own = std::process::id();
        let of = |start_time: u64, boot_id: &str| Notes {
            pid: own,
            start_time,
            boot_id: boot_id.to_owned(),
            started_at: 0,
            mark: String::new(),
        };
        let since = start_time(own).unwrap();
        assert!(lives(&of(since, &boot), &boot));
        assert!(!lives(&of(since + 1, &boot), &boot));
        assert!(!lives(&of(since, "another boot"), &boot));
    }
}
