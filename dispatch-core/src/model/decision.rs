//! The type of every decision. One [`Decision`] gives the log line, the metric, the audit line and
//! the API log record.

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};
use tracing::Level;

use crate::model::container_record::ContainerEnd;
use crate::model::exit_cause::Eviction;
use crate::model::owner::KnownOwner;
use crate::model::reason::Reason;
use crate::model::world::JobId;

/// A decision, or the result of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The container is to run: it was locked with this attempt's token.
    DecidedToRun {
        container: ContainerUuid,
        attempt: TokenUuid,
    },
    /// The container is not to run now. Emitted once for each reason, not at every poll. After a
    /// failed attempt it is also emitted with the start time of the next attempt.
    DecidedNotToRun {
        container: ContainerUuid,
        reason: String,
    },
    /// The container is submitted later, because the scheduler rejects such jobs now. The log has
    /// one line for all of them, `submissions_held`.
    Deferred {
        container: ContainerUuid,
        reason: String,
    },
    /// The container was not locked: another dispatcher locked it first, or the server refused.
    LockFailed {
        container: ContainerUuid,
        error: String,
        /// The record changed since it was read. Usually another dispatcher locked the container.
        lost: bool,
    },
    /// The scheduler accepted the job.
    Dispatched {
        container: ContainerUuid,
        job: JobId,
        /// User and project of the container, if they are known.
        owner: KnownOwner,
    },
    /// crunch-run is gone and the record had no final state. The record was cancelled, or unlocked
    /// if the container never ran.
    ExecutorLost {
        container: ContainerUuid,
        /// State of the record now.
        state: ContainerState,
        reason: String,
    },
    /// The site took the job away, for example by a preemption. The record was cancelled, or
    /// unlocked if the container never ran.
    Evicted {
        container: ContainerUuid,
        /// State of the record now.
        state: ContainerState,
        reason: String,
        /// How the job was taken away.
        eviction: Eviction,
        /// Whether the request has fewer attempts left than before.
        counts: bool,
    },
    /// The record became final while an attempt of this dispatcher held it. crunch-run or the
    /// server wrote the final state.
    Ended {
        container: ContainerUuid,
        how: ContainerEnd,
    },
    /// The container's results are on its node and were not delivered. They may still be delivered
    /// from there.
    ResultsUndelivered {
        container: ContainerUuid,
        reason: String,
    },
    /// A job was asked to end because its container must not run any more.
    JobStopped {
        container: ContainerUuid,
        job: JobId,
        reason: Reason,
    },
    /// A container was unlocked, and crunch-run never ran for it.
    Unlocked {
        container: ContainerUuid,
        /// State of the record now.
        state: ContainerState,
        reason: Reason,
        /// The end of its job, if the scheduler was asked for it.
        job: Option<String>,
    },
    /// A job that had started stands still, or its node cannot be reached.
    JobPaused {
        container: ContainerUuid,
        reason: String,
    },
    /// Such a job goes on.
    JobContinues { container: ContainerUuid },
    /// The scheduler did not accept the job.
    SubmitFailed {
        container: ContainerUuid,
        error: String,
    },
    /// An action failed; the next pass plans it again.
    ActionFailed {
        container: ContainerUuid,
        error: String,
    },
}

/// Names of the decisions that say why a container is not run now.
const NOT_TO_RUN: &str = "decided_not_to_run";
const DEFERRED: &str = "deferred";

impl Decision {
    /// Whether a decision with this name says why a container is not run now.
    pub fn is_why_not(name: &str) -> bool {
        [NOT_TO_RUN, DEFERRED].contains(&name)
    }

