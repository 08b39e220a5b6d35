//! Reads the named files of an image from a directory or a tar archive.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use image_archive::{ArchiveError, ImageFiles, Index, normal};

use super::ImageError;

/// Files by name.
#[derive(Debug)]
pub enum Files {
    /// An unpacked layout.
    Directory { path: PathBuf, label: String },
    /// An archive that is not compressed as a whole (any more).
    Archive { index: Index, file: File },
}

impl Files {
    pub fn directory(path: &Path) -> Self {
        Self::Directory {
            path: path.to_owned(),
            label: path.display().to_string(),
        }
    }

    /// Reads the headers of an archive. One that is compressed as a whole is unpacked into a
    /// temporary file first.
    pub fn archive(path: &Path) -> Result<Self, ImageError> {
        let file = File::open(path).map_err(ImageError::read(path))?;
        let mut file = uncompressed(file, path)?;
        let index = Index::read(&mut file, &path.display().to_string())?;
        Ok(Self::Archive { index, file })
    }

    /// Opens a file; returns its content and size.
    pub fn open(&self, name: &str) -> Result<(Box<dyn Read + '_>, u64), ArchiveError> {
        match self {
            Files::Directory { path, .. } => {
                let missing = || self.damaged(format!("{name} is missing from it"));
                let path = path.join(normal(name.as_bytes()).ok_or_else(missing)?);
                let failed = |source: io::Error| match source.kind() {
                    io::ErrorKind::NotFound => missing(),
                    _ => read_failed(path.display(), source),
                };
                let file = File::open(&path).map_err(failed)?;
                let size = file.metadata().map_err(failed)?.len();
                Ok((Box::new(file.take(size)), size))
            }
            Files::Archive { index, file } => {
                let range = index.find(name)?;
                let mut file: &File = file;
                file.seek(SeekFrom::Start(range.offset))
                    .map_err(|source| read_failed(index.label(), source))?;
                Ok((Box::new(file.take(range.size)), range.size))
            }
        }
    }
}

impl ImageFiles for Files {
    fn label(&self) -> &str {
        match self {
            Files::Directory { label, .. } => label,
            Files::Archive { index, .. } => index.label(),
        }
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Files::Directory { path, .. } => {
                normal(name.as_bytes()).is_some_and(|name| path.join(name).is_file())
            }
            Files::Archive { index, .. } => index.find(name).is_ok(),
        }
    }

    fn read(&self, name: &str, max_bytes: u64) -> Result<Vec<u8>, ArchiveError> {
        match self {
            Files::Directory { label, .. } => {
                let (mut from, size) = self.open(name)?;
                if size > max_bytes {
                    return Err(self.damaged(format!("{name} is too large")));
                }
                let mut bytes = Vec::new();
                from.read_to_end(&mut bytes)
                    .map_err(|source| read_failed(format_args!("{label}/{name}"), source))?;
                Ok(bytes)
            }
            Files::Archive { index, file } => index.read_file(&mut &*file, name, max_bytes),
        }
    }
}

/// The file itself, or a temporary file with the uncompressed content.
fn uncompressed(mut file: File, path: &Path) -> Result<File, ImageError> {
    let failed = ImageError::read(path);
    let mut magic = [0u8; 4];
    let got = (&mut file).take(4).read(&mut magic).map_err(&failed)?;
    file.seek(SeekFrom::Start(0)).map_err(&failed)?;
    let mut unpack: Box<dyn Read> = match &magic[..got] {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(file)),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            Box::new(zstd::stream::read::Decoder::new(file).map_err(&failed)?)
        }
        _ => return Ok(file),
    };
    let mut plain = tempfile::tempfile().map_err(ImageError::Pack)?;
    io::copy(&mut unpack, &mut plain).map_err(&failed)?;
    plain.seek(SeekFrom::Start(0)).map_err(&failed)?;
    Ok(plain)
}

fn read_failed(label: impl ToString, source: io::Error) -> ArchiveError {
    let label = label.to_string();
    ArchiveError::Read { label, source }
}
