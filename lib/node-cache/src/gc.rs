//! Garbage collection: removes leftovers, then the least recently used entries until the cache is
//! within its limits. An entry is locked only while it moves into the trash, so that a run that
//! needs it does not wait for the removal of its files.

use std::fs::{self, File, FileTimes};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use host_state::{lock, trash};

use super::blocks::space;
use super::entries::{self, Entry, Kind};
use super::eviction::Limits;

/// Minimum interval between collections by runs; an explicit `cache gc` ignores it.
const GC_INTERVAL: Duration = Duration::from_secs(60);

/// Result of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcStats {
    pub removed: usize,
    /// Bytes that were freed.
    pub freed: u64,
    /// Bytes that remain.
    pub size: u64,
    /// Entries over the limit that stayed because they are in use.
    pub in_use: usize,
}

/// Removes leftovers, then as many entries as the limits require.
pub fn collect(cache: &Path, limits: Limits) -> io::Result<GcStats> {
    let mut stats = GcStats::default();
    let (left_over, mut entries): (Vec<_>, Vec<_>) = entries::all(cache)?
        .into_iter()
        .partition(|entry| entry.kind == Kind::LeftOver);
    for entry in &left_over {
        // An unlocked leftover has no process that fills it.
        match remove(entry) {
            Ok(true) => {
                stats.removed += 1;
                stats.freed += entry.size;
            }
            Ok(false) => stats.size += entry.size,
            Err(error) => log_not_removed(entry, &error),
        }
    }
    // What is in the trash counts as used space, and would cost other entries their place.
    empty_trash(cache)?;
    let size = entries.iter().map(|entry| entry.size).sum();
    let mut excess = match size {
        0 => 0,
        size => limits.excess(size, space(cache)?),
    };
    stats.size += size;
    entries.sort_by_key(|entry| entry.used);
    for entry in entries {
        if excess == 0 {
            break;
        }
        match remove(&entry) {
            Ok(true) => {
                stats.removed += 1;
                stats.freed += entry.size;
                stats.size -= entry.size;
                excess = excess.saturating_sub(entry.size);
            }
            Ok(false) => stats.in_use += 1,
            Err(error) => log_not_removed(&entry, &error),
        }
    }
    empty_trash(cache)?;
    Ok(stats)
}

fn empty_trash(cache: &Path) -> io::Result<()> {
    let mut go_on = || ControlFlow::Continue(());
    trash::empty(&cache.join("layers"), &mut go_on).map(drop)
}

fn log_not_removed(entry: &Entry, error: &io::Error) {
    if error.kind() != io::ErrorKind::NotFound {
        let path = entry.path.display();
        tracing::warn!(%path, %error, "cannot remove an entry of the node cache");
    }
}

/// Removes a block, or moves a directory into the trash; false if it is in use.
pub fn remove(entry: &Entry) -> io::Result<bool> {
    let Some(_lock) = entry.try_lock()? else {
        return Ok(false);
    };
    if !entry.path.is_dir() {
        fs::remove_file(&entry.path)?;
        return Ok(true);
    }
    // Other processes see all of a layer or none.
    trash::discard(&entry.path)?;
    Ok(true)
}

/// Collects garbage, unless there was a collection recently or another process is collecting.
pub fn collect_if_due(cache: &Path, limits: Limits) -> io::Result<Option<GcStats>> {
    let Some(_turn) = try_lock(cache)? else {
        return Ok(None);
    };
    collect(cache, limits).map(Some)
}

