//! Errors of one entry, without its name.

use std::io;
use std::path::PathBuf;

use image_archive::layer::LayerStream;
use rustix::io::Errno;

use super::super::ImageError;

pub enum EntryError {
    /// The image is at fault.
    Refused(String),
    /// The archive cannot be read further.
    Read(io::Error),
    /// This node is at fault.
    Os(Errno),
    Write(io::Error),
}

impl From<Errno> for EntryError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NAMETOOLONG => {
                Self::Refused("has a name that is too long for any file system".into())
            }
            Errno::INVAL | Errno::ILSEQ => {
                Self::Refused("has a name or a number that no file system takes".into())
            }
            error => Self::Os(error),
        }
    }
}

impl EntryError {
    /// `path` is where the entry is unpacked to.
    pub fn for_entry(self, layer: &LayerStream<'_>, path: PathBuf) -> ImageError {
        let source = match self {
            Self::Refused(reason) => return layer.refused(reason).into(),
            Self::Read(error) => return layer.read_failed(&error).into(),
            Self::Os(error) => error.into(),
            Self::Write(error) => error,
        };
        ImageError::Cache { path, source }
    }
}
