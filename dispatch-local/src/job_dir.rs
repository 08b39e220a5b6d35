//! The directory of a job: the files in it, and the status of the job that they show.
//!
//! | file | written by | content |
//! |---|---|---|
//! | `token` (0600) | dispatcher | the attempt token |
//! | `job.json` | dispatcher | attempt and reservation, for a restarted dispatcher |
//! | `lock` | crunch-run | pid, start time and boot id of the worker, which holds a flock on it |
//! | `output.log` | crunch-run | its output |
//! | `exit` | crunch-run | its exit code, written before the lock is released |

use std::fs::{self, File};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use arvados_client::{ContainerUuid, TokenUuid};
use crunch_contract::ExitCode;
use crunch_contract::job_dir::{EXIT_FILE, ExitFile, LOCK_FILE};
use dispatch_core::scheduler::attempt_dir::AttemptDir;
use dispatch_core::scheduler::credentials::Credentials;
use fail_points::fail_point;
use host_state::file::create_private_dir;
use host_state::{ProcessIdentity, boot_id, lock};
use serde::{Deserialize, Serialize};

use crate::crunch_run_process::CrunchRunProcess;
use crate::reservation::Reservation;

/// The content of `job.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    pub attempt: TokenUuid,
    pub reservation: Reservation,
    /// Run time limit in seconds.
    pub limit: Option<u64>,
    /// Unix time of the submission.
    pub submitted_at: u64,
}

/// The status of a job.
#[derive(Debug)]
pub enum JobStatus {
    /// The lock is held. The worker is none until it has written its pid.
    Alive(Option<CrunchRunProcess>),
    /// The lock is free.
    Ended(CrunchRunExit),
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrunchRunExit {
    /// crunch-run exited with this code.
    Code(i32),
    /// crunch-run was killed.
    Killed,
    /// The machine was restarted while crunch-run ran.
    MachineRestarted,
    /// crunch-run did not start.
    NeverStarted,
}

impl CrunchRunExit {
    /// Whether crunch-run exited with this code.
    pub fn is(self, code: ExitCode) -> bool {
        self == Self::Code(code.code().into())
    }
}

/// The directory of one container's job in the state directory.
#[derive(Debug, Clone)]
pub struct JobDir {
    pub container: ContainerUuid,
    dir: AttemptDir,
}

impl Deref for JobDir {
    type Target = AttemptDir;

    fn deref(&self) -> &AttemptDir {
        &self.dir
    }
}

impl JobDir {
    /// The directory of a container's job; it need not exist.
    pub fn of(state_dir: &Path, container: &ContainerUuid) -> Self {
        Self {
            container: container.clone(),
            dir: AttemptDir::of(state_dir, container),
        }
    }

    /// All job directories in the state directory.
    pub fn all(state_dir: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(state_dir)? {
            let name = entry?.file_name();
            if let Some(container) = name.to_str().and_then(|n| ContainerUuid::parse(n).ok()) {
                found.push(Self::of(state_dir, &container));
            }
        }
        Ok(found)
    }

    /// Creates the directory for a new attempt, with the credentials and the record in it.
    pub fn create(&self, record: &JobRecord, credentials: &Credentials) -> io::Result<()> {
        self.dir.create(credentials)?;
        self.dir.write("job.json", &serde_json::to_vec(record)?)?;
        fail_point("local.notes-written");
        Ok(())
    }

