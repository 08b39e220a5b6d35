//! The entries of a layer in their order, and the content of each.

use std::io::{self, Read};
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use tar_core::parse::{Limits, ParseError, ParseEvent, Parser};

use super::entry::{LayerEntry, SparseMap};
use super::entry_names::shown;
use crate::ArchiveError;
use crate::limited_read::{MAX_HEADER_BYTES, RecordingReader, TransportErrors};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Maximum size of the headers of one entry with the map of a sparse file. They are held in memory.
const MAX_BUFFER_BYTES: usize = 4 << 20;
const TOO_LARGE: &str = "the names and attributes of an entry take more than 1 MiB";
const ENDS_WITHIN_ENTRY: &str = "it ends within an entry";

/// Reads a layer once, from its beginning to its end.
pub struct LayerStream<'a> {
    label: &'a str,
    diff_id: &'a str,
    transport: TransportErrors,
    input: HashingReader<Box<dyn Read + 'a>>,
    /// What was read and not yet used: `buffer[used..]`.
    buffer: Vec<u8>,
    used: usize,
    parser: Parser,
    /// Bytes of the entry's content that were not yet read.
    content: u64,
    /// Bytes between its content and the next header.
    padding: u64,
    /// The entry, as the archive calls it, for messages.
    name: PathBuf,
}

impl<'a> LayerStream<'a> {
    /// `label` is the archive's name in messages, `diff_id` the digest of the uncompressed layer.
    pub fn open(
        layer: impl Read + 'a,
        label: &'a str,
        diff_id: &'a str,
    ) -> Result<Self, ArchiveError> {
        let transport = TransportErrors::default();
        let recording = RecordingReader::new(layer, &transport);
        let plain = decompress(recording).map_err(|error| match error {
            Unpackable::Read(error) => read_failed(&transport, label, diff_id, &error),
            Unpackable::Unsupported(compression) => ArchiveError::UnsupportedLayer {
                label: label.to_owned(),
                media_type: compression.to_owned(),
            },
        })?;
        let mut parser = Parser::new(Limits {
            max_metadata_size: MAX_HEADER_BYTES as u32,
            ..Limits::default()
        });
        // Times before 1970 are no error; other numbers are checked by `LayerEntry`.
        parser.set_ignore_pax_errors(true);
        Ok(Self {
            label,
            diff_id,
            transport,
            input: HashingReader {
                inner: plain,
                hash: Sha256::new(),
            },
            buffer: Vec::new(),
            used: 0,
            parser,
            content: 0,
            padding: 0,
            name: PathBuf::new(),
        })
    }

    /// The next entry; what is left of the content before it is skipped.
    pub fn next_entry(&mut self) -> Result<Option<LayerEntry>, ArchiveError> {
        self.skip_content()?;
        loop {
            let pending = self.buffer.len() - self.used;
            let event = self.parser.parse(&self.buffer[self.used..]);
            let (consumed, entry, sparse) = match event {
                Ok(ParseEvent::NeedData { min_bytes }) => {
                    // A number without an end asks for no more than there is.
                    if !self.fill(min_bytes.max(pending + 1))? {
                        return Ok(None);
                    }
                    continue;
                }
                Ok(ParseEvent::End { .. }) => return Ok(None),
                Ok(ParseEvent::GlobalExtensions { consumed, .. }) => {
                    self.used += consumed;
                    continue;
                }
                Ok(ParseEvent::Entry { consumed, entry }) => (consumed, entry, None),
                Ok(ParseEvent::SparseEntry {
                    consumed,
                    entry,
                    sparse_map: entries,
                    real_size,
                }) => (consumed, entry, Some(SparseMap { entries, real_size })),
                Err(ParseError::MetadataTooLarge { .. }) => return Err(self.damaged(TOO_LARGE)),
                Err(error) => return Err(self.damaged(&error.to_string())),
            };
            let name = entry.path_lossy().into_owned();
            let size = entry.size;
            let parsed = LayerEntry::new(&entry, sparse);
            self.name = PathBuf::from(name);
            self.used += consumed;
            self.content = size;
            self.padding = (512 - size % 512) % 512;
            return match parsed {
                Ok(entry) => Ok(Some(entry)),
                Err(reason) => Err(self.refused(reason)),
            };
        }
    }

    /// Compares the digest. What follows the last entry is part of it.
    pub fn finish(mut self) -> Result<(), ArchiveError> {
        io::copy(&mut self.input, &mut io::sink()).map_err(|error| self.read_failed(&error))?;
        let hash = self.input.hash.finalize();
        let found = format!("sha256:{}", data_encoding::HEXLOWER.encode(&hash));
        match found == self.diff_id {
            true => Ok(()),
            false => Err(ArchiveError::DigestMismatch {
                label: self.label.to_owned(),
                layer: self.diff_id.to_owned(),
                found,
            }),
        }
    }

