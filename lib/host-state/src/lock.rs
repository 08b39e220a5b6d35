//! Lock files. A lock is flock(2): it belongs to the open file, so every copy of the descriptor
//! holds it, also in a child process. The kernel releases it when the last copy is closed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Opens a lock file. It is created if needed, for this user only.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

/// Locks the file at `path` exclusively. `None` if another holds the lock.
pub fn try_exclusive(path: &Path) -> io::Result<Option<File>> {
    let file = open(path)?;
    Ok(is_acquired(file.try_lock())?.then_some(file))
}

/// Whether the lock was acquired; false if another holds it.
pub fn is_acquired(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Repeats `try_lock` until the lock is acquired; false if another holds it for all of `timeout`.
pub fn acquire_within(
    timeout: Duration,
    mut try_lock: impl FnMut() -> Result<(), TryLockError>,
) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        match is_acquired(try_lock()) {
            Ok(false) if began.elapsed() < timeout => std::thread::sleep(RETRY_INTERVAL),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            tried => return tried,
        }
    }
}
