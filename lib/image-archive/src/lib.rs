//! Reads image archives: docker-archive and OCI layout.
//!
//! Input: an archive that may be hostile, read at any position. Output: the configuration and the
//! layers of one image, and the validated entries of a layer. Nothing is written here:
//! `image/layer/unpacker.rs` of node-cache unpacks them.

mod error;
mod export;
mod files;
mod index;
pub mod layer;
mod limited_read;
mod manifest;
mod names;
mod select;

use std::io::{Read, Seek};

use serde::{Deserialize, Serialize};

pub use error::ArchiveError;
pub use export::export;
pub use files::ImageFiles;
pub use index::{FileRange, Index};
pub use manifest::{Candidate, LayerFile, architecture, candidates};
pub use names::normal;
pub use select::{LayerRange, Selected};

/// An image archive that can be read from any position: a file, or blocks fetched as needed.
pub trait Archive: Read + Seek + Send {}
impl<T: Read + Seek + Send> Archive for T {}

/// The defaults of a container as the image's configuration gives them.
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

/// The 64 hexadecimal digits of an id or digest, with or without `sha256:`.
pub fn digest_hex(id: &str) -> Result<&str, ArchiveError> {
    let hex = id.strip_prefix("sha256:").unwrap_or(id);
    if hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        Ok(hex)
    } else {
        Err(ArchiveError::BadId { id: id.to_owned() })
    }
}
