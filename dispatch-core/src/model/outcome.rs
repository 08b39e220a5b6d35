//! What a task did for one container, as an observation for the reconciler.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::TokenUuid;
use arvados_client::records::ContainerState;

use crate::model::attempt_token::AttemptToken;
use crate::model::world::JobId;

/// The observation of a task. The reconciler applies it as it applies a snapshot.
#[derive(Debug)]
pub enum Outcome {
    /// The attempt holds the lock.
    Locked(AttemptToken),
    /// The lock was requested, but it is unknown whether the attempt holds it.
    LockUnknown(AttemptToken),
    /// The attempt does not hold the lock.
    NotLocked,
    /// The attempt does not hold the lock, and the revocation of its token failed. That token must
    /// not be used again.
    NotLockedTokenLive(AttemptToken),
    /// The server permanently refuses to mint a token for the lock.
    MintDenied,
    /// The attempt of an earlier run holds the lock, and no job of it was ever submitted. It is
    /// submitted now.
    NeverSubmitted(AttemptToken),
    /// The scheduler accepted the job.
    Submitted,
    /// The scheduler may have accepted the job.
    SubmitUnknown {
        /// Whether tests tell when such jobs are accepted again. Then a rejection, if it was one,
        /// says nothing new.
        is_held: bool,
    },
    /// The scheduler rejected the job as part of a batch. The job is to be submitted alone.
    RetryAlone,
    /// The scheduler was not asked. The attempt holds the lock and is submitted later.
    NotTried,
    /// The scheduler was not asked, because the directory of this job cannot be made. The attempt
    /// holds the lock and is submitted later.
    NoJobDirectory,
    /// The scheduler rejected the job, and the attempt does not hold the lock any more. Contains
    /// the current state, and whether the attempt's token is revoked.
    NotSubmitted(ContainerState, bool),
    /// The job was asked to stop.
    Stopping(JobId),
    /// The scheduler failed to stop the job.
    NotStopped(JobId),
    /// The job is gone, and its results have been waiting on its node for the given time.
    Undelivered(Duration),
    /// The record left Locked or Running. Contains the current state, and whether the attempt's
    /// token is revoked.
    Released(ContainerState, bool),
    /// The attempt is over, but its cleanup failed. Its token is possibly not revoked yet.
    NotRevoked,
    /// The container was cancelled before any attempt.
    QueuedCancelled,
    /// The container is not to be cancelled now: a user waits for it, or the server refused it.
    NotCancelled,
    /// The attempt's token was renewed.
    Renewed(AttemptToken),
    /// The attempt is over and cleaned up.
    AttemptEnded,
    /// The orphaned token of an earlier attempt was revoked.
    OrphanRevoked(TokenUuid),
    /// An orphaned token was disabled. It held no lock then.
    Disabled(AttemptToken),
    /// The orphaned token of an earlier attempt holds the lock.
    LockGranted(AttemptToken),
    /// The record shows the pending reason of the job.
    Reported(Arc<str>),
    /// It is uncertain whether the job has ended, or how. The scheduler must be queried again.
    ExitUnknown {
        /// Whether the job has ended and only its results are unknown.
        results: bool,
    },
    /// No change is known.
    Failed,
}

/// Observations of a task besides its outcome.
#[derive(Debug, Default)]
pub struct Feedback {
    /// Whether the server reported overload.
    pub overloaded: bool,
    /// Whether the server does not support bulk calls.
    pub bulk_unsupported: bool,
    /// The node on which the attempt failed before its container ran.
    pub failed_node: Option<String>,
}
