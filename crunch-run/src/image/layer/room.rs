//! Room on the cache's file system, looked at before it is used: one image must not take all of it from everybody else.

use std::io;
use std::os::fd::AsFd;

use super::problem::Problem;

/// The part of the file system that is left to others, as a divisor.
const LEFT_TO_OTHERS: u64 = 100;
/// Most images need more than this.
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
        let at_start = *self.free_at_start.get_or_insert(free);
        // Few bytes at the start are this node's fault, and said in the words by which such nodes are known.
        let what = match at_start < FEW {
            true => "No space left on device",
            false => "not enough free space",
        };
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

fn full(text: String) -> Problem {
    Problem::Write(io::Error::new(io::ErrorKind::StorageFull, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

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
