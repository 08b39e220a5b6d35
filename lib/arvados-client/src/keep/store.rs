//! The traits of block stores.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;

use super::error::KeepError;
use super::file_part::FilePart;
use crate::locator::{BlockHash, Locator};

/// A source of blocks.
pub trait BlockSource: Send + Sync {
    /// Reads a block and verifies its hash and size. A failed call can be repeated.
    fn get(&self, locator: &Locator) -> impl Future<Output = Result<Bytes, KeepError>> + Send;
}

/// A store of blocks.
pub trait BlockStore: BlockSource {
    /// Stores a block durably and returns its locator, signed if the store signs. Storing a block
    /// twice is harmless.
    fn put(&self, data: Bytes) -> impl Future<Output = Result<Locator, KeepError>> + Send;

    /// Stores a part of a file, which a store can do without the whole block in memory.
    fn put_file(&self, part: FilePart) -> impl Future<Output = Result<Locator, KeepError>> + Send {
        async move { self.put(part.read().await?).await }
    }
}

impl<T: BlockSource> BlockSource for Arc<T> {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        T::get(self, locator).await
    }
}

impl<T: BlockStore> BlockStore for Arc<T> {
    async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
        T::put(self, data).await
    }

    async fn put_file(&self, part: FilePart) -> Result<Locator, KeepError> {
        T::put_file(self, part).await
    }
}

/// Computes the hash of a block, on a thread for blocking calls if the block is large.
pub async fn hash_block(data: &Bytes) -> Result<BlockHash, KeepError> {
    /// Maximum size of a block that is hashed in place, in less than a millisecond.
    const MAX_INLINE_BYTES: usize = 256 << 10;
    if data.len() <= MAX_INLINE_BYTES {
        return Ok(BlockHash::of(data));
    }
    let data = data.clone();
    let hash = tokio::task::spawn_blocking(move || BlockHash::of(&data));
    hash.await.map_err(|_| KeepError::Interrupted)
}
