//! Reads blocks of collections: from this node's cache, else from Keep. Concurrent readers share
//! one download.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::future::Future;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use arvados_client::keep::store::hash_block;
use arvados_client::keep::{BlockHash, BlockSource, KeepError, Locator};
use bytes::Bytes;
use host_state::file::{create_private_dir, if_present};
use host_state::lock::is_acquired;

use super::eviction::{Limits, Space};

/// Interval between checks whether another process has filled a block.
const FILL_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit for another process to fill a block; then it is fetched without the cache.
const FILL_TIMEOUT: Duration = Duration::from_secs(120);

/// A block's content, and its file on this node, if there is one.
#[derive(Debug)]
pub struct Block {
    pub data: Bytes,
    pub file: Option<File>,
}

/// A source of verified blocks.
pub trait Fetch: Send + Sync {
    /// The whole content of a block, verified against its hash and size.
    fn block(&self, locator: &Locator) -> impl Future<Output = Result<Block, KeepError>> + Send;
}

/// A cache on this node in front of `keep`.
#[derive(Debug)]
pub struct BlockCache<S> {
    keep: S,
    /// Directory of cached blocks; `None` disables the cache.
    dir: Option<PathBuf>,
    /// Read-only directories of the same form, such as that of a server on this node.
    others: Vec<PathBuf>,
    limits: Limits,
    /// Bytes that this run has added. Garbage collection limits what was there before.
    added: AtomicU64,
    /// Bytes of the file system that are reserved for other files.
    reserved: AtomicU64,
    has_warned: AtomicBool,
}

impl<S: BlockSource> BlockCache<S> {
    /// A cache in the directory `cache`; the directories `others` are only read.
    pub fn new(keep: S, cache: &Path, limits: Limits, others: Vec<PathBuf>) -> Self {
        Self {
            keep,
            dir: Some(cache.join("blocks")),
            others,
            limits,
            added: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
        }
    }

    /// No cache: every block comes from `keep`.
    pub fn none(keep: S) -> Self {
        Self {
            dir: None,
            ..Self::new(keep, Path::new(""), Limits::default(), Vec::new())
        }
    }

    /// Whether the cache is on the same file system as `path`.
    pub fn shares_disk_with(&self, path: &Path) -> bool {
        // The directory may not exist yet.
        let device = |path: &Path| {
            let there = path.ancestors().find_map(|path| fs::metadata(path).ok());
            there.map(|metadata| metadata.dev())
        };
        let dir = self.dir.as_deref();
        dir.is_some_and(|dir| device(dir) == device(path))
    }

    /// Keeps `bytes` of its file system free for files that others are about to write.
    pub fn reserve(&self, bytes: u64) {
        self.reserved.store(bytes, Ordering::Relaxed);
    }

    async fn fetch(&self, locator: &Locator) -> Result<Block, KeepError> {
        let data = self.keep.get(locator).await?;
        Ok(Block { data, file: None })
    }

    /// The block from a file of this node, if there is an intact one.
    async fn read_local(&self, locator: &Locator) -> Option<Block> {
        let ours = self.dir.iter().map(|dir| (dir, true));
        for (dir, is_ours) in ours.chain(self.others.iter().map(|dir| (dir, false))) {
            let path = block_path(dir, &locator.hash);
            let (size, from) = (locator.size, path.clone());
            let read = tokio::task::spawn_blocking(move || read(&from, size)).await;
            let Ok(Ok(Some(block))) = read else {
                continue;
            };
            let is_whole = block.data.len() as u64 == locator.size;
            if is_whole && hash_block(&block.data).await.ok()? == locator.hash {
                return Some(block);
            }
            if is_ours {
                tracing::warn!(path = %path.display(), "cached block is damaged; removing it and fetching the block again");
                let _ = fs::remove_file(&path);
            }
        }
        None
    }

    /// The locked file to fill. `None` if the block should be fetched without the cache.
    async fn begin_fill(&self, path: &Path, size: u64) -> Option<BlockFill> {
        let until = tokio::time::Instant::now() + FILL_TIMEOUT;
        loop {
            let (at, limits) = (path.to_owned(), self.limits);
            let reserved = self.reserved.load(Ordering::Relaxed);
            let added = self.added.load(Ordering::Relaxed);
            let has_room = move |space: Space| {
                let free = space.free.saturating_sub(reserved);
                limits.has_room(size, added, Space { free, ..space })
            };
            let attempt = tokio::task::spawn_blocking(move || BlockFill::begin(&at, has_room));
            match attempt.await {
                Ok(Ok(FillState::Ours(fill))) => return Some(fill),
                Ok(Ok(FillState::Done)) => return None,
                Ok(Ok(FillState::Taken)) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(FILL_POLL_INTERVAL).await;
                }
                Ok(Err(error)) => {
                    self.warn_once(&error);
                    return None;
                }
                _ => return None,
            }
        }
    }

    /// Logs a write error once. The run goes on without the cache.
    fn warn_once(&self, error: &io::Error) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "cannot write blocks into the node cache; they are fetched without it");
        }
    }
}

