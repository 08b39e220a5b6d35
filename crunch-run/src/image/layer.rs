//! Unpacks one layer into a directory that overlayfs can use, and checks that it is the right one.

mod attributes;
mod entry;
mod names;
mod problem;
mod room;
mod tree;

use std::io::{self, Read, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::archive::LayerFile;
use super::source::{Allowance, Metered, Source, Transport};
use super::{Archive, ImageError};
use tree::Unpacker;

/// Unpacks `layer` of the archive into `into`, which must not exist.
pub fn unpack<A: Archive>(
    archive: &mut A,
    label: &str,
    layer: &LayerFile,
    into: &Path,
) -> Result<(), ImageError> {
    let context = Context {
        label,
        layer: &layer.diff_id,
        transport: Transport::default(),
    };
    let mut source = Source::new(archive, &context.transport);
    io::Seek::seek(&mut source, SeekFrom::Start(layer.offset))
        .map_err(|error| context.read_failed(error))?;
    let mut hashed = Hashing {
        inner: decompress(source.take(layer.size), &context)?,
        hash: Sha256::new(),
    };

    let allowance = Allowance::unlimited();
    let metered = Metered::new(&mut hashed, &allowance);
    Unpacker::new(into, &context)?.run(&mut tar::Archive::new(metered), &allowance)?;

    // What follows the last entry is part of the digest too.
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

/// What is being unpacked, for messages.
struct Context<'a> {
    label: &'a str,
    layer: &'a str,
    transport: Transport,
}

impl Context<'_> {
    /// The archive's fault if its content makes no sense, the transport's if it could not be had.
    fn read_failed(&self, error: io::Error) -> ImageError {
        match self.transport.failure() {
            Some(source) => ImageError::Read {
                label: self.label.to_owned(),
                source,
            },
            None => ImageError::Damaged {
                label: self.label.to_owned(),
                reason: format!("layer {} cannot be unpacked: {error}", self.layer),
            },
        }
    }

    fn unsafe_entry(&self, entry: &Path, reason: impl Into<String>) -> ImageError {
        ImageError::UnsafeEntry {
            label: self.label.to_owned(),
            layer: self.layer.to_owned(),
            entry: names::shown(entry),
            reason: reason.into(),
        }
    }
}

/// By content, not by what the manifest calls it: docker-archives do not say.
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
    let unsupported = |media_type: &str| ImageError::UnsupportedLayer {
        label: context.label.to_owned(),
        media_type: media_type.to_owned(),
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
