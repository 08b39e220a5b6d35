//! What can go wrong with one entry, before it is known which.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::super::ImageError;
use super::Context;
use super::names::relative;

pub enum Problem {
    /// The image is at fault.
    Refused(String),
    /// It cannot be read any further.
    Read(io::Error),
    /// This node is at fault.
    Os(Errno),
    Write(io::Error),
}

impl From<Errno> for Problem {
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

impl Problem {
    pub fn for_entry(self, entry: &Path, context: &Context<'_>, layer_dir: &Path) -> ImageError {
        let source = match self {
            Self::Refused(reason) => return context.unsafe_entry(entry, reason),
            Self::Read(error) => return context.read_failed(error),
            Self::Os(error) => error.into(),
            Self::Write(error) => error,
        };
        ImageError::Cache {
            path: layer_dir.join(relative(entry).unwrap_or_default()),
            source,
        }
    }
}
