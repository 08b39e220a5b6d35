//! Blocks of collections: from this node if it has them, else from Keep, fetched once for all who wait.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::future::Future;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use arvados_client::keep::store::hash_block;
use arvados_client::keep::{BlockHash, BlockSource, KeepError, Locator};
use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};

use super::limits::{Limits, Space};

/// Between two looks whether another process is done with a block.
const LOOK: Duration = Duration::from_millis(20);
/// After this a block is fetched without the cache: whoever fills it there may be stuck.
const WAIT: Duration = Duration::from_secs(120);

/// A block's content, and the file of this node that holds it, if there is one.
#[derive(Debug)]
pub struct Block {
    pub data: Bytes,
    pub file: Option<File>,
}

/// Where blocks come from.
pub trait Fetch: Send + Sync {
    /// The whole content of a block, verified against its hash and size.
    fn block(&self, locator: &Locator) -> impl Future<Output = Result<Block, KeepError>> + Send;
}

/// Blocks of `keep`, kept on this node.
#[derive(Debug)]
pub struct BlockCache<S> {
    keep: S,
    /// Where they are kept; none is nowhere.
    dir: Option<PathBuf>,
    /// Directories of the same form that others fill, like that of a server on this node.
    others: Vec<PathBuf>,
    limits: Limits,
    /// Bytes that this run has added. What was there before is swept to its limit beside it.
    added: AtomicU64,
    /// Bytes of its file system that are spoken for.
    spoken_for: AtomicU64,
    complained: AtomicBool,
}

impl<S: BlockSource> BlockCache<S> {
    /// In `cache`, the node's cache directory; `others` are only read.
    pub fn new(keep: S, cache: &Path, limits: Limits, others: Vec<PathBuf>) -> Self {
        Self {
            keep,
            dir: Some(cache.join("blocks")),
            others,
            limits,
            added: AtomicU64::new(0),
            spoken_for: AtomicU64::new(0),
            complained: AtomicBool::new(false),
        }
    }

    /// Nothing is kept.
    pub fn none(keep: S) -> Self {
        Self {
            keep,
            dir: None,
            others: Vec::new(),
            limits: Limits::default(),
            added: AtomicU64::new(0),
            spoken_for: AtomicU64::new(0),
            complained: AtomicBool::new(false),
        }
    }

    /// Whether what is written to `place` takes room from it.
    pub fn shares_disk_with(&self, place: &Path) -> bool {
        // It may not be there yet.
        let device = |path: &Path| {
            let there = path.ancestors().find_map(|path| fs::metadata(path).ok());
            there.map(|metadata| metadata.dev())
        };
        let dir = self.dir.as_deref();
        dir.is_some_and(|dir| device(dir) == device(place))
    }

    /// So many bytes are yet to be written to its file system by others: they are left free.
    pub fn leave(&self, bytes: u64) {
        self.spoken_for.store(bytes, Ordering::Relaxed);
    }

    async fn fetched(&self, locator: &Locator) -> Result<Block, KeepError> {
        let data = self.keep.get(locator).await?;
        Ok(Block { data, file: None })
    }

    /// From a file of this node, if it has the block and it is intact.
    async fn kept(&self, locator: &Locator) -> Option<Block> {
        let ours = self.dir.iter().map(|dir| (dir, true));
        for (dir, is_ours) in ours.chain(self.others.iter().map(|dir| (dir, false))) {
            let path = place(dir, &locator.hash);
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
                tracing::warn!(path = %path.display(), "a cached block is damaged; it is removed and fetched again");
                let _ = fs::remove_file(&path);
            }
        }
        None
    }

    /// The place to fill, held alone; none if it cannot be had, and then the cache is done without.
    async fn place_to_fill(&self, path: &Path, size: u64) -> Option<Filling> {
        let until = tokio::time::Instant::now() + WAIT;
        loop {
            let (at, limits) = (path.to_owned(), self.limits);
            let spoken_for = self.spoken_for.load(Ordering::Relaxed);
            let added = self.added.load(Ordering::Relaxed);
            let has_room = move |space: Space| {
                let free = space.free.saturating_sub(spoken_for);
                limits.has_room(size, added, Space { free, ..space })
            };
            let asked = tokio::task::spawn_blocking(move || Filling::begin(&at, has_room));
            match asked.await {
                Ok(Ok(Begun::Ours(filling))) => return Some(filling),
                Ok(Ok(Begun::Done)) => return None,
                Ok(Ok(Begun::Taken)) if tokio::time::Instant::now() < until => {
                    tokio::time::sleep(LOOK).await;
                }
                Ok(Err(error)) => {
                    self.complain(&error);
                    return None;
                }
                _ => return None,
            }
        }
    }

    /// A cache that cannot be written costs time, and no container its run.
    fn complain(&self, error: &io::Error) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "blocks cannot be kept in the node's cache");
        }
    }
}

