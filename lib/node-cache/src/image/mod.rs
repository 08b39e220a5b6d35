//! Container images: unpacks the layers of an archive into the node cache.

mod error;
mod layer;
pub mod lock;
mod records;
mod refused;
mod store;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub use error::ImageError;
pub use image_archive::{Archive, ArchiveError, ImageConfig, digest_hex};
pub use store::ImageStore;

/// Source of an image. `open` is called on a blocking thread, and only if the image is not in the
/// cache.
pub struct ImageSource {
    /// The image id (`sha256:…`, or its hex digits), if the caller knows it.
    pub id: Option<String>,
    /// Name of the archive's content: no other content has it, and who has it may read the
    /// archive. By it the node remembers images; their ids are only what an uploader says.
    pub content: String,
    /// Name of the archive in messages.
    pub label: String,
    pub open: Box<dyn FnOnce() -> std::io::Result<Box<dyn Archive>> + Send>,
}

impl ImageSource {
    /// 64 hexadecimal digits that stand for `content`.
    pub fn key(&self) -> String {
        data_encoding::HEXLOWER.encode(&Sha256::digest(&self.content))
    }

    /// The archive, with its name in messages.
    pub fn open(self) -> Result<(Box<dyn Archive>, String), ArchiveError> {
        match (self.open)() {
            Ok(archive) => Ok((archive, self.label)),
            Err(error) => Err(ArchiveError::read(&self.label, error)),
        }
    }
}

impl std::fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageSource")
            .field("id", &self.id)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

/// An image ready to run. None of its layers is evicted while a clone of it exists.
#[derive(Debug, Clone)]
pub struct Image {
    /// `sha256:…`
    pub id: String,
    pub config: ImageConfig,
    /// Unpacked layers, lowest first.
    pub layers: Vec<PathBuf>,
    /// Shared locks on the cache entries.
    #[expect(
        dead_code,
        reason = "held, not read: the locks last as long as the files are open"
    )]
    leases: Arc<Vec<File>>,
}

impl Image {
    /// `layers`: directories with their locks, lowest first.
    fn of_layers(id: String, config: ImageConfig, layers: Vec<(PathBuf, File)>) -> Self {
        let (layers, leases): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
        Self {
            id,
            config,
            layers,
            leases: Arc::new(leases),
        }
    }

    /// An image in an engine's own store.
    pub fn in_engine_store(id: String, config: ImageConfig) -> Self {
        Self::of_layers(id, config, Vec::new())
    }
}
