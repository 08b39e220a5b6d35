//! Who holds a job directory. In the background that is a worker of its own session that holds the job directory's lock.
//!
//! The worker gets the lock as its stdin, the one place where an open file can be passed on without ever being
//! open in any other child; it moves it away at once.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use fail_points::fail_point;

use crate::job_dir::JobDir;
use crate::lock_file::{LockError, LockFile, Note};

/// A worker needs some milliseconds to come up. One that is given up too soon runs all the same. Less than dispatch-local
/// waits for all of a start.
const WORKER_PATIENCE: Duration = Duration::from_secs(45);

#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("the worker process does not come up; {} says more", log.display())]
    NoWorker { log: PathBuf },
    #[error("--worker is for crunch-run's own use: start it with --detach")]
    NotAWorker,
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> DetachError {
    let what = what.into();
    move |source| DetachError::Io { what, source }
}

/// Starts the worker; says which process it is on stdout when the lock file does, too.
pub fn detach(
    uuid: &ContainerUuid,
    attempt: Option<TokenUuid>,
    dir: &JobDir,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<(), DetachError> {
    let lock = LockFile::take_in_time(&dir.lock())?;
    fail_point("run.lock-taken");
    dir.forget_exit().map_err(io_error(format!(
        "the note of an earlier end in {} cannot be removed",
        dir.path().display()
    )))?;
    let log_path = dir.output_log();
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log_path)
        .map_err(io_error(format!("{} cannot be opened", log_path.display())))?;
    let copy = log.try_clone().map_err(io_error("no file can be opened"))?;
    let worker = Command::new(program())
        .arg0("crunch-run")
        .args(worker_arguments(arguments))
        .stdin(Stdio::from(lock.share()?))
        .stdout(Stdio::from(log))
        .stderr(Stdio::from(copy))
        .spawn()
        .map_err(io_error("the worker process cannot be started"))?;
    fail_point("run.worker-spawned");
    until_independent(worker.id(), dir)?;
    let note = Note::of(uuid.clone(), attempt, worker.id())
        .map_err(io_error("the worker process cannot be looked at"))?;
    lock.write(&note)?;
    fail_point("run.lock-written");
    let said = serde_json::json!({"UUID": uuid, "PID": worker.id()});
    // Whoever started us and does not listen any more finds the same in the lock file.
    let _ = writeln!(io::stdout(), "{said}");
    Ok(())
}

/// What a run in the foreground does in a job directory that it was given: no other may begin there.
pub fn hold(
    uuid: &ContainerUuid,
    attempt: Option<TokenUuid>,
    dir: &JobDir,
) -> Result<OwnedFd, DetachError> {
    let lock = LockFile::take_in_time(&dir.lock())?;
    let note = Note::of(uuid.clone(), attempt, std::process::id())
        .map_err(io_error("this process cannot be looked at"))?;
    lock.write(&note)?;
    Ok(lock.share()?)
}

/// Waits until what ends this process's session cannot end the worker.
fn until_independent(pid: u32, dir: &JobDir) -> Result<(), DetachError> {
    let deadline = Instant::now() + WORKER_PATIENCE;
    loop {
        let stat = procfs::process::Process::new(pid as i32)
            .and_then(|process| process.stat())
            .map_err(io::Error::other)
            .map_err(io_error("the worker process cannot be looked at"))?;
        if stat.session == stat.pid {
            return Ok(());
        }
        // Not waited for, it stays visible after its end.
        if stat.state == 'Z' || Instant::now() >= deadline {
            return Err(DetachError::NoWorker {
                log: dir.output_log(),
            });
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// What the worker does first: a session of its own, the lock out of the way, and a note of who it is, should the
/// process that started it not live to write one.
pub fn become_worker(
    uuid: &ContainerUuid,
    attempt: Option<TokenUuid>,
    dir: &JobDir,
) -> Result<OwnedFd, DetachError> {
    let stdin = rustix::stdio::stdin();
    let is_lock = match (rustix::fs::fstat(stdin), rustix::fs::stat(dir.lock())) {
        (Ok(given), Ok(lock)) => (given.st_dev, given.st_ino) == (lock.st_dev, lock.st_ino),
        _ => false,
    };
    if !is_lock {
        return Err(DetachError::NotAWorker);
    }
    // A worker that leads a group already was started by hand; it loses nothing by staying.
    let _ = rustix::process::setsid();
    fail_point("run.worker-alone");
    let lock = rustix::io::fcntl_dupfd_cloexec(stdin, 3)
        .map_err(|e| io_error("the lock cannot be kept")(e.into()))?;
    let null = fs::File::open("/dev/null").map_err(io_error("/dev/null cannot be opened"))?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| io_error("stdin cannot be closed")(e.into()))?;
    let lock = LockFile::given(lock, &dir.lock());
    let note = Note::of(uuid.clone(), attempt, std::process::id())
        .map_err(io_error("this process cannot be looked at"))?;
    lock.write(&note)?;
    Ok(lock.share()?)
}

/// This program, also when it was replaced by a newer one meanwhile.
pub(crate) fn program() -> PathBuf {
    std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| "/proc/self/exe".into())
}

/// The same flags without the program's name, for the worker.
fn worker_arguments(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let is_detach = |a: &OsStr| {
        a == OsStr::new("--detach") || a.to_str().is_some_and(|a| a.starts_with("--detach="))
    };
    std::iter::once(OsString::from("--worker"))
        .chain(
            crate::flags::normalise(arguments)
                .into_iter()
                .skip(1)
                .filter(|a| !is_detach(a)),
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_gets_the_same_flags_but_for_detach() {
        let given = [
            "crunch-run",
            "-detach",
            "--job-dir",
            "d",
            "--detach=true",
            "u",
        ];
        assert_eq!(
            worker_arguments(given.map(OsString::from)),
            ["--worker", "--job-dir", "d", "u"]
        );
    }
}
