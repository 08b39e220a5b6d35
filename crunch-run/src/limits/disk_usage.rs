//! Measures the disk usage of a directory by walking it, because few file systems have quotas for
//! directories.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Blocks in bytes that a file may take beside its length without being counted: small files have
/// whole blocks.
const MAX_ROUNDING: u64 = 1 << 20;

/// Disk usage below a directory, without the directory itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes used by files: at most the blocks of a sparse file, at most the length of a small one,
    /// and all blocks of one with room beyond its end.
    pub bytes: u64,
    /// Sum of the lengths of all files.
    pub length: u64,
    /// Files, links and directories.
    pub files: u64,
}

impl Usage {
    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            length: self.length.saturating_add(other.length),
            files: self.files.saturating_add(other.files),
        }
    }
}

/// Measures a directory, with others that count as part of it, on a thread for blocking calls.
pub async fn measure(dir: PathBuf, others: Vec<PathBuf>) -> Usage {
    let walked = tokio::task::spawn_blocking(move || usage_with(&dir, &others));
    walked.await.unwrap_or_default()
}

/// Measures a directory, with others that count as part of it.
pub fn usage_with(dir: &Path, others: &[PathBuf]) -> Usage {
    let others = others.iter().map(|dir| usage(dir));
    others.fold(usage(dir), Usage::plus)
}

/// Counts hard links once in `bytes`. Files that vanish meanwhile are not counted.
pub fn usage(dir: &Path) -> Usage {
    let mut usage = Usage::default();
    let mut linked = HashSet::new();
    let Ok(top) = fs::symlink_metadata(dir) else {
        return usage;
    };
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(facts) = entry.metadata() else {
                continue;
            };
            usage.files += 1;
            if facts.is_dir() {
                // Other file systems do not count as the attempt's disk space.
                if facts.dev() == top.dev() {
                    dirs.push(entry.path());
                }
            } else if facts.is_file() {
                usage.length = usage.length.saturating_add(facts.len());
                if facts.nlink() == 1 || linked.insert((facts.dev(), facts.ino())) {
                    let taken = taken(facts.len(), facts.blocks().saturating_mul(512));
                    usage.bytes = usage.bytes.saturating_add(taken);
                }
            }
        }
    }
    usage
}

/// Bytes that a file of this length takes with its blocks. File systems give a file that grows up
/// to as many blocks again in advance, which is not its fault; more was allocated on purpose
/// (`fallocate` beyond the end).
fn taken(len: u64, blocks: u64) -> u64 {
    match blocks > len.saturating_mul(2).saturating_add(MAX_ROUNDING) {
        true => blocks,
        false => blocks.min(len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_directory_holds() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(usage(dir.path()), Usage::default());
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/file"), vec![1; 10_000]).unwrap();
        fs::hard_link(at("a/b/file"), at("again")).unwrap();
        fs::write(at("small"), "x").unwrap();
        let sparse = fs::File::create(at("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        std::os::unix::fs::symlink("/", at("link")).unwrap();
        // Flushed so that blocks are allocated.
        fs::File::open(at("a/b/file")).unwrap().sync_all().unwrap();
        fs::File::open(at("small")).unwrap().sync_all().unwrap();
        let found = usage(dir.path());
        assert_eq!(found.files, 7);
        assert_eq!(found.length, (1 << 40) + 20_001);
        assert_eq!(found.bytes, 10_001);
        assert_eq!(usage(&at("no")), Usage::default());
    }

    #[test]
    fn room_beyond_the_end_of_a_file_counts() {
        const MIB: u64 = 1 << 20;
        // length, blocks, bytes that count
        for (len, blocks, expected) in [
            (1, 4096, 1),
            (10 * MIB, 20 * MIB, 10 * MIB),
            (10 * MIB, 2 * MIB, 2 * MIB),
            (0, 2 * MIB, 2 * MIB),
            (10 * MIB, 40 * MIB, 40 * MIB),
        ] {
            assert_eq!(taken(len, blocks), expected, "{len} {blocks}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("file")).unwrap();
        let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, 0, 8 * MIB).unwrap();
        let found = usage(dir.path());
        assert!((found.bytes >= 8 * MIB) && found.length == 0, "{found:?}");
    }
}
