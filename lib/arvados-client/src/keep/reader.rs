//! Reads a file from blocks, and prefetches the next block.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;

use super::error::KeepError;
use super::store::BlockSource;
use crate::locator::Locator;
use crate::manifest::Extent;

/// A block to fetch, with the ranges of it that are read, in order.
#[derive(Debug)]
struct Fetch {
    locator: Arc<Locator>,
    ranges: VecDeque<(u64, u64)>,
}

/// Reads a file or a range of it sequentially. At most two blocks are in memory: the current and
/// the next one.
#[derive(Debug)]
pub struct FileReader<S> {
    source: S,
    remaining: u64,
    fetches: VecDeque<Fetch>,
    current: Option<(Bytes, VecDeque<(u64, u64)>)>,
    next: Option<AbortOnDropHandle<Result<Bytes, KeepError>>>,
}

impl<S: BlockSource + Clone + 'static> FileReader<S> {
    /// A reader of the whole file. Nothing is fetched before the first read.
    pub fn new(source: S, extents: &[Extent]) -> Self {
        let mut fetches: VecDeque<Fetch> = VecDeque::new();
        let mut remaining = 0;
        for extent in extents.iter().filter(|e| e.len > 0) {
            remaining += extent.len;
            let range = (extent.offset, extent.len);
            match fetches.back_mut() {
                // The same block twice in a row is fetched once.
                Some(last) if last.locator.stripped() == extent.locator.stripped() => {
                    last.ranges.push_back(range);
                }
                _ => fetches.push_back(Fetch {
                    locator: extent.locator.clone(),
                    ranges: VecDeque::from([range]),
                }),
            }
        }
        Self {
            source,
            remaining,
            fetches,
            current: None,
            next: None,
        }
    }

    /// A reader of a range of the file. Only blocks of the range are fetched.
    pub fn range(source: S, extents: &[Extent], range: Range<u64>) -> Result<Self, KeepError> {
        let size = extents.iter().map(|e| e.len).sum();
        if range.start > range.end || range.end > size {
            return Err(KeepError::OutsideFile {
                from: range.start,
                to: range.end,
                size,
            });
        }
        let mut begin = 0;
        let mut wanted = Vec::new();
        for extent in extents {
            let end = begin + extent.len;
            let (from, to) = (range.start.max(begin), range.end.min(end));
            if from < to {
                wanted.push(Extent {
                    locator: extent.locator.clone(),
                    offset: extent.offset + (from - begin),
                    len: to - from,
                });
            }
            begin = end;
        }
        Ok(Self::new(source, &wanted))
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the next chunk, or `None` at the end. Drop it before the next call: a chunk keeps
    /// its whole block in memory. A failed call can be repeated.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, KeepError> {
        loop {
            if let Some((block, ranges)) = &mut self.current
                && let Some((offset, len)) = ranges.pop_front()
            {
                self.remaining -= len;
                // No overflow: the size of the block was verified, and the range lies inside the
                // block.
                let (from, to) = (offset as usize, (offset + len) as usize);
                return Ok(Some(block.slice(from..to)));
            }
            self.current = None;
            let Some(fetch) = self.fetches.front() else {
                return Ok(None);
            };
            let block = match self.next.take() {
                Some(fetching) => fetching.await.map_err(|_| KeepError::Interrupted)?,
                None => self.source.get(&fetch.locator).await,
            }?;
            if let Some(fetch) = self.fetches.pop_front() {
                self.current = Some((block, fetch.ranges));
            }
            self.next = self.fetches.front().map(|fetch| {
                let (source, locator) = (self.source.clone(), fetch.locator.clone());
                AbortOnDropHandle::new(tokio::spawn(async move { source.get(&locator).await }))
            });
        }
    }

    /// Reads the rest of a small file. More than `limit` bytes are an error before anything is
    /// fetched.
    pub async fn read_all(mut self, limit: usize) -> Result<Vec<u8>, KeepError> {
        let size = usize::try_from(self.remaining).unwrap_or(usize::MAX);
        if size > limit {
            return Err(KeepError::FileTooLarge {
                size: self.remaining,
                limit,
            });
        }
        let mut data = Vec::with_capacity(size);
        while let Some(chunk) = self.next_chunk().await? {
            data.extend_from_slice(&chunk);
        }
        Ok(data)
    }
}
