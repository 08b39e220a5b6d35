//! A part of a local file that becomes a block: read once for its hash and again for the upload,
//! never whole in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use md5::{Digest, Md5};

use super::error::KeepError;
use crate::locator::{BlockHash, Locator};

const STEP_BYTES: usize = 256 << 10;

/// A range of a file. Clones read the same file.
#[derive(Debug, Clone)]
pub struct FilePart {
    file: Arc<File>,
    /// Path of the file in the collection, for messages.
    path: Arc<str>,
    offset: u64,
    len: usize,
}

impl FilePart {
    /// `len` bytes from `offset`. The file must not change before they are stored.
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

    /// Reads the whole part.
    pub async fn read(&self) -> Result<Bytes, KeepError> {
        let (part, path) = (self.clone(), self.path.clone());
        blocking(&path, move || part.read_now(0, part.len)).await
    }

    /// Reads at most one step from `at`.
    pub(super) async fn read_step(&self, at: usize) -> io::Result<Bytes> {
        let part = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let len = STEP_BYTES.min(part.len.saturating_sub(at));
            part.read_now(at, len)
        });
        read.await.map_err(io::Error::other).flatten()
    }

    /// Locator of the part as a block.
    pub(super) async fn locator(&self) -> Result<Locator, KeepError> {
        let (part, path) = (self.clone(), self.path.clone());
        blocking(&path, move || {
            let mut digest = Md5::new();
            let mut buffer = vec![0; STEP_BYTES];
            let mut at = 0;
            while at < part.len {
                let step = STEP_BYTES.min(part.len - at);
                let position = part.offset + at as u64;
                part.file.read_exact_at(&mut buffer[..step], position)?;
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
