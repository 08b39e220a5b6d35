//! One lock file per cache entry. The kernel frees it when its holder dies, however it dies; only for one that hangs
//! nobody waits for ever.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

/// Longer than the largest image takes on its way into the cache.
const PATIENCE: Duration = Duration::from_secs(3600);
const LOOK: Duration = Duration::from_millis(20);

/// Waits until nobody else holds the entry.
pub fn exclusive(path: &Path) -> io::Result<File> {
    hold(path, FlockOperation::NonBlockingLockExclusive, PATIENCE)
}

/// Waits until nobody fills the entry; many may hold it so.
pub fn shared(path: &Path) -> io::Result<File> {
    hold(path, FlockOperation::NonBlockingLockShared, PATIENCE)
}

fn hold(path: &Path, operation: FlockOperation, patience: Duration) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)?;
    let begun = Instant::now();
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::WOULDBLOCK) if begun.elapsed() < patience => {
                std::thread::sleep(LOOK);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!(
                        "another process has held this lock for {} s and may hang: `fuser {}` names it",
                        patience.as_secs(),
                        path.display()
                    ),
                ));
            }
            Err(error) => return Err(error.into()),
        }
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
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        let shared = FlockOperation::NonBlockingLockShared;
        let held = hold(&path, exclusive, short).unwrap();
        for operation in [exclusive, shared] {
            let error = hold(&path, operation, short).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            let fuser = format!("`fuser {}`", path.display());
            assert!(error.to_string().contains(&fuser), "{error}");
        }
        let there = path.clone();
        let waiting = std::thread::spawn(move || hold(&there, shared, PATIENCE));
        drop(held);
        let first = waiting.join().unwrap().unwrap();
        let second = hold(&path, shared, short).unwrap();
        assert!(hold(&path, exclusive, short).is_err());
        drop((first, second));
        // What another test starts has a copy for a moment, too.
        hold(&path, exclusive, PATIENCE).unwrap();
    }
}
