//! Reasons why an image archive cannot be used, as sentences for users.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
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
    #[error("{label} has an image for {present} only, and not for {wanted}")]
    OtherPlatform {
        label: String,
        present: String,
        wanted: String,
    },
    #[error("image archive {label}: a layer has {media_type}, which is not supported")]
    UnsupportedLayer { label: String, media_type: String },
    #[error("layer {layer} of image archive {label} is refused: entry \"{entry}\" {reason}")]
    RefusedEntry {
        label: String,
        layer: String,
        entry: String,
        reason: String,
    },
    #[error("layer {layer} of image archive {label} does not match its digest (found {found})")]
    DigestMismatch {
        label: String,
        layer: String,
        found: String,
    },
    #[error("\"{id}\" is not an image id (sha256: and 64 hexadecimal digits)")]
    BadId { id: String },
}

impl ArchiveError {
    /// The archive `label` cannot be read.
    pub fn read(label: &str, source: io::Error) -> Self {
        let label = label.to_owned();
        Self::Read { label, source }
    }

    /// The content of archive `label` is invalid.
    pub fn damaged(label: &str, reason: String) -> Self {
        let label = label.to_owned();
        Self::Damaged { label, reason }
    }

    /// True if the archive is at fault, false if this node or the network is.
    pub fn is_image_fault(&self) -> bool {
        // Another node may be of the image's platform.
        !matches!(self, Self::Read { .. } | Self::OtherPlatform { .. })
    }
}