impl<S: BlockSource> Fetch for BlockCache<S> {
    async fn block(&self, locator: &Locator) -> Result<Block, KeepError> {
        if let Some(block) = self.kept(locator).await {
            return Ok(block);
        }
        let Some(dir) = &self.dir else {
            return self.fetched(locator).await;
        };
        let path = place(dir, &locator.hash);
        let filling = self.place_to_fill(&path, locator.size).await;
        // Another may have been faster.
        if let Some(block) = self.kept(locator).await {
            return Ok(block);
        }
        let block = self.fetched(locator).await?;
        if let Some(filling) = filling {
            let data = block.data.clone();
            let write = tokio::task::spawn_blocking(move || filling.fill(&data));
            match write.await {
                Ok(Ok(file)) => {
                    self.added.fetch_add(locator.size, Ordering::Relaxed);
                    return Ok(Block {
                        file: Some(file),
                        ..block
                    });
                }
                Ok(Err(error)) => self.complain(&error),
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

/// `abc/abc…`, as dispatch-api's block store has it.
pub(super) fn place(dir: &Path, hash: &BlockHash) -> PathBuf {
    let name = hash.to_string();
    dir.join(&name[..3]).join(name)
}

/// The content of a file of exactly `size` bytes; using it makes it young.
fn read(path: &Path, size: u64) -> io::Result<Option<Block>> {
    let mut file = match OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() != size {
        // A cut file is as good as a damaged one.
        return Ok(Some(Block {
            data: Bytes::new(),
            file: None,
        }));
    }
    let mut data = Vec::with_capacity(size as usize);
    (&mut file).take(size).read_to_end(&mut data)?;
    // Others' files may not be ours to touch.
    let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
    Ok(Some(Block {
        data: data.into(),
        file: Some(file),
    }))
}

/// Whether a block is ours to fill.
#[derive(Debug)]
enum Begun {
    Ours(Filling),
    /// Another process is at it.
    Taken,
    /// There is no room, or another filled it just now.
    Done,
}

/// A block being filled: `abc….partial`, locked until it has its name.
#[derive(Debug)]
struct Filling {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl Filling {
    fn begin(path: &Path, has_room: impl FnOnce(Space) -> bool) -> io::Result<Begun> {
        let shard = path.parent().unwrap_or(path);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(shard)?;
        if !has_room(space(shard)?) {
            return Ok(Begun::Done);
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
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Begun::Taken),
            Err(error) => return Err(error.into()),
        }
        // Who held it may have finished, or given up and removed it, between the two calls.
        Ok(match is_at(&file, &partial) {
            true => Begun::Ours(Self {
                file,
                partial,
                path: path.to_owned(),
            }),
            false if path.exists() => Begun::Done,
            false => Begun::Taken,
        })
    }

    fn fill(mut self, data: &[u8]) -> io::Result<File> {
        self.file.set_len(0)?;
        self.file.write_all(data)?;
        fs::rename(&self.partial, &self.path)?;
        // Read from here on; closing the last copy frees the lock.
        self.file.try_clone()
    }
}

impl Drop for Filling {
    /// What was not finished is nobody's.
    fn drop(&mut self) {
        if is_at(&self.file, &self.partial) {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

/// Whether this open file has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => identity(ours) == identity(there),
        _ => false,
    }
}

pub(super) fn space(dir: &Path) -> io::Result<Space> {
    let found = rustix::fs::statvfs(dir)?;
    // As df counts it: what is reserved for others is no part of what can be used.
    let usable = (found.f_blocks.saturating_sub(found.f_bfree)).saturating_add(found.f_bavail);
    Ok(Space {
        total: usable.saturating_mul(found.f_frsize),
        free: found.f_bavail.saturating_mul(found.f_frsize),
    })
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod tests;
