//! Errors of saving the output, as sentences for users. Paths are those in the container.

use std::io;

use arvados_client::keep::KeepError;
use arvados_client::manifest::ManifestError;

use crate::inputs::MountError;

#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error(
        "output link {link} leads to {target}, which does not exist; remove the link or make its target"
    )]
    Dangling { link: String, target: String },
    #[error(
        "output link {link} leads to {target}, which is neither in the output nor in an input; copy the file into the output instead"
    )]
    Outside { link: String, target: String },
    #[error(
        "output link {link} leads through too many symlinks, or is part of a symlink cycle; remove it or copy the files instead"
    )]
    Cycle { link: String },
    #[error("output file {path} has a name or link target that is not UTF-8 text; rename it")]
    NotUtf8 { path: String },
    #[error("output directory {path} is more than {limit} levels deep; use fewer levels")]
    TooDeep { path: String, limit: usize },
    #[error(
        "the output has more than {limit} files and directories; pack them into fewer, or choose some by output_glob"
    )]
    TooMany { limit: usize },
    #[error(
        "the paths of the output's files and directories have more than {limit} bytes; use shorter names or fewer levels, pack the files into fewer, or choose some by output_glob"
    )]
    LongNames { limit: usize },
    #[error(
        "output file {path} is sparse: it has {holes} bytes of holes, which would be saved as zeros, and all files together may have {limit}; write it without holes, or pack it"
    )]
    Sparse {
        path: String,
        holes: u64,
        limit: u64,
    },
    #[error("output file {path} cannot be read on this node: {source}")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("output file {path} is another name of a file that could not be saved")]
    OtherName { path: String },
    #[error("a collection that the output refers to cannot be read: {0}")]
    Input(#[source] Box<MountError>),
    #[error("the output cannot be a collection: {0}")]
    Manifest(#[from] ManifestError),
    #[error("the output could not be stored: {0}")]
    Keep(#[source] KeepError),
    #[error("saving the output was interrupted")]
    Interrupted,
}

impl OutputError {
    /// True if the container made an output that cannot be saved, however often it is retried.
    pub fn is_user_error(&self) -> bool {
        match self {
            Self::Dangling { .. }
            | Self::Outside { .. }
            | Self::Cycle { .. }
            | Self::NotUtf8 { .. }
            | Self::TooDeep { .. }
            | Self::TooMany { .. }
            | Self::LongNames { .. }
            | Self::Sparse { .. }
            | Self::OtherName { .. }
            | Self::Manifest(_) => true,
            // The container denied read access, so a retry fails too.
            Self::Read { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Self::Input(error) => error.is_user_error(),
            Self::Keep(_) | Self::Interrupted => false,
        }
    }

    /// True if it is about one entry, and everything else can be saved.
    pub fn costs_one_entry(&self) -> bool {
        let is_of_all = matches!(
            self,
            Self::TooMany { .. } | Self::LongNames { .. } | Self::Manifest(_)
        );
        self.is_user_error() && !is_of_all
    }
}

impl From<KeepError> for OutputError {
    fn from(error: KeepError) -> Self {
        match error {
            KeepError::Manifest(error) => Self::Manifest(error),
            error => Self::Keep(error),
        }
    }
}
