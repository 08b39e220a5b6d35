//! A block's worth of a file on this machine: read once to be hashed and again to be sent, and never in memory as a
//! whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use md5::{Digest, Md5};

use super::error::KeepError;
use super::locator::{BlockHash, Locator};

const STEP: usize = 256 << 10;

/// A range of a file. Clones read the same file.
#[derive(Debug, Clone)]
pub struct FilePart {
    file: Arc<File>,
    /// For messages: what the file is called in the collection.
    path: Arc<str>,
    offset: u64,
    len: usize,
}

impl FilePart {
    /// `len` bytes from `offset` on; the file must not change before they are stored.
    pub fn new(file: Arc<File>, path: Arc<str>, offset: u64, len: usize) -> Self {
        Self {
            file,
            path,
            offset,
            len,
        }
    }

    /// Number of bytes.
    #[allow(
        clippy::len_without_is_empty,
        reason = "an empty block is never stored"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Everything at once.
    pub async fn read(&self) -> Result<Bytes, KeepError> {
        let (part, path) = (self.clone(), self.path.clone());
        blocking(&path, move || part.read_now(0, part.len)).await
    }

    /// At most a step of it, from `at` on.
    pub(super) async fn read_step(&self, at: usize) -> io::Result<Bytes> {
        let part = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let len = STEP.min(part.len.saturating_sub(at));
            part.read_now(at, len)
        });
        read.await.map_err(io::Error::other).flatten()
    }

    /// Its name as a block.
    pub(super) async fn locator(&self) -> Result<Locator, KeepError> {
        let (part, path) = (self.clone(), self.path.clone());
        blocking(&path, move || {
            let mut digest = Md5::new();
            let mut buffer = vec![0; STEP];
            let mut at = 0;
            while at < part.len {
                let step = STEP.min(part.len - at);
                let place = part.offset + at as u64;
                part.file.read_exact_at(&mut buffer[..step], place)?;
                digest.update(&buffer[..step]);
                at += step;
            }
            Ok(Locator::new(
                BlockHash::from_digest(digest),
                part.len as u64,
            ))
        })
        .await
    }

    fn read_now(&self, at: usize, len: usize) -> io::Result<Bytes> {
        let mut data = vec![0; len];
        self.file
            .read_exact_at(&mut data, self.offset + at as u64)?;
        Ok(data.into())
    }
}

async fn blocking<T: Send + 'static>(
    path: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, KeepError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|_| KeepError::Interrupted)?;
    done.map_err(|source| KeepError::Input {
        path: path.to_owned(),
        source,
    })
}
