//! A job's directory: what the dispatcher leaves there for crunch-run and for itself, and what crunch-run answers.
//!
//! | file | written by | is |
//! |---|---|---|
//! | `token` (0600) | dispatcher | the attempt token |
//! | `job.json` | dispatcher | attempt and reservation, for a restarted dispatcher |
//! | `lock` | crunch-run | held with flock while the worker lives; names it by pid, start time and boot |
//! | `output.log` | crunch-run | what it said |
//! | `exit` | crunch-run | its exit code; written before the lock is let go |

use std::fs::{self, DirBuilder, File};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::AttemptDir;
use dispatch_core::credentials::Credentials;
use fail_points::fail_point;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::process::{Worker, boot_id};
use crate::reservation::Reservation;

/// The dispatcher's notes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// Which attempt.
    pub attempt: TokenUuid,
    /// What it has for itself.
    pub reservation: Reservation,
    /// Its run time limit, in seconds.
    pub limit: Option<u64>,
    /// When it was submitted, in seconds since 1970.
    pub submitted_at: u64,
}

#[derive(Deserialize)]
struct LockNote {
    pid: u32,
    start_time: u64,
    boot_id: String,
}

#[derive(Deserialize)]
struct ExitNote {
    code: i32,
}

/// What a directory shows of its job.
#[derive(Debug)]
pub enum Sign {
    /// The lock is held. The worker is none when it has not said yet who it is.
    Alive(Option<Worker>),
    /// Nobody holds the lock.
    Ended(End),
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// crunch-run ended by itself with this exit code.
    Code(i32),
    /// It was killed.
    Killed,
    /// The machine was restarted meanwhile.
    Restarted,
    /// It never started.
    NeverStarted,
}

/// One container's directory in the run directory.
#[derive(Debug, Clone)]
pub struct JobDir {
    /// Whose.
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
    /// The place for a container's job; it need not be there.
    pub fn of(run_dir: &Path, container: &ContainerUuid) -> Self {
        Self {
            container: container.clone(),
            dir: AttemptDir::of(run_dir, container),
        }
    }

    /// All that are there.
    pub fn all(run_dir: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(run_dir)? {
            let name = entry?.file_name();
            if let Some(container) = name.to_str().and_then(|n| ContainerUuid::parse(n).ok()) {
                found.push(Self::of(run_dir, &container));
            }
        }
        Ok(found)
    }

    /// Makes it for a new attempt, with the credentials and the notes in it.
    pub fn create(&self, notes: &Notes, credentials: &Credentials) -> io::Result<()> {
        self.dir.create(credentials)?;
        self.dir.write("job.json", &serde_json::to_vec(notes)?)?;
        fail_point("local.notes-written");
        Ok(())
    }

    /// The dispatcher's notes; none where they are not there or were not finished.
    pub fn notes(&self) -> Option<Notes> {
        self.read("job.json")
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.path().join(name)).ok()?).ok()
    }

    /// What it shows of its job now.
    pub fn sign(&self) -> io::Result<Sign> {
        let lock = match File::open(self.path().join("lock")) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Sign::Ended(End::NeverStarted));
            }
            Err(error) => return Err(error),
        };
        let note: Option<LockNote> = self.read("lock");
        let this_boot = boot_id()?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let note = note.filter(|note| note.boot_id == this_boot);
                let worker = match note {
                    Some(note) => Worker::open(note.pid, note.start_time)?,
                    None => None,
                };
                Ok(Sign::Alive(worker))
            }
            Err(error) => Err(error.into()),
            Ok(()) => Ok(Sign::Ended(match (self.read::<ExitNote>("exit"), note) {
                (Some(exit), _) => End::Code(exit.code),
                (None, Some(note)) if note.boot_id != this_boot => End::Restarted,
                (None, Some(_)) => End::Killed,
                (None, None) => End::NeverStarted,
            })),
        }
    }

    /// How long ago something changed in it.
    pub fn age(&self) -> Option<std::time::Duration> {
        let changed = fs::metadata(self.path()).ok()?.modified().ok()?;
        SystemTime::now().duration_since(changed).ok()
    }

    /// Moves it out of the way to `undelivered/`, for an admin: it holds results that are nowhere else.
    pub fn set_aside(&self, run_dir: &Path) -> io::Result<PathBuf> {
        let place = run_dir.join("undelivered");
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&place)?;
        let _ = fs::remove_file(self.token_file());
        let target = (0u32..)
            .map(|n| match n {
                0 => place.join(self.container.as_str()),
                n => place.join(format!("{}.{n}", self.container)),
            })
            .find(|target| !target.exists())
            .unwrap_or(place);
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
        let notes = Notes {
            attempt: TokenUuid::generate("zzzzz"),
            reservation: Reservation::default(),
            limit: Some(60),
            submitted_at: 1,
        };
        job.create(&notes, &Token::new("secret").into()).unwrap();
        assert_eq!(job.notes(), Some(notes));
        (run, job)
    }

    fn end(job: &JobDir) -> End {
        // What another test starts has a copy of what is open here, until it runs.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            match job.sign().unwrap() {
                Sign::Ended(end) => return end,
                Sign::Alive(worker) => {
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
        assert_eq!(end(&job), End::NeverStarted);
        let lock = job.path().join("lock");
        fs::write(&lock, "").unwrap();
        assert_eq!(
            end(&job),
            End::NeverStarted,
            "it died before it said who it is"
        );
        let note = |boot: &str| format!(r#"{{"pid":1,"start_time":0,"boot_id":"{boot}"}}"#);
        fs::write(&lock, note(&boot_id().unwrap())).unwrap();
        assert_eq!(end(&job), End::Killed);
        fs::write(&lock, note("another boot")).unwrap();
        assert_eq!(end(&job), End::Restarted);
        fs::write(job.path().join("exit"), r#"{"code":75}"#).unwrap();
        assert_eq!(end(&job), End::Code(75));
        // The flock decides, whatever the files say.
        let held = File::open(&lock).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        assert!(matches!(job.sign().unwrap(), Sign::Alive(None)));
    }

    #[test]
    fn undelivered_results_are_kept_without_the_token() {
        let (run, job) = job();
        let kept = job.set_aside(run.path()).unwrap();
        assert!(kept.join("job.json").exists() && !kept.join("token").exists());
        assert!(JobDir::all(run.path()).unwrap().is_empty());
        job.remove().unwrap();
    }
}
