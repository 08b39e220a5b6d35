//! Errors of planning and staging mounts, as sentences for users.

use std::io;
use std::path::PathBuf;

use arvados_client::ids::IdError;
use arvados_client::keep::KeepError;
use arvados_client::manifest::ManifestError;

use super::path::PathProblem;

/// An error of planning or staging mounts.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("mount {target} {problem}")]
    Mount { target: String, problem: Problem },
    #[error(
        "output_path {path:?} cannot be used ({problem}); give an absolute path without \"..\""
    )]
    OutputPath { path: String, problem: PathProblem },
    #[error(
        "output_path {path} is no mount the container can write to; add a mount of kind tmp with exactly this target"
    )]
    NoOutput { path: String },
    #[error(
        "collection {collection} of mount {target} does not exist or is not readable for the user of this container; check its name and permissions"
    )]
    NoCollection { target: String, collection: String },
    #[error("collection {collection} of mount {target} cannot be used: {source}")]
    Content {
        target: String,
        collection: String,
        #[source]
        source: Box<ManifestError>,
    },
    #[error(
        "file {path} of collection {collection} has a name that cannot exist on a file system; rename it there and run again"
    )]
    FileName { path: String, collection: String },
    #[error("collection {collection} of mount {target} could not be looked up: {source}")]
    LookUp {
        target: String,
        collection: String,
        #[source]
        source: Box<arvados_client::Error>,
    },
    #[error(
        "the API server answered with other content than {collection}, which mount {target} needs; its database or a proxy is damaged"
    )]
    WrongCollection { target: String, collection: String },
    #[error("file {path} could not be fetched: {source}")]
    Fetch {
        /// The path inside the container.
        path: String,
        #[source]
        source: KeepError,
    },
    #[error(
        "the inputs need {needed} bytes, but {place} on this node has only {free} bytes free; free some or point --scratch-dir at a larger disk"
    )]
    NoSpace {
        needed: u64,
        free: u64,
        place: PathBuf,
    },
    #[error("mount {target} could not be put in place at {path}: {source}")]
    Write {
        target: String,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("putting the mounts in place was interrupted")]
    Interrupted,
}

impl MountError {
    /// True if the request is at fault on every node; false if this node, its network or the server
    /// is.
    pub fn is_user_error(&self) -> bool {
        match self {
            Self::Mount { .. }
            | Self::OutputPath { .. }
            | Self::NoOutput { .. }
            | Self::NoCollection { .. }
            | Self::Content { .. }
            | Self::FileName { .. } => true,
            // Missing data is missing for every node.
            Self::Fetch { source, .. } => source.is_not_found(),
            Self::LookUp { .. }
            | Self::WrongCollection { .. }
            | Self::NoSpace { .. }
            | Self::Write { .. }
            | Self::Interrupted => false,
        }
    }
}

/// An error of one mount. The text follows "mount TARGET".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("is not at a usable place ({0}); give an absolute path without \"..\"")]
    Target(PathProblem),
    #[error(
        "is inside {0}, where the container has a file system of the kernel; choose another target"
    )]
    System(&'static str),
    #[error("is at the same place as mount {0}; remove one of them")]
    Twice(String),
    #[error("is both a secret and a regular mount; remove one of them")]
    SecretAndRegular,
    #[error("has kind \"{0}\", but only json and text mounts can be secret")]
    SecretKind(String),
    #[error("has kind \"{0}\", which cannot be mounted; use tmp, collection, json or text")]
    Kind(String),
    #[error("has kind \"{0}\"; only file can receive it, with a path below the output path")]
    NotFile(String),
    #[error("has kind \"{0}\"; only json, text or a file of a collection can be read as stdin")]
    Stdin(String),
    #[error("has path {path:?}, which is not below the output path {output}; choose one that is")]
    OutsideOutput { path: String, output: String },
    #[error("has path {path:?}, which is also inside mount {mount}; choose another path")]
    Covered { path: String, mount: String },
    #[error(
        "is below the output path and has kind \"{0}\"; only collection, json and text are possible there"
    )]
    BelowOutput(String),
    #[error("names a collection both by uuid and by portable data hash; remove one of them")]
    TwoNames,
    #[error("names no collection: {0}; copy the name again from the collection")]
    Collection(IdError),
    #[error(
        "would write to an existing collection by its uuid; mount its portable data hash to get a copy"
    )]
    WritableUuid,
    #[error(
        "would write to a collection by its portable data hash; that is possible only at or below the output path"
    )]
    WritablePdh,
    #[error("has content that is not a string; give a string, or use kind json")]
    NotText,
    #[error("is inside mount {0}, which is a file; choose another target")]
    InsideFile(String),
    #[error(
        "is in the way of something else: {path} is there already as {found}; choose another target"
    )]
    Occupied { path: String, found: &'static str },
    #[error("has a name that no file system can store; choose another target")]
    TargetName,
    #[error("is not a file but a directory; give the path of a file")]
    NotAFile,
}

impl Problem {
    pub(super) fn of(self, target: impl ToString) -> MountError {
        MountError::Mount {
            target: target.to_string(),
            problem: self,
        }
    }
}
