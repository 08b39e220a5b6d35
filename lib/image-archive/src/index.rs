//! Index of a tar archive: the position of each file, read from the headers alone.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::limited_read::{LimitedReader, ReadBudget, RecordingReader, TransportErrors};
use crate::names::{normal, resolve};
use crate::{Archive, ArchiveError};

/// Maximum number of links that are followed to a file.
const MAX_LINKS: usize = 5;
/// Maximum number of files; an archive has a few for each layer.
const MAX_FILES: usize = 100_000;

/// The offset and size of each file of an archive.
#[derive(Debug)]
pub struct Index {
    label: String,
    files: BTreeMap<String, FileRange>,
    links: BTreeMap<String, String>,
}

/// A file within the archive.
#[derive(Debug, Clone, Copy)]
pub struct FileRange {
    pub offset: u64,
    pub size: u64,
}

impl Index {
    /// Reads only the headers of the archive.
    pub fn read<A: Archive>(archive: &mut A, label: &str) -> Result<Self, ArchiveError> {
        let transport = TransportErrors::default();
        let not_an_image = |reason: &str| ArchiveError::NotAnImage {
            label: label.to_owned(),
            reason: reason.to_owned(),
        };
        let read_failed =
            |source: io::Error, otherwise: &dyn Fn(&str) -> ArchiveError| match transport.failure()
            {
                Some(source) => ArchiveError::read(label, source),
                None => otherwise(&source.to_string()),
            };
        let mut archive = RecordingReader::new(archive, &transport);
        let mut magic = [0u8; 6];
        let got = archive
            .seek(SeekFrom::Start(0))
            .and_then(|_| read_full(&mut archive, &mut magic))
            .map_err(|error| read_failed(error, &not_an_image))?;
        match &magic[..got] {
            [] => return Err(not_an_image("it is empty")),
            [0x1f, 0x8b, ..]
            | [0x28, 0xb5, 0x2f, 0xfd, ..]
            | [0xfd, b'7', b'z', ..]
            | [b'B', b'Z', b'h', ..] => {
                return Err(not_an_image(
                    "it is compressed as a whole; uncompress it first",
                ));
            }
            _ => {}
        }
        archive
            .seek(SeekFrom::Start(0))
            .map_err(|error| read_failed(error, &not_an_image))?;

        let mut index = Self {
            label: label.to_owned(),
            files: BTreeMap::new(),
            links: BTreeMap::new(),
        };
        let budget = ReadBudget::unlimited();
        // Only headers are read here; contents are skipped by seeking.
        let mut tar = tar::Archive::new(LimitedReader::new(archive, &budget));
        let mut entries = tar
            .entries_with_seek()
            .map_err(|error| read_failed(error, &not_an_image))?;
        loop {
            budget.headers();
            let Some(entry) = entries.next() else {
                break;
            };
            let entry = entry.map_err(|error| {
                // The words of the error may have bytes of the file.
                let reason = match budget.is_exceeded() {
                    true => error.to_string(),
                    false => "it has a header that cannot be read".to_owned(),
                };
                read_failed(error, &|_| match index.files.is_empty() {
                    true if budget.is_exceeded() => not_an_image(&reason),
                    true => not_an_image("it is not a tar archive"),
                    false => index.damaged(reason.clone()),
                })
            })?;
            if index.files.len() + index.links.len() >= MAX_FILES {
                return Err(not_an_image(&format!(
                    "it has more than {MAX_FILES} files; an image has a few for each layer"
                )));
            }
            let Some(name) = normal(&entry.path_bytes()) else {
                continue;
            };
            let kind = entry.header().entry_type();
            if kind.is_symlink() || kind.is_hard_link() {
                // Old docker-archives point repeated layers at the first one.
                if let Some(target) = entry.link_name_bytes() {
                    let base = Path::new(&name).parent().unwrap_or(Path::new(""));
                    let target = String::from_utf8_lossy(&target).into_owned();
                    let target = if kind.is_symlink() {
                        resolve(base, &target)
                    } else {
                        normal(target.as_bytes())
                    };
                    if let Some(target) = target {
                        index.links.insert(name, target);
                    }
                }
            } else if kind.is_file() {
                let range = FileRange {
                    offset: entry.raw_file_position(),
                    size: entry.size(),
                };
                index.files.insert(name, range);
            }
        }
        Ok(index)
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// Position of a file. Links within the archive are followed.
    pub fn find(&self, name: &str) -> Result<FileRange, ArchiveError> {
        let missing = || self.damaged(format!("{name} is missing from it"));
        let mut name = normal(name.as_bytes()).ok_or_else(missing)?;
        for _ in 0..=MAX_LINKS {
            if let Some(range) = self.files.get(&name) {
                return Ok(*range);
            }
            match self.links.get(&name) {
                Some(target) => name.clone_from(target),
                None => break,
            }
        }
        Err(missing())
    }

    /// A whole file. A file of more than `max_bytes` is refused before it is read.
    pub fn read_file<A: Archive>(
        &self,
        archive: &mut A,
        name: &str,
        max_bytes: u64,
    ) -> Result<Vec<u8>, ArchiveError> {
        let range = self.find(name)?;
        if range.size > max_bytes {
            return Err(self.damaged(format!("{name} is too large ({} bytes)", range.size)));
        }
        let mut bytes = Vec::with_capacity(range.size as usize);
        archive
            .seek(SeekFrom::Start(range.offset))
            .and_then(|_| archive.take(range.size).read_to_end(&mut bytes))
            .map_err(|source| ArchiveError::read(&self.label, source))?;
        if (bytes.len() as u64) < range.size {
            return Err(self.damaged(format!("it ends within {name}")));
        }
        Ok(bytes)
    }

    fn damaged(&self, reason: String) -> ArchiveError {
        ArchiveError::damaged(&self.label, reason)
    }
}

/// Reads until the buffer is full or the end.
fn read_full(mut from: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match from.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
