//! Room for the last words: while the container runs, a file in the job directory takes the place that logs and
//! results will need. A container that fills the disk cannot have that.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::job_dir::JobDir;

/// Of this, the end of crunch-run.txt, result.json and undelivered.json need a small part.
const SIZE: u64 = 1 << 20;
/// A file system with less than this is full.
const FULL: u64 = 256 << 10;

/// Given back when it is dropped.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
}

impl Reserve {
    pub fn take(dir: &JobDir) -> io::Result<Self> {
        let path = dir.reserve();
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&path)?;
        let reserve = Self { path };
        allocate(&file)?;
        Ok(reserve)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the reserve cannot be given back");
        }
    }
}

fn allocate(file: &File) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, SIZE) {
        // Such file systems are shared ones, and large.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What to say if the container's files have no room left.
pub fn full(scratch: &Path) -> Option<String> {
    let found = rustix::fs::statvfs(scratch).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    // Some file systems count no files.
    let has_files = found.f_files == 0 || found.f_favail > 0;
    (free < FULL || !has_files).then(|| {
        format!(
            "the disk of its scratch space was full at its end ({free} bytes and {} inodes were free): files may be missing or cut short",
            found.f_favail
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_room_and_gives_it_back() {
        let dir = tempfile::tempdir().unwrap();
        let dir = JobDir::given(dir.path()).unwrap();
        let blocks = || {
            fs::metadata(dir.reserve()).map(|data| std::os::unix::fs::MetadataExt::blocks(&data))
        };
        // One that a killed process left is in nobody's way.
        fs::write(dir.reserve(), "left").unwrap();
        let reserve = Reserve::take(&dir).unwrap();
        assert!(blocks().unwrap() * 512 >= SIZE);
        drop(reserve);
        assert!(blocks().is_err());
    }
}
