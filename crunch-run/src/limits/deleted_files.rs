//! Measures the files that a container has deleted and keeps open. They take disk space, and a walk
//! of the directories does not find them.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::stats::{TMPFS_MAGIC, UsageSource};

/// Bytes on disk of the deleted files that the processes of a container have open, measured on a
/// thread for blocking calls.
pub async fn measure_deleted(source: Option<UsageSource>, scratch: PathBuf) -> u64 {
    let pids = move || source.map_or(Vec::new(), |source| source.pids());
    let measuring = tokio::task::spawn_blocking(move || deleted_open_bytes(&pids(), &scratch));
    measuring.await.unwrap_or_default()
}

/// Each file counts once. Files in memory do not, unless scratch is there, too. What this process
/// may not look at counts as nothing.
fn deleted_open_bytes(processes: &[u32], scratch: &Path) -> u64 {
    let device = fs::metadata(scratch).map(|facts| facts.dev()).ok();
    let mut seen = HashSet::new();
    let mut total = 0_u64;
    for pid in processes {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        for descriptor in descriptors.into_iter().flatten().flatten() {
            // Without a call to the file system, which may be a mount that does not answer.
            let path = fs::read_link(descriptor.path()).unwrap_or_default();
            let path = path.to_string_lossy();
            if !path.ends_with(" (deleted)") || path.starts_with("/memfd:") {
                continue;
            }
            // Of the open file, not of the link.
            let Ok(facts) = fs::metadata(descriptor.path()) else {
                continue;
            };
            let is_deleted = facts.is_file() && facts.nlink() == 0 && facts.blocks() > 0;
            if is_deleted
                && seen.insert((facts.dev(), facts.ino()))
                && (Some(facts.dev()) == device || !is_in_memory(&descriptor.path()))
            {
                total = total.saturating_add(facts.blocks().saturating_mul(512));
            }
        }
    }
    total
}

/// Whether an open file is in memory.
fn is_in_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|facts| facts.f_type == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_is_deleted_counts_as_long_as_it_is_open() {
        // On a disk, which the directory of temporary files need not be; and in memory.
        let program = std::env::current_exe().unwrap();
        let disk = program.parent().unwrap();
        let memory = Path::new("/dev/shm");
        for (dir, scratch, expected) in [
            (disk, disk, true),
            (disk, memory, true),
            (memory, memory, true),
            (memory, disk, false),
        ] {
            let bytes = || deleted_open_bytes(&[std::process::id()], scratch);
            let before = bytes();
            let grown = || (1 << 20..2 << 20).contains(&bytes().saturating_sub(before));
            let dir = tempfile::tempdir_in(dir).unwrap();
            let path = dir.path().join("file");
            let mut file = File::create(&path).unwrap();
            file.write_all(&[1; 1 << 20]).unwrap();
            file.sync_all().unwrap();
            assert!(!grown(), "it is not deleted");
            let again = file.try_clone().unwrap();
            fs::remove_file(&path).unwrap();
            assert_eq!(grown(), expected, "{path:?} {scratch:?}");
            drop((file, again));
            assert!(!grown());
        }
    }
}
