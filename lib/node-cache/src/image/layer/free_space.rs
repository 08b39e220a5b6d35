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
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let (free, total) = (bytes(found.f_bavail), bytes(found.f_blocks));
        let free_at_start = *self.free_at_start.get_or_insert(free);
        let left = total / RESERVED_DIVISOR;
        // Some file systems count no files.
        let few_files = found.f_files > 0 && found.f_favail < found.f_files / RESERVED_DIVISOR;
        if free >= size.saturating_add(left) && !few_files {
            return Ok(());
        }
        let numbers = format!(
            "{size} bytes are to be unpacked next, {free} of {total} bytes and {} inodes are free, and {} % are left to others",
            found.f_favail,
            100 / RESERVED_DIVISOR
        );
        let full = |what: &str| {
            let text = format!("{numbers}: {what}");
            EntryError::Write(io::Error::new(io::ErrorKind::StorageFull, text))
        };
        Err(match Cause::of(size, free_at_start, total) {
            Cause::Image => EntryError::Refused(format!("is too large for this node: {numbers}")),
            // The words by which full nodes are detected, where programs tell their reason.
            Cause::FullNode => full("No space left on device"),
            Cause::Unknown => full("not enough free space"),
        })
    }
}

/// Why an entry does not fit.
#[derive(Debug, PartialEq, Eq)]
enum Cause {
    /// It would not fit on an empty disk, or the disk was half empty: no other node is likely to be
    /// better.
    Image,
    /// Not even a small image fits.
    FullNode,
    /// Other nodes may have more space.
    Unknown,
}

impl Cause {
    fn of(size: u64, free_at_start: u64, total: u64) -> Self {
        let left = total / RESERVED_DIVISOR;
        if size > (total - left).max(SMALL_IMAGE_BYTES) {
            Self::Image
        } else if free_at_start < left.saturating_add(SMALL_IMAGE_BYTES) {
            Self::FullNode
        } else if free_at_start >= total / 2 {
            Self::Image
        } else {
            Self::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn an_image_that_fits_nowhere_is_at_fault_and_a_node_that_takes_none() {
        const GIB: u64 = 1 << 30;
        for (size, free_at_start, total, expected) in [
            // What takes no small image is no node for images.
            (1, 0, 0, Cause::FullNode),
            (1, 0, GIB, Cause::FullNode),
            (GIB, GIB, GIB, Cause::FullNode),
            (GIB + 1, GIB, GIB, Cause::Image),
            (1, GIB, 2 * GIB, Cause::FullNode),
            // Of a large disk that much is left to others: not even an empty file would go there.
            (1, 3 * GIB, 250 * GIB, Cause::FullNode),
            (1, 4 * GIB, 250 * GIB, Cause::Unknown),
            (248 * GIB, 4 * GIB, 250 * GIB, Cause::Image),
            (200 * GIB, 124 * GIB, 250 * GIB, Cause::Unknown),
            (200 * GIB, 125 * GIB, 250 * GIB, Cause::Image),
            (1, u64::MAX, u64::MAX, Cause::Image),
        ] {
            let cause = Cause::of(size, free_at_start, total);
            assert_eq!(cause, expected, "{size} on {free_at_start} of {total}");
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
                Err(EntryError::Refused(reason)) => {
                    assert!(reason.contains(&size.to_string()), "{reason}");
                }
                _ => panic!("{size} bytes have room"),
            }
        }
        assert!(free_space.take(&dir, 1).is_ok());
    }
}
