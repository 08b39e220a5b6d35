//! The seam to a scheduler: the trait [`Scheduler`] and its values and errors.
//!
//! Input: containers to admit, submit, cancel and clean up. Output: job listings, pending reasons,
//! job exits, and errors that say whether a command may have taken effect.
//!
//! A new scheduler is a crate like dispatch-slurm. "Adding a scheduler" in `CONTRIBUTING.md` has
//! the steps, and all lists that name schedulers.

pub mod attempt_dir;
pub mod cached_query;
pub mod class_ads;
pub mod command;
pub mod credentials;
pub(crate) mod host_fault;
pub mod in_order;
mod job_exit;
pub mod misfit;
pub mod owner_map;
pub mod rejection_backoff;
pub mod rejections;
pub mod slurm_answer;
mod stderr_notes;
pub mod submit_command;
pub mod submit_host;
pub mod template;
pub mod test_submission;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;

use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::owner::{Charge, KnownOwner};
use crate::model::resources::{Admission, Capacity, ResourceRequest};
use crate::model::world::{Job, JobId};
use crate::scheduler::attempt_dir::AttemptDir;
use crate::scheduler::credentials::Credentials;
use crate::scheduler::rejections::Rejections;
use crate::scheduler::submit_host::Precondition;

pub use self::job_exit::{JobExit, Uncertainty};
pub use crate::model::exit_cause::{Eviction, ExitCause};
pub use crate::model::scheduling::{
    Candidate, Capabilities, DesiredPlace, PendingOutlook, PendingReason, StopMode,
};

/// Environment variables that jobs inherit from the dispatcher. Tokens are passed in a file
/// instead.
pub const JOB_ENVIRONMENT: [&str; 4] = [
    "ARVADOS_API_HOST",
    "ARVADOS_API_HOST_INSECURE",
    "ARVADOS_KEEP_SERVICES",
    "SSL_CERT_FILE",
];

/// An attempt to submit.
#[derive(Debug, Clone)]
pub struct SubmitRequest {
    /// UUID of the container.
    pub container: ContainerUuid,
    /// UUID of the attempt's token.
    pub attempt: TokenUuid,
    /// Token of the attempt and secret of its gateway, only for crunch-run.
    pub credentials: Credentials,
    /// Resource request of the container.
    pub needs: ResourceRequest,
    /// Nodes on which the job must not run, where the scheduler supports that.
    pub avoid: Vec<String>,
    /// User and project of the container, for people who look at the job.
    pub owner: KnownOwner,
}

/// Why a scheduler command failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SchedulerError {
    /// The scheduler cannot be reached, or its answer is incomplete. Its state is unknown.
    #[error("the {scheduler} scheduler did not answer: {detail}")]
    NoAnswer {
        /// Name of the scheduler.
        scheduler: &'static str,
        /// Observed output or error.
        detail: String,
    },
    /// The scheduler certainly rejected the job.
    #[error("{scheduler} refused the job of {container}: {detail}")]
    Refused {
        /// Name of the scheduler.
        scheduler: &'static str,
        /// Container of the job.
        container: ContainerUuid,
        /// Observed output or error.
        detail: String,
    },
    /// The scheduler certainly rejected the job as part of a batch, but may accept it alone. The
    /// attempt continues.
    #[error("{scheduler} rejected the job of {container} as part of a batch: {detail}")]
    RefusedInBatch {
        /// Name of the scheduler.
        scheduler: &'static str,
        /// Container of the job.
        container: ContainerUuid,
        /// Observed output or error.
        detail: String,
    },
    /// This host could not submit the job, so the scheduler was not asked. The attempt continues,
    /// and no job is submitted until the host is mended.
    #[error("this host could not submit the job of {container}: {detail}")]
    HostFault {
        /// Container of the job.
        container: ContainerUuid,
        /// What failed, and what to do.
        detail: String,
    },
    /// The directory of the job cannot be made, though others can. The scheduler was not asked, and
    /// the attempt continues.
    #[error("the directory of the job of {container} cannot be made: {detail}")]
    JobDirectory {
        /// Container of the job.
        container: ContainerUuid,
        /// What failed, and what to do.
        detail: String,
    },
    /// The scheduler was not asked, because it cannot be reached, or the submission of other jobs
    /// failed. The attempt continues.
    #[error("the scheduler was not asked to run the job of {container}")]
    NotTried {
        /// Container of the job.
        container: ContainerUuid,
    },
    /// It is unknown whether the scheduler accepted the job.
    #[error(
        "{scheduler} did not confirm the job of {container}; the next listings show whether there is one: {detail}"
    )]
    Ambiguous {
        /// Name of the scheduler.
        scheduler: &'static str,
        /// Container of the job.
        container: ContainerUuid,
        /// Observed output or error.
        detail: String,
    },
}

impl SchedulerError {
    /// What the scheduler said about the job of a submission that failed.
    pub fn submit_detail(&self) -> Option<&str> {
        match self {
            Self::Refused { detail, .. } | Self::Ambiguous { detail, .. } => Some(detail),
            Self::NoAnswer { .. }
            | Self::RefusedInBatch { .. }
            | Self::HostFault { .. }
            | Self::JobDirectory { .. }
            | Self::NotTried { .. } => None,
        }
    }
}

/// Error: a process still uses the job directory, so it cannot be removed yet.
#[derive(Debug, thiserror::Error)]
#[error("a process still uses the job directory")]
pub struct StillInUse;