impl<S: BlockSource> Fetch for BlockCache<S> {
    async fn block(&self, locator: &Locator) -> Result<Block, KeepError> {
        if let Some(block) = self.read_local(locator).await {
            return Ok(block);
        }
        let Some(dir) = &self.dir else {
            return self.fetch(locator).await;
        };
        let path = block_path(dir, &locator.hash);
        let fill = self.begin_fill(&path, locator.size).await;
        // Another process may have stored the block meanwhile.
        if let Some(block) = self.read_local(locator).await {
            return Ok(block);
        }
        let block = self.fetch(locator).await?;
        if let Some(fill) = fill {
            let data = block.data.clone();
            let write = tokio::task::spawn_blocking(move || fill.fill(&data));
            match write.await {
                Ok(Ok(file)) => {
                    self.added.fetch_add(locator.size, Ordering::Relaxed);
                    return Ok(Block {
                        file: Some(file),
                        ..block
                    });
                }
                Ok(Err(error)) => self.warn_once(&error),
                Err(_) => {}
            }
        }
        Ok(block)
    }
}

impl<T: Fetch> Fetch for Arc<T> {
    async fn block(&self, locator: &Locator) -> Result<Block, KeepError> {
        T::block(self, locator).await
    }
}

/// `abc/abc…`, as in dispatch-api's block store.
pub(super) fn block_path(dir: &Path, hash: &BlockHash) -> PathBuf {
    let name = hash.to_string();
    dir.join(&name[..3]).join(name)
}

/// The content of a file of exactly `size` bytes. Updates the file's time of last use.
fn read(path: &Path, size: u64) -> io::Result<Option<Block>> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let Some(mut file) = if_present(opened)? else {
        return Ok(None);
    };
    if file.metadata()?.len() != size {
        // A truncated file counts as damaged.
        return Ok(Some(Block {
            data: Bytes::new(),
            file: None,
        }));
    }
    let mut data = Vec::with_capacity(size as usize);
    (&mut file).take(size).read_to_end(&mut data)?;
    // Files of other users may not be writable.
    let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
    Ok(Some(Block {
        data: data.into(),
        file: Some(file),
    }))
}

/// Result of the attempt to fill a block.
#[derive(Debug)]
enum FillState {
    Ours(BlockFill),
    /// Another process is filling it.
    Taken,
    /// There is no space, or another process has just stored the block.
    Done,
}

/// A block being filled: `abc….partial`, locked until it has its name.
#[derive(Debug)]
struct BlockFill {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl BlockFill {
    fn begin(path: &Path, has_room: impl FnOnce(Space) -> bool) -> io::Result<FillState> {
        let shard = path.parent().unwrap_or(path);
        create_private_dir(shard)?;
        if !has_room(space(shard)?) {
            return Ok(FillState::Done);
        }
        let partial = path.with_extension("partial");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&partial)?;
        if !is_acquired(file.try_lock())? {
            return Ok(FillState::Taken);
        }
        // Between the two calls, the owner of the partial file may have finished or removed it.
        Ok(match is_at(&file, &partial) {
            true => FillState::Ours(Self {
                file,
                partial,
                path: path.to_owned(),
            }),
            false if path.exists() => FillState::Done,
            false => FillState::Taken,
        })
    }

    fn fill(mut self, data: &[u8]) -> io::Result<File> {
        self.file.set_len(0)?;
        self.file.write_all(data)?;
        fs::rename(&self.partial, &self.path)?;
        // Closing the last copy frees the lock.
        self.file.try_clone()
    }
}

impl Drop for BlockFill {
    /// Removes an unfinished file.
    fn drop(&mut self) {
        if is_at(&self.file, &self.partial) {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Whether `path` is this open file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => identity(ours) == identity(there),
        _ => false,
    }
}

pub(super) fn space(dir: &Path) -> io::Result<Space> {
    let found = rustix::fs::statvfs(dir)?;
    // Free space without the blocks reserved for root, as `df` counts.
    let usable = (found.f_blocks.saturating_sub(found.f_bfree)).saturating_add(found.f_bavail);
    Ok(Space {
        total: usable.saturating_mul(found.f_frsize),
        free: found.f_bavail.saturating_mul(found.f_frsize),
    })
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
