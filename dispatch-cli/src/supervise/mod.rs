//! Keeping the programs of a workstation running: found, started, restarted when they die, ended gracefully.

pub mod backoff;
pub mod keeper;
pub mod leftovers;
pub mod log;
pub mod programs;

use std::io;
use std::path::PathBuf;

/// Why `up` cannot run.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    #[error("cannot find the program {0}: put it beside dispatch, or on PATH")]
    NoProgram(String),
    #[error("cannot start {name}: {source}")]
    Spawn { name: String, source: io::Error },
    #[error("cannot write the log {path}: {source}")]
    Log { path: PathBuf, source: io::Error },
    #[error("{name} does not start ({status}){words}; the log is {log}")]
    DoesNotStart {
        name: String,
        status: String,
        words: String,
        log: PathBuf,
    },
    #[error("{name} is not ready after {seconds} s; the log is {log}")]
    NotReady {
        name: String,
        seconds: u64,
        log: PathBuf,
    },
    #[error(
        "dispatch-api said something else than where it is: {0}; are all programs of one version?"
    )]
    BadReadyLine(String),
    #[error("cannot read the token file {path}: {source}")]
    TokenFile { path: PathBuf, source: io::Error },
    #[error("cannot find a free port: {0}")]
    NoPort(io::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    #[error(
        "{name} (process {pid}), left over from an earlier 'dispatch up', does not end; end it by hand"
    )]
    LeftOver { name: String, pid: u32 },
}
