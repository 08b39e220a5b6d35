//! Each block is downloaded once, damaged ones are never returned, and failures leave nothing.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use arvados_client::keep::{BlockStore, MemoryStore};

use super::super::eviction::SizeOrPercent;
use super::*;

/// A slow block source that counts its requests.
#[derive(Debug, Default)]
struct Slow {
    store: MemoryStore,
    requests: Mutex<HashMap<String, usize>>,
}

impl BlockSource for Slow {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        *self
            .requests
            .lock()
            .unwrap()
            .entry(locator.hash.to_string())
            .or_default() += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.store.get(locator).await
    }
}

impl Slow {
    fn requests(&self, locator: &Locator) -> usize {
        let requests = self.requests.lock().unwrap();
        requests
            .get(&locator.hash.to_string())
            .copied()
            .unwrap_or_default()
    }
}

const ROOMY: Limits = Limits {
    size: SizeOrPercent::Percent(100),
    free: SizeOrPercent::Bytes(0),
};

fn cache(keep: &Arc<Slow>, dir: &Path) -> Arc<BlockCache<Arc<Slow>>> {
    Arc::new(BlockCache::new(keep.clone(), dir, ROOMY, Vec::new()))
}

fn file(dir: &Path, locator: &Locator) -> PathBuf {
    block_path(&dir.join("blocks"), &locator.hash)
}

/// Everything below it but directories.
fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for shard in fs::read_dir(dir.join("blocks")).into_iter().flatten() {
        for file in fs::read_dir(shard.unwrap().path()).unwrap() {
            found.push(file.unwrap().file_name().into_string().unwrap());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_fetched_once_however_many_wait_for_it() {
    let (keep, dir) = (Arc::new(Slow::default()), tempfile::tempdir().unwrap());
    let locator = keep.store.put(Bytes::from_static(b"shared")).await.unwrap();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            // A second cache on the same directory, like that of another process.
            let (cache, locator) = (cache(&keep, dir.path()), locator.clone());
            tokio::spawn(async move { cache.block(&locator).await.unwrap() })
        })
        .collect();
    for block in waiting {
        assert_eq!(block.await.unwrap().data, "shared");
    }
    assert_eq!(keep.requests(&locator), 1);
    let again = cache(&keep, dir.path()).block(&locator).await.unwrap();
    assert!(again.file.is_some());
    assert_eq!(keep.requests(&locator), 1);
    assert_eq!(files(dir.path()), [locator.hash.to_string()]);
    let mode = fs::metadata(file(dir.path(), &locator))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn what_is_wrong_under_a_right_name_is_never_given_out() {
    let (keep, dir) = (Arc::new(Slow::default()), tempfile::tempdir().unwrap());
    let locator = keep.store.put(Bytes::from_static(b"right")).await.unwrap();
    let cache = cache(&keep, dir.path());
    cache.block(&locator).await.unwrap();
    let at = file(dir.path(), &locator);
    for wrong in ["wrong", "cut", "", "much too long"] {
        fs::write(&at, wrong).unwrap();
        let block = cache.block(&locator).await.unwrap();
        assert_eq!(block.data, "right", "{wrong:?}");
        assert_eq!(fs::read(&at).unwrap(), b"right", "{wrong:?}");
    }
    // Nor is anything behind a link.
    fs::remove_file(&at).unwrap();
    let aside = dir.path().join("aside");
    fs::write(&aside, "right").unwrap();
    std::os::unix::fs::symlink(&aside, &at).unwrap();
    assert_eq!(cache.block(&locator).await.unwrap().data, "right");
    assert_eq!(keep.requests(&locator), 6);
}

#[tokio::test]
async fn what_a_dead_process_left_holds_up_nobody() {
    let (keep, dir) = (Arc::new(Slow::default()), tempfile::tempdir().unwrap());
    let locator = keep.store.put(Bytes::from_static(b"whole")).await.unwrap();
    let at = file(dir.path(), &locator);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at.with_extension("partial"), "ha").unwrap();
    let cache = cache(&keep, dir.path());
    assert_eq!(cache.block(&locator).await.unwrap().data, "whole");
    assert_eq!(files(dir.path()), [locator.hash.to_string()]);
}

