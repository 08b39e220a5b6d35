//! Unpacks one layer into a directory for overlayfs and verifies its digest.

mod attributes;
mod dir_ops;
mod error;
mod free_space;
mod unpacker;

use std::path::Path;

use image_archive::{Archive, LayerRange};

use super::ImageError;
use unpacker::Unpacker;

/// Unpacks `layer` of the archive into `into`, which must not exist.
pub fn unpack<A: Archive>(
    archive: &mut A,
    label: &str,
    layer: &LayerRange,
    into: &Path,
) -> Result<(), ImageError> {
    let mut stream = layer.open(archive, label)?;
    Unpacker::new(into)?.run(&mut stream)?;
    Ok(stream.finish()?)
}
