//! One lock file per cache entry. The kernel frees it when its holder dies. A wait for a holder
//! that hangs ends with an error.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use host_state::lock::{acquire_within, open};
use host_state::private_dir;

/// Timeout of a lock, longer than the largest image needs to be unpacked.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3600);

type TryLock = fn(&File) -> Result<(), TryLockError>;

/// Waits until no other process holds the entry.
pub fn exclusive(path: &Path) -> io::Result<File> {
    lock(path, File::try_lock, LOCK_TIMEOUT)
}

/// Waits until no process fills the entry; many processes may hold it.
pub fn shared(path: &Path) -> io::Result<File> {
    lock(path, File::try_lock_shared, LOCK_TIMEOUT)
}

fn lock(path: &Path, try_lock: TryLock, timeout: Duration) -> io::Result<File> {
    let file = open(path)?;
    private_dir::check_file(path, &file)?;
    match acquire_within(timeout, || try_lock(&file))? {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "another process has held this lock for {} s and may hang: `fuser {}` names it",
                timeout.as_secs(),
                path.display()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_one_that_hangs_nobody_waits_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("entry.lock");
        let short = Duration::from_millis(50);
        let (exclusive, shared): (TryLock, TryLock) = (File::try_lock, File::try_lock_shared);
        let locked = lock(&path, exclusive, short).unwrap();
        for operation in [exclusive, shared] {
            let error = lock(&path, operation, short).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            let fuser = format!("`fuser {}`", path.display());
            assert!(error.to_string().contains(&fuser), "{error}");
        }
        let there = path.clone();
        let waiting = std::thread::spawn(move || lock(&there, shared, LOCK_TIMEOUT));
        drop(locked);
        let first = waiting.join().unwrap().unwrap();
        let second = lock(&path, shared, short).unwrap();
        assert!(lock(&path, exclusive, short).is_err());
        drop((first, second));
        // A process started by another test may have a copy for a moment.
        lock(&path, exclusive, LOCK_TIMEOUT).unwrap();
    }
}
