//! Downloads files of collections to this node. All names are created first; then every block is
//! fetched once, several at a time. The client verifies each block before it is written.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arvados_client::keep::{BlockHash, Locator};
use arvados_client::manifest::{Entry, Extent, FileTree};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::Progress;
use super::error::MountError;
use super::path::ContainerPath;
use super::scratch_files::{self, Access};
use node_cache::{Block, Fetch};

/// Maximum number of blocks fetched or written at the same time. The Keep client limits their
/// memory as well.
const MAX_CONCURRENT_BLOCKS: usize = 4;

/// A directory or file of a collection and its destination on this node.
#[derive(Debug)]
pub struct CollectionCopy {
    pub target: ContainerPath,
    pub collection: String,
    pub tree: Arc<FileTree>,
    pub path: String,
    pub host: PathBuf,
    pub access: Access,
}

/// A range of a block and its position in a file.
#[derive(Debug)]
struct Piece {
    copy: usize,
    /// Path relative to the copy; empty if the copy is one file.
    file: Arc<str>,
    position: u64,
    offset: u64,
    len: u64,
}

/// A block and all ranges that are copied from it.
#[derive(Debug)]
struct BlockJob {
    locator: Arc<Locator>,
    pieces: Vec<Piece>,
}

/// All pending downloads.
#[derive(Debug, Default)]
pub struct Downloads {
    copies: Vec<CollectionCopy>,
    files: Vec<(usize, Arc<str>)>,
    jobs: Vec<BlockJob>,
    by_block: HashMap<(BlockHash, u64), usize>,
    total: u64,
}

impl Downloads {
    /// Creates all directories and empty files of `copy`; [`run`](Self::run) fills them.
    pub fn add(&mut self, copy: CollectionCopy) -> Result<(), MountError> {
        let index = self.copies.len();
        let tree = copy.tree.clone();
        match tree.lookup(&copy.path) {
            Some(Entry::File(extents)) => {
                let result = scratch_files::create_file(&copy.host);
                result.map_err(|error| copy.failed("", error))?;
                self.add_file(index, "".into(), extents);
            }
            _ => {
                let part = tree
                    .subtree(&copy.path)
                    .map_err(|source| MountError::Content {
                        target: copy.target.to_string(),
                        collection: copy.collection.clone(),
                        source: Box::new(source),
                    })?;
                let result = scratch_files::create_dir(&copy.host, copy.access);
                result.map_err(|error| copy.failed("", error))?;
                let mut made = HashSet::new();
                for dir in part.directories() {
                    copy.make_directory(dir, &mut made)?;
                }
                for (path, extents) in part.files() {
                    if let Some((dir, _)) = path.rsplit_once('/') {
                        copy.make_directory(dir, &mut made)?;
                    }
                    let result = scratch_files::create_file(&copy.host.join(&path));
                    result.map_err(|error| copy.failed(&path, error))?;
                    self.add_file(index, path.into(), extents);
                }
            }
        }
        self.copies.push(copy);
        Ok(())
    }

    fn add_file(&mut self, copy: usize, file: Arc<str>, extents: &[Extent]) {
        let mut position = 0;
        for extent in extents {
            let key = (extent.locator.hash, extent.locator.size);
            let job = *self.by_block.entry(key).or_insert_with(|| {
                self.jobs.push(BlockJob {
                    locator: extent.locator.clone(),
                    pieces: Vec::new(),
                });
                self.jobs.len() - 1
            });
            self.jobs[job].pieces.push(Piece {
                copy,
                file: file.clone(),
                position,
                offset: extent.offset,
                len: extent.len,
            });
            position += extent.len;
        }
        self.total += position;
        self.files.push((copy, file));
    }

    /// Fetches all blocks, then sets the file modes that the container sees.
    pub async fn run(
        self,
        source: &impl Fetch,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(), MountError> {
        let copies = Arc::new(self.copies);
        let (total, done) = (self.total, AtomicU64::new(0));
        if total > 0 {
            progress(Progress { done: 0, total });
        }
        stream::iter(self.jobs)
            .map(|job| {
                let copies = copies.clone();
                async move {
                    let block = source.block(&job.locator).await.map_err(|source| {
                        let path = job
                            .pieces
                            .first()
                            .map(|p| copies[p.copy].container_path(&p.file));
                        MountError::Fetch {
                            path: path.unwrap_or_default(),
                            source,
                        }
                    })?;
                    let write = move || write(&copies, &job, &block);
                    let written = tokio::task::spawn_blocking(write).await;
                    written.map_err(|_| MountError::Interrupted)?
                }
            })
            .buffer_unordered(MAX_CONCURRENT_BLOCKS)
            .try_for_each(|written| {
                let done = done.fetch_add(written, Ordering::Relaxed) + written;
                progress(Progress { done, total });
                std::future::ready(Ok(()))
            })
            .await?;
        let files = self.files;
        let finish = move || {
            for (copy, file) in files {
                let copy = &copies[copy];
                let result =
                    scratch_files::set_mode(&copy.host_path(&file), copy.access.file_mode());
                result.map_err(|error| copy.failed(&file, error))?;
            }
            Ok(())
        };
        let finished = tokio::task::spawn_blocking(finish).await;
        finished.map_err(|_| MountError::Interrupted)?
    }
}

/// Writes all ranges of a block. Returns the number of bytes.
fn write(copies: &[CollectionCopy], job: &BlockJob, block: &Block) -> Result<u64, MountError> {
    let mut written = 0;
    for piece in &job.pieces {
        let copy = &copies[piece.copy];
        let result = scratch_files::open_for_writing(&copy.host_path(&piece.file))
            .and_then(|to| write_piece(block, piece, &to));
        result.map_err(|error| copy.failed(&piece.file, error))?;
        written += piece.len;
    }
    Ok(written)
}

/// Copies a range. File systems that support it share the data with the cached block.
fn write_piece(block: &Block, piece: &Piece, to: &File) -> io::Result<()> {
    let mut done = 0;
    if let Some(from) = &block.file {
        let (mut at, mut into) = (piece.offset, piece.position);
        while done < piece.len {
            let rest = usize::try_from(piece.len - done).unwrap_or(usize::MAX);
            // Not every pair of file systems supports this; the rest is written from memory.
            match rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut into), rest) {
                Ok(0) | Err(_) => break,
                Ok(copied) => done += copied as u64,
            }
        }
    }
    let range = usize::try_from(piece.offset + done)
        .ok()
        .zip(usize::try_from(piece.offset + piece.len).ok());
    // The client verified the size of the block, so its ranges are valid.
    let bytes = range.and_then(|(from, to)| block.data.get(from..to));
    let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
    to.write_all_at(bytes, piece.position + done)
}

