//! Unlocks a container whose attempt ran nothing, or whose executor is gone.
//!
//! Input: the container, its attempt token and the [`JobExit`] from the scheduler. Output: an
//! unlocked record, with the reason, and an [`Outcome`]. If crunch-run found that the container
//! cannot succeed, the record is cancelled instead.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Token, TokenUuid};
use fail_points::fail_point;
use serde_json::json;

use crate::act::crash_log::{self, OtherLogs};
use crate::act::holder::HolderError;
use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::container_record::ContainerSnapshot;
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::model::reason::Reason;
use crate::model::task::Unlock;
use crate::scheduler::host_fault::Report;
use crate::scheduler::{ExitCause, JobExit, Scheduler, Uncertainty};

/// Time limit for saving a log or writing a record, retries included. The next poll plans the
/// action again anyway.
const LOG_RETRY_BUDGET: Duration = Duration::from_secs(15);

/// Why the container is not touched although two listings lacked its job. Both listings may be
/// wrong in the same way.
pub(super) fn defer_reason(exit: &JobExit, results_count: bool) -> Option<String> {
    let missed = "two listings did not show the job";
    match exit.uncertainty.as_ref()? {
        Uncertainty::StillRunning => Some(format!(
            "{missed}, but the scheduler still has it; leaving the container alone"
        )),
        Uncertainty::MayBeRunning(why) => Some(format!(
            "{missed}, and the scheduler did not answer a query for the job: {why}"
        )),
        Uncertainty::ResultsUnknown(why) if results_count => Some(format!(
            "cannot determine whether the job left results on its node: {why}"
        )),
        Uncertainty::ResultsUnknown(_) => None,
    }
}

/// The decision for a record that someone else has brought to a final state.
pub(super) fn ended_event(
    container: ContainerUuid,
    record: &ContainerSnapshot,
) -> Option<Decision> {
    let how = record.state.is_final().then(|| record.end())?;
    Some(Decision::Ended { container, how })
}

pub(super) fn exit_unknown(container: &ContainerUuid, exit: &JobExit, why: String) -> TaskResult {
    let mut result = TaskResult::failed(container, why);
    let results = matches!(exit.uncertainty, Some(Uncertainty::ResultsUnknown(_)));
    result.outcome = Outcome::ExitUnknown { results };
    result
}

/// The decision to report after an unlock: an executor was lost or evicted, or none ever ran.
struct UnlockReport {
    reason: Reason,
    /// None: the scheduler was not queried.
    job: Option<UnlockedJob>,
}

struct UnlockedJob {
    summary: String,
    /// Whether the job certainly never started.
    never_started: bool,
    cause: ExitCause,
}

