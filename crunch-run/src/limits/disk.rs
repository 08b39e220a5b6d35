//! Measures the disk usage of a directory by walking it, because few file systems have quotas for
//! directories.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Disk usage below a directory, without the directory itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes used by files: at most the blocks of a sparse file and at most the length of a small
    /// one.
    pub bytes: u64,
    /// Sum of the lengths of all files.
    pub length: u64,
    /// Files, links and directories.
    pub files: u64,
}

/// Measures a directory on a thread for blocking calls.
pub async fn measure(dir: PathBuf) -> Usage {
    let walked = tokio::task::spawn_blocking(move || usage(&dir));
    walked.await.unwrap_or_default()
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
                    let taken = facts.blocks().saturating_mul(512).min(facts.len());
                    usage.bytes = usage.bytes.saturating_add(taken);
                }
            }
        }
    }
    usage
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
}