/// A scheduler that runs jobs.
///
/// A job runs crunch-run for one attempt at one container. The controller calls
/// [`list_jobs`](Self::list_jobs) and then [`run_upkeep`](Self::run_upkeep) in turn, never two of
/// them at once. All other calls may run beside each other. The scheduler itself is the only
/// lasting record of jobs: a restarted dispatcher finds them again by listing them.
pub trait Scheduler: Send + Sync + 'static {
    /// Name of the scheduler in logs and labels, in lower case.
    fn name(&self) -> &'static str;

    /// What the scheduler can do, and what its commands cost. It runs no command. The result may
    /// change after each [`run_upkeep`](Self::run_upkeep).
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// The host from which jobs are submitted, where it can have a fault of its own. The controller
    /// has it tried with each poll, and starts nothing while it has a fault.
    fn submit_host(&self) -> Option<&Precondition> {
        None
    }

    /// Total and free resources, where the scheduler is a single machine. For the status page.
    fn capacity(&self) -> Option<Capacity> {
        None
    }

    /// Decides which Queued `candidates` may be locked and submitted now, in addition to `started`:
    /// containers that are locked and have no job yet. Candidates come in the order in
    /// which they get a place.
    /// Returns one answer per candidate, in order. A container that is not admitted stays Queued.
    fn admit(&self, candidates: &[Candidate], started: &[Candidate]) -> Vec<Admission>;

    /// What the scheduler rejects now, where it can be asked before a submission.
    fn rejections(&self) -> Option<&Rejections> {
        None
    }

    /// How the jobs of an owner are charged; none if the scheduler does not see owners.
    fn charge(&self, _owner: &KnownOwner) -> Option<Charge> {
        None
    }

    /// Whether a container certainly fits another node than these, busy or not. False where jobs
    /// have no choice of nodes.
    fn fits_beside(&self, _needs: &ResourceRequest, _nodes: &[String]) -> bool {
        false
    }

    /// Lists all jobs of this dispatcher, also those that ended and are still known. The list is
    /// complete, or there is an error: a job that two listings lack counts as gone. Has no effect
    /// but that the scheduler remembers the listing for
    /// [`pending_reasons`](Self::pending_reasons) and [`reorder`](Self::reorder).
    fn list_jobs(&self) -> impl Future<Output = Result<Vec<Job>, SchedulerError>> + Send;

    /// Runs what is due after a listing, such as a query for the capacity of the cluster. The
    /// controller calls it after it has applied the listing, and reads
    /// [`capabilities`](Self::capabilities), [`pending_reasons`](Self::pending_reasons) and
    /// admission after it. An error is logged here, and the next call retries.
    fn run_upkeep(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The pending reasons of jobs in the last listing, where the scheduler reports them.
    fn pending_reasons(&self) -> BTreeMap<ContainerUuid, PendingReason> {
        BTreeMap::new()
    }

    /// Submits the jobs of at most [`Capabilities::max_submit_batch`] attempts, with equal resource
    /// requests where [`Capabilities::min_uniform_batch`] requires it. Returns one answer per
    /// attempt, in order. [`SchedulerError::NoAnswer`] and [`SchedulerError::Ambiguous`] mean that
    /// the next listings decide; any other error promises that there is no job.
    fn submit(
        &self,
        requests: Vec<SubmitRequest>,
    ) -> impl Future<Output = Vec<Result<JobId, SchedulerError>>> + Send;

    /// Cancels at most [`Capabilities::max_cancel_batch`] jobs. Several jobs are all pending, or
    /// [`StopMode::Force`] applies; a single job may be running as well. Returns one answer per
    /// job, in order. A job that is gone is a success. An error means that the cancel is repeated.
    fn cancel(
        &self,
        jobs: &[JobId],
        mode: StopMode,
    ) -> impl Future<Output = Vec<Result<(), SchedulerError>>> + Send;

    /// Queries how the job of an attempt ended. Called for a job that two listings lacked, before
    /// anything is done to its container. An exit with an [`Uncertainty`] is queried again later.
    fn job_exit(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> impl Future<Output = JobExit> + Send;

    /// Removes the job directory of a container that needs no job any more. Nothing to remove is a
    /// success. The call is repeated after an error, and before that the container is not locked
    /// again.
    fn cleanup(
        &self,
        container: &ContainerUuid,
    ) -> impl Future<Output = Result<(), StillInUse>> + Send;

    /// The state directory with the job directories, where the dispatcher makes them.
    fn state_dir(&self) -> Option<&Path> {
        None
    }

    /// The attempts that have a job directory. After a restart, they are those of earlier runs.
    fn attempts_with_directory(
        &self,
    ) -> impl Future<Output = Vec<(ContainerUuid, TokenUuid)>> + Send {
        async {
            match self.state_dir() {
                Some(home) => AttemptDir::all(home).await,
                None => Vec::new(),
            }
        }
    }

    /// Reorders the pending jobs of each account, where the last listing shows another order. The
    /// order between accounts is the scheduler's. Called after each poll, never concurrently. The
    /// next call retries what failed.
    fn reorder(
        &self,
        _wanted: Vec<DesiredPlace>,
    ) -> impl Future<Output = Result<(), SchedulerError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Number of commands run since the last call, beside the one command that each listing and
    /// each other call is charged anyway. The controller charges them to its rate limit.
    fn take_extra_commands(&self) -> u32 {
        0
    }

    /// Resolves when a job may have ended, so that the next poll comes sooner. May never resolve:
    /// polling finds every ended job.
    fn job_exited(&self) -> impl Future<Output = ()> + Send;
}
