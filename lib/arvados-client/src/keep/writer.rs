//! Writes files as blocks of a collection. In: files one by one. Out: a manifest. Small files share
//! blocks, and a limited number of blocks is uploaded at once.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::JoinSet;

use super::error::KeepError;
use super::file_part::FilePart;
use super::store::BlockStore;
use crate::locator::{Locator, MAX_BLOCK_SIZE};
use crate::manifest::{Extent, Manifest, ManifestBuilder, PathSharer, SharedPath};

/// Default number of concurrent uploads.
const MAX_CONCURRENT_UPLOADS: usize = 2;
/// Maximum size of a read from an input, in bytes.
const READ_SIZE: usize = 256 << 10;

/// A range of a block that has no locator yet.
#[derive(Debug, Clone, Copy)]
struct Piece {
    block: usize,
    offset: usize,
    len: usize,
}

#[derive(Debug)]
struct File {
    path: SharedPath,
    pieces: Vec<Piece>,
}

/// Stores files one by one. In memory are the blocks being uploaded and the current one, which
/// grows with its content.
///
/// A file that does not fit into the rest of a block begins a new one. So equal large files give
/// equal blocks in any context.
#[derive(Debug)]
pub struct CollectionWriter<S> {
    store: S,
    block_size: usize,
    max_uploads: usize,
    uploads: JoinSet<(usize, Result<Locator, KeepError>)>,
    /// Locators of stored blocks, by number of the block.
    stored: Vec<Option<Arc<Locator>>>,
    buffer: Vec<u8>,
    /// Number of the block in the buffer, unless the buffer is empty.
    buffer_block: Option<usize>,
    /// Offset of the open file in the buffer, if it begins there.
    file_start: Option<usize>,
    files: Vec<File>,
    is_open: bool,
    failed: bool,
    /// All paths, to refuse invalid ones immediately.
    paths: ManifestBuilder,
    sharer: PathSharer,
}

