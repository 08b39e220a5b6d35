//! Supervises the programs of a workstation: finds, starts, restarts and stops them.

pub mod child;
pub mod delegated_group;
pub mod engine_check;
pub mod log;
pub mod orphans;
pub mod programs;

use std::io;
use std::path::PathBuf;

/// Why `dispatch up` fails.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    #[error("cannot find the program {0}: put it beside dispatch, or on PATH")]
    NoProgram(String),
    #[error("cannot start {name}: {source}")]
    Spawn { name: String, source: io::Error },
    #[error("cannot write the log {path}: {source}")]
    Log { path: PathBuf, source: io::Error },
    #[error("{name} does not start ({status}){last_line}; the log is {log}")]
    DoesNotStart {
        name: String,
        status: String,
        last_line: String,
        log: PathBuf,
    },
    #[error("{name} is not ready after {seconds} s; the log is {log}")]
    NotReady {
        name: String,
        seconds: u64,
        log: PathBuf,
    },
    #[error(
        "dispatch-api did not print its address but: {0}; check that all programs have the same version"
    )]
    BadReadyLine(String),
    #[error("cannot find a free port: {0}")]
    NoPort(io::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    #[error(
        "{name} (process {pid}), left over from an earlier 'dispatch up', does not end; end it by hand"
    )]
    Orphan { name: String, pid: u32 },
}
