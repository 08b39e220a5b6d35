//! Disk space that the server holds ready for requests that free more of it: on a full disk not
//! even a deletion could be written down.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use tracing::{info, warn};

/// Size of the reserve. A deletion takes some pages of the database.
const RESERVE_BYTES: u64 = 4 << 20;
/// Minimum free space in bytes at which the reserve is taken.
const MIN_FREE_BYTES: u64 = 4 * RESERVE_BYTES;

/// A file that takes the space.
#[derive(Debug)]
pub struct DiskReserve {
    path: PathBuf,
}

impl DiskReserve {
    /// The reserve in this directory, taken if there is room.
    pub fn open(dir: &Path) -> Self {
        let reserve = Self {
            path: dir.join("reserve"),
        };
        reserve.refill();
        reserve
    }

    /// Takes the space again, if there is room.
    pub fn refill(&self) {
        if self.path.exists() || !self.has_room() {
            return;
        }
        if let Err(error) = self.allocate() {
            let _ = fs::remove_file(&self.path);
            warn!(path = %self.path.display(), %error, "cannot reserve disk space for deletions");
        }
    }

    fn has_room(&self) -> bool {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let free = rustix::fs::statvfs(dir).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        free.is_ok_and(|free| free >= MIN_FREE_BYTES)
    }

    fn allocate(&self) -> io::Result<()> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&self.path)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
            // File systems without fallocate are shared ones, and large.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Frees the space; false if it was not taken.
    pub fn release(&self) -> bool {
        let is_released = fs::remove_file(&self.path).is_ok();
        if is_released {
            info!("the disk is full; released the space that is reserved for deletions");
        }
        is_released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_space_is_taken_once_and_released_once() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = DiskReserve::open(dir.path());
        let bytes = || {
            let facts = fs::metadata(dir.path().join("reserve")).ok()?;
            Some(std::os::unix::fs::MetadataExt::blocks(&facts) * 512)
        };
        assert!(bytes().is_some_and(|bytes| bytes >= RESERVE_BYTES));
        reserve.refill();
        assert!(reserve.release());
        assert_eq!(bytes(), None);
        assert!(!reserve.release());
        reserve.refill();
        assert!(bytes().is_some());
    }
}
