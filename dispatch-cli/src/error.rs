//! Errors of all commands: each has one sentence and one exit status.

use std::io;
use std::path::{Path, PathBuf};

use arvados_client::endpoint::EndpointError;
use arvados_client::error::{StatusCode, with_causes};
use arvados_client::keep::KeepError;
use arvados_client::manifest::ManifestError;
use arvados_client::{ContainerRequestUuid, ContainerUuid, Error as ApiError, TokenUuid};

use crate::exit::Exit;
use crate::image::ImageError;
use crate::input_spec::InputSpecError;
use crate::state_dir::StateError;
use crate::supervise::UpError;
use crate::text::plural;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("{}", api_sentence(.0))]
    Api(#[from] ApiError),
    #[error(
        "no server is configured: start one with 'dispatch up' (or name its --state-dir here, too), or set ARVADOS_API_HOST and ARVADOS_API_TOKEN{0}"
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
    #[error("{0} needs a terminal; elsewhere run the command again and again")]
    NeedsTerminal(&'static str),
    #[error("the content of {collection} cannot be read: {source}")]
    Manifest {
        collection: String,
        source: ManifestError,
    },
    #[error("the API server does not report the number of containers")]
    NoCount,
    #[error(
        "interrupted; job {0} goes on: follow it with 'dispatch wait {0}' or 'dispatch logs -f {0}', stop it with 'dispatch kill {0}'"
    )]
    Interrupted(String),
    #[error("interrupted; the job has ended")]
    ReportInterrupted,
    #[error(
        "only an administrator may do this, and the token is that of user {0}; use the account that runs 'dispatch up', or set ARVADOS_API_TOKEN to the token of an administrator"
    )]
    NotAdmin(String),
    #[error("user {0} exists already; make a token for this user with: dispatch user token {0}")]
    UserExists(String),
    #[error("user {0} is disabled; enable this user with: dispatch user enable {0}")]
    UserDisabled(String),
    #[error("there is no user {0}; see them with: dispatch user list")]
    NoUser(String),
    #[error(
        "user {0} is the administrator of this command and cannot disable itself; use the token of another administrator"
    )]
    OwnUser(String),
    #[error("there is no token {0} that you may revoke; see yours with: dispatch token list")]
    NoToken(TokenUuid),
    #[error("the server made a token but did not return its secret; revoke it and try again")]
    NoSecret,
    #[error(
        "which jobs? give their numbers, ranges like 150-160 or uuids, or --name NAME, --failed or --all"
    )]
    NoSelection,
    #[error("there is no job {0}; see them with: dispatch list --all")]
    NoJob(String),
    #[error(
        "you have no job with the name {0:?}; see the names of yours with: dispatch list --all"
    )]
    NoJobNamed(String),
    #[error(
        "there is no job {0}, and nothing was done to the others; see them with: dispatch list --all"
    )]
    NoJobAmong(String),
    #[error(
        "no job has container {uuid} any more: {end}. Its job may continue in another container: dispatch list --all"
    )]
    FormerContainer { uuid: ContainerUuid, end: String },
    #[error("{number} is the number of several jobs ({uuids}); use the uuid")]
    AmbiguousJob { number: u64, uuids: String },
    #[error(
        "{number} was the number of several jobs, because a program has copied a job with its properties; {kept_by} keeps it, {copies}; nothing was done: give the command again"
    )]
    CopiedJob {
        number: u64,
        kept_by: ContainerRequestUuid,
        copies: String,
    },
    #[error(
        "no image {name:?} that you may read is stored on this server{others}; add it with 'dispatch image add {name} FILE', or see 'dispatch image list'"
    )]
    NoImage { name: String, others: String },
    #[error(
        "{0} is not a collection that exists and that this token may read; see also: dispatch collection list --trash"
    )]
    NoCollection(String),
    #[error(
        "there is no {path:?} in collection {collection}; list its files with: dispatch get --list {collection}"
    )]
    NoPath { collection: String, path: String },
    #[error(
        "{0} does not exist on this machine, and is neither the number of a job of yours nor the uuid or portable data hash of a collection"
    )]
    NoFile(PathBuf),
    #[error("collection {collection} is image {image}: remove it with: dispatch image rm {image}")]
    CollectionIsImage { collection: String, image: String },
    #[error("{0} does not exist on this machine")]
    NothingToStore(PathBuf),
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
    #[error("{0} is given twice; rename one, or store them separately")]
    NameTwice(String),
    #[error("{} already exist{} ({}); nothing was written. Use another directory, or --force to overwrite", plural(.0.len() as u64, "file"), if .0.len() == 1 { "s" } else { "" }, first(.0))]
    WouldOverwrite(Vec<PathBuf>),
    #[error(
        "{0} is a symbolic link or not a directory, and nothing is written through it; remove it or use another directory"
    )]
    InTheWay(PathBuf),
    #[error("{0} is a range of jobs: their outputs go into a directory; name one job instead")]
    NotOneJob(String),
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
    #[error("image {image} is left alone: job {job} needs it")]
    ImageInUse { image: String, job: String },
    #[error(
        "image {0} is not yours: another user added it. If an administrator did, an administrator removes it with: dispatch --admin image rm {0}"
    )]
    ImageOfAnother(String),
    #[error("collection {collection} is left alone: job {job} needs it")]
    CollectionInUse { collection: String, job: String },
    #[error(
        "this server does not remove unused blocks by a command: it is no dispatch-api, or an old one"
    )]
    NoGarbageCollection,
    #[error(
        "no 'dispatch up' of this machine runs this server, so its cache is not here; on a node: crunch-run cache gc --cache-size 0"
    )]
    NoCache,
    #[error("the cache {dir} is not emptied: crunch-run: {reason}")]
    CacheNotCleaned { dir: PathBuf, reason: String },
    #[error("{0:?} cannot be set in the environment: write NAME=VALUE")]
    BadEnv(String),
    #[error(
        "{0}; the job may be in the queue nevertheless: check with 'dispatch list' before submitting it again"
    )]
    MaybeSubmitted(String),
    #[error("the server refused the job: {0}")]
    Refused(String),
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    #[error("cannot start: {0}")]
    Runtime(io::Error),
}

