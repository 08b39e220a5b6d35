//! Errors of engines, as sentences for users and admins.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use image_archive::ArchiveError;
use node_cache::image::ImageError;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine cannot work on this machine; another one may.
    #[error("the {engine} engine cannot run containers here: {reason}")]
    Unavailable {
        engine: &'static str,
        reason: String,
    },
    /// No engine that was tried works, each for its reason.
    #[error(
        "no engine can run containers here: install crun or runc, or for an ordinary user apptainer or rootless podman; the reason of each engine: crunch-run check --offline"
    )]
    None { reasons: Vec<String> },
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The container could not be created or started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The shim of the container ended; the container was killed.
    #[error("the shim of container {name} ended unexpectedly ({how}), so the container was killed")]
    ShimLost { name: String, how: String },
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot {verb} container {name}: it {state}")]
    WrongState {
        name: String,
        verb: &'static str,
        state: &'static str,
    },
}

impl From<ArchiveError> for EngineError {
    fn from(error: ArchiveError) -> Self {
        Self::Image(error.into())
    }
}

impl EngineError {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        let (what, source) = (what.into(), source.into());
        Self::Io { what, source }
    }

    pub(crate) fn unavailable(engine: &'static str, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Unavailable { engine, reason }
    }

    /// True if the request is at fault and would fail on every node, false if this node or engine
    /// is.
    pub fn is_user_error(&self) -> bool {
        match self {
            Self::Start(error) => error.is_user_error(),
            Self::Image(error) => error.is_image_fault(),
            _ => false,
        }
    }
}

/// Reason why a container could not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartError {
    #[error("no command was given and the image has neither ENTRYPOINT nor CMD")]
    NoCommand,
    #[error("command \"{command}\" not found in the image; PATH is {path}")]
    CommandNotFound { command: String, path: String },
    #[error("command \"{command}\" does not exist in the image")]
    CommandMissing { command: String },
    #[error("command \"{command}\" ({resolved}) is not an executable file for user {user}")]
    NotExecutable {
        command: String,
        resolved: String,
        user: String,
    },
    #[error(
        "command \"{resolved}\" cannot be executed: its interpreter or dynamic loader {interpreter} is not in the image"
    )]
    InterpreterMissing {
        resolved: String,
        interpreter: String,
    },
    #[error(
        "command \"{resolved}\" is not a program this machine can run (wrong architecture, or a script without #!)"
    )]
    BadFormat { resolved: String },
    #[error("the arguments and environment of command \"{resolved}\" are too long for the kernel")]
    ArgumentsTooLong { resolved: String },
    #[error("working directory {cwd} does not exist in the container")]
    CwdMissing { cwd: String },
    #[error("working directory {cwd} cannot be entered: {reason}")]
    CwdUnusable { cwd: String, reason: String },
    #[error("{host}, to be mounted at {target}, does not exist on this node")]
    BindSourceMissing { host: PathBuf, target: PathBuf },
    #[error("mount target {target} is not an absolute path without \"..\"")]
    BadBindTarget { target: PathBuf },
    #[error(
        "nothing can be mounted at {target}: {place} {reason} in the image", target = target.display(), place = place.display()
    )]
    BadMountPoint {
        target: PathBuf,
        /// The path in the image that is in the way.
        place: PathBuf,
        reason: String,
    },
    #[error("user \"{user}\" is not in the image's /etc/passwd")]
    UnknownUser { user: String },
    #[error("group \"{group}\" is not in the image's /etc/group")]
    UnknownGroup { group: String },
    #[error("the image's {file} {reason}, so that its users are not known")]
    UnusableAccounts { file: String, reason: String },
    #[error("GPU {id} was granted but cannot be given to the container: {reason}")]
    GpuMissing { id: String, reason: String },
    #[error("CPUs {asked} were requested, but this process may use only {allowed}")]
    CpusetNotAllowed { asked: String, allowed: String },
    #[error(
        "the memory limit of {limit} bytes is too small for a container to start in (at least {least} bytes are needed)"
    )]
    MemoryTooSmall { limit: u64, least: u64 },
    #[error("no overlay file system could be made of the image: {reason}")]
    RootFs { reason: String },
    #[error("the container could not be created: {reason}")]
    Runtime { reason: String },
}

impl StartError {
    pub(crate) fn runtime(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Runtime { reason }
    }

    pub(crate) fn gpu_missing(id: &str, reason: impl Into<String>) -> Self {
        let (id, reason) = (id.to_owned(), reason.into());
        Self::GpuMissing { id, reason }
    }

    pub fn is_user_error(&self) -> bool {
        !matches!(
            self,
            Self::BindSourceMissing { .. }
                | Self::GpuMissing { .. }
                | Self::CpusetNotAllowed { .. }
                | Self::RootFs { .. }
                | Self::Runtime { .. }
        )
    }
}

/// The error of something that a container needs on the node.
pub(crate) fn cannot_create(what: &str, error: impl std::fmt::Display) -> StartError {
    StartError::runtime(format!("{what} could not be created: {error}"))
}