fn try_lock(cache: &Path) -> io::Result<Option<File>> {
    let path = cache.join("swept");
    let last = fs::metadata(&path).and_then(|data| data.modified());
    let is_young = |last: SystemTime| last.elapsed().is_ok_and(|age| age < GC_INTERVAL);
    if last.is_ok_and(is_young) {
        return Ok(None);
    }
    let Some(file) = lock::try_exclusive(&path)? else {
        return Ok(None);
    };
    file.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::super::eviction::SizeOrPercent;
    use super::*;
    use crate::image::lock;

    const HEX: [&str; 3] = ["aaa", "bbb", "ccc"];

    fn limits(size: u64) -> Limits {
        Limits {
            size: SizeOrPercent::Bytes(size),
            free: SizeOrPercent::Bytes(0),
        }
    }

    fn at(seconds: u64) -> FileTimes {
        FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn block(cache: &Path, name: &str, size: usize, used: u64) {
        let dir = cache.join("blocks").join(name);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(&name.repeat(32 / 3 + 1)[..32]);
        fs::write(&path, vec![0; size]).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_times(at(used))
            .unwrap();
    }

    fn layer(cache: &Path, name: &str, size: usize, used: u64) -> std::path::PathBuf {
        let dir = cache.join("layers").join(&name.repeat(64 / 3 + 1)[..64]);
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::write(dir.join("bin/sh"), vec![0; size]).unwrap();
        let held = lock::shared(&dir.with_extension("lock")).unwrap();
        held.set_times(at(used)).unwrap();
        free(held);
        dir
    }

    /// A process started by another test may have a copy of the file, so closing ours is not
    /// enough.
    fn free(held: File) {
        held.unlock().unwrap();
    }

    fn left(cache: &Path) -> Vec<(Kind, u64)> {
        let mut left: Vec<_> = entries::all(cache)
            .unwrap()
            .into_iter()
            .map(|e| (e.kind, e.size))
            .collect();
        left.sort_by_key(|(_, size)| *size);
        left
    }

    #[test]
    fn the_longest_unused_goes_and_what_is_in_use_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path();
        block(cache, HEX[0], 10, 100);
        block(cache, HEX[1], 20, 400);
        let old = layer(cache, HEX[0], 30, 200);
        layer(cache, HEX[1], 40, 300);
        let in_use = lock::shared(&old.with_extension("lock")).unwrap();
        in_use.set_times(at(200)).unwrap();
        let stats = collect(cache, limits(1000)).unwrap();
        assert_eq!((stats.removed, stats.size), (0, 100));
        // 100 to 60: the block of 10; the old layer is in use; then the younger layer.
        let stats = collect(cache, limits(60)).unwrap();
        assert_eq!(
            stats,
            GcStats {
                removed: 2,
                freed: 50,
                size: 50,
                in_use: 1
            }
        );
        assert_eq!(left(cache), [(Kind::Block, 20), (Kind::Layer, 30)]);
        assert!(old.join("bin/sh").exists());
        free(in_use);
        let stats = collect(cache, limits(0)).unwrap();
        assert_eq!((stats.removed, stats.size), (2, 0));
        assert_eq!(left(cache), []);
    }

    #[test]
    fn what_was_left_half_made_goes_and_what_is_being_made_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path();
        block(cache, HEX[0], 10, 100);
        let block = cache.join("blocks/abc").join("a".repeat(32));
        fs::create_dir_all(block.parent().unwrap()).unwrap();
        fs::write(block.with_extension("partial"), "ha").unwrap();
        let layer = layer(cache, HEX[2], 40, 300);
        fs::create_dir(layer.with_extension("partial")).unwrap();
        fs::create_dir(layer.with_extension("gone")).unwrap();
        let fill = lock::exclusive(&block.with_extension("partial")).unwrap();
        let stats = collect(cache, limits(1000)).unwrap();
        assert_eq!((stats.removed, stats.freed), (2, 0));
        assert!(block.with_extension("partial").exists());
        free(fill);
        let stats = collect(cache, limits(1000)).unwrap();
        assert_eq!((stats.removed, stats.freed, stats.size), (1, 2, 50));
        assert_eq!(left(cache), [(Kind::Block, 10), (Kind::Layer, 40)]);
    }

    #[test]
    fn runs_that_pass_by_sweep_once_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let collect = || collect_if_due(dir.path(), limits(0)).unwrap();
        assert!(collect().is_some());
        assert!(collect().is_none());
        let stamp = File::options()
            .write(true)
            .open(dir.path().join("swept"))
            .unwrap();
        stamp.set_times(at(100)).unwrap();
        let at_it = lock::exclusive(&dir.path().join("swept")).unwrap();
        assert!(collect().is_none());
        free(at_it);
        assert!(collect().is_some());
    }
}
