//! The seam between files and wherever their blocks are.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;

use super::error::KeepError;
use super::file_part::FilePart;
use super::locator::{BlockHash, Locator};

/// Something blocks can be read from.
pub trait BlockSource: Send + Sync {
    /// The whole content of a block, verified against its hash and size. A failed call may be repeated.
    fn get(&self, locator: &Locator) -> impl Future<Output = Result<Bytes, KeepError>> + Send;
}

/// Something blocks can be stored in as well.
pub trait BlockStore: BlockSource {
    /// Stores a block durably and gives its locator, signed if the store signs. Storing a block twice is harmless.
    fn put(&self, data: Bytes) -> impl Future<Output = Result<Locator, KeepError>> + Send;

    /// The same for a piece of a file, which a store that can need not have in memory.
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

/// The hash of a block, computed where it does not hold up other tasks.
pub async fn hash_block(data: &Bytes) -> Result<BlockHash, KeepError> {
    /// Hashed in well under a millisecond.
    const INLINE: usize = 256 << 10;
    if data.len() <= INLINE {
        return Ok(BlockHash::of(data));
    }
    let data = data.clone();
    let hash = tokio::task::spawn_blocking(move || BlockHash::of(&data));
    hash.await.map_err(|_| KeepError::Interrupted)
}
