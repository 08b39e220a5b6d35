//! The last few blocks read, kept for the next reader: many small files share one block.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::OnceCell;

use super::error::KeepError;
use super::locator::Locator;
use super::store::BlockSource;

type Entry = (Locator, Arc<OnceCell<Bytes>>);

/// A source that remembers the blocks used last and fetches a block once however many readers wait for it.
///
/// The blocks it remembers count towards the memory limit of the [`KeepClient`](super::KeepClient) below it, which
/// must be larger.
#[derive(Debug)]
pub struct RecentBlocks<S> {
    source: S,
    capacity: usize,
    /// Least recently used first; locators without hints.
    entries: Mutex<VecDeque<Entry>>,
}

impl<S: BlockSource> RecentBlocks<S> {
    /// Remembers up to `capacity` blocks (at least one) of `source`.
    pub fn new(source: S, capacity: usize) -> Self {
        Self {
            source,
            capacity: capacity.max(1),
            entries: Mutex::default(),
        }
    }

    /// The place for a block, now the most recently used one.
    fn cell(&self, locator: &Locator) -> Arc<OnceCell<Bytes>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let key = locator.stripped();
        let known = entries.iter().position(|(name, _)| *name == key);
        let entry = known
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

impl<S: BlockSource> BlockSource for RecentBlocks<S> {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        let cell = self.cell(locator);
        // A failure leaves the cell empty, so the next reader tries again.
        let data = cell.get_or_try_init(|| self.source.get(locator)).await?;
        Ok(data.clone())
    }
}