impl<S: BlockStore + Clone + 'static> CollectionWriter<S> {
    /// A writer of blocks of the maximum size, with two concurrent uploads.
    pub fn new(store: S) -> Self {
        Self::with_limits(store, MAX_BLOCK_SIZE, MAX_CONCURRENT_UPLOADS)
    }

    /// A writer with another block size (at most [`MAX_BLOCK_SIZE`]) and number of simultaneous
    /// uploads.
    pub fn with_limits(store: S, block_size: usize, max_uploads: usize) -> Self {
        Self {
            store,
            block_size: block_size.clamp(1, MAX_BLOCK_SIZE),
            max_uploads: max_uploads.max(1),
            uploads: JoinSet::new(),
            stored: Vec::new(),
            buffer: Vec::new(),
            buffer_block: None,
            file_start: None,
            files: Vec::new(),
            is_open: false,
            failed: false,
            paths: ManifestBuilder::new(),
            sharer: PathSharer::default(),
        }
    }

    /// Starts a file, and finishes the one before. A path used before is continued.
    pub fn start_file(&mut self, path: &str) -> Result<(), KeepError> {
        self.paths.add_file(path, [])?;
        self.files.push(File {
            path: self.sharer.share(path).0,
            pieces: Vec::new(),
        });
        self.file_start = Some(self.buffer.len());
        self.is_open = true;
        Ok(())
    }

    /// Appends to the open file. Waits while too many uploads are running. If the call is
    /// cancelled, a part of `data` may have been appended.
    pub async fn write(&mut self, mut data: &[u8]) -> Result<(), KeepError> {
        if !self.is_open {
            return Err(KeepError::NoOpenFile);
        }
        while !data.is_empty() {
            self.check()?;
            if self.buffer.len() == self.block_size {
                self.flush_full_buffer().await?;
            }
            let (now, later) = data.split_at(data.len().min(self.block_size - self.buffer.len()));
            self.reserve(now.len());
            let offset = self.buffer.len();
            self.buffer.extend_from_slice(now);
            self.add_piece(offset, now.len());
            data = later;
        }
        Ok(())
    }

    /// Appends a part of a local file to the open file, as a block of its own that need not be in
    /// memory. Waits while too many uploads are running.
    pub async fn write_part(&mut self, part: FilePart) -> Result<(), KeepError> {
        if !self.is_open {
            return Err(KeepError::NoOpenFile);
        }
        self.check()?;
        self.wait_for_upload_slot().await?;
        let (block, len) = (self.new_block(), part.len());
        if let Some(file) = self.files.last_mut() {
            let offset = 0;
            file.pieces.push(Piece { block, offset, len });
        }
        // The file has pieces in other blocks now, so it cannot move to the next block as a whole.
        self.file_start = None;
        let store = self.store.clone();
        self.uploads
            .spawn(async move { (block, store.put_file(part).await) });
        Ok(())
    }

    /// Ends the open file.
    pub fn finish_file(&mut self) {
        self.is_open = false;
        self.file_start = None;
    }

    /// Stores a whole file from `input`. Returns its size.
    pub async fn put_reader<R: AsyncRead + Unpin>(
        &mut self,
        path: &str,
        mut input: R,
    ) -> Result<u64, KeepError> {
        self.start_file(path)?;
        let mut size = 0;
        // The buffer begins small, like most files.
        let mut chunk = Vec::with_capacity(8 << 10);
        loop {
            chunk.clear();
            let read = input.read_buf(&mut chunk).await;
            let read = read.map_err(|source| KeepError::Input {
                path: path.to_owned(),
                source,
            })?;
            if read == 0 {
                break;
            }
            self.write(&chunk).await?;
            size += read as u64;
            if chunk.len() == chunk.capacity() && chunk.len() < READ_SIZE {
                chunk.reserve(2 * chunk.capacity());
            }
        }
        self.finish_file();
        Ok(size)
    }

    /// Adds an empty file `.keep`, so that an empty directory exists.
    pub fn add_dir_placeholder(&mut self, dir: &str) -> Result<(), KeepError> {
        self.paths.add_dir_placeholder(dir)?;
        Ok(())
    }

    /// Stores everything written so far and returns its manifest. Writing can continue.
    pub async fn snapshot(&mut self) -> Result<Manifest, KeepError> {
        self.store_rest().await?;
        self.assemble(self.paths.clone())
    }

    async fn store_rest(&mut self) -> Result<(), KeepError> {
        self.check()?;
        if !self.buffer.is_empty() {
            self.wait_for_upload_slot().await?;
            // The open file, if any, continues in another block.
            self.file_start = self.is_open.then_some(0);
            self.upload_buffer();
        }
        while !self.uploads.is_empty() {
            self.finish_one_upload().await?;
        }
        Ok(())
    }

    /// The manifest of the stored blocks, from a collection with all paths.
    fn assemble(&self, mut builder: ManifestBuilder) -> Result<Manifest, KeepError> {
        for file in &self.files {
            let mut extents = Vec::with_capacity(file.pieces.len());
            for piece in &file.pieces {
                let locator = self.stored.get(piece.block).cloned().flatten();
                extents.push(Extent {
                    locator: locator.ok_or(KeepError::WriterFailed)?,
                    offset: piece.offset as u64,
                    len: piece.len as u64,
                });
            }
            builder.add_file(&file.path.to_string(), extents)?;
        }
        Ok(builder.build())
    }

    /// Stores the rest and returns the manifest of the collection, with the locators signed by the
    /// store.
    pub async fn finish(mut self) -> Result<Manifest, KeepError> {
        self.store_rest().await?;
        let paths = std::mem::take(&mut self.paths);
        self.assemble(paths)
    }

    fn check(&self) -> Result<(), KeepError> {
        if self.failed {
            return Err(KeepError::WriterFailed);
        }
        Ok(())
    }

    /// Grows the buffer by doubling, but never beyond a block.
    fn reserve(&mut self, more: usize) {
        let needed = self.buffer.len() + more;
        if needed > self.buffer.capacity() {
            let capacity = needed.max(2 * self.buffer.capacity()).min(self.block_size);
            self.buffer.reserve_exact(capacity - self.buffer.len());
        }
    }

    /// Adds the next `len` bytes of the buffer to the open file.
    fn add_piece(&mut self, offset: usize, len: usize) {
        let block = self.buffer_block();
        let Some(file) = self.files.last_mut() else {
            return;
        };
        match file.pieces.last_mut() {
            Some(last) if last.block == block && last.offset + last.len == offset => {
                last.len += len
            }
            _ => file.pieces.push(Piece { block, offset, len }),
        }
    }

    /// Uploads the full buffer. If the open file began in it, only the bytes before are uploaded,
    /// and the file begins the next block.
    async fn flush_full_buffer(&mut self) -> Result<(), KeepError> {
        // No await after this one, so that a cancelled call cannot lose the buffer.
        self.wait_for_upload_slot().await?;
        let start = self.file_start.take().filter(|start| *start > 0);
        let Some(start) = start else {
            self.upload_buffer();
            return Ok(());
        };
        let begun = self.buffer.split_off(start);
        self.upload_buffer();
        self.buffer = begun;
        if self.buffer.is_empty() {
            return Ok(());
        }
        // The part of the file in this block is one piece.
        let next = self.buffer_block();
        if let Some(piece) = self
            .files
            .last_mut()
            .and_then(|file| file.pieces.last_mut())
        {
            piece.block = next;
            piece.offset = 0;
        }
        Ok(())
    }

    fn new_block(&mut self) -> usize {
        self.stored.push(None);
        self.stored.len() - 1
    }

    fn buffer_block(&mut self) -> usize {
        if let Some(block) = self.buffer_block {
            return block;
        }
        let block = self.new_block();
        *self.buffer_block.insert(block)
    }

    async fn wait_for_upload_slot(&mut self) -> Result<(), KeepError> {
        while self.uploads.len() >= self.max_uploads {
            self.finish_one_upload().await?;
        }
        Ok(())
    }

    /// Starts the upload of the buffer and begins an empty one.
    fn upload_buffer(&mut self) {
        let index = self.buffer_block();
        self.buffer_block = None;
        let store = self.store.clone();
        let data = Bytes::from(std::mem::take(&mut self.buffer));
        self.uploads
            .spawn(async move { (index, store.put(data).await) });
    }

    async fn finish_one_upload(&mut self) -> Result<(), KeepError> {
        let result = match self.uploads.join_next().await {
            None => return Ok(()),
            Some(Ok((index, Ok(locator)))) => {
                self.stored[index] = Some(Arc::new(locator));
                return Ok(());
            }
            Some(Ok((_, Err(error)))) => error,
            Some(Err(_)) => KeepError::Interrupted,
        };
        self.failed = true;
        self.uploads.abort_all();
        Err(result)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;
    use crate::keep::store::BlockSource;

    /// A store that finishes a block only when it is told to, and counts the bytes it holds
    /// meanwhile.
    #[derive(Debug)]
    struct SlowStore {
        go: Semaphore,
        waiting: AtomicUsize,
        bytes: AtomicUsize,
    }

    impl BlockSource for SlowStore {
        async fn get(&self, _: &Locator) -> Result<Bytes, KeepError> {
            Err(KeepError::NoService)
        }
    }

    impl BlockStore for SlowStore {
        async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.bytes.fetch_add(data.len(), Ordering::SeqCst);
            let permit = self.go.acquire().await;
            permit.map_err(|_| KeepError::Interrupted)?.forget();
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            self.bytes.fetch_sub(data.len(), Ordering::SeqCst);
            Ok(Locator::of(&data))
        }
    }

    const BLOCK: usize = 1000;

    fn slow(uploads: usize) -> (Arc<SlowStore>, CollectionWriter<Arc<SlowStore>>) {
        let store = Arc::new(SlowStore {
            go: Semaphore::new(0),
            waiting: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        });
        (
            store.clone(),
            CollectionWriter::with_limits(store, BLOCK, uploads),
        )
    }

    #[tokio::test]
    async fn a_writer_holds_the_blocks_on_their_way_and_one_more() {
        let (store, mut writer) = slow(2);
        writer.start_file("small").unwrap();
        writer.write(&[1; 300]).await.unwrap();
        writer.start_file("large").unwrap();
        let mut most = 0;
        for _ in 0..200 {
            let chunk = [7; 70];
            loop {
                tokio::select! {
                    biased;
                    result = writer.write(&chunk) => break result.unwrap(),
                    // Nothing else can run: the writer waits for the store.
                    () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {}
                }
                let waiting = store.waiting.load(Ordering::SeqCst);
                assert_eq!(waiting, 2, "it waited although there was a place");
                most = most.max(store.bytes.load(Ordering::SeqCst) + writer.buffer.capacity());
                store.go.add_permits(1);
                tokio::task::yield_now().await;
            }
            assert!(store.waiting.load(Ordering::SeqCst) <= 2);
            let held = store.bytes.load(Ordering::SeqCst) + writer.buffer.capacity();
            most = most.max(held);
        }
        assert!(
            most > 2 * BLOCK,
            "two blocks were never on their way at once"
        );
        assert!(most <= 3 * BLOCK, "{most} bytes were held");
        store.go.add_permits(1000);
        let manifest = writer.finish().await.unwrap();
        assert!(manifest.total_size() >= 200 * 70);
    }

    #[tokio::test]
    async fn little_data_takes_little_memory() {
        let (_, mut writer) = slow(2);
        writer.block_size = MAX_BLOCK_SIZE;
        for name in ["a", "b", "c"] {
            writer.start_file(name).unwrap();
            writer.write(&[0; 100]).await.unwrap();
        }
        assert!(writer.buffer.capacity() < 1000);
    }
}
