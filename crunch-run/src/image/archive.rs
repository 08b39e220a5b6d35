//! Finds an image in a docker-archive or an OCI archive: its configuration and its layers.

mod names;
mod select;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use self::names::{normal, resolve};
pub use self::select::{LayerFile, Selected};
use super::source::{Allowance, Metered, Source, Transport};
use super::{Archive, ImageError};

/// Manifests and configurations are small; a larger one is not one.
const MOST_JSON: u64 = 16 << 20;
/// All of them together.
const MOST_JSON_IN_ALL: u64 = 64 << 20;
/// An index may point to indexes, and a link to a link, but not for ever.
const MOST_NESTING: usize = 5;
/// An archive has a few files for each layer.
const MOST_FILES: usize = 100_000;

/// Where each file of the archive is.
pub struct Index {
    label: String,
    files: BTreeMap<String, Place>,
    links: BTreeMap<String, String>,
    /// How many bytes of manifests and configurations were read.
    json_read: Cell<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    size: u64,
}

impl Index {
    /// Reads only the headers of the archive.
    pub fn read<A: Archive>(archive: &mut A, label: &str) -> Result<Self, ImageError> {
        let transport = Transport::default();
        let not_an_image = |reason: &str| ImageError::NotAnImage {
            label: label.to_owned(),
            reason: reason.to_owned(),
        };
        let read_failed =
            |source: io::Error, otherwise: &dyn Fn(&str) -> ImageError| match transport.failure() {
                Some(source) => ImageError::Read {
                    label: label.to_owned(),
                    source,
                },
                None => otherwise(&source.to_string()),
            };
        let mut archive = Source::new(archive, &transport);
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
            json_read: Cell::new(0),
        };
        let allowance = Allowance::unlimited();
        // Only headers are read here; what lies between them is passed over by seeking.
        let mut tar = tar::Archive::new(Metered::new(archive, &allowance));
        let mut entries = tar
            .entries_with_seek()
            .map_err(|error| read_failed(error, &not_an_image))?;
        loop {
            allowance.headers();
            let Some(entry) = entries.next() else {
                break;
            };
            let entry = entry.map_err(|error| {
                read_failed(error, &|reason| match index.files.is_empty() {
                    true => not_an_image(reason),
                    false => index.damaged(reason.to_owned()),
                })
            })?;
            if index.files.len() + index.links.len() >= MOST_FILES {
                return Err(not_an_image(&format!(
                    "it has more than {MOST_FILES} files; an image has a few for each layer"
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
                let place = Place {
                    offset: entry.raw_file_position(),
                    size: entry.size(),
                };
                index.files.insert(name, place);
            }
        }
        Ok(index)
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    fn has(&self, name: &str) -> bool {
        self.place(name).is_ok()
    }

    fn place(&self, name: &str) -> Result<Place, ImageError> {
        let missing = || self.damaged(format!("{name} is missing from it"));
        let mut name = normal(name.as_bytes()).ok_or_else(missing)?;
        for _ in 0..=MOST_NESTING {
            if let Some(place) = self.files.get(&name) {
                return Ok(*place);
            }
            match self.links.get(&name) {
                Some(target) => name.clone_from(target),
                None => break,
            }
        }
        Err(missing())
    }

    fn json<T: DeserializeOwned, A: Archive>(
        &self,
        archive: &mut A,
        name: &str,
    ) -> Result<T, ImageError> {
        serde_json::from_slice(&self.bytes(archive, name)?)
            .map_err(|error| self.damaged(format!("{name} cannot be read: {error}")))
    }

    fn checked<A: Archive>(
        &self,
        archive: &mut A,
        name: &str,
        hex: &str,
    ) -> Result<Vec<u8>, ImageError> {
        let bytes = self.bytes(archive, name)?;
        let found = digest(&bytes);
        if found.strip_prefix("sha256:") == Some(hex) {
            Ok(bytes)
        } else {
            Err(self.damaged(format!(
                "{name} has other content than its name says ({found})"
            )))
        }
    }

    fn bytes<A: Archive>(&self, archive: &mut A, name: &str) -> Result<Vec<u8>, ImageError> {
        let place = self.place(name)?;
        if place.size > MOST_JSON {
            return Err(self.damaged(format!("{name} is too large ({} bytes)", place.size)));
        }
        self.json_read.update(|read| read + place.size);
        if self.json_read.get() > MOST_JSON_IN_ALL {
            return Err(self.damaged(format!(
                "its manifests and configurations take more than {MOST_JSON_IN_ALL} bytes"
            )));
        }
        let mut bytes = Vec::with_capacity(place.size as usize);
        archive
            .seek(SeekFrom::Start(place.offset))
            .and_then(|_| archive.take(place.size).read_to_end(&mut bytes))
            .map_err(|source| ImageError::Read {
                label: self.label.clone(),
                source,
            })?;
        if (bytes.len() as u64) < place.size {
            return Err(self.damaged(format!("it ends within {name}")));
        }
        Ok(bytes)
    }

    fn damaged(&self, reason: String) -> ImageError {
        ImageError::Damaged {
            label: self.label.clone(),
            reason,
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    format!("sha256:{}", data_encoding::HEXLOWER.encode(&hash))
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
