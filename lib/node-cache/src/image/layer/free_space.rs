//! Checks the free space of the cache's file system before it is used, so that one image cannot
//! fill the disk.

use std::io;
use std::os::fd::AsFd;

use super::error::EntryError;

/// Divisor of the share of the file system that is left to others.
const RESERVED_DIVISOR: u64 = 100;
/// Size of a small image in bytes.
const SMALL_IMAGE_BYTES: u64 = 1 << 30;
/// Size from which each entry is checked.
const LARGE_ENTRY_BYTES: u64 = 1 << 20;
/// Bytes and entries between two checks.
const CHECK_INTERVAL_BYTES: u64 = 16 << 20;
const CHECK_INTERVAL_ENTRIES: u64 = 1000;

/// Bytes and entries since the last check.
#[derive(Debug)]
pub struct FreeSpaceGuard {
    bytes: u64,
    entries: u64,
    free_at_start: Option<u64>,
}

impl FreeSpaceGuard {
    /// The first call of `take` checks.
    pub fn new() -> Self {
        Self {
            bytes: CHECK_INTERVAL_BYTES,
            entries: 0,
            free_at_start: None,
        }
    }

    /// Accounts an entry of `size` bytes, as its header declares.
    pub fn take(&mut self, dir: impl AsFd, size: u64) -> Result<(), EntryError> {
        self.bytes = self.bytes.saturating_add(size);
        self.entries += 1;
        if size < LARGE_ENTRY_BYTES
            && self.bytes < CHECK_INTERVAL_BYTES
            && self.entries < CHECK_INTERVAL_ENTRIES
        {
            return Ok(());
        }
        (self.bytes, self.entries) = (0, 0);
        let found = rustix::fs::fstatvfs(dir)?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let left = found.f_blocks.saturating_mul(found.f_frsize) / RESERVED_DIVISOR;
        // Some file systems count no files.
        let few_files = found.f_files > 0 && found.f_favail < found.f_files / RESERVED_DIVISOR;
        let what = words(*self.free_at_start.get_or_insert(free), left);
        if free < size.saturating_add(left) || few_files {
            return Err(full(format!(
                "{what}: {size} bytes are to be unpacked next, {free} bytes and {} inodes are free, and {} % are left to others",
                found.f_favail,
                100 / RESERVED_DIVISOR
            )));
        }
        Ok(())
    }
}

/// If not even a small image fits, the node is at fault, and the text is the one by which full
/// nodes are detected. If a large image does not fit, other nodes may not be better.
fn words(free_at_start: u64, left: u64) -> &'static str {
    match free_at_start < left.saturating_add(SMALL_IMAGE_BYTES) {
        true => "No space left on device",
        false => "not enough free space",
    }
}

fn full(text: String) -> EntryError {
    EntryError::Write(io::Error::new(io::ErrorKind::StorageFull, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_node_that_can_take_nothing_is_said_to_be_full() {
        const GIB: u64 = 1 << 30;
        for (free_at_start, left, expected) in [
            (0, 0, "No space left on device"),
            (GIB - 1, 0, "No space left on device"),
            (GIB, 0, "not enough free space"),
            // Of a large disk that much is left to others: not even an empty file would go there.
            (2 * GIB, 5 * GIB / 2, "No space left on device"),
            (3 * GIB, 5 * GIB / 2, "No space left on device"),
            (4 * GIB, 5 * GIB / 2, "not enough free space"),
            (u64::MAX, u64::MAX, "not enough free space"),
        ] {
            let text = words(free_at_start, left);
            assert_eq!(text, expected, "{free_at_start} of {left}");
        }
    }

    #[test]
    fn what_no_disk_can_hold_is_refused_before_a_byte_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = File::open(dir.path()).unwrap();
        let mut free_space = FreeSpaceGuard::new();
        assert!(free_space.take(&dir, 100).is_ok());
        for size in [1 << 60, u64::MAX] {
            match free_space.take(&dir, size) {
                Err(EntryError::Write(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                    assert!(error.to_string().contains(&size.to_string()), "{error}");
                }
                _ => panic!("{size} bytes have room"),
            }
        }
        assert!(free_space.take(&dir, 1).is_ok());
    }
}
