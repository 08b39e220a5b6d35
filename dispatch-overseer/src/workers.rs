//! The trait of backends that run worker jobs (Slurm, HTCondor, this machine), and what they share.

pub mod condor;
pub mod local;
pub mod slurm;

use std::path::PathBuf;
use std::time::Duration;

use dispatch_core::scheduler::command::{Command, CommandFailure};
use worker_demand::Worker;

use crate::job::Job;

/// Why a listing or a stop failed: the state of the jobs is unknown.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BackendError(pub String);

/// Why jobs were not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Jobs not in the next listing were not started.
    #[error("{0}")]
    Refused(String),
    /// Some jobs may have been started and appear in later listings.
    #[error("{0}")]
    Ambiguous(String),
}

/// One scheduler, or the machine itself.
pub trait WorkerBackend {
    /// Lists all worker jobs of this overseer that have not ended, oldest first. An error instead
    /// of an incomplete list.
    async fn list(&self) -> Result<Vec<Job>, BackendError>;

    /// Starts `count` jobs.
    async fn start(&self, count: u32, worker: &Worker) -> Result<(), StartError>;

    /// Cancels those of `jobs` that have not started. A job that starts meanwhile may stay.
    async fn stop(&self, jobs: &[String]) -> Result<(), BackendError>;
}

/// The worker jobs in a scheduler, and what each requests.
#[derive(Debug)]
pub struct SchedulerJobs {
    /// Marks the jobs of this overseer.
    pub label: String,
    /// Directory for the output of workers. Slurm writes it on the nodes, so they best share it.
    pub logs: PathBuf,
    /// Timeout of each command of the scheduler.
    pub command_timeout: Duration,
    /// CPUs of one worker.
    pub cpus: u32,
    /// Memory of one worker.
    pub memory_mib: u64,
    /// Arguments of sbatch, or lines of the submit description, that the admin adds.
    pub submit_options: Vec<String>,
}

impl SchedulerJobs {
    fn command(&self, program: &str) -> Command {
        Command::new(program).timeout(self.command_timeout)
    }
}

impl From<CommandFailure> for BackendError {
    fn from(failure: CommandFailure) -> Self {
        Self(failure.to_string())
    }
}

/// Of a submit command: jobs may have been submitted unless the command never ran.
impl From<CommandFailure> for StartError {
    fn from(failure: CommandFailure) -> Self {
        match failure.is_not_started() {
            true => Self::Refused(failure.to_string()),
            false => Self::Ambiguous(failure.to_string()),
        }
    }
}

/// `LD_LIBRARY_PATH` for the libraries of `worker`, each directory once.
fn library_path(worker: &Worker) -> Option<String> {
    let mut dirs: Vec<&str> = Vec::new();
    for library in &worker.libraries {
        let dir = library.rsplit_once('/').map_or("/", |(dir, _)| dir);
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    (!dirs.is_empty()).then(|| dirs.join(":"))
}