impl CliError {
    /// For `map_err`: a file that cannot be read.
    pub fn read(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| {
            let path = path.to_owned();
            Self::Read { path, source }
        }
    }

    /// For `map_err`: a file that cannot be written.
    pub fn write(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| {
            let path = path.to_owned();
            Self::Write { path, source }
        }
    }

    /// For `map_err`: a collection that is not there, or another error of the server.
    pub fn of_collection(name: &str) -> impl Fn(ApiError) -> Self {
        move |error| match error.is_not_found() {
            true => Self::NoCollection(name.to_owned()),
            false => error.into(),
        }
    }

    /// Exit status of a command that fails with this error.
    pub fn exit(&self) -> Exit {
        match self {
            CliError::Api(error) => match error.status() {
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
            CliError::NoServer(_) | CliError::Endpoint(_) => Exit::Denied,
            CliError::NotAdmin(_) | CliError::ImageOfAnother(_) => Exit::Denied,
            CliError::State(StateError::NotUp(_)) => Exit::Denied,
            CliError::State(StateError::AlreadyUp { .. }) => Exit::AlreadyUp,
            CliError::Image(ImageError::NoFile(_)) => Exit::NotFound,
            CliError::NoJob(_)
            | CliError::NoJobNamed(_)
            | CliError::NoJobAmong(_)
            | CliError::NoUser(_)
            | CliError::NoToken(_)
            | CliError::FormerContainer { .. }
            | CliError::NoImage { .. }
            | CliError::NoCollection(_)
            | CliError::NoPath { .. }
            | CliError::NoFile(_)
            | CliError::NothingToStore(_)
            | CliError::NoOutput { .. }
            | CliError::NoLog { .. }
            | CliError::NoLogFile { .. } => Exit::NotFound,
            CliError::Input(_)
            | CliError::NeedsTerminal(_)
            | CliError::NoSelection
            | CliError::BadEnv(_)
            | CliError::Image(ImageError::BadName(_) | ImageError::NoName(_)) => Exit::Usage,
            CliError::WouldOverwrite(_) => Exit::WouldOverwrite,
            CliError::Interrupted(_) | CliError::ReportInterrupted => Exit::Interrupted,
            _ => Exit::Failure,
        }
    }

    /// Whether the server is unreachable or overloaded now, so that a waiting command continues to
    /// wait.
    pub fn is_outage(&self) -> bool {
        match self {
            CliError::Api(ApiError::Connect { .. } | ApiError::Interrupted { .. }) => true,
            CliError::Api(error) => error
                .status()
                .is_some_and(|s| s.is_server_error() || s == StatusCode::TOO_MANY_REQUESTS),
            _ => false,
        }
    }

    /// Whether the reader of standard output closed the pipe (`dispatch list | head`), which is not
    /// an error.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

fn api_sentence(error: &ApiError) -> String {
    match error.status() {
        Some(StatusCode::UNAUTHORIZED) => format!(
            "the server does not accept the token: it is wrong, expired or revoked; set ARVADOS_API_TOKEN to a valid one ({error})"
        ),
        Some(StatusCode::FORBIDDEN) => format!("the token may not do this ({error})"),
        _ if error.is_untrusted_certificate() => format!(
            "{}; set SSL_CERT_FILE to a file with the certificate of the server, or of who signed it",
            with_causes(error)
        ),
        _ if let ApiError::Connect { host, .. } = error => {
            let of_this_machine = ["127.", "localhost", "[::1]"];
            let advice = match of_this_machine.iter().any(|name| host.starts_with(name)) {
                true => "check that 'dispatch up' runs, and ARVADOS_API_HOST if it is set",
                false => "check that it runs and that ARVADOS_API_HOST is right",
            };
            format!("{}; {advice}", with_causes(error))
        }
        _ => with_causes(error),
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
        let one = CliError::WouldOverwrite(vec!["a".into()]).to_string();
        assert!(one.starts_with("1 file already exists (a);"), "{one}");
        let many = CliError::WouldOverwrite(vec!["a".into(); 5]).to_string();
        assert!(
            many.starts_with("5 files already exist (a, a, a, …);"),
            "{many}"
        );
    }
}
