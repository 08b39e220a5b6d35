//! Errors of images, as sentences for users.

use std::io;
use std::path::PathBuf;

use image_archive::ArchiveError;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The sentence of the first refusal.
    #[error("{reason}")]
    RefusedBefore { reason: String },
    #[error(
        "not enough free space for image archive {label}: an earlier attempt here found that it needs more than {needed} bytes, and {} has {free} bytes free", cache.display()
    )]
    TooLarge {
        label: String,
        needed: u64,
        cache: PathBuf,
        free: u64,
    },
    #[error("the image cache failed at {path}: {source}")]
    Cache {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    /// True if the archive is at fault, false if this node is.
    pub fn is_image_fault(&self) -> bool {
        match self {
            Self::Archive(error) => error.is_image_fault(),
            Self::Cache { .. } | Self::TooLarge { .. } => false,
            Self::RefusedBefore { .. } => true,
        }
    }
}
