//! A block that is being received: a file that becomes a block of the store, or is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Advice, XattrFlags, fgetxattr, fsetxattr};
use sha2::{Digest, Sha256};

/// Number of bytes after which they are written to the disk, while others arrive.
const WRITE_OUT_BYTES: u64 = 8 << 20;
/// The attribute of a block's file with the SHA-256 of its content: collisions of MD5 can be made.
const SHA256_ATTRIBUTE: &str = "user.sha256";
/// Length of a SHA-256 in bytes.
const SHA256_BYTES: usize = 32;

pub struct IncomingBlock {
    file: File,
    path: PathBuf,
    sha256: Sha256,
    size: u64,
    /// Number of bytes that the kernel was asked to write to the disk.
    begun: u64,
    is_moved: bool,
}

impl IncomingBlock {
    /// An empty one, with a file in this directory.
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        let path = dir.join(format!("{:016x}", fastrand::u64(..)));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        Ok(IncomingBlock {
            file,
            path,
            sha256: Sha256::new(),
            size: 0,
            begun: 0,
            is_moved: false,
        })
    }

    pub(super) fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all(data)?;
        self.sha256.update(data);
        self.size += data.len() as u64;
        if self.size - self.begun >= WRITE_OUT_BYTES {
            // The kernel begins to write these pages, so that little is left for the end.
            let length = NonZeroU64::new(self.size - self.begun);
            let _ = rustix::fs::fadvise(&self.file, self.begun, length, Advice::DontNeed);
            self.begun = self.size;
        }
        Ok(())
    }

    /// What has been received.
    pub(super) fn content(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// The number of bytes received so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Waits until the content is on the disk.
    /// Writes all of it to the disk. A file system without attributes keeps the content alone.
    pub(super) fn sync(&self) -> io::Result<()> {
        let digest = self.sha256.clone().finalize();
        let _ = fsetxattr(&self.file, SHA256_ATTRIBUTE, &digest, XattrFlags::empty());
        self.file.sync_all()
    }

    /// Gives the file its name in the store, and the time at which the block was stored.
    pub(super) fn move_to(mut self, path: &Path) -> io::Result<()> {
        // It may have been received for a long time.
        self.file.set_modified(SystemTime::now())?;
        fs::rename(&self.path, path)?;
        self.is_moved = true;
        Ok(())
    }
}

/// The SHA-256 of what was stored in a block's file, if it was kept.
pub(super) fn stored_sha256(file: &File) -> Option<[u8; SHA256_BYTES]> {
    let mut stored = [0; SHA256_BYTES];
    let length = fgetxattr(file, SHA256_ATTRIBUTE, &mut stored[..]).ok()?;
    (length == stored.len()).then_some(stored)
}

impl Drop for IncomingBlock {
    fn drop(&mut self) {
        if !self.is_moved {
            // Best effort: the next start removes the rest.
            let _ = fs::remove_file(&self.path);
        }
    }
}