impl UnlockReport {
    fn event(self, container: ContainerUuid, state: ContainerState) -> Decision {
        match self.job {
            Some(job) if !job.never_started => match job.cause.eviction() {
                // The server counts the locks of a container, not the attempts of its request.
                Some(eviction) => Decision::Evicted {
                    container,
                    state,
                    reason: job.summary,
                    eviction,
                    counts: false,
                },
                None => Decision::ExecutorLost {
                    container,
                    state,
                    reason: job.summary,
                },
            },
            job => Decision::Unlocked {
                container,
                state,
                reason: self.reason,
                job: job.map(|job| job.summary),
            },
        }
    }
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// Unlocks a container and cleans up after its attempt.
    pub(crate) async fn unlock(&self, unlock: Unlock) -> TaskResult {
        let Unlock {
            container,
            attempt,
            token,
            mut reason,
            was_listed,
        } = unlock;
        let token = match self.token_or_read(&container, &attempt, token).await {
            Ok(Some(token)) => token,
            Ok(None) => return self.end_without_token(container, &attempt).await,
            Err(error) => return TaskResult::api_failed(&container, &error),
        };
        let mut failed_node = None;
        let mut job = None;
        if reason == Reason::JobGone {
            if self.was_not_submitted(&container, &attempt).await {
                tracing::debug!(%container, "submitting the job of an earlier run, which was never submitted");
                return TaskResult::new(Outcome::NeverSubmitted(token), vec![]);
            }
            let exit = self.scheduler.job_exit(&container, &attempt).await;
            if let Some(why) = defer_reason(&exit, false) {
                return exit_unknown(&container, &exit, why);
            }
            let record = match self.record_left(&container).await {
                Ok(record) => record,
                Err(result) => return result,
            };
            let is_wanted = record.priority > 0;
            let permanent = self.cancel_permanent_failure(&container, &token, record);
            if let Some(result) = permanent.await {
                return result;
            }
            if is_wanted {
                if let Some(reason) = exit.storage_failure() {
                    self.storage.reported(Report {
                        container: container.clone(),
                        node: exit.node.clone(),
                        reason: reason.to_owned(),
                    });
                // What the site took away says nothing about the node.
                } else if exit.cause.eviction().is_none() {
                    failed_node.clone_from(&exit.node);
                }
                self.record_failure(&container, &token.token, &exit).await;
                job = Some(UnlockedJob {
                    summary: exit.summary(),
                    never_started: exit.never_started || !was_listed,
                    cause: exit.cause,
                });
            } else {
                // A user ended it, so crunch-run did not start it: nothing failed.
                reason = Reason::PriorityZero;
            }
        }
        let report = UnlockReport { reason, job };
        fail_point("dispatcher.before-unlock");
        let call = || self.api.unlock(&token.token, &container);
        let unlocked = self.as_holder(&container, &token, call).await;
        fail_point("dispatcher.after-unlock");
        match unlocked {
            Ok(state) => {
                let is_revoked = self.cleanup_attempt(&container, &attempt).await.is_ok();
                let event = report.event(container, state.clone());
                let mut result = TaskResult::new(Outcome::Released(state, is_revoked), vec![event]);
                result.feedback.failed_node = failed_node;
                result
            }
            Err(HolderError::NotHolder(record)) => {
                let is_free = record.locked_by.is_none();
                let event = match &record.state {
                    // An earlier unlock took effect although its answer was lost.
                    ContainerState::Queued if is_free => {
                        Some(report.event(container.clone(), record.state.clone()))
                    }
                    // A container that is unlocked at shutdown may never have been locked.
                    _ if reason != Reason::Draining => ended_event(container.clone(), &record),
                    _ => None,
                };
                self.lock_lost(&container, &attempt, record, event).await
            }
            Err(HolderError::Expired) => {
                let reason = "the attempt's token expired before the container could be unlocked";
                self.cancel_with_dispatch_token(container, &attempt, reason)
                    .await
            }
            Err(HolderError::Unreadable(why)) => TaskResult::failed(&container, why),
            Err(HolderError::Api(error)) => TaskResult::api_failed(&container, &error),
        }
    }

    /// Ends an attempt that only its token can unlock, when no program here has that token: an
    /// earlier dispatch token of another user made it.
    async fn end_without_token(&self, container: ContainerUuid, attempt: &TokenUuid) -> TaskResult {
        let exit = self.scheduler.job_exit(&container, attempt).await;
        if let Some(why) = defer_reason(&exit, false) {
            return exit_unknown(&container, &exit, why);
        }
        // Only the server can say that this attempt still holds the lock.
        let record = match self.record_left(&container).await {
            Ok(record) => record,
            Err(result) => return result,
        };
        if record.state != ContainerState::Locked || record.locked_by.as_ref() != Some(attempt) {
            let event = ended_event(container.clone(), &record);
            return self.lock_lost(&container, attempt, record, event).await;
        }
        let reason = "its job is gone, and the dispatch token cannot see the token that holds the lock, so the container could not go back to the queue";
        self.cancel_with_dispatch_token(container, attempt, reason)
            .await
    }

    /// Cleans up an attempt that lost its lock. An earlier request took effect although its answer
    /// was lost. Another attempt may hold the lock by now.
    pub(super) async fn lock_lost(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
        record: Box<ContainerSnapshot>,
        event: Option<Decision>,
    ) -> TaskResult {
        let is_revoked = self.cleanup_attempt(container, attempt).await.is_ok();
        let outcome = Outcome::Released(record.state.clone(), is_revoked);
        TaskResult::new(outcome, event.into_iter().collect())
    }

