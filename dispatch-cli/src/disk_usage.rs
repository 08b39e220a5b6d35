//! Measures the disk space that a `dispatch up` of this machine takes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::commands::gc::FREE_SPACE;
use crate::state_dir::StateDir;
use units::format_size;

/// Disk space in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct DiskUsage {
    /// Blocks of all collections.
    pub blocks: u64,
    /// Database and logs of the server.
    pub records: u64,
    pub cache: u64,
    /// Files of running containers.
    pub scratch: u64,
    /// Free on the file system of the state directory.
    pub free: u64,
}

impl DiskUsage {
    /// `None` if the file system cannot be examined, or not within a few seconds.
    pub async fn of(state: StateDir) -> Option<Self> {
        let measuring = tokio::task::spawn_blocking(move || {
            let record = state.record().unwrap_or_default();
            let named = |dir: Option<PathBuf>, name| dir.unwrap_or_else(|| state.join(name));
            let blocks = allocated(&state.join("api").join("blocks"));
            let (server, logs) = (
                allocated(&state.join("api")),
                allocated(&state.join("logs")),
            );
            Some(Self {
                blocks,
                records: server.saturating_sub(blocks) + logs,
                cache: allocated(&named(record.cache_dir, "cache")),
                scratch: allocated(&named(record.scratch_dir, "scratch")),
                free: free(state.path())?,
            })
        });
        let measured = tokio::time::timeout(MEASURE_TIMEOUT, measuring).await;
        measured.ok()?.ok().flatten()
    }
}

/// Timeout of a walk through all files.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(3);
/// Free bytes below which the server may be unable to store a block.
const MIN_FREE: u64 = 64 << 20;

/// One sentence if the disk of `dispatch up` is full.
pub fn shortage(state: &StateDir) -> Option<String> {
    let free = free(state.path())?;
    (free < MIN_FREE).then(|| {
        format!(
            "the disk of {} has only {} free: results that need more wait until there is room. While an output is saved, it is on the disk twice. Remove jobs with 'dispatch rm', then: {FREE_SPACE}; or give up an output with 'dispatch kill'",
            state.path().display(),
            format_size(free)
        )
    })
}

/// Size of the file system with the scratch space, in bytes.
pub fn scratch_disk_size(state: &StateDir) -> Option<u64> {
    let dir = state.record().ok()?.scratch_dir?;
    let status = rustix::fs::statvfs(&dir).ok()?;
    Some(status.f_blocks.saturating_mul(status.f_frsize))
}

/// Free bytes of the file system.
fn free(path: &Path) -> Option<u64> {
    let status = rustix::fs::statvfs(path).ok()?;
    Some(status.f_bavail.saturating_mul(status.f_frsize))
}

/// Bytes on disk below `dir`. What cannot be read, or goes away meanwhile, counts as nothing.
fn allocated(dir: &Path) -> u64 {
    let mut total = 0;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(found) = entry.metadata() else {
            continue;
        };
        total += found.blocks() * 512;
        if found.is_dir() {
            total += allocated(&entry.path());
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_count_below_directories_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/", deep.join("link")).unwrap();
        fs::File::open(deep.join("file"))
            .unwrap()
            .sync_all()
            .unwrap();
        let bytes = allocated(dir.path());
        assert!((1 << 20..2 << 20).contains(&bytes), "{bytes}");
        assert_eq!(allocated(&dir.path().join("nothing")), 0);
    }
}