impl CollectionCopy {
    fn make_directory(&self, dir: &str, made: &mut HashSet<String>) -> Result<(), MountError> {
        if made.contains(dir) {
            return Ok(());
        }
        let result = scratch_files::create_dirs(&self.host, Path::new(dir), self.access);
        result.map_err(|error| self.failed(dir, error))?;
        made.insert(dir.to_owned());
        Ok(())
    }

    fn host_path(&self, file: &str) -> PathBuf {
        match file {
            // Joining an empty path would add a slash.
            "" => self.host.clone(),
            file => self.host.join(file),
        }
    }

    fn container_path(&self, file: &str) -> String {
        match file {
            "" => self.target.to_string(),
            file => self.target.join(file).to_string(),
        }
    }

    fn failed(&self, file: &str, source: io::Error) -> MountError {
        if scratch_files::is_bad_name(&source) {
            return MountError::FileName {
                path: file.to_owned(),
                collection: self.collection.clone(),
            };
        }
        if source.kind() == io::ErrorKind::AlreadyExists {
            let target = self.target.to_string();
            return super::Problem::Occupied {
                path: self.container_path(file),
                found: "part of another mount",
            }
            .of(target);
        }
        MountError::Write {
            target: self.target.to_string(),
            path: self.host_path(file),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use arvados_client::keep::{BlockSource, BlockStore, CollectionWriter, KeepError, MemoryStore};
    use bytes::Bytes;

    use super::*;
    use node_cache::BlockCache;

    /// A slow block source that counts its requests.
    #[derive(Debug, Default)]
    struct Counting {
        store: MemoryStore,
        now: AtomicUsize,
        most: AtomicUsize,
        asked: Mutex<HashMap<String, usize>>,
    }

    impl BlockSource for Counting {
        async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            *self
                .asked
                .lock()
                .unwrap()
                .entry(locator.to_string())
                .or_default() += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.now.fetch_sub(1, Ordering::SeqCst);
            self.store.get(locator).await
        }
    }

    impl BlockStore for Counting {
        async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
            self.store.put(data).await
        }
    }

    fn copy(tree: FileTree, host: &Path) -> CollectionCopy {
        CollectionCopy {
            target: ContainerPath::parse("/in").unwrap(),
            collection: "zzzzz-4zz18-0123456789abcde".to_owned(),
            tree: Arc::new(tree),
            path: String::new(),
            host: host.join("in"),
            access: Access::ReadOnly,
        }
    }

    #[tokio::test]
    async fn every_block_is_fetched_once_and_only_a_few_at_a_time() {
        let keep = Arc::new(Counting::default());
        let mut writer = CollectionWriter::with_limits(keep.clone(), 10, 1);
        for i in 0..100u8 {
            // Files that share blocks, some of them far apart.
            writer.start_file(&format!("{}/{i}", i % 2)).unwrap();
            writer.write(&[i / 4; 7]).await.unwrap();
        }
        let manifest = writer.finish().await.unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let mut downloads = Downloads::default();
        downloads
            .add(copy(manifest.tree(), scratch.path()))
            .unwrap();
        let last = Mutex::new(Progress::default());
        let note = |progress| *last.lock().unwrap() = progress;
        let blocks = BlockCache::none(keep.clone());
        downloads.run(&blocks, &note).await.unwrap();
        let (done, total) = (700, 700);
        assert_eq!(*last.lock().unwrap(), Progress { done, total });
        let asked = keep.asked.lock().unwrap();
        assert!(
            asked.len() > 10 && asked.values().all(|times| *times == 1),
            "{asked:?}"
        );
        assert_eq!(keep.most.load(Ordering::SeqCst), MAX_CONCURRENT_BLOCKS);
        for i in 0..100u8 {
            let file = scratch.path().join(format!("in/{}/{i}", i % 2));
            assert_eq!(std::fs::read(file).unwrap(), [i / 4; 7], "{i}");
        }
    }

    #[tokio::test]
    async fn a_block_that_is_gone_is_nobody_elses_to_find() {
        let text = format!("./d {} 0:4:f\n", Locator::of(b"lost"));
        let tree = arvados_client::manifest::Manifest::parse(&text)
            .unwrap()
            .tree();
        let scratch = tempfile::tempdir().unwrap();
        let mut downloads = Downloads::default();
        downloads.add(copy(tree, scratch.path())).unwrap();
        let error = downloads
            .run(&BlockCache::none(MemoryStore::new()), &|_| {})
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("file /in/d/f could not be fetched"),
            "{error}"
        );
        assert!(error.is_user_error());
    }
}
