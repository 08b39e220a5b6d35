//! The named files of an image, wherever they are: in a tar archive or in an unpacked layout.

use std::cell::{Cell, RefCell};

use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::{Archive, ArchiveError, Index};

/// Maximum size of a manifest or configuration.
const MAX_JSON_BYTES: u64 = 16 << 20;
/// Maximum size of all manifests and configurations of one archive together.
const MAX_TOTAL_JSON_BYTES: u64 = 64 << 20;

/// Access to the files of an image by name.
pub trait ImageFiles {
    /// The name of the archive or layout in messages.
    fn label(&self) -> &str;

    fn contains(&self, name: &str) -> bool;

    /// The whole file. A file of more than `max_bytes` is refused before it is read.
    fn read(&self, name: &str, max_bytes: u64) -> Result<Vec<u8>, ArchiveError>;

    fn damaged(&self, reason: String) -> ArchiveError {
        ArchiveError::damaged(self.label(), reason)
    }
}

/// The files of an archive by its index.
pub struct ArchiveFiles<'a, A> {
    index: &'a Index,
    archive: RefCell<&'a mut A>,
}

impl<'a, A: Archive> ArchiveFiles<'a, A> {
    pub fn new(index: &'a Index, archive: &'a mut A) -> Self {
        Self {
            index,
            archive: RefCell::new(archive),
        }
    }
}

impl<A: Archive> ImageFiles for ArchiveFiles<'_, A> {
    fn label(&self) -> &str {
        self.index.label()
    }

    fn contains(&self, name: &str) -> bool {
        self.index.find(name).is_ok()
    }

    fn read(&self, name: &str, max_bytes: u64) -> Result<Vec<u8>, ArchiveError> {
        let mut archive = self.archive.borrow_mut();
        self.index.read_file(&mut **archive, name, max_bytes)
    }
}

/// Reads manifests and configurations within the limits on their size.
pub struct JsonReader<'a, F> {
    pub files: &'a F,
    bytes_read: Cell<u64>,
}

impl<'a, F: ImageFiles> JsonReader<'a, F> {
    pub fn new(files: &'a F) -> Self {
        Self {
            files,
            bytes_read: Cell::new(0),
        }
    }

    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, ArchiveError> {
        serde_json::from_slice(&self.bytes(name)?).map_err(|error| {
            self.files
                .damaged(format!("{name} cannot be read: {error}"))
        })
    }

    /// The file, if its content has the SHA-256 `hex`.
    pub fn verified(&self, name: &str, hex: &str) -> Result<Vec<u8>, ArchiveError> {
        let bytes = self.bytes(name)?;
        let found = digest(&bytes);
        if found.strip_prefix("sha256:") == Some(hex) {
            Ok(bytes)
        } else {
            Err(self.files.damaged(format!(
                "{name} has other content than its name says ({found})"
            )))
        }
    }

    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        let left = MAX_TOTAL_JSON_BYTES.saturating_sub(self.bytes_read.get());
        if left == 0 {
            return Err(self.too_much());
        }
        let bytes = self.files.read(name, MAX_JSON_BYTES)?;
        if bytes.len() as u64 > left {
            return Err(self.too_much());
        }
        self.bytes_read.update(|read| read + bytes.len() as u64);
        Ok(bytes)
    }

    fn too_much(&self) -> ArchiveError {
        self.files.damaged(format!(
            "its manifests and configurations take more than {MAX_TOTAL_JSON_BYTES} bytes"
        ))
    }
}

/// `sha256:…` of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    format!("sha256:{}", data_encoding::HEXLOWER.encode(&hash))
}