    /// The error that the last entry cannot be unpacked. `reason` is the end of the sentence.
    pub fn refused(&self, reason: impl Into<String>) -> ArchiveError {
        ArchiveError::RefusedEntry {
            label: self.label.to_owned(),
            layer: self.diff_id.to_owned(),
            entry: shown(&self.name),
            reason: reason.into(),
        }
    }

    /// `Read` if the archive could not be read, `Damaged` if its content is invalid.
    pub fn read_failed(&self, error: &io::Error) -> ArchiveError {
        read_failed(&self.transport, self.label, self.diff_id, error)
    }

    fn damaged(&self, reason: &str) -> ArchiveError {
        damaged(self.label, self.diff_id, reason)
    }

    fn skip_content(&mut self) -> Result<(), ArchiveError> {
        let mut left = self.content.saturating_add(self.padding);
        (self.content, self.padding) = (0, 0);
        let buffered = left.min((self.buffer.len() - self.used) as u64);
        self.used += buffered as usize;
        left -= buffered;
        let skipped = io::copy(&mut self.input.by_ref().take(left), &mut io::sink());
        match skipped {
            Ok(skipped) if skipped == left => Ok(()),
            Ok(_) => Err(self.damaged(ENDS_WITHIN_ENTRY)),
            Err(error) => Err(self.read_failed(&error)),
        }
    }

    /// Reads until `wanted` bytes are in the buffer; false at the end of the layer.
    fn fill(&mut self, wanted: usize) -> Result<bool, ArchiveError> {
        if wanted > MAX_BUFFER_BYTES {
            return Err(self.damaged(TOO_LARGE));
        }
        self.buffer.drain(..self.used);
        self.used = 0;
        while self.buffer.len() < wanted {
            let before = self.buffer.len();
            let missing = wanted - before;
            let take = missing.next_multiple_of(READ_BYTES) as u64;
            let read = self.input.by_ref().take(take).read_to_end(&mut self.buffer);
            read.map_err(|error| self.read_failed(&error))?;
            if self.buffer.len() == before {
                // Some archives lack the two blocks of zeros at the end, or have one.
                return match self.buffer.iter().all(|byte| *byte == 0) {
                    true => Ok(false),
                    false => Err(self.damaged("it ends within a header")),
                };
            }
        }
        Ok(true)
    }
}

/// The content of the last entry as it is in the archive: of a sparse file without its holes.
impl Read for LayerStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted = into
            .len()
            .min(usize::try_from(self.content).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let buffered = &self.buffer[self.used..];
        let count = match buffered.len() {
            0 => self.input.read(&mut into[..wanted])?,
            _ => {
                let count = wanted.min(buffered.len());
                into[..count].copy_from_slice(&buffered[..count]);
                self.used += count;
                count
            }
        };
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                ENDS_WITHIN_ENTRY,
            ));
        }
        self.content -= count as u64;
        Ok(count)
    }
}

fn read_failed(
    transport: &TransportErrors,
    label: &str,
    diff_id: &str,
    error: &io::Error,
) -> ArchiveError {
    match transport.failure() {
        Some(source) => ArchiveError::read(label, source),
        None => damaged(label, diff_id, &error.to_string()),
    }
}

fn damaged(label: &str, diff_id: &str, reason: &str) -> ArchiveError {
    let reason = format!("layer {diff_id} cannot be unpacked: {reason}");
    ArchiveError::damaged(label, reason)
}

enum Unpackable {
    Read(io::Error),
    /// Name of the compression.
    Unsupported(&'static str),
}

/// Detects the compression by content: docker-archives do not name it.
fn decompress<'a>(mut from: impl Read + 'a) -> Result<Box<dyn Read + 'a>, Unpackable> {
    let mut magic = Vec::with_capacity(6);
    from.by_ref()
        .take(6)
        .read_to_end(&mut magic)
        .map_err(Unpackable::Read)?;
    let kind: [u8; 6] = std::array::from_fn(|i| magic.get(i).copied().unwrap_or(0));
    let whole = io::Cursor::new(magic).chain(from);
    Ok(match kind {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            Box::new(zstd::stream::read::Decoder::new(whole).map_err(Unpackable::Read)?)
        }
        [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            return Err(Unpackable::Unsupported("xz compression"));
        }
        [b'B', b'Z', b'h', ..] => return Err(Unpackable::Unsupported("bzip2 compression")),
        _ => Box::new(whole),
    })
}

struct HashingReader<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.hash.update(&buffer[..n]);
        Ok(n)
    }
}
