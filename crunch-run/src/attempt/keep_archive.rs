//! Reads an image archive in Keep as a seekable file. The next block is fetched while one is read.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arvados_client::keep::{BlockSource, KeepError};
use arvados_client::manifest::Extent;
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

type Arriving = AbortOnDropHandle<Result<Bytes, KeepError>>;

/// A reader for a thread that may block. Holds at most two blocks in memory.
#[derive(Debug)]
pub struct KeepArchive<S> {
    source: S,
    extents: Vec<Extent>,
    /// Start of each extent, and the end of the last one.
    begins: Vec<u64>,
    position: u64,
    current: Option<(usize, Bytes)>,
    next: Option<(usize, Arriving)>,
    runtime: Handle,
    /// Largest position read so far, for progress messages.
    read: Arc<AtomicU64>,
}

impl<S: BlockSource + Clone + 'static> KeepArchive<S> {
    pub fn new(source: S, extents: Vec<Extent>, runtime: Handle, read: Arc<AtomicU64>) -> Self {
        let mut end = 0;
        let mut begins = vec![0];
        for extent in &extents {
            end += extent.len;
            begins.push(end);
        }
        Self {
            source,
            extents,
            begins,
            position: 0,
            current: None,
            next: None,
            runtime,
            read,
        }
    }

    fn size(&self) -> u64 {
        self.begins.last().copied().unwrap_or_default()
    }

    /// Returns the content of extent `index`.
    fn part(&mut self, index: usize) -> io::Result<&Bytes> {
        let has = self.current.as_ref().is_some_and(|(at, _)| *at == index);
        if !has {
            // Drop the old block before the new one arrives.
            self.current = None;
            let arriving = match self.next.take() {
                Some((at, arriving)) if at == index => arriving,
                _ => self.fetch(index),
            };
            let block = self
                .runtime
                .block_on(arriving)
                .map_err(io::Error::other)?
                .map_err(io::Error::other)?;
            let extent = &self.extents[index];
            let (from, to) = (
                extent.offset as usize,
                (extent.offset + extent.len) as usize,
            );
            self.current = Some((index, block.slice(from..to)));
            self.next =
                (index + 1 < self.extents.len()).then(|| (index + 1, self.fetch(index + 1)));
        }
        match &self.current {
            Some((_, part)) => Ok(part),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn fetch(&self, index: usize) -> Arriving {
        let (source, locator) = (self.source.clone(), self.extents[index].locator.clone());
        AbortOnDropHandle::new(
            self.runtime
                .spawn(async move { source.get(&locator).await }),
        )
    }
}

impl<S: BlockSource + Clone + 'static> Read for KeepArchive<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.size() || buffer.is_empty() {
            return Ok(0);
        }
        // The last extent that begins at or before the position; empty extents are skipped.
        let index = self.begins.partition_point(|begin| *begin <= self.position) - 1;
        let offset = (self.position - self.begins[index]) as usize;
        let part = self.part(index)?;
        let count = buffer.len().min(part.len() - offset);
        buffer[..count].copy_from_slice(&part[offset..offset + count]);
        self.position += count as u64;
        self.read.fetch_max(self.position, Ordering::Relaxed);
        Ok(count)
    }
}

impl<S: BlockSource + Clone + 'static> Seek for KeepArchive<S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
            SeekFrom::End(offset) => self.size().checked_add_signed(offset),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arvados_client::keep::{BlockStore, MemoryStore};

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn archive_reads_like_the_file_it_is() {
        let store = Arc::new(MemoryStore::new());
        let content: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        let mut extents = Vec::new();
        for part in content.chunks(300) {
            // Each part lies inside a larger block.
            let block = [b"xx", part, b"yy"].concat();
            let locator = Arc::new(store.put(Bytes::from(block)).await.unwrap());
            extents.push(Extent {
                locator: locator.clone(),
                offset: 2,
                len: part.len() as u64,
            });
            extents.push(Extent {
                locator,
                offset: 0,
                len: 0,
            });
        }
        let reply = Arc::new(AtomicU64::new(0));
        let mut archive = KeepArchive::new(store, extents, Handle::current(), reply.clone());
        tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            archive.read_to_end(&mut all).unwrap();
            assert_eq!(all, content);
            for (from, to) in [
                (SeekFrom::Start(299), 299),
                (SeekFrom::End(-1), 999),
                (SeekFrom::Start(600), 600),
                (SeekFrom::Current(-2), 599),
            ] {
                assert_eq!(archive.seek(from).unwrap(), to);
                let mut byte = [0];
                archive.read_exact(&mut byte).unwrap();
                assert_eq!(byte[0], content[to as usize]);
            }
            archive.seek(SeekFrom::Start(5000)).unwrap();
            assert_eq!(archive.read(&mut [0; 10]).unwrap(), 0);
            assert!(archive.seek(SeekFrom::End(-5000)).is_err());
        })
        .await
        .unwrap();
        assert_eq!(reply.load(Ordering::Relaxed), 1000);
    }
}
