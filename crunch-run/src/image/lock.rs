//! One lock file per cache entry. The kernel frees it when its holder dies, however it dies.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// Waits until nobody else holds the entry.
pub fn exclusive(path: &Path) -> io::Result<File> {
    hold(path, FlockOperation::LockExclusive)
}

/// Waits until nobody fills the entry; many may hold it so.
pub fn shared(path: &Path) -> io::Result<File> {
    hold(path, FlockOperation::LockShared)
}

fn hold(path: &Path, operation: FlockOperation) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)?;
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
