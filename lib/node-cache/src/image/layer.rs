//! Unpacks one layer into a directory for overlayfs and verifies its digest.

mod attributes;
mod dir_ops;
mod error;
mod free_space;
mod unpacker;

use std::io::{Read, SeekFrom};
use std::path::Path;

use image_archive::layer::LayerStream;
use image_archive::{Archive, ArchiveError, LayerRange};

use super::ImageError;
use unpacker::Unpacker;

/// Unpacks `layer` of the archive into `into`, which must not exist.
pub fn unpack<A: Archive>(
    archive: &mut A,
    label: &str,
    layer: &LayerRange,
    into: &Path,
) -> Result<(), ImageError> {
    archive
        .seek(SeekFrom::Start(layer.offset))
        .map_err(|source| ArchiveError::read(label, source))?;
    let mut stream = LayerStream::open(archive.take(layer.size), label, &layer.diff_id)?;
    Unpacker::new(into)?.run(&mut stream)?;
    Ok(stream.finish()?)
}
