//! Keeping the cache within its limits: what has not been used for the longest time goes first.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::blocks::space;
use super::entries::{self, Entry, Kind};
use super::limits::{Limits, victims};

/// Between two sweeps by runs that only pass by; whoever asks for one gets it.
const EVERY: Duration = Duration::from_secs(60);

/// What a sweep did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    pub removed: usize,
    /// Bytes.
    pub freed: u64,
    /// Bytes that are left.
    pub size: u64,
    /// Entries that would have gone, were they not in use.
    pub in_use: usize,
}

/// Removes what was left half-made, and then as much as the limits ask for.
pub fn sweep(cache: &Path, limits: Limits) -> io::Result<Swept> {
    let mut swept = Swept::default();
    let (left_over, mut entries): (Vec<_>, Vec<_>) = entries::all(cache)?
        .into_iter()
        .partition(|entry| entry.kind == Kind::LeftOver);
    for entry in &left_over {
        // What nobody holds, nobody is making.
        match remove(entry) {
            Ok(true) => {
                swept.removed += 1;
                swept.freed += entry.size;
            }
            Ok(false) => swept.size += entry.size,
            Err(error) => unremoved(entry, &error),
        }
    }
    let size = entries.iter().map(|entry| entry.size).sum();
    let mut excess = match size {
        0 => 0,
        size => limits.excess(size, space(cache)?),
    };
    swept.size += size;
    while excess > 0 {
        let ages: Vec<_> = entries.iter().map(|e| (e.size, e.used)).collect();
        let mut gone = victims(&ages, excess);
        if gone.is_empty() {
            break;
        }
        gone.sort_unstable();
        // From the back, so that the places in front stay right.
        for place in gone.into_iter().rev() {
            let entry = entries.swap_remove(place);
            match remove(&entry) {
                Ok(true) => {
                    swept.removed += 1;
                    swept.freed += entry.size;
                    swept.size -= entry.size;
                    excess = excess.saturating_sub(entry.size);
                }
                Ok(false) => swept.in_use += 1,
                Err(error) => unremoved(&entry, &error),
            }
        }
    }
    Ok(swept)
}

fn unremoved(entry: &Entry, error: &io::Error) {
    if error.kind() != io::ErrorKind::NotFound {
        let path = entry.path.display();
        tracing::warn!(%path, %error, "an entry of the node's cache cannot be removed");
    }
}

/// True if it is gone, false if it is in use.
pub fn remove(entry: &Entry) -> io::Result<bool> {
    let Some(_held) = entry.hold()? else {
        return Ok(false);
    };
    if !entry.path.is_dir() {
        fs::remove_file(&entry.path)?;
        return Ok(true);
    }
    if entry.kind != Kind::Layer {
        fs::remove_dir_all(&entry.path)?;
        return Ok(true);
    }
    // Out of the way in one step: whoever looks sees all of a layer, or none.
    let aside = entry.path.with_extension("gone");
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::rename(&entry.path, &aside)?;
    fs::remove_dir_all(&aside)?;
    Ok(true)
}

/// A sweep, unless there was one just now or another process is at it.
pub fn sweep_now_and_then(cache: &Path, limits: Limits) -> io::Result<Option<Swept>> {
    let Some(_turn) = turn(cache)? else {
        return Ok(None);
    };
    sweep(cache, limits).map(Some)
}

fn turn(cache: &Path) -> io::Result<Option<File>> {
    let path = cache.join("swept");
    let last = fs::metadata(&path).and_then(|data| data.modified());
    let is_young = |last: SystemTime| last.elapsed().is_ok_and(|age| age < EVERY);
    if last.is_ok_and(is_young) {
        return Ok(None);
    }
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    file.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::super::limits::Share;
    use super::*;
    use crate::image::lock;

    const HEX: [&str; 3] = ["aaa", "bbb", "ccc"];

    fn limits(size: u64) -> Limits {
        Limits {
            size: Share::Bytes(size),
            free: Share::Bytes(0),
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

    /// What another test starts has a copy for a moment: that we close ours would not be enough.
    fn free(held: File) {
        flock(&held, FlockOperation::Unlock).unwrap();
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
        let swept = sweep(cache, limits(1000)).unwrap();
        assert_eq!((swept.removed, swept.size), (0, 100));
        // 100 to 60: the block of 10; the old layer is in use; then the younger layer.
        let swept = sweep(cache, limits(60)).unwrap();
        assert_eq!(
            swept,
            Swept {
                removed: 2,
                freed: 50,
                size: 50,
                in_use: 1
            }
        );
        assert_eq!(left(cache), [(Kind::Block, 20), (Kind::Layer, 30)]);
        assert!(old.join("bin/sh").exists());
        free(in_use);
        let swept = sweep(cache, limits(0)).unwrap();
        assert_eq!((swept.removed, swept.size), (2, 0));
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
        let filling = lock::exclusive(&block.with_extension("partial")).unwrap();
        let swept = sweep(cache, limits(1000)).unwrap();
        assert_eq!((swept.removed, swept.freed), (2, 0));
        assert!(block.with_extension("partial").exists());
        free(filling);
        let swept = sweep(cache, limits(1000)).unwrap();
        assert_eq!((swept.removed, swept.freed, swept.size), (1, 2, 50));
        assert_eq!(left(cache), [(Kind::Block, 10), (Kind::Layer, 40)]);
    }

    #[test]
    fn runs_that_pass_by_sweep_once_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let sweep = || sweep_now_and_then(dir.path(), limits(0)).unwrap();
        assert!(sweep().is_some());
        assert!(sweep().is_none());
        let stamp = File::options()
            .write(true)
            .open(dir.path().join("swept"))
            .unwrap();
        stamp.set_times(at(100)).unwrap();
        let at_it = lock::exclusive(&dir.path().join("swept")).unwrap();
        assert!(sweep().is_none());
        free(at_it);
        assert!(sweep().is_some());
    }
}
