//! Where worker jobs live, as three verbs.

pub mod condor;
pub mod local;
pub mod slurm;

use demand::Worker;
use dispatch_core::command::Failure;

use crate::job::Job;

/// Nobody knows what is, or what was done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(pub String);

/// Why jobs were not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What was not started will not come any more: the next listing tells the truth.
    #[error("{0}")]
    Refused(String),
    /// Some may have been: the listings tell, when they have had time to.
    #[error("{0}")]
    Ambiguous(String),
}

/// One scheduler, or the machine itself.
pub trait Workers {
    /// All worker jobs of this overseer that are not over, oldest first; complete or not at all.
    async fn list(&self) -> Result<Vec<Job>, Unknown>;

    /// Starts so many more.
    async fn start(&self, count: u32, worker: &Worker) -> Result<(), StartError>;

    /// Takes those out that have not started. One that starts meanwhile may stay.
    async fn stop(&self, jobs: &[String]) -> Result<(), Unknown>;
}

/// What a job takes, where the scheduler asks.
#[derive(Debug, Clone)]
pub struct Size {
    pub cpus: u32,
    pub memory_mib: u64,
}

/// What the failure of a submit command says: whatever it complains of, jobs may have been made.
fn not_submitted(failure: Failure) -> StartError {
    match failure.is_not_started() {
        true => StartError::Refused(failure.to_string()),
        false => StartError::Ambiguous(failure.to_string()),
    }
}

/// The directories of libraries, each once, for LD_LIBRARY_PATH.
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
