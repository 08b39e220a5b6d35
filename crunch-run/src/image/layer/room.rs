//! Room on the cache's file system, looked at before it is used: one image must not take all of it from everybody else.

use std::io;
use std::os::fd::AsFd;

use super::problem::Problem;

/// The part of the file system that is left to others, as a divisor.
const LEFT_TO_OTHERS: u64 = 100;
/// Most images need more than this, in bytes.
const FEW: u64 = 1 << 30;
/// Before an entry of this size there is a look.
const LARGE: u64 = 1 << 20;
/// Between two looks otherwise, in bytes and in entries.
const LOOK_BYTES: u64 = 16 << 20;
const LOOK_ENTRIES: u64 = 1000;

/// What was used since the last look.
#[derive(Debug)]
pub struct Room {
    bytes: u64,
    entries: u64,
    free_at_start: Option<u64>,
}

impl Room {
    /// Looks at once, and then now and then.
    pub fn new() -> Self {
        Self {
            bytes: LOOK_BYTES,
            entries: 0,
            free_at_start: None,
        }
    }

    /// For one more entry of so many bytes, which its header promises.
    pub fn take(&mut self, dir: impl AsFd, size: u64) -> Result<(), Problem> {
        self.bytes = self.bytes.saturating_add(size);
        self.entries += 1;
        if size < LARGE && self.bytes < LOOK_BYTES && self.entries < LOOK_ENTRIES {
            return Ok(());
        }
        (self.bytes, self.entries) = (0, 0);
        let found = rustix::fs::fstatvfs(dir)?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let left = found.f_blocks.saturating_mul(found.f_frsize) / LEFT_TO_OTHERS;
        // Some file systems count no files.
        let few_files = found.f_files > 0 && found.f_favail < found.f_files / LEFT_TO_OTHERS;
        let what = words(*self.free_at_start.get_or_insert(free), left);
        if free < size.saturating_add(left) || few_files {
            return Err(full(format!(
                "{what}: {size} bytes are to be unpacked next, {free} bytes and {} inodes are free, and {} % are left to others",
                found.f_favail,
                100 / LEFT_TO_OTHERS
            )));
        }
        Ok(())
    }
}

/// A node that could not take a small image either is at fault, and said to be so in the words by which such nodes are
/// known; where a large one does not fit, another node may be no better.
fn words(free_at_start: u64, left: u64) -> &'static str {
    match free_at_start < left.saturating_add(FEW) {
        true => "No space left on device",
        false => "not enough free space",
    }
}

fn full(text: String) -> Problem {
    Problem::Write(io::Error::new(io::ErrorKind::StorageFull, text))
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
            let said = words(free_at_start, left);
            assert_eq!(said, expected, "{free_at_start} of {left}");
        }
    }

    #[test]
    fn what_no_disk_can_hold_is_refused_before_a_byte_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = File::open(dir.path()).unwrap();
        let mut room = Room::new();
        assert!(room.take(&dir, 100).is_ok());
        for size in [1 << 60, u64::MAX] {
            match room.take(&dir, size) {
                Err(Problem::Write(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                    assert!(error.to_string().contains(&size.to_string()), "{error}");
                }
                _ => panic!("{size} bytes have room"),
            }
        }
        assert!(room.take(&dir, 1).is_ok());
    }
}
