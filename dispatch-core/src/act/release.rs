//! Ends an attempt whose executor did not record a final state.
//!
//! Input: the container, its attempt token and the [`JobExit`] from the scheduler. Output: an
//! unlocked or cancelled record, with the reason, and an [`Outcome`].

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Token, TokenUuid};
use fail_points::fail_point;
use serde_json::json;

use crate::act::crash_log;
use crate::act::holder::HolderError;
use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::ContainerSnapshot;
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::model::reason::Reason;
use crate::model::task::{Cancellation, Unlock};
use crate::scheduler::{JobExit, Scheduler, Uncertainty};

/// Time limit for saving a log or writing a record, retries included. The next poll plans the
/// action again anyway.
const LOG_RETRY_BUDGET: Duration = Duration::from_secs(15);

/// Why the container is not touched although two listings lacked its job. Both listings may be
/// wrong in the same way.
fn defer_reason(exit: &JobExit, results_count: bool) -> Option<String> {
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
fn ended_event(container: ContainerUuid, record: &ContainerSnapshot) -> Option<Decision> {
    let how = record.state.is_final().then(|| record.end())?;
    Some(Decision::Ended { container, how })
}

fn exit_unknown(container: &ContainerUuid, exit: &JobExit, why: String) -> TaskResult {
    let mut result = TaskResult::failed(container, why);
    let results = matches!(exit.uncertainty, Some(Uncertainty::ResultsUnknown(_)));
    result.outcome = Outcome::ExitUnknown { results };
    result
}

/// The decision to report after an unlock: an executor was lost, or none ever ran.
struct UnlockReport {
    reason: Reason,
    /// Summary of the job's exit, and whether the job certainly never started. None: the scheduler
    /// was not queried.
    job: Option<(String, bool)>,
}

impl UnlockReport {
    fn event(self, container: ContainerUuid, state: ContainerState) -> Decision {
        match self.job {
            Some((reason, false)) => Decision::ExecutorLost {
                container,
                state,
                reason,
            },
            job => Decision::Unlocked {
                container,
                state,
                reason: self.reason,
                job: job.map(|(summary, _)| summary),
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
            reason,
            was_listed,
        } = unlock;
        let Some(token) = token.filter(|t| t.uuid == attempt) else {
            return TaskResult::new(Outcome::Failed, vec![]);
        };
        let mut failed_node = None;
        let mut job = None;
        if reason == Reason::JobGone {
            let exit = self.scheduler.job_exit(&container, &attempt).await;
            if let Some(why) = defer_reason(&exit, false) {
                return exit_unknown(&container, &exit, why);
            }
            failed_node.clone_from(&exit.node);
            self.record_failure(&container, &token.token, &exit).await;
            job = Some((exit.summary(), exit.never_started || !was_listed));
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
                self.cancel_with_dispatch_token(container, &attempt, reason.to_owned())
                    .await
            }
            Err(HolderError::Unreadable(why)) => TaskResult::failed(&container, why),
            Err(HolderError::Api(error)) => TaskResult::api_failed(&container, &error),
        }
    }

    /// Cancels the record of a container whose executor is gone, with the scheduler's verdict.
    pub(crate) async fn cancel(&self, cancellation: Cancellation) -> TaskResult {
        let Cancellation {
            container,
            attempt,
            token,
            reason,
            ignores_results,
        } = cancellation;
        let exit = self.scheduler.job_exit(&container, &attempt).await;
        let token = token.filter(|token| token.uuid == attempt);
        let deferred = self
            .defer_cancel(&container, token.as_ref(), &exit, reason, ignores_results)
            .await;
        if let Some(result) = deferred {
            return result;
        }
        let reason = match reason {
            Reason::Undelivered => {
                let reason = exit.reason_or_default();
                format!("{reason}; the results were not delivered in time")
            }
            _ => exit.reason_or_default().to_owned(),
        };
        let cancelled = self
            .write_cancelled(&container, token.as_ref(), &exit, &reason)
            .await;
        match cancelled {
            Ok(()) => self.conclude_cancel(container, &attempt, reason).await,
            Err(HolderError::NotHolder(record)) => {
                let error = record.status.as_ref().and_then(|s| s.error.as_ref());
                let event =
                    match error == Some(&reason) && record.state == ContainerState::Cancelled {
                        // An earlier cancel took effect although its answer was lost.
                        true => Some(Decision::ExecutorLost {
                            container: container.clone(),
                            state: record.state.clone(),
                            reason,
                        }),
                        false => ended_event(container.clone(), &record),
                    };
                self.lock_lost(&container, &attempt, record, event).await
            }
            Err(HolderError::Expired) => {
                self.cancel_with_dispatch_token(container, &attempt, reason)
                    .await
            }
            Err(HolderError::Unreadable(why)) => TaskResult::failed(&container, why),
            Err(HolderError::Api(error)) => TaskResult::api_failed(&container, &error),
        }
    }

    /// The result of a cancellation that must wait, because the job may be running or may have left
    /// results on its node.
    async fn defer_cancel(
        &self,
        container: &ContainerUuid,
        token: Option<&AttemptToken>,
        exit: &JobExit,
        reason: Reason,
        ignores_results: bool,
    ) -> Option<TaskResult> {
        let may_be_running = matches!(
            exit.uncertainty,
            Some(Uncertainty::StillRunning | Uncertainty::MayBeRunning(_))
        );
        // The record has what an earlier run of this dispatcher recorded.
        if let (Reason::JobGone, Some(token), false) = (reason, token, may_be_running) {
            let result = self.record_undelivered(container, token, exit).await;
            if result.is_some() {
                return result;
            }
        }
        let why = defer_reason(exit, reason == Reason::JobGone && !ignores_results)?;
        if let (Some(Uncertainty::ResultsUnknown(_)), Some(token)) = (&exit.uncertainty, token) {
            self.record_uncertainty(container, &token.token, &why).await;
        }
        Some(exit_unknown(container, exit, why))
    }

    /// Writes Cancelled and the reason to the record. Without the attempt's token, the update may
    /// contain nothing but the state.
    async fn write_cancelled(
        &self,
        container: &ContainerUuid,
        token: Option<&AttemptToken>,
        exit: &JobExit,
        reason: &str,
    ) -> Result<(), HolderError> {
        fail_point("dispatcher.before-cancel");
        let cancelled = match token {
            Some(token) => {
                let log = self.save_crash_log(container, exit).await;
                let mut change = json!({
                    "state": "Cancelled",
                    "runtime_status": {"error": reason, "errorDetail": exit.detail},
                });
                if let Some(log) = log {
                    change["log"] = log.into();
                }
                let by = Some(&token.token);
                let call = || self.api.update(by, container, change.clone());
                self.as_holder(container, token, call).await
            }
            None => {
                let bare = json!({"state": "Cancelled"});
                let cancelled = self.api.update(None, container, bare).await;
                cancelled.map_err(HolderError::Api)
            }
        };
        fail_point("dispatcher.after-cancel");
        cancelled
    }

    /// Cleans up after the record became Cancelled.
    async fn conclude_cancel(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        reason: String,
    ) -> TaskResult {
        let is_revoked = self.cleanup_attempt(&container, attempt).await.is_ok();
        let state = ContainerState::Cancelled;
        let event = Decision::ExecutorLost {
            container,
            state: state.clone(),
            reason,
        };
        TaskResult::new(Outcome::Released(state, is_revoked), vec![event])
    }

    /// Cleans up an attempt that lost its lock. An earlier request took effect although its answer
    /// was lost. Another attempt may hold the lock by now.
    async fn lock_lost(
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

    /// Cancels with the dispatch token, since the attempt holds the lock but its token has expired.
    /// An unlock is impossible then. The update may contain nothing but the state.
    async fn cancel_with_dispatch_token(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        reason: String,
    ) -> TaskResult {
        let bare = json!({"state": "Cancelled"});
        match self.api.update(None, &container, bare).await {
            Ok(()) => self.conclude_cancel(container, attempt, reason).await,
            Err(error) => TaskResult::api_failed(&container, &error),
        }
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
    async fn save_crash_log(&self, container: &ContainerUuid, exit: &JobExit) -> Option<String> {
        let save = async {
            let text = crash_log::render(container, self.scheduler.name(), exit, self.api.now());
            fail_point("dispatcher.before-last-log");
            let saved = self.api.save_log(container, true, text.clone()).await;
            fail_point("dispatcher.after-last-log");
            match saved {
                // If the merge fails, the text is saved alone.
                Err(_) => self.api.save_log(container, false, text).await,
                saved => saved,
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

    /// Only an executor that ran can have crashed.
    #[test]
    fn a_job_that_never_started_is_no_crashed_executor() {
        let gone = |reason, job| UnlockReport { reason, job };
        let summary = |never_started| Some(("its job is gone".to_owned(), never_started));
        let (crashed, abandoned) = (
            "cleaned_up_crashed_executor",
            "cleaned_up_abandoned_container",
        );
        for (what, given_back, name) in [
            ("never submitted", gone(Reason::Refused, None), abandoned),
            (
                "cancelled while it waited",
                gone(Reason::JobGone, summary(true)),
                abandoned,
            ),
            (
                "ran and crashed",
                gone(Reason::JobGone, summary(false)),
                crashed,
            ),
        ] {
            let container = ContainerUuid::generate("zzzzz");
            let event = given_back.event(container, ContainerState::Queued);
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
