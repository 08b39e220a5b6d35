//! Every way a command can fail, as one sentence and one exit status.

use std::io;
use std::path::PathBuf;

use arvados_client::endpoint::EndpointError;
use arvados_client::error::{StatusCode, with_causes};
use arvados_client::keep::KeepError;
use arvados_client::manifest::ManifestError;
use arvados_client::{ContainerUuid, Error as ApiError};

use crate::exit::Exit;
use crate::image::ImageError;
use crate::input_spec::InputSpecError;
use crate::state_dir::StateError;
use crate::supervise::UpError;

/// What ended a command.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{}", api_sentence(.0))]
    Api(#[from] ApiError),
    #[error(
        "no server is configured: start one with 'dispatch up', or set ARVADOS_API_HOST and ARVADOS_API_TOKEN{0}"
    )]
    NoServer(String),
    #[error("{0}")]
    Endpoint(EndpointError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Up(#[from] UpError),
    #[error(transparent)]
    Keep(#[from] KeepError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Input(#[from] InputSpecError),
    #[error("the content of {collection} cannot be read: {source}")]
    Manifest {
        collection: String,
        source: ManifestError,
    },
    #[error("the API server does not say how many containers there are")]
    NoCount,
    #[error("there is no job {0}; see them with: dispatch list --all")]
    NoJob(String),
    #[error(
        "no job has container {uuid} any more: {end}. Its job may go on with another: dispatch list --all"
    )]
    FormerContainer { uuid: ContainerUuid, end: String },
    #[error("{number} is the number of several jobs ({uuids}); use the uuid")]
    AmbiguousJob { number: u64, uuids: String },
    #[error(
        "no image {0:?} is stored on this server; add it with 'dispatch image add {0} FILE', or see 'dispatch image list'"
    )]
    NoImage(String),
    #[error("{0} is not a collection that exists and that this token may read")]
    NoCollection(String),
    #[error(
        "there is no {path:?} in collection {collection}; see what is with: dispatch get --list {collection}"
    )]
    NoPath { collection: String, path: String },
    #[error("{0} does not exist on this machine, and is no collection uuid or portable data hash")]
    NoFile(PathBuf),
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("{0} is neither a file nor a directory and cannot be stored")]
    NotStorable(PathBuf),
    #[error("{0} leads back into itself through a symbolic link; store what it points to instead")]
    LinkLoop(PathBuf),
    #[error("{0:?} is not UTF-8 text, which names in a collection must be; rename it")]
    NameNotText(PathBuf),
    #[error("{0} appears twice among the things to store; rename one, or store them apart")]
    NameTwice(String),
    #[error("{} already exist{} ({}); nothing was written. Use another directory, or --force to overwrite", count(.0.len()), if .0.len() == 1 { "s" } else { "" }, first(.0))]
    WouldOverwrite(Vec<PathBuf>),
    #[error(
        "{0} is a symbolic link or not a directory, and nothing is written through it; remove it or use another directory"
    )]
    InTheWay(PathBuf),
    #[error("{0} is a directory where one file is needed; name a file in it")]
    NotOneFile(String),
    #[error("job {job} has no output: {why}")]
    NoOutput { job: String, why: String },
    #[error("job {job} has no log{why}")]
    NoLog { job: String, why: String },
    #[error("the log of job {job} has no {file}; it has {present}")]
    NoLogFile {
        job: String,
        file: String,
        present: String,
    },
    #[error("{0:?} cannot be set in the environment: write NAME=VALUE")]
    BadEnv(String),
    #[error(
        "{0}; the job may be in the queue all the same: look with 'dispatch list' before submitting it again"
    )]
    MaybeSubmitted(String),
    #[error("the server refused the job: {0}")]
    Refused(String),
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

impl Failure {
    /// The exit status of a command that ends so.
    pub fn exit(&self) -> Exit {
        match self {
            Failure::Api(error) => match error.status() {
                Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Exit::Denied,
                Some(StatusCode::NOT_FOUND) => Exit::NotFound,
                _ if matches!(
                    error,
                    ApiError::Connect { .. } | ApiError::Interrupted { .. }
                ) =>
                {
                    Exit::Unreachable
                }
                _ => Exit::Failure,
            },
            Failure::NoServer(_) | Failure::Endpoint(_) => Exit::Denied,
            Failure::State(StateError::NotUp(_)) => Exit::Denied,
            Failure::State(StateError::AlreadyUp { .. }) => Exit::AlreadyUp,
            Failure::Image(ImageError::NoFile(_)) => Exit::NotFound,
            Failure::NoJob(_)
            | Failure::FormerContainer { .. }
            | Failure::NoImage(_)
            | Failure::NoCollection(_)
            | Failure::NoPath { .. }
            | Failure::NoFile(_)
            | Failure::NoOutput { .. }
            | Failure::NoLog { .. }
            | Failure::NoLogFile { .. } => Exit::NotFound,
            Failure::Input(_) | Failure::BadEnv(_) => Exit::Usage,
            Failure::WouldOverwrite(_) => Exit::WouldOverwrite,
            _ => Exit::Failure,
        }
    }

    /// The server cannot be reached or cannot answer now: whoever waits anyway may go on waiting.
    pub fn is_outage(&self) -> bool {
        match self {
            Failure::Api(ApiError::Connect { .. } | ApiError::Interrupted { .. }) => true,
            Failure::Api(error) => error
                .status()
                .is_some_and(|s| s.is_server_error() || s == StatusCode::TOO_MANY_REQUESTS),
            _ => false,
        }
    }

    /// The reader of our output went away, which is no failure of ours (`dispatch list | head`).
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

fn api_sentence(error: &ApiError) -> String {
    match error.status() {
        Some(StatusCode::UNAUTHORIZED) => format!(
            "the server does not accept the token: it is wrong, expired or revoked; set ARVADOS_API_TOKEN to a valid one ({error})"
        ),
        Some(StatusCode::FORBIDDEN) => format!("the token may not do this ({error})"),
        _ if matches!(error, ApiError::Connect { .. }) => {
            format!(
                "{}; check that it runs and that ARVADOS_API_HOST is right",
                with_causes(error)
            )
        }
        _ => with_causes(error),
    }
}

fn count(files: usize) -> String {
    match files {
        1 => "1 file".to_owned(),
        n => format!("{n} files"),
    }
}

fn first(files: &[PathBuf]) -> String {
    let shown: Vec<String> = files
        .iter()
        .take(3)
        .map(|f| f.display().to_string())
        .collect();
    let more = if files.len() > shown.len() {
        ", …"
    } else {
        ""
    };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_the_way_are_counted_and_named() {
        let one = Failure::WouldOverwrite(vec!["a".into()]).to_string();
        assert!(one.starts_with("1 file already exists (a);"), "{one}");
        let many = Failure::WouldOverwrite(vec!["a".into(); 5]).to_string();
        assert!(
            many.starts_with("5 files already exist (a, a, a, …);"),
            "{many}"
        );
    }
}
