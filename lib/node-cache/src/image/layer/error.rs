//! Errors of one entry, without its name.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::super::ImageError;
use super::Context;

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
    pub fn for_entry(self, entry: &Path, context: &Context<'_>, path: PathBuf) -> ImageError {
        let source = match self {
            Self::Refused(reason) => return context.unsafe_entry(entry, reason),
            Self::Read(error) => return context.read_failed(error),
            Self::Os(error) => error.into(),
            Self::Write(error) => error,
        };
        ImageError::Cache { path, source }
    }
}
