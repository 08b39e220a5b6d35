//! Locks a job directory, in the foreground or by a worker process in a session of its own.
//!
//! The worker gets the lock as its stdin, which no other child process inherits, and moves it to
//! another descriptor at once.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use fail_points::fail_point;
use host_state::file::append_private;

use crate::node::job_dir::JobDir;
use crate::node::lock_file::{LockError, LockFile, LockOwner};

/// Timeout of the worker's start. A worker that exceeds it still runs. Shorter than
/// dispatch-local's timeout of a start.
const WORKER_START_TIMEOUT: Duration = Duration::from_secs(45);

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

/// Starts the worker. Prints its pid when the lock file names it.
pub fn detach(
    uuid: &ContainerUuid,
    attempt: Option<TokenUuid>,
    dir: &JobDir,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<(), DetachError> {
    let lock = LockFile::acquire_after_probes(&dir.lock())?;
    fail_point("run.lock-taken");
    dir.remove_exit_file().map_err(io_error(format!(
        "the exit file of an earlier run in {} cannot be removed",
        dir.path().display()
    )))?;
    let log_path = dir.output_log();
    let log = append_private(&log_path)
        .map_err(io_error(format!("{} cannot be opened", log_path.display())))?;
    let copy = log.try_clone().map_err(io_error("no file can be opened"))?;
    let worker = Command::new(own_program())
        .arg0("crunch-run")
        .args(worker_arguments(arguments))
        .stdin(Stdio::from(lock.share()?))
        .stdout(Stdio::from(log))
        .stderr(Stdio::from(copy))
        .spawn()
        .map_err(io_error("the worker process cannot be started"))?;
    fail_point("run.worker-spawned");
    wait_for_new_session(worker.id(), dir)?;
    let owner = LockOwner::of(uuid.clone(), attempt, worker.id())
        .map_err(io_error("the state of the worker process cannot be read"))?;
    lock.write_owner(&owner)?;
    fail_point("run.lock-written");
    let reply = serde_json::json!({"UUID": uuid, "PID": worker.id()});
    // If stdout is closed, the lock file has the same information.
    let _ = writeln!(io::stdout(), "{reply}");
    Ok(())
}

/// Locks the job directory for a run in the foreground.
pub fn lock_job_dir(
    uuid: &ContainerUuid,
    attempt: Option<TokenUuid>,
    dir: &JobDir,
) -> Result<OwnedFd, DetachError> {
    let lock = LockFile::acquire_after_probes(&dir.lock())?;
    let owner = LockOwner::of(uuid.clone(), attempt, std::process::id())
        .map_err(io_error("the state of this process cannot be read"))?;
    lock.write_owner(&owner)?;
    Ok(lock.share()?)
}

/// Waits until the worker has a session of its own, so that ending this session does not end it.
fn wait_for_new_session(pid: u32, dir: &JobDir) -> Result<(), DetachError> {
    let deadline = Instant::now() + WORKER_START_TIMEOUT;
    loop {
        let stat = procfs::process::Process::new(pid as i32)
            .and_then(|process| process.stat())
            .map_err(io::Error::other)
            .map_err(io_error("the state of the worker process cannot be read"))?;
        if stat.session == stat.pid {
            return Ok(());
        }
        // The worker is not reaped here, so it stays visible after its end.
        if stat.state == 'Z' || Instant::now() >= deadline {
            return Err(DetachError::NoWorker {
                log: dir.output_log(),
            });
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// First steps of the worker: it starts a session, moves the lock away from stdin and writes the
/// lock's owner.
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
    // A worker that already leads a process group was started by hand; it can stay.
    let _ = rustix::process::setsid();
    fail_point("run.worker-alone");
    let lock = rustix::io::fcntl_dupfd_cloexec(stdin, 3)
        .map_err(|e| io_error("the lock cannot be kept")(e.into()))?;
    let null = fs::File::open("/dev/null").map_err(io_error("/dev/null cannot be opened"))?;
    rustix::stdio::dup2_stdin(&null).map_err(|e| io_error("stdin cannot be closed")(e.into()))?;
    let lock = LockFile::from_fd(lock, &dir.lock());
    let owner = LockOwner::of(uuid.clone(), attempt, std::process::id())
        .map_err(io_error("the state of this process cannot be read"))?;
    lock.write_owner(&owner)?;
    Ok(lock.share()?)
}

/// Path of this program, even if it was replaced meanwhile.
pub(crate) fn own_program() -> PathBuf {
    std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| "/proc/self/exe".into())
}

/// The arguments for the worker, without the program's name.
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