    /// The record; none if it is missing or incomplete.
    pub fn record(&self) -> Option<JobRecord> {
        self.read("job.json")
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.path().join(name)).ok()?).ok()
    }

    /// The current status of the job, by the lock and the files.
    pub fn status(&self) -> io::Result<JobStatus> {
        let file = match File::open(self.path().join(LOCK_FILE)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(JobStatus::Ended(CrunchRunExit::NeverStarted));
            }
            Err(error) => return Err(error),
        };
        let note: Option<ProcessIdentity> = self.read(LOCK_FILE);
        let this_boot = boot_id()?;
        if !lock::is_acquired(file.try_lock())? {
            let note = note.filter(|note| note.boot_id == this_boot);
            let worker = match note {
                Some(note) => CrunchRunProcess::open(note.pid, note.start_time)?,
                None => None,
            };
            return Ok(JobStatus::Alive(worker));
        }
        Ok(JobStatus::Ended(
            match (self.read::<ExitFile>(EXIT_FILE), note) {
                (Some(exit), _) => CrunchRunExit::Code(exit.code),
                (None, Some(note)) if note.boot_id != this_boot => CrunchRunExit::MachineRestarted,
                (None, Some(_)) => CrunchRunExit::Killed,
                (None, None) => CrunchRunExit::NeverStarted,
            },
        ))
    }

    /// Time since the last change of the directory.
    pub fn time_since_change(&self) -> Option<std::time::Duration> {
        let changed = fs::metadata(self.path()).ok()?.modified().ok()?;
        SystemTime::now().duration_since(changed).ok()
    }

    /// Moves the directory to `undelivered/`, because it may have the only copy of results. Returns
    /// its new path.
    pub fn quarantine(&self, state_dir: &Path) -> io::Result<PathBuf> {
        let quarantine = state_dir.join("undelivered");
        create_private_dir(&quarantine)?;
        let _ = fs::remove_file(self.token_file());
        let target = (0u32..)
            .map(|n| match n {
                0 => quarantine.join(self.container.as_str()),
                n => quarantine.join(format!("{}.{n}", self.container)),
            })
            .find(|target| !target.exists())
            .unwrap_or(quarantine);
        fs::rename(self.path(), &target)?;
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::Token;

    use super::*;

    fn job() -> (tempfile::TempDir, JobDir) {
        let run = tempfile::tempdir().unwrap();
        let job = JobDir::of(run.path(), &ContainerUuid::generate("zzzzz"));
        let record = JobRecord {
            attempt: TokenUuid::generate("zzzzz"),
            reservation: Reservation::default(),
            limit: Some(60),
            submitted_at: 1,
        };
        job.create(&record, &Token::new("secret").into()).unwrap();
        assert_eq!(job.record(), Some(record));
        (run, job)
    }

    fn end(job: &JobDir) -> CrunchRunExit {
        // A child of another test has a copy of open descriptors until it executes its program.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            match job.status().unwrap() {
                JobStatus::Ended(end) => return end,
                JobStatus::Alive(worker) => {
                    assert!(std::time::Instant::now() < until, "alive: {worker:?}");
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
            }
        }
    }

    #[test]
    fn what_the_files_prove() {
        let (run, job) = job();
        assert_eq!(JobDir::all(run.path()).unwrap().len(), 1);
        assert_eq!(end(&job), CrunchRunExit::NeverStarted);
        let lock = job.path().join("lock");
        fs::write(&lock, "").unwrap();
        assert_eq!(
            end(&job),
            CrunchRunExit::NeverStarted,
            "it died before it said who it is"
        );
        let note = |boot: &str| format!(r#"{{"pid":1,"start_time":0,"boot_id":"{boot}"}}"#);
        fs::write(&lock, note(&boot_id().unwrap())).unwrap();
        assert_eq!(end(&job), CrunchRunExit::Killed);
        fs::write(&lock, note("another boot")).unwrap();
        assert_eq!(end(&job), CrunchRunExit::MachineRestarted);
        fs::write(job.path().join("exit"), r#"{"code":75}"#).unwrap();
        assert_eq!(end(&job), CrunchRunExit::Code(75));
        // Only the flock decides, not the files.
        let held = File::open(&lock).unwrap();
        held.lock().unwrap();
        assert!(matches!(job.status().unwrap(), JobStatus::Alive(None)));
    }

    #[test]
    fn undelivered_results_are_kept_without_the_token() {
        let (run, job) = job();
        let moved = job.quarantine(run.path()).unwrap();
        assert!(moved.join("job.json").exists() && !moved.join("token").exists());
        assert!(JobDir::all(run.path()).unwrap().is_empty());
        job.remove().unwrap();
    }
}