    /// Name of the decision in metrics and in the audit file.
    pub fn name(&self) -> &'static str {
        match self {
            Decision::DecidedToRun { .. } => "decided_to_run",
            Decision::DecidedNotToRun { .. } => NOT_TO_RUN,
            Decision::Deferred { .. } => DEFERRED,
            Decision::LockFailed { .. } => "lock_failed",
            Decision::Dispatched { .. } => "dispatched",
            Decision::ExecutorLost { .. } => "cleaned_up_crashed_executor",
            Decision::Evicted { .. } => "evicted",
            Decision::JobStopped { .. } | Decision::Unlocked { .. } => {
                "cleaned_up_abandoned_container"
            }
            Decision::Ended { .. } => "ended",
            Decision::ResultsUndelivered { .. } => "results_undelivered",
            Decision::JobPaused { .. } => "job_paused",
            Decision::JobContinues { .. } => "job_continues",
            Decision::SubmitFailed { .. } => "submit_failed",
            Decision::ActionFailed { .. } => "action_failed",
        }
    }

    /// The container of the decision.
    pub fn container(&self) -> &ContainerUuid {
        match self {
            Decision::DecidedToRun { container, .. }
            | Decision::DecidedNotToRun { container, .. }
            | Decision::Deferred { container, .. }
            | Decision::LockFailed { container, .. }
            | Decision::Dispatched { container, .. }
            | Decision::ExecutorLost { container, .. }
            | Decision::Evicted { container, .. }
            | Decision::JobStopped { container, .. }
            | Decision::Unlocked { container, .. }
            | Decision::Ended { container, .. }
            | Decision::ResultsUndelivered { container, .. }
            | Decision::JobPaused { container, .. }
            | Decision::JobContinues { container }
            | Decision::SubmitFailed { container, .. }
            | Decision::ActionFailed { container, .. } => container,
        }
    }

    /// The reason of a failed attempt, if the decision reports one.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Decision::SubmitFailed { error, .. } => Some(error),
            Decision::ExecutorLost { reason, .. } | Decision::Evicted { reason, .. } => {
                Some(reason)
            }
            Decision::Unlocked { job, .. } => job.as_deref(),
            _ => None,
        }
    }

    /// Whether the decision is written to the API's `logs`. These are the six decisions of a
    /// dispatcher and the errors of a scheduler. The server itself records that a container ended.
    pub fn goes_to_api_log(&self) -> bool {
        !matches!(self, Decision::ActionFailed { .. } | Decision::Ended { .. })
    }

    /// Whether every container that runs without trouble has this decision.
    pub fn is_routine(&self) -> bool {
        matches!(
            self,
            Decision::DecidedToRun { .. } | Decision::Dispatched { .. }
        )
    }

    /// The decision as one sentence for the user.
    pub fn text(&self) -> String {
        match self {
            Decision::DecidedToRun { .. } => "decided to run it: locked".into(),
            Decision::DecidedNotToRun { reason, .. } | Decision::Deferred { reason, .. } => {
                format!("not run now: {reason}")
            }
            Decision::LockFailed { error, .. } => format!("could not lock it: {error}"),
            Decision::Dispatched { job, .. } => format!("dispatched as job {}", job.0),
            Decision::ExecutorLost { state, reason, .. } => unlocked_text(state, reason),
            Decision::Evicted {
                state,
                reason,
                counts,
                ..
            } => {
                let counts = match counts {
                    true => "this counts as an attempt",
                    false => "this does not count as an attempt",
                };
                format!("evicted, {}; {counts}", unlocked_text(state, reason))
            }
            Decision::JobStopped { job, reason, .. } => {
                format!("asked job {} to end: {reason}", job.0)
            }
            Decision::Unlocked {
                state, reason, job, ..
            } => match job {
                Some(job) => unlocked_text(state, job),
                None => unlocked_text(state, &reason.to_string()),
            },
            Decision::Ended { how, .. } => format!("has ended: {}", how.text),
            Decision::ResultsUndelivered { reason, .. } => reason.clone(),
            Decision::JobPaused { reason, .. } => format!("stands still: {reason}"),
            Decision::JobContinues { .. } => "its job goes on".into(),
            Decision::SubmitFailed { error, .. } => format!("could not submit it: {error}"),
            Decision::ActionFailed { error, .. } => format!("will be tried again: {error}"),
        }
    }

    /// Writes the log line.
    pub fn log(&self) {
        let (container, event, sentence) = (self.container(), self.name(), self.text());
        match self.level() {
            Level::DEBUG => tracing::debug!(%container, event, "{sentence}"),
            Level::WARN => tracing::warn!(%container, event, "{sentence}"),
            _ => tracing::info!(%container, event, "{sentence}"),
        }
    }

    /// Writes one log line about many `containers` with decisions like this one.
    pub fn log_alike(&self, containers: usize) {
        let (event, sentence) = (self.name(), self.text());
        match self.level() {
            Level::DEBUG => {}
            Level::WARN => tracing::warn!(containers, event, "more like this: {sentence}"),
            _ => tracing::info!(containers, event, "more like this: {sentence}"),
        }
    }

    fn level(&self) -> Level {
        match self {
            // Another line is about all of these.
            Decision::LockFailed { lost: true, .. } | Decision::Deferred { .. } => Level::DEBUG,
            Decision::LockFailed { .. }
            | Decision::SubmitFailed { .. }
            | Decision::ActionFailed { .. }
            | Decision::ResultsUndelivered { .. }
            | Decision::JobPaused { .. }
            | Decision::ExecutorLost { .. } => Level::WARN,
            _ => Level::INFO,
        }
    }
}

