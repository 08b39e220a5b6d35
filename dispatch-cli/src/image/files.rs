//! The named files of an image, in a directory or in a tar archive.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use super::ImageError;

/// Manifests and configurations are small; a larger one is not one.
const MOST_JSON: u64 = 16 << 20;
/// A link in an archive may point to a link, but not for ever.
const MOST_LINKS: usize = 5;

/// Files by name.
#[derive(Debug)]
pub enum Files {
    /// Unpacked.
    Directory(PathBuf),
    /// In an archive that is not compressed (any more).
    Archive {
        /// As it was given.
        path: PathBuf,
        /// The bytes.
        file: File,
        /// Where each file is.
        places: BTreeMap<String, (u64, u64)>,
        /// Old docker-archives point repeated layers at the first one.
        links: BTreeMap<String, String>,
    },
}

impl Files {
    /// Reads the headers of an archive; one that is compressed as a whole is unpacked into a temporary file.
    pub fn archive(path: &Path) -> Result<Self, ImageError> {
        let failed = |source| read_failed(path, source);
        let file = uncompressed(File::open(path).map_err(failed)?, path)?;
        let mut places = BTreeMap::new();
        let mut links = BTreeMap::new();
        let not_a_tar = |error: io::Error| ImageError::NotAnImage {
            path: path.to_owned(),
            why: format!("it cannot be read as a tar archive ({error})"),
        };
        let mut tar = tar::Archive::new(file.try_clone().map_err(failed)?);
        for entry in tar.entries_with_seek().map_err(not_a_tar)? {
            let entry = entry.map_err(not_a_tar)?;
            let Some(name) = resolve("", &entry.path_bytes()) else {
                continue;
            };
            let kind = entry.header().entry_type();
            if kind.is_file() {
                places.insert(name, (entry.raw_file_position(), entry.size()));
            } else if let Some(target) = entry.link_name_bytes() {
                let base = match kind.is_symlink() {
                    true => name.rsplit_once('/').map_or("", |(base, _)| base),
                    false => "",
                };
                if let Some(target) = resolve(base, &target) {
                    links.insert(name, target);
                }
            }
        }
        Ok(Files::Archive {
            path: path.to_owned(),
            file,
            places,
            links,
        })
    }

    /// As it was given, for messages.
    pub fn path(&self) -> &Path {
        match self {
            Files::Directory(path) | Files::Archive { path, .. } => path,
        }
    }

    /// Whether there is such a file.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Files::Directory(path) => {
                resolve("", name.as_bytes()).is_some_and(|name| path.join(name).is_file())
            }
            Files::Archive { .. } => self.place(name).is_some(),
        }
    }

    fn place(&self, name: &str) -> Option<(u64, u64)> {
        let Files::Archive { places, links, .. } = self else {
            return None;
        };
        let mut name = resolve("", name.as_bytes())?;
        for _ in 0..=MOST_LINKS {
            if let Some(place) = places.get(&name) {
                return Some(*place);
            }
            name = links.get(&name)?.clone();
        }
        None
    }

    /// The content of a file and its size.
    pub fn open(&self, name: &str) -> Result<(Box<dyn Read + '_>, u64), ImageError> {
        let missing = || self.damaged(format!("{name} is missing from it"));
        match self {
            Files::Directory(path) => {
                let name = resolve("", name.as_bytes()).ok_or_else(missing)?;
                let path = path.join(name);
                let file = File::open(&path).map_err(|source| match source.kind() {
                    io::ErrorKind::NotFound => missing(),
                    _ => read_failed(&path, source),
                })?;
                let size = file
                    .metadata()
                    .map_err(|source| read_failed(&path, source))?
                    .len();
                Ok((Box::new(file.take(size)), size))
            }
            Files::Archive { path, file, .. } => {
                let (offset, size) = self.place(name).ok_or_else(missing)?;
                let failed = |source| read_failed(path, source);
                let mut file: &File = file;
                file.seek(SeekFrom::Start(offset)).map_err(failed)?;
                Ok((Box::new(file.take(size)), size))
            }
        }
    }

    /// A small file, whole.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let (mut from, size) = self.open(name)?;
        if size > MOST_JSON {
            return Err(self.damaged(format!("{name} is too large ({size} bytes)")));
        }
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)
            .map_err(|source| read_failed(self.path(), source))?;
        if (bytes.len() as u64) < size {
            return Err(self.damaged(format!("it ends within {name}")));
        }
        Ok(bytes)
    }

    /// A small JSON file.
    pub fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, ImageError> {
        serde_json::from_slice(&self.read(name)?)
            .map_err(|error| self.damaged(format!("{name} cannot be read: {error}")))
    }

    /// The sentence for something that is not as it should be.
    pub fn damaged(&self, why: String) -> ImageError {
        ImageError::Damaged {
            path: self.path().to_owned(),
            why,
        }
    }
}

/// The file itself, or a temporary file with what is compressed in it.
fn uncompressed(mut file: File, path: &Path) -> Result<File, ImageError> {
    let failed = |source| read_failed(path, source);
    let mut magic = [0u8; 4];
    let got = (&mut file).take(4).read(&mut magic).map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut unpack: Box<dyn Read> = match &magic[..got] {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            Box::new(zstd::stream::read::Decoder::new(file).map_err(failed)?)
        }
        [0xfd, b'7', b'z', ..] | [b'B', b'Z', b'h', ..] => {
            return Err(ImageError::NotAnImage {
                path: path.to_owned(),
                why: "it is compressed with xz or bzip2; uncompress it first".to_owned(),
            });
        }
        _ => return Ok(file),
    };
    let mut plain = tempfile::tempfile().map_err(ImageError::Pack)?;
    io::copy(&mut unpack, &mut plain).map_err(failed)?;
    plain.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(plain)
}

/// `./a//b` as `a/b`; none for a name that leaves the image.
fn resolve(base: &str, name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => parts.clear(),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

fn read_failed(path: &Path, source: io::Error) -> ImageError {
    ImageError::Read {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        let rows = [
            ("", "./a//b/", Some("a/b")),
            ("x", "../y/layer.tar", Some("y/layer.tar")),
            ("", "../etc/passwd", None),
            ("a", "/b", Some("b")),
        ];
        for (base, name, expected) in rows {
            assert_eq!(
                resolve(base, name.as_bytes()).as_deref(),
                expected,
                "{name}"
            );
        }
    }
}
