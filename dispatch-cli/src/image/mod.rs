//! Container images: converts archives, layouts and root directories into the one kind of archive
//! that is stored.

mod archive;
mod files;
mod name;
mod pack;
pub mod remove;
mod root_dir;
mod select;
pub mod share;
pub mod store;

use std::io;
use std::path::{Path, PathBuf};

use image_archive::ArchiveError;

pub use archive::ImageSource;
pub use name::ImageName;

/// Why an image cannot be added or found.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(
        "{0} does not exist; give a docker-archive, an OCI archive or layout, or a root directory"
    )]
    NoFile(PathBuf),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{}", archive_sentence(.0))]
    Archive(#[from] ArchiveError),
    #[error(
        "{path} holds several images ({present}); add one by the name it has there, or save it alone"
    )]
    Several { path: PathBuf, present: String },
    #[error("{0} is empty; a root directory holds the files of the container, like bin/sh")]
    EmptyRoot(PathBuf),
    #[error("{0} changed while it was being packed; try again when nothing writes to it")]
    Changed(PathBuf),
    #[error("{0} gives its image no name; give one: dispatch image add NAME {0}")]
    NoName(PathBuf),
    #[error("cannot pack the image: {0}")]
    Pack(io::Error),
    #[error(
        "{0:?} cannot be the name of an image: write NAME or NAME:TAG with letters, digits and . _ - / in the name"
    )]
    BadName(String),
    #[error("packing stopped unexpectedly")]
    Stopped,
}

impl ImageError {
    /// For `map_err`: a file that cannot be read.
    fn read(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| {
            let path = path.to_owned();
            Self::Read { path, source }
        }
    }
}

/// The sentence for somebody who adds an image.
fn archive_sentence(error: &ArchiveError) -> String {
    match error {
        ArchiveError::Read { label, source } => format!("cannot read {label}: {source}"),
        ArchiveError::NotAnImage { label, reason } => format!(
            "{label} is no container image: {reason}. Give what 'docker save' or 'podman save' writes, an OCI archive or layout, or a root directory"
        ),
        ArchiveError::Damaged { label, reason } => {
            format!("the image in {label} is damaged: {reason}")
        }
        ArchiveError::OtherPlatform { wanted, .. } => format!(
            "{error}; save the image for {wanted}, or give the architecture of the nodes with --architecture"
        ),
        other => other.to_string(),
    }
}
