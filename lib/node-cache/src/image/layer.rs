//! Unpacks one layer into a directory for overlayfs and verifies its digest.

mod attributes;
mod dir_ops;
mod entry_names;
mod error;
mod free_space;
mod unpacker;

use std::io::{self, Read, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use image_archive::limited_read::{LimitedReader, ReadBudget, RecordingReader, TransportErrors};
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
    let context = Context {
        label,
        layer: &layer.diff_id,
        transport: TransportErrors::default(),
    };
    let mut source = RecordingReader::new(archive, &context.transport);
    io::Seek::seek(&mut source, SeekFrom::Start(layer.offset))
        .map_err(|error| context.read_failed(error))?;
    let mut hashed = Hashing {
        inner: decompress(source.take(layer.size), &context)?,
        hash: Sha256::new(),
    };

    let budget = ReadBudget::unlimited();
    let limited = LimitedReader::new(&mut hashed, &budget);
    Unpacker::new(into, &context)?.run(&mut tar::Archive::new(limited), &budget)?;

    // The digest includes what follows the last entry.
    io::copy(&mut hashed, &mut io::sink()).map_err(|error| context.read_failed(error))?;
    let found = format!(
        "sha256:{}",
        data_encoding::HEXLOWER.encode(&hashed.hash.finalize())
    );
    if found != layer.diff_id {
        return Err(ImageError::DigestMismatch {
            label: label.to_owned(),
            layer: layer.diff_id.clone(),
            found,
        });
    }
    Ok(())
}

/// Names of archive and layer, for messages.
struct Context<'a> {
    label: &'a str,
    layer: &'a str,
    transport: TransportErrors,
}

impl Context<'_> {
    /// `Read` if the archive could not be read, `Damaged` if its content is invalid.
    fn read_failed(&self, error: io::Error) -> ImageError {
        match self.transport.failure() {
            Some(source) => ArchiveError::Read {
                label: self.label.to_owned(),
                source,
            },
            None => ArchiveError::Damaged {
                label: self.label.to_owned(),
                reason: format!("layer {} cannot be unpacked: {error}", self.layer),
            },
        }
        .into()
    }

    fn unsafe_entry(&self, entry: &Path, reason: impl Into<String>) -> ImageError {
        ImageError::UnsafeEntry {
            label: self.label.to_owned(),
            layer: self.layer.to_owned(),
            entry: entry_names::shown(entry),
            reason: reason.into(),
        }
    }
}

/// Detects the compression by content: docker-archives do not name it.
fn decompress<'a, R: Read + 'a>(
    mut from: R,
    context: &Context<'_>,
) -> Result<Box<dyn Read + 'a>, ImageError> {
    let mut magic = Vec::with_capacity(6);
    from.by_ref()
        .take(6)
        .read_to_end(&mut magic)
        .map_err(|error| context.read_failed(error))?;
    let kind: [u8; 6] = std::array::from_fn(|i| magic.get(i).copied().unwrap_or(0));
    let whole = io::Cursor::new(magic).chain(from);
    let unsupported = |media_type: &str| {
        ImageError::from(ArchiveError::UnsupportedLayer {
            label: context.label.to_owned(),
            media_type: media_type.to_owned(),
        })
    };
    Ok(match kind {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(
            zstd::stream::read::Decoder::new(whole).map_err(|error| context.read_failed(error))?,
        ),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => return Err(unsupported("xz compression")),
        [b'B', b'Z', b'h', ..] => return Err(unsupported("bzip2 compression")),
        _ => Box::new(whole),
    })
}

struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.hash.update(&buffer[..n]);
        Ok(n)
    }
}
