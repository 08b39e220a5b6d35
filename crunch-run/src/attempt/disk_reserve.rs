//! Reserves disk space in the job directory for the last logs and results, so that a container that
//! fills the disk cannot prevent them.

use std::fs::{self, File};
use std::io;

use std::path::{Path, PathBuf};

use host_state::file::create_private;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::node::job_dir::JobDir;

/// Size of the reserve; crunch-run.txt, result.json and undelivered.json need a small part of it.
const RESERVE_BYTES: u64 = 1 << 20;
/// Minimum free space in bytes; below it the disk counts as full.
const MIN_FREE_BYTES: u64 = 256 << 10;

/// The reserved space, freed when dropped.
#[derive(Debug)]
pub struct DiskReserve {
    path: PathBuf,
}

impl DiskReserve {
    pub fn allocate(dir: &JobDir) -> io::Result<Self> {
        let path = dir.reserve();
        let file = create_private(&path)?;
        let reserve = Self { path };
        preallocate(&file)?;
        Ok(reserve)
    }
}

impl Drop for DiskReserve {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "could not free the disk reserve");
        }
    }
}

fn preallocate(file: &File) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
        // File systems without fallocate are shared ones, and large.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns a warning if the disk is full.
pub fn disk_full_warning(scratch: &Path) -> Option<String> {
    let disk = rustix::fs::statvfs(scratch).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    // Some file systems count no files.
    let has_files = disk.f_files == 0 || disk.f_favail > 0;
    (free < MIN_FREE_BYTES || !has_files).then(|| {
        format!(
            "the disk of its scratch space was full at its end ({free} bytes and {} inodes were free): files may be missing or cut short",
            disk.f_favail
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_takes_space_and_frees_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = JobDir::open(dir.path()).unwrap();
        let blocks = || {
            fs::metadata(dir.reserve()).map(|data| std::os::unix::fs::MetadataExt::blocks(&data))
        };
        // The reserve of a killed process is reused.
        fs::write(dir.reserve(), "left").unwrap();
        let reserve = DiskReserve::allocate(&dir).unwrap();
        assert!(blocks().unwrap() * 512 >= RESERVE_BYTES);
        drop(reserve);
        assert!(blocks().is_err());
    }
}