/// Text for an unlocked record. The server cancels a container that was locked too often.
fn unlocked_text(state: &ContainerState, reason: &str) -> String {
    match state {
        ContainerState::Queued => format!("given back to the queue: {reason}"),
        state => format!("now {state}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only place that has the wording of a dispatcher's decisions. Other tests match names.
    #[test]
    fn every_decision_has_its_name_and_its_sentence() {
        let container = ContainerUuid::generate("zzzzz");
        let c = || container.clone();
        let job = JobId("7".to_owned());
        let why = || "no node fits".to_owned();
        let unlocked = |state, job| Decision::Unlocked {
            container: c(),
            state,
            reason: Reason::JobGone,
            job,
        };
        let evicted = |counts| Decision::Evicted {
            container: c(),
            state: ContainerState::Cancelled,
            reason: why(),
            eviction: Eviction::Preempted,
            counts,
        };
        let lost = |state| Decision::ExecutorLost {
            container: c(),
            state,
            reason: why(),
        };
        let attempt = TokenUuid::parse("zzzzz-gj3su-000000000000000").unwrap();
        #[rustfmt::skip]
        let rows = [
            (Decision::DecidedToRun { container: c(), attempt }, "decided_to_run", "decided to run it: locked"),
            (Decision::DecidedNotToRun { container: c(), reason: why() }, "decided_not_to_run", "not run now: no node fits"),
            (Decision::LockFailed { container: c(), error: why(), lost: false }, "lock_failed", "could not lock it: no node fits"),
            (Decision::Dispatched { container: c(), job: job.clone(), owner: None }, "dispatched", "dispatched as job 7"),
            (Decision::Deferred { container: c(), reason: "full".into() }, "deferred", "not run now: full"),
            (Decision::JobPaused { container: c(), reason: "suspended".into() }, "job_paused", "stands still: suspended"),
            (Decision::JobContinues { container: c() }, "job_continues", "its job goes on"),
            (lost(ContainerState::Queued), "cleaned_up_crashed_executor", "given back to the queue: no node fits"),
            (lost(ContainerState::Cancelled), "cleaned_up_crashed_executor", "now Cancelled: no node fits"),
            (evicted(false), "evicted", "evicted, now Cancelled: no node fits; this does not count as an attempt"),
            (evicted(true), "evicted", "evicted, now Cancelled: no node fits; this counts as an attempt"),
            (Decision::Ended { container: c(), how: ContainerEnd::described("Complete".to_owned()) }, "ended", "has ended: Complete"),
            (Decision::ResultsUndelivered { container: c(), reason: why() }, "results_undelivered", "no node fits"),
            (Decision::JobStopped { container: c(), job, reason: Reason::PriorityZero }, "cleaned_up_abandoned_container", "asked job 7 to end: its priority is 0"),
            (unlocked(ContainerState::Queued, None), "cleaned_up_abandoned_container", "given back to the queue: its job is gone"),
            (unlocked(ContainerState::Cancelled, Some(why())), "cleaned_up_abandoned_container", "now Cancelled: no node fits"),
            (Decision::SubmitFailed { container: c(), error: why() }, "submit_failed", "could not submit it: no node fits"),
            (Decision::ActionFailed { container: c(), error: why() }, "action_failed", "will be tried again: no node fits"),
        ];
        for (decision, name, text) in rows {
            assert_eq!((decision.name(), decision.text().as_str()), (name, text));
            assert_eq!(decision.container(), &container);
        }
    }
}