    /// Writes the failure of an attempt that never ran to its record. Users then see the
    /// reason even if the server cancels the container after too many attempts.
    async fn record_failure(&self, container: &ContainerUuid, by: &Token, exit: &JobExit) {
        let Some(log) = self.save_crash_log(container, exit).await else {
            return;
        };
        let status = json!({"warning": exit.reason_or_default(), "warningDetail": exit.detail});
        let change = json!({"log": log, "runtime_status": status});
        let update = self.api.update(Some(by), container, change);
        if let Ok(Err(error)) = tokio::time::timeout(LOG_RETRY_BUDGET, update).await {
            tracing::warn!(%container, %error, "cannot write the failure of the job to the container record");
        }
    }

    /// Saves a log about the exit of the executor, together with the log that the executor saved.
    /// The time limit keeps other work from waiting long.
    pub(super) async fn save_crash_log(
        &self,
        container: &ContainerUuid,
        exit: &JobExit,
    ) -> Option<String> {
        let save = async {
            let text = crash_log::render(container, self.scheduler.name(), exit, self.api.now());
            fail_point("dispatcher.before-last-log");
            let others = match &exit.log_dir {
                Some(dir) => OtherLogs::InDirectory(dir),
                None => OtherLogs::SavedLast,
            };
            let all = self.api.save_log(container, others, text.clone());
            // A large log must not take the time of the text.
            let all = tokio::time::timeout(LOG_RETRY_BUDGET * 2 / 3, all).await;
            fail_point("dispatcher.after-last-log");
            match all {
                Ok(Ok(saved)) => Ok(saved),
                // If the others cannot be saved, the text is saved alone.
                _ => self.api.save_log(container, OtherLogs::None, text).await,
            }
        };
        match tokio::time::timeout(LOG_RETRY_BUDGET, save).await {
            Ok(Ok(log)) => Some(log),
            Ok(Err(error)) => {
                tracing::warn!(%container, %error, "cannot save a log about the lost executor");
                None
            }
            Err(_) => {
                tracing::warn!(%container, "saving a log about the lost executor timed out");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Eviction;

    /// Only an executor that ran can have crashed.
    #[test]
    fn a_job_that_never_started_is_no_crashed_executor() {
        let gone = |reason, job| UnlockReport { reason, job };
        let job = |never_started, cause| {
            Some(UnlockedJob {
                summary: "its job is gone".to_owned(),
                never_started,
                cause,
            })
        };
        let preempted = ExitCause::Evicted(Eviction::Preempted);
        let (crashed, abandoned) = (
            "cleaned_up_crashed_executor",
            "cleaned_up_abandoned_container",
        );
        for (what, job, name) in [
            ("never submitted", None, abandoned),
            (
                "cancelled while it waited",
                job(true, ExitCause::Evicted(Eviction::Cancelled)),
                abandoned,
            ),
            ("ran and crashed", job(false, ExitCause::Unknown), crashed),
            ("ran and was preempted", job(false, preempted), "evicted"),
        ] {
            let container = ContainerUuid::generate("zzzzz");
            let event = gone(Reason::JobGone, job).event(container, ContainerState::Queued);
            assert_eq!(event.name(), name, "{what}");
        }
    }

    #[test]
    fn an_uncertain_exit_defers_the_action() {
        let why = || "timed out".to_owned();
        for (uncertainty, unlocked, cancelled) in [
            (None, true, true),
            (Some(Uncertainty::StillRunning), false, false),
            (Some(Uncertainty::MayBeRunning(why())), false, false),
            (Some(Uncertainty::ResultsUnknown(why())), true, false),
        ] {
            let exit = JobExit {
                uncertainty,
                ..JobExit::default()
            };
            for (results_count, acted) in [(false, unlocked), (true, cancelled)] {
                let deferred = defer_reason(&exit, results_count);
                assert_eq!(deferred.is_none(), acted, "{exit:?}: {deferred:?}");
            }
        }
    }
}