#[tokio::test]
async fn a_failed_download_leaves_nothing_and_may_be_repeated() {
    let (keep, dir) = (Arc::new(Slow::default()), tempfile::tempdir().unwrap());
    let locator = Locator::of(b"not there");
    let cache = cache(&keep, dir.path());
    cache.block(&locator).await.unwrap_err();
    assert_eq!(files(dir.path()), [""; 0]);
    keep.store
        .put(Bytes::from_static(b"not there"))
        .await
        .unwrap();
    assert_eq!(cache.block(&locator).await.unwrap().data, "not there");
}

#[tokio::test]
async fn a_cache_that_cannot_be_used_is_done_without() {
    let (keep, dir) = (Arc::new(Slow::default()), tempfile::tempdir().unwrap());
    let locator = keep.store.put(Bytes::from_static(b"data")).await.unwrap();
    // A file blocks the path of the directory.
    fs::write(dir.path().join("blocks"), "").unwrap();
    assert_eq!(
        cache(&keep, dir.path()).block(&locator).await.unwrap().data,
        "data"
    );
    // No space is left for the cache.
    let tight = Limits {
        size: SizeOrPercent::Bytes(3),
        free: SizeOrPercent::Bytes(0),
    };
    let small = tempfile::tempdir().unwrap();
    let cache = BlockCache::new(keep.clone(), small.path(), tight, Vec::new());
    assert_eq!(cache.block(&locator).await.unwrap().data, "data");
    assert_eq!(files(small.path()), [""; 0]);
    assert_eq!(
        BlockCache::none(keep).block(&locator).await.unwrap().data,
        "data"
    );
}

/// Staged files use the same disk.
#[tokio::test]
async fn what_is_spoken_for_is_left_free_and_the_size_holds_while_it_is_filled() {
    let (keep, dir) = (Arc::new(Slow::default()), tempfile::tempdir().unwrap());
    let limits = Limits {
        size: SizeOrPercent::Bytes(10),
        free: SizeOrPercent::Bytes(0),
    };
    let cache = BlockCache::new(keep.clone(), dir.path(), limits, Vec::new());
    assert!(cache.shares_disk_with(dir.path()) && !cache.shares_disk_with(Path::new("/proc")));
    let get = async |text: &'static str| {
        let locator = keep.store.put(Bytes::from_static(text.as_bytes()));
        let locator = locator.await.unwrap();
        let data = cache.block(&locator).await.unwrap().data;
        assert_eq!(data, text);
        block_path(&dir.path().join("blocks"), &locator.hash).exists()
    };
    cache.reserve(u64::MAX);
    assert!(!get("none").await);
    cache.reserve(0);
    assert!(get("four").await && get("five5").await);
    assert!(!get("ten").await && get("x").await);
}

#[tokio::test]
async fn a_server_on_this_node_is_read_directly_and_left_as_it_is() {
    let (keep, dir) = (Arc::new(Slow::default()), tempfile::tempdir().unwrap());
    let server = tempfile::tempdir().unwrap();
    let locator = keep.store.put(Bytes::from_static(b"near")).await.unwrap();
    let at = block_path(server.path(), &locator.hash);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(&at, "near").unwrap();
    let others = vec![server.path().to_owned()];
    let cache = BlockCache::new(keep.clone(), dir.path(), ROOMY, others);
    assert_eq!(cache.block(&locator).await.unwrap().data, "near");
    assert_eq!((keep.requests(&locator), files(dir.path()).len()), (0, 0));
    fs::write(&at, "evil").unwrap();
    assert_eq!(cache.block(&locator).await.unwrap().data, "near");
    assert_eq!(fs::read(&at).unwrap(), b"evil", "not ours to mend");
}
