//! Content of a block to store: bytes in memory, or a part of a file that is read during the
//! upload.

use std::io;

use bytes::Bytes;

use crate::keep::error::KeepError;
use crate::keep::file_part::FilePart;
use crate::keep::store::hash_block;
use crate::locator::Locator;

/// Size of an upload step, the granularity of the stall timeout.
const STEP_BYTES: usize = 256 << 10;

/// Content of a block. Clones are cheap, one per service.
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

    /// The locator, computed on a thread for blocking calls if the block is large.
    pub async fn locator(&self) -> Result<Locator, KeepError> {
        match self {
            Self::Memory(data) => Ok(Locator::new(hash_block(data).await?, data.len() as u64)),
            Self::File(part) => part.locator().await,
        }
    }

    /// The next step from `at`.
    pub async fn step(&self, at: usize) -> io::Result<Bytes> {
        match self {
            Self::Memory(data) => Ok(data.slice(at..data.len().min(at + STEP_BYTES))),
            Self::File(part) => part.read_step(at).await,
        }
    }
}
