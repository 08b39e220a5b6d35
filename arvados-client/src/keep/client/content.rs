//! What is sent to a service: bytes in memory, or a piece of a file that is read on the way.

use std::io;

use bytes::Bytes;

use crate::keep::error::KeepError;
use crate::keep::file_part::FilePart;
use crate::keep::locator::Locator;
use crate::keep::store::hash_block;

/// Upload progress is noticed in steps of this size.
const STEP: usize = 256 << 10;

/// Clones are cheap: each service that gets a copy is sent one.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Memory(Bytes),
    File(FilePart),
}

impl Content {
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(data) => data.len(),
            Self::File(part) => part.len(),
        }
    }

    /// Its name, computed where that does not hold up other tasks.
    pub async fn locator(&self) -> Result<Locator, KeepError> {
        match self {
            Self::Memory(data) => Ok(Locator::new(hash_block(data).await?, data.len() as u64)),
            Self::File(part) => part.locator().await,
        }
    }

    /// The next bytes from `at` on.
    pub async fn step(&self, at: usize) -> io::Result<Bytes> {
        match self {
            Self::Memory(data) => Ok(data.slice(at..data.len().min(at + STEP))),
            Self::File(part) => part.read_step(at).await,
        }
    }
}
