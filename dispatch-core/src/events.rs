//! One type for everything that is decided: the same value gives the log line, the metric and the API log record.

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};

use crate::plan::Reason;
use crate::world::JobId;

/// A decision, or what came of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Decided to run: the lock is ours.
    DecidedToRun {
        container: ContainerUuid,
        attempt: TokenUuid,
    },
    /// Decided not to run, and why. Told once for each reason, not at every look; and, after an attempt that came to
    /// nothing, when the next begins.
    DecidedNotToRun {
        container: ContainerUuid,
        reason: String,
    },
    /// Somebody else was quicker, or the server refused.
    LockFailed {
        container: ContainerUuid,
        error: String,
        /// The record is not as it was seen: most likely somebody else was quicker.
        lost: bool,
    },
    /// Handed to the scheduler.
    Dispatched {
        container: ContainerUuid,
        job: JobId,
    },
    /// The executor is gone without a final state: the record was cancelled, or unlocked if it never ran.
    CleanedUpExecutor {
        container: ContainerUuid,
        /// As it is now.
        state: ContainerState,
        reason: String,
    },
    /// Its record came to an end, as its executor wrote, or the server, while an attempt of ours held it.
    Ended {
        container: ContainerUuid,
        how: String,
    },
    /// Its results are on its node and were not delivered; somebody may still do that.
    ResultsUndelivered {
        container: ContainerUuid,
        reason: String,
    },
    /// A job of a container that is not to run any more was asked to end.
    CleanedUpContainer {
        container: ContainerUuid,
        job: JobId,
        reason: Reason,
    },
    /// A lock was given back, and no executor ever ran for it.
    GaveBack {
        container: ContainerUuid,
        /// As its record is now.
        state: ContainerState,
        reason: Reason,
        /// What became of its job, where the scheduler was asked.
        job: Option<String>,
    },
    /// The scheduler did not take the job.
    SubmitFailed {
        container: ContainerUuid,
        error: String,
    },
    /// Something failed that will be tried again at the next look.
    ActionFailed {
        container: ContainerUuid,
        error: String,
    },
}

impl Event {
    /// The word for it, in metrics and audit.
    pub fn name(&self) -> &'static str {
        match self {
            Event::DecidedToRun { .. } => "decided_to_run",
            Event::DecidedNotToRun { .. } => "decided_not_to_run",
            Event::LockFailed { .. } => "lock_failed",
            Event::Dispatched { .. } => "dispatched",
            Event::CleanedUpExecutor { .. } => "cleaned_up_crashed_executor",
            Event::CleanedUpContainer { .. } | Event::GaveBack { .. } => {
                "cleaned_up_abandoned_container"
            }
            Event::Ended { .. } => "ended",
            Event::ResultsUndelivered { .. } => "results_undelivered",
            Event::SubmitFailed { .. } => "submit_failed",
            Event::ActionFailed { .. } => "action_failed",
        }
    }

    /// Which container.
    pub fn container(&self) -> &ContainerUuid {
        match self {
            Event::DecidedToRun { container, .. }
            | Event::DecidedNotToRun { container, .. }
            | Event::LockFailed { container, .. }
            | Event::Dispatched { container, .. }
            | Event::CleanedUpExecutor { container, .. }
            | Event::CleanedUpContainer { container, .. }
            | Event::GaveBack { container, .. }
            | Event::Ended { container, .. }
            | Event::ResultsUndelivered { container, .. }
            | Event::SubmitFailed { container, .. }
            | Event::ActionFailed { container, .. } => container,
        }
    }

    /// Why an attempt came to nothing, if it did.
    pub fn came_to_nothing(&self) -> Option<&str> {
        match self {
            Event::SubmitFailed { error, .. } => Some(error),
            Event::CleanedUpExecutor { reason, .. } => Some(reason),
            Event::GaveBack { job, .. } => job.as_deref(),
            _ => None,
        }
    }

    /// Whether the API's `logs` keep it: the six decisions of a dispatcher, and what a scheduler said no with. That a
    /// container ended the server knows itself.
    pub fn is_for_the_record(&self) -> bool {
        !matches!(self, Event::ActionFailed { .. } | Event::Ended { .. })
    }

    /// Every container that runs without trouble has it.
    pub fn is_routine(&self) -> bool {
        matches!(self, Event::DecidedToRun { .. } | Event::Dispatched { .. })
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        match self {
            Event::DecidedToRun { .. } => "decided to run it: locked".into(),
            Event::DecidedNotToRun { reason, .. } => format!("not run now: {reason}"),
            Event::LockFailed { error, .. } => format!("could not lock it: {error}"),
            Event::Dispatched { job, .. } => format!("dispatched as job {}", job.0),
            Event::CleanedUpExecutor { state, reason, .. } => given_back(state, reason),
            Event::CleanedUpContainer { job, reason, .. } => {
                format!("asked job {} to end: {reason}", job.0)
            }
            Event::GaveBack {
                state, reason, job, ..
            } => match job {
                Some(job) => given_back(state, job),
                None => given_back(state, &reason.to_string()),
            },
            Event::Ended { how, .. } => format!("has ended: {how}"),
            Event::ResultsUndelivered { reason, .. } => reason.clone(),
            Event::SubmitFailed { error, .. } => format!("could not submit it: {error}"),
            Event::ActionFailed { error, .. } => format!("will be tried again: {error}"),
        }
    }

    /// Writes the log line.
    pub fn log(&self) {
        let (container, event, sentence) = (self.container(), self.name(), self.sentence());
        match self {
            // The engine says it of all of them in one line.
            Event::LockFailed { lost: true, .. } => {
                tracing::debug!(%container, event, "{sentence}");
            }
            Event::LockFailed { .. }
            | Event::SubmitFailed { .. }
            | Event::ActionFailed { .. }
            | Event::ResultsUndelivered { .. }
            | Event::CleanedUpExecutor { .. } => {
                tracing::warn!(%container, event, "{sentence}");
            }
            _ => tracing::info!(%container, event, "{sentence}"),
        }
    }
}

/// What became of a record whose lock was given back. The server ends what was locked too often.
fn given_back(state: &ContainerState, reason: &str) -> String {
    match state {
        ContainerState::Queued => format!("given back to the queue: {reason}"),
        state => format!("now {state}: {reason}"),
    }
}
