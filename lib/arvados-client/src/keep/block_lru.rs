//! A cache of the most recently used blocks, for readers of small files that share a block.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::error::KeepError;
use super::store::BlockSource;
use crate::locator::Locator;

type Entry = (Locator, Arc<OnceCell<Bytes>>);

/// A source that caches the most recently used blocks. Concurrent readers of a block share one
/// fetch.
///
/// Cached blocks count towards the memory limit of the [`KeepClient`](super::KeepClient) below,
/// which must be larger.
#[derive(Debug)]
pub struct BlockLru<S> {
    source: S,
    capacity: usize,
    /// Least recently used first; locators without hints.
    entries: Mutex<VecDeque<Entry>>,
}

impl<S: BlockSource> BlockLru<S> {
    /// Caches up to `capacity` blocks (at least one) of `source`.
    pub fn new(source: S, capacity: usize) -> Self {
        Self {
            source,
            capacity: capacity.max(1),
            entries: Mutex::default(),
        }
    }

    /// The cache cell of a block, which becomes the most recently used one.
    fn cell(&self, locator: &Locator) -> Arc<OnceCell<Bytes>> {
        let mut entries = self.entries.lock();
        let key = locator.stripped();
        let index = entries.iter().position(|(name, _)| *name == key);
        let entry = index
            .and_then(|at| entries.remove(at))
            .unwrap_or_else(|| (key, Arc::default()));
        let cell = entry.1.clone();
        if entries.len() >= self.capacity {
            entries.pop_front();
        }
        entries.push_back(entry);
        cell
    }
}

impl<S: BlockSource> BlockSource for BlockLru<S> {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        let cell = self.cell(locator);
        // An error leaves the cell empty, so the next reader fetches again.
        let data = cell.get_or_try_init(|| self.source.get(locator)).await?;
        Ok(data.clone())
    }
}
