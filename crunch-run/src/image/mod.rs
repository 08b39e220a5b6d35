//! Container images: from an archive to unpacked layers in the node cache.

mod archive;
mod error;
mod layer;
pub(crate) mod lock;
mod source;
mod store;

use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use error::ImageError;
pub use store::ImageStore;

/// An image archive that can be read from any position: a file, or blocks fetched as needed.
pub trait Archive: Read + Seek + Send {}
impl<T: Read + Seek + Send> Archive for T {}

/// Where an image comes from. `open` is called, on a thread that may block, only when the image
/// is not in the cache.
pub struct ImageSource {
    /// The image id (`sha256:…`, or its hex digits), where the caller knows it.
    pub id: Option<String>,
    /// How to name the archive in messages.
    pub label: String,
    pub open: Box<dyn FnOnce() -> std::io::Result<Box<dyn Archive>> + Send>,
}

impl std::fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageSource")
            .field("id", &self.id)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

/// What the image says about how it wants to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// `NAME=value`, in the image's order.
    pub env: Vec<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub working_dir: Option<String>,
    /// `user`, `user:group`, by name or number.
    pub user: Option<String>,
}

/// An image ready to be run. While a clone of it lives, none of its layers is evicted.
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
    /// An image that another engine keeps in its own store.
    pub fn elsewhere(id: String, config: ImageConfig) -> Self {
        Self {
            id,
            config,
            layers: Vec::new(),
            leases: Arc::new(Vec::new()),
        }
    }
}

/// Id and configuration of the image `want` (or the only one) of an archive, of which little is read.
pub fn identify<A: Archive>(
    archive: &mut A,
    label: &str,
    want: Option<&str>,
) -> Result<(String, ImageConfig), ImageError> {
    let index = archive::Index::read(&mut *archive, label)?;
    let selected = index.select(archive, want)?;
    Ok((selected.id, selected.config))
}

/// The 64 hexadecimal digits of an id or digest, with or without `sha256:`.
pub(crate) fn digest_hex(id: &str) -> Result<&str, ImageError> {
    let hex = id.strip_prefix("sha256:").unwrap_or(id);
    if hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        Ok(hex)
    } else {
        Err(ImageError::BadId { id: id.to_owned() })
    }
}
