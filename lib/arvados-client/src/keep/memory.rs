//! A block store in memory: for tests, and for collections that are assembled before they are sent.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;

use super::error::KeepError;
use super::store::{BlockSource, BlockStore, hash_block};
use crate::locator::{BlockHash, Locator, MAX_BLOCK_SIZE};

/// A store that keeps every block until it is dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    blocks: Mutex<HashMap<BlockHash, Bytes>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of different blocks.
    pub fn len(&self) -> usize {
        self.blocks.lock().len()
    }

    /// Whether the store is empty.
    pub fn is_empty(&self) -> bool {
        self.blocks.lock().is_empty()
    }
}

impl BlockSource for MemoryStore {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        let found = self.blocks.lock().get(&locator.hash).cloned();
        found
            .filter(|data| data.len() as u64 == locator.size)
            .ok_or_else(|| KeepError::NotFound {
                block: locator.stripped().to_string(),
                services: 1,
            })
    }
}

impl BlockStore for MemoryStore {
    async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
        let locator = Locator::new(hash_block(&data).await?, data.len() as u64);
        if data.len() > MAX_BLOCK_SIZE {
            return Err(KeepError::TooLarge {
                block: locator.to_string(),
                limit: MAX_BLOCK_SIZE,
            });
        }
        self.blocks.lock().insert(locator.hash, data);
        Ok(locator)
    }
}
