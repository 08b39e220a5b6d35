//! Worker processes on this machine, each with its own directory.
//!
//! | file | is |
//! |---|---|
//! | `lock` | the worker's stdin; locked by flock while the worker lives |
//! | `worker.json` | pid, start time and boot id; time of the start; hash of the command |
//! | `output.log` | its output |
//!
//! The lock is taken before the worker starts, on a descriptor that the worker inherits. So a
//! worker is found even if its overseer was killed before it wrote `worker.json`. No job waits
//! here, so no job is ever stopped.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use host_state::file::{self, Durability};
use host_state::{ProcessIdentity, boot_id, live_start_time, lock};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use worker_demand::Worker;

use super::{BackendError, StartError, WorkerBackend, library_path};
use crate::job::{Job, State};

/// Environment variables that workers inherit.
const INHERITED_VARIABLES: [&str; 6] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR"];
/// Number of directories of ended workers that are kept for their output.
const FINISHED_RETENTION: usize = 20;

/// This machine.
#[derive(Debug)]
pub struct Local {
    /// Contains one directory per worker.
    pub dir: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct WorkerRecord {
    #[serde(flatten)]
    process: ProcessIdentity,
    started_at: u64,
    #[serde(rename = "mark")]
    command_hash: String,
}

impl Local {
    fn scan(&self) -> io::Result<Vec<Job>> {
        let boot = boot_id()?;
        let (mut jobs, mut finished) = (Vec::new(), Vec::new());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        // Names begin with the time of the start.
        names.sort();
        for name in names {
            let dir = self.dir.join(&name);
            let record = read_record(&dir);
            let runs = |record: &WorkerRecord| is_running(record, &boot);
            if is_locked(&dir)? || record.as_ref().is_some_and(runs) {
                jobs.push(Job {
                    id: name,
                    state: State::Busy,
                    started_at: record.as_ref().map(|record| record.started_at),
                    command_hash: record.map(|record| record.command_hash).unwrap_or_default(),
                    held: None,
                });
            } else {
                finished.push(dir);
            }
        }
        let surplus = finished.len().saturating_sub(FINISHED_RETENTION);
        for dir in &finished[..surplus] {
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
        // Opened read-only: the worker sees an empty stdin.
        let lock = File::open(dir.join("lock"))?;
        lock.try_lock()?;
        let output = File::create_new(dir.join("output.log"))?;
        let environment = INHERITED_VARIABLES
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
            // Ctrl-C on the terminal of the overseer must not reach it.
            .process_group(0);
        if let Some(path) = library_path(worker) {
            command.env("LD_LIBRARY_PATH", path);
        }
        let child = command.spawn()?;
        // The worker has ended already; its unlocked directory shows that.
        let Some(pid) = child.id() else {
            return Ok(());
        };
        let Some(process) = file::if_present(ProcessIdentity::of(pid))? else {
            return Ok(());
        };
        let record = WorkerRecord {
            process,
            started_at: now.as_secs(),
            command_hash: worker.command_hash(),
        };
        let record = serde_json::to_vec(&record)?;
        file::replace(&dir.join("worker.json"), &record, Durability::Process)
    }
}

fn read_record(dir: &Path) -> Option<WorkerRecord> {
    serde_json::from_slice(&fs::read(dir.join("worker.json")).ok()?).ok()
}

/// Whether the worker or one of its children holds the lock.
fn is_locked(dir: &Path) -> io::Result<bool> {
    match file::if_present(File::open(dir.join("lock")))? {
        Some(file) => Ok(!lock::is_acquired(file.try_lock_shared())?),
        None => Ok(false),
    }
}

/// Whether this process still runs, for a worker that has closed its stdin.
fn is_running(record: &WorkerRecord, boot: &str) -> bool {
    let process = &record.process;
    process.boot_id == boot && live_start_time(process.pid) == Some(process.start_time)
}

impl WorkerBackend for Local {
    async fn list(&self) -> Result<Vec<Job>, BackendError> {
        self.scan()
            .map_err(|error| BackendError(format!("{}: {error}", self.dir.display())))
    }

    async fn start(&self, count: u32, worker: &Worker) -> Result<(), StartError> {
        for _ in 0..count {
            self.start_one(worker).map_err(|error| {
                StartError::Refused(format!("cannot start {}: {error}", worker.program))
            })?;
        }
        Ok(())
    }

    async fn stop(&self, _jobs: &[String]) -> Result<(), BackendError> {
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
        read_record(&local.dir.join(&job.id)).unwrap().process.pid
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
        // Simulates a kill before the overseer could write the file.
        for job in &jobs {
            fs::remove_file(local.dir.join(&job.id).join("worker.json")).unwrap();
        }
        // A child of another test has a copy of a lock until it executes its program.
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
        let output = || {
            let entry = fs::read_dir(&local.dir).unwrap().next().unwrap().unwrap();
            fs::read_to_string(entry.path().join("output.log")).unwrap()
        };
        wait_for("its end", async || local.list().await.unwrap().is_empty()).await;
        assert_eq!(output(), "$(reboot) /l\n0\n");
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
        local
            .start(FINISHED_RETENTION as u32 + 5, &sh("exit 1"))
            .await
            .unwrap();
        wait_for("only some to be kept", async || {
            local.list().await.unwrap().is_empty() && count() == FINISHED_RETENTION
        })
        .await;
    }

    #[test]
    fn a_process_is_its_start_time_and_its_boot_too() {
        let boot = boot_id().unwrap();
        let own = std::process::id();
        let of = |start_time: u64, boot_id: &str| WorkerRecord {
            process: ProcessIdentity {
                pid: own,
                start_time,
                boot_id: boot_id.to_owned(),
            },
            started_at: 0,
            command_hash: String::new(),
        };
        let since = live_start_time(own).unwrap();
        assert!(is_running(&of(since, &boot), &boot));
        assert!(!is_running(&of(since + 1, &boot), &boot));
        assert!(!is_running(&of(since, "another boot"), &boot));
    }
}
