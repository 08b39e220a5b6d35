//! The tasks that the reconciler derives from the plan and that act runs.
//!
//! A [`Task`] contains everything that its run needs, so that running it reads no other state.

use std::sync::Arc;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::ContainerEnd;
use crate::model::owner::KnownOwner;
use crate::model::reason::Reason;
use crate::model::resources::ResourceRequest;
use crate::model::scheduling::StopMode;
use crate::model::world::JobId;

/// A task to run, with its inputs.
#[derive(Debug)]
pub enum Task {
    /// Lock containers in one batch, and mint a token for each that has none.
    Start(Vec<Start>),
    /// Submit jobs to the scheduler in one batch.
    Submit(Vec<Submission>),
    /// Cancel jobs in one batch.
    Stop(Vec<Stop>, StopMode),
    /// Unlock a container and end its attempt.
    Unlock(Unlock),
    /// Cancel the record of a container whose executor is gone, and end its attempt.
    Cancel(Cancellation),
    /// Cancel a container that can never start, for this reason.
    CancelQueued(ContainerUuid, String),
    /// End an attempt that does not hold the lock any more.
    EndAttempt(AttemptEnd),
    /// Renew the token of an attempt that continues.
    Renew(ContainerUuid, AttemptToken),
    /// Write the pending reason of the job to the record.
    ReportPendingReason(PendingReport),
    /// Revoke the orphaned token of an earlier attempt.
    RevokeOrphan(OrphanToken),
}

/// A container to lock.
#[derive(Debug)]
pub struct Start {
    /// Container to lock.
    pub container: ContainerUuid,
    /// Version of the record in the snapshot.
    pub etag: String,
    /// Token of an earlier lock request whose answer was lost. The request is repeated with it.
    pub token: Option<AttemptToken>,
    /// Maximum run time of the container in seconds.
    pub max_run_time: Option<u64>,
}

/// An attempt to submit to the scheduler.
#[derive(Debug)]
pub struct Submission {
    /// Container of the job.
    pub container: ContainerUuid,
    /// Token of the attempt that holds the lock.
    pub token: AttemptToken,
    /// Resource request of the container.
    pub needs: ResourceRequest,
    /// Nodes to exclude.
    pub avoid: Vec<String>,
    /// Nodes on which its last attempts failed, to exclude if another node fits.
    pub failed_on: Vec<String>,
    /// User and project of the container, if they are known.
    pub owner: KnownOwner,
}

/// A job to cancel.
#[derive(Debug)]
pub struct Stop {
    /// Container of the job.
    pub container: ContainerUuid,
    /// Identifier of the job.
    pub job: JobId,
    /// Reason of the cancellation.
    pub reason: Reason,
}

/// A container to unlock.
#[derive(Debug)]
pub struct Unlock {
    /// Container to unlock.
    pub container: ContainerUuid,
    /// Token UUID of the attempt that holds the lock.
    pub attempt: TokenUuid,
    /// Token of the attempt, if it is known.
    pub token: Option<AttemptToken>,
    /// Reason of the unlock.
    pub reason: Reason,
    /// Whether the job was listed at least once, or may have been. False after a failed
    /// submission.
    pub was_listed: bool,
}

/// A container whose record is to be cancelled.
#[derive(Debug)]
pub struct Cancellation {
    /// Container to cancel.
    pub container: ContainerUuid,
    /// Token UUID of the attempt that holds the lock.
    pub attempt: TokenUuid,
    /// Token of the attempt, if it is known.
    pub token: Option<AttemptToken>,
    /// Reason of the cancellation.
    pub reason: Reason,
    /// Whether to stop waiting for results, because queries for them have failed for too long.
    pub ignores_results: bool,
}

/// An attempt that is over.
#[derive(Debug)]
pub struct AttemptEnd {
    /// Container of the attempt.
    pub container: ContainerUuid,
    /// UUID of the token to revoke.
    pub attempt: TokenUuid,
    /// Final state of the record, if the end was not reported yet.
    pub final_state: Option<ContainerState>,
    /// Description of the end, if a snapshot had it.
    pub description: Option<ContainerEnd>,
}

/// A pending reason to write to a record.
#[derive(Debug)]
pub struct PendingReport {
    /// Container to write to.
    pub container: ContainerUuid,
    /// Token of the attempt.
    pub token: AttemptToken,
    /// Text for the users.
    pub text: Arc<str>,
}

/// The orphaned token of an earlier attempt.
#[derive(Debug)]
pub struct OrphanToken {
    /// Container of the attempt.
    pub container: ContainerUuid,
    /// Token to revoke.
    pub token: AttemptToken,
    /// Whether to remove the job directory too: no attempt needs it.
    pub removes_dir: bool,
    /// Whether a lock requested with the token may still be granted.
    pub may_lock: bool,
}

impl Task {
    /// Whether the task calls the scheduler.
    pub fn asks_scheduler(&self) -> bool {
        match self {
            Task::Submit(_) | Task::Stop(..) | Task::Cancel(_) => true,
            // The scheduler is asked once more how the job ended.
            Task::Unlock(unlock) => unlock.reason == Reason::JobGone,
            Task::Start(_)
            | Task::CancelQueued(..)
            | Task::EndAttempt(_)
            | Task::Renew(..)
            | Task::ReportPendingReason(_)
            | Task::RevokeOrphan(_) => false,
        }
    }

    /// Whether the task calls the API server, except to give back what the scheduler refused.
    pub fn asks_api(&self) -> bool {
        !matches!(self, Task::Submit(_) | Task::Stop(..))
    }

    /// The containers of the task: one, except for a batch.
    pub fn containers(&self) -> Vec<&ContainerUuid> {
        match self {
            Task::Start(batch) => batch.iter().map(|start| &start.container).collect(),
            Task::Submit(batch) => batch.iter().map(|one| &one.container).collect(),
            Task::Stop(batch, _) => batch.iter().map(|stop| &stop.container).collect(),
            Task::Unlock(unlock) => vec![&unlock.container],
            Task::Cancel(cancellation) => vec![&cancellation.container],
            Task::EndAttempt(end) => vec![&end.container],
            Task::CancelQueued(container, _) | Task::Renew(container, _) => vec![container],
            Task::ReportPendingReason(report) => vec![&report.container],
            Task::RevokeOrphan(orphan) => vec![&orphan.container],
        }
    }
}
