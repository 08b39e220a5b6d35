//! Why an image cannot be used, as sentences for people.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("image archive {label} cannot be read: {source}")]
    Read {
        label: String,
        #[source]
        source: io::Error,
    },
    #[error("{label} is neither a docker-archive nor an OCI archive: {reason}")]
    NotAnImage { label: String, reason: String },
    #[error("image archive {label} is damaged: {reason}")]
    Damaged { label: String, reason: String },
    #[error("image {wanted} is not in archive {label}, which has {present}")]
    NotInArchive {
        label: String,
        wanted: String,
        present: String,
    },
    #[error(
        "image archive {label} has several images ({present}) and no image id was given to choose one"
    )]
    Ambiguous { label: String, present: String },
    #[error("image archive {label}: a layer has {media_type}, which is not supported")]
    UnsupportedLayer { label: String, media_type: String },
    #[error("layer {layer} of image archive {label} is refused: entry \"{entry}\" {reason}")]
    UnsafeEntry {
        label: String,
        layer: String,
        entry: String,
        reason: String,
    },
    #[error(
        "layer {layer} of image archive {label} has other content than its digest says (it is {found})"
    )]
    DigestMismatch {
        label: String,
        layer: String,
        found: String,
    },
    #[error("the image cache failed at {path}: {source}")]
    Cache {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("\"{id}\" is not an image id (sha256: and 64 hexadecimal digits)")]
    BadId { id: String },
}

impl ImageError {
    /// True where the archive is at fault rather than this node.
    pub fn is_images(&self) -> bool {
        !matches!(self, Self::Cache { .. } | Self::Read { .. })
    }
}
