//! Makes blocks survive a power failure. A block is stored without waiting for the disk, which
//! takes longer than all else for a small one; who commits a collection that refers to it waits.
//!
//! So an acknowledged block that no collection refers to yet can be lost in a power failure. Its
//! client is told so when it saves the collection. A block that is damaged then is found as any
//! other: every read and every repeated store compare it with its hash. A kill of the server loses
//! nothing, since the kernel has the blocks; only a power failure in the half minute after it can.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use arvados_client::keep::BlockHash;
use tracing::error;

/// Maximum number of blocks that are written one by one; for more, the whole file system is.
pub(super) const MAX_SINGLE: usize = 64;
/// Number of blocks at which storing another one writes all of them.
const MAX_NOTED: usize = 1 << 16;

/// The blocks that may not be on the disk yet.
#[derive(Debug, Default)]
pub(super) struct Unsynced(Mutex<HashSet<BlockHash>>);

/// A file that could not be written to the disk, and why.
pub(super) type NotWritten = (PathBuf, io::Error);

impl Unsynced {
    /// Notes a block that is being stored below `root`: before it has its name, so that nobody
    /// commits it unnoticed, and again after that, since all may have been written meanwhile.
    pub(super) fn note(&self, hash: BlockHash, root: &Path) -> io::Result<()> {
        let number = {
            let mut blocks = self.blocks();
            blocks.insert(hash);
            blocks.len()
        };
        match number > MAX_NOTED {
            true => self.write_all(root),
            false => Ok(()),
        }
    }

    /// Writes these blocks to the disk, as far as they may not be there. `path` has their files,
    /// each in a directory below `root`.
    pub(super) fn write(
        &self,
        hashes: impl Iterator<Item = BlockHash>,
        root: &Path,
        path: impl Fn(&BlockHash) -> PathBuf,
    ) -> Result<(), NotWritten> {
        let wanted: HashSet<BlockHash> = {
            let blocks = self.blocks();
            hashes.filter(|hash| blocks.contains(hash)).collect()
        };
        // If it fails, one by one tells which block cannot be written.
        if wanted.len() > MAX_SINGLE && self.write_all(root).is_ok() {
            return Ok(());
        }
        let mut written = Vec::new();
        let mut directories = BTreeSet::new();
        for hash in wanted {
            let path = path(&hash);
            match File::open(&path).and_then(|file| file.sync_all()) {
                Ok(()) => {
                    written.push(hash);
                    directories.extend(path.parent().map(ToOwned::to_owned));
                    directories.insert(root.to_owned());
                }
                // It was removed, or has no name yet. Whether it must exist is checked elsewhere.
                Err(missing) if missing.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    // The kernel tells it once, and may have dropped the content: it must be stored
                    // anew.
                    error!(block = %hash, error = %source, "a block cannot be written to the disk");
                    let _ = fs::remove_file(&path);
                    return Err((path, source));
                }
            }
        }
        for directory in directories {
            let synced = File::open(&directory).and_then(|opened| opened.sync_all());
            synced.map_err(|source| (directory, source))?;
        }
        self.remove(written);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.blocks().len()
    }

    fn write_all(&self, root: &Path) -> io::Result<()> {
        let noted: Vec<BlockHash> = self.blocks().iter().copied().collect();
        rustix::fs::syncfs(File::open(root)?)?;
        self.remove(noted);
        Ok(())
    }

    fn blocks(&self) -> MutexGuard<'_, HashSet<BlockHash>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, written: impl IntoIterator<Item = BlockHash>) {
        let mut blocks = self.blocks();
        for hash in written {
            blocks.remove(&hash);
        }
    }
}
