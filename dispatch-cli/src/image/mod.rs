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
use std::path::PathBuf;

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
    #[error(
        "{path} is no container image: {why}. Give what 'docker save' or 'podman save' writes, an OCI archive or layout, or a root directory"
    )]
    NotAnImage { path: PathBuf, why: String },
    #[error("the image in {path} is damaged: {why}")]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{path} holds several images ({present}); add one by the name it has there, or save it alone"
    )]
    Several { path: PathBuf, present: String },
    #[error(
        "{path} has an image for {present} only, and not for {wanted}; save the image for {wanted}, or give the architecture of the nodes with --architecture"
    )]
    OtherPlatform {
        path: PathBuf,
        present: String,
        wanted: String,
    },
    #[error(transparent)]
    Unsupported(ArchiveError),
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

impl From<ArchiveError> for ImageError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Read { label, source } => Self::Read {
                path: label.into(),
                source,
            },
            ArchiveError::NotAnImage { label, reason } => Self::NotAnImage {
                path: label.into(),
                why: reason,
            },
            ArchiveError::Damaged { label, reason } => Self::Damaged {
                path: label.into(),
                why: reason,
            },
            ArchiveError::OtherPlatform {
                label,
                present,
                wanted,
            } => Self::OtherPlatform {
                path: label.into(),
                present,
                wanted,
            },
            other => Self::Unsupported(other),
        }
    }
}
