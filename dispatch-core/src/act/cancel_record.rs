//! Cancels the record of a container whose executor is gone, with what the scheduler says of its
//! job.
//!
//! Input: the container, its attempt token and the [`JobExit`] from the scheduler. Output: a
//! cancelled record, with the reason, and an [`Outcome`]. Here is decided whether another attempt
//! follows (`set_retry`). If the site took the job away, the container's requests get one more
//! attempt first; if no other attempt can succeed, they get none.

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};
use crunch_contract::runtime_status::{EVICTION, PERMANENT_FAILURE};
use fail_points::fail_point;
use serde_json::json;

use crate::act::holder::HolderError;
use crate::act::unlock::{defer_reason, ended_event, exit_unknown};
use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::{ContainerEnd, ContainerSnapshot};
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::model::reason::Reason;
use crate::model::task::Cancellation;
use crate::scheduler::{Eviction, ExitCause, JobExit, Scheduler, Uncertainty};

/// What the record and the decision say of a cancelled container.
#[derive(Debug, Clone)]
pub(super) struct CancelReport {
    /// Reason in the record.
    reason: String,
    kind: CancelKind,
}

/// Who or what ended the container.
#[derive(Debug, Clone)]
enum CancelKind {
    /// Its executor is gone, and the site did not take it away.
    Lost,
    /// The site took the job away. `counts`: this was an attempt of the request.
    Evicted { eviction: Eviction, counts: bool },
    /// crunch-run wrote the reason; `how` describes the end.
    Recorded { how: ContainerEnd },
}

impl CancelReport {
    /// A report on an executor that the site did not take away.
    fn lost(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            kind: CancelKind::Lost,
        }
    }

    /// A report on a final record in which crunch-run wrote the reason.
    pub(super) fn recorded(record: &ContainerSnapshot) -> Self {
        let error = record.status.as_ref().and_then(|s| s.error.clone());
        let how = record.end();
        Self {
            reason: error.unwrap_or_default(),
            kind: CancelKind::Recorded { how },
        }
    }

    fn event(self, container: ContainerUuid) -> Decision {
        let (state, reason) = (ContainerState::Cancelled, self.reason);
        match self.kind {
            CancelKind::Evicted { eviction, counts } => Decision::Evicted {
                container,
                state,
                reason,
                eviction,
                counts,
            },
            CancelKind::Lost => Decision::ExecutorLost {
                container,
                state,
                reason,
            },
            CancelKind::Recorded { how } => Decision::Ended { container, how },
        }
    }
}

impl From<&str> for CancelReport {
    fn from(reason: &str) -> Self {
        Self::lost(reason)
    }
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// Cancels the record, unless its job may be running or may have left results.
    pub(crate) async fn cancel(&self, cancellation: Cancellation) -> TaskResult {
        let exit = self
            .scheduler
            .job_exit(&cancellation.container, &cancellation.attempt)
            .await;
        let Cancellation {
            container,
            attempt,
            token,
            reason,
            ignores_results,
        } = cancellation;
        let token = match self.token_or_read(&container, &attempt, token).await {
            Ok(token) => token,
            Err(error) => return TaskResult::api_failed(&container, &error),
        };
        // Without the token, the server does not check who holds the lock.
        if token.is_none() {
            let record = match self.record_left(&container).await {
                Ok(record) => record,
                Err(result) => return result,
            };
            if record.locked_by.as_ref() != Some(&attempt) {
                let event = ended_event(container.clone(), &record);
                return self.lock_lost(&container, &attempt, record, event).await;
            }
        }
        // What the record says counts only while this attempt holds it and its job is gone.
        let record = match (reason, &token) {
            (Reason::JobGone, Some(_)) => match self.record_left(&container).await {
                Ok(record) => Some(record),
                Err(result) => return result,
            },
            _ => None,
        };
        let held = token.as_ref().zip(record.as_deref());
        let deferred = self
            .defer_cancel(&container, held, &exit, reason, ignores_results)
            .await;
        if let Some(result) = deferred {
            return result;
        }
        let mut report = CancelReport::lost(match reason {
            Reason::Undelivered => {
                let reason = exit.reason_or_default();
                format!("{reason}; the results were not delivered in time")
            }
            _ => exit.reason_or_default(),
        });
        if let (Some(token), Some(record)) = (&token, record) {
            let permanent = self.cancel_permanent_failure(&container, token, record);
            if let Some(result) = permanent.await {
                return result;
            }
            match self.set_retry(&container, token, exit.cause).await {
                Ok(None) => {}
                Ok(Some(kind)) => {
                    if matches!(kind, CancelKind::Evicted { counts: true, .. }) {
                        let limit = self.max_evictions;
                        report.reason += &format!(
                            "; this counts as an attempt of its request: {limit} evictions do not count (--max-evictions), if the server permits it"
                        );
                    }
                    report.kind = kind;
                }
                Err(error) => return self.not_cancelled(container, &attempt, report, error).await,
            }
        }
        let cancelled = self
            .write_cancelled(&container, token.as_ref(), &exit, &report)
            .await;
        match cancelled {
            Ok(()) => self.conclude_cancel(container, &attempt, report).await,
            Err(error) => self.not_cancelled(container, &attempt, report, error).await,
        }
    }

    /// Sets how often the container's requests may be tried, and returns how that is reported.
    async fn set_retry(
        &self,
        container: &ContainerUuid,
        token: &AttemptToken,
        cause: ExitCause,
    ) -> Result<Option<CancelKind>, HolderError> {
        match cause {
            ExitCause::Evicted(eviction) => {
                let counts = !self.grant_extra_attempt(container, token).await?;
                Ok(Some(CancelKind::Evicted { eviction, counts }))
            }
            ExitCause::Limit => {
                let forbidden = self.forbid_retry(container).await;
                forbidden.map(|()| None).map_err(HolderError::Api)
            }
            ExitCause::Unknown => Ok(None),
        }
    }

    /// The result of a cancellation that must wait, because the job may be running or may have left
    /// results on its node.
    async fn defer_cancel(
        &self,
        container: &ContainerUuid,
        held: Option<(&AttemptToken, &ContainerSnapshot)>,
        exit: &JobExit,
        reason: Reason,
        ignores_results: bool,
    ) -> Option<TaskResult> {
        let may_be_running = matches!(
            exit.uncertainty,
            Some(Uncertainty::StillRunning | Uncertainty::MayBeRunning(_))
        );
        // The record has what an earlier run of this dispatcher recorded.
        if let (Some((token, record)), false) = (held, may_be_running) {
            let result = self
                .record_undelivered(container, token, exit, record)
                .await;
            if result.is_some() {
                return result;
            }
        }
        let why = defer_reason(exit, reason == Reason::JobGone && !ignores_results)?;
        if let (Some(Uncertainty::ResultsUnknown(_)), Some((token, _))) = (&exit.uncertainty, held)
        {
            self.record_uncertainty(container, &token.token, &why).await;
        }
        Some(exit_unknown(container, exit, why))
    }

    /// The result of a cancellation that the server refused.
    pub(super) async fn not_cancelled(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        report: CancelReport,
        error: HolderError,
    ) -> TaskResult {
        match error {
            HolderError::NotHolder(record) => {
                let error = record.status.as_ref().and_then(|s| s.error.as_ref());
                let is_ours =
                    error == Some(&report.reason) && record.state == ContainerState::Cancelled;
                let event = match is_ours {
                    // An earlier cancel took effect although its answer was lost.
                    true => Some(report.event(container.clone())),
                    false => ended_event(container.clone(), &record),
                };
                self.lock_lost(&container, attempt, record, event).await
            }
            HolderError::Expired => {
                self.cancel_with_dispatch_token(container, attempt, report)
                    .await
            }
            HolderError::Unreadable(why) => TaskResult::failed(&container, why),
            HolderError::Api(error) => TaskResult::api_failed(&container, &error),
        }
    }

    /// Writes Cancelled and the reason to the record. Without the attempt's token, the update may
    /// contain nothing but the state.
    async fn write_cancelled(
        &self,
        container: &ContainerUuid,
        token: Option<&AttemptToken>,
        exit: &JobExit,
        report: &CancelReport,
    ) -> Result<(), HolderError> {
        fail_point("dispatcher.before-cancel");
        let cancelled = match token {
            Some(token) => {
                let log = self.save_crash_log(container, exit).await;
                let mut status = json!({"error": report.reason, "errorDetail": exit.detail});
                match (&report.kind, exit.cause) {
                    (CancelKind::Evicted { eviction, .. }, _) => {
                        status[EVICTION] = eviction.word().into();
                    }
                    (_, ExitCause::Limit) => status[PERMANENT_FAILURE] = true.into(),
                    _ => {}
                }
                let mut change = json!({"state": "Cancelled", "runtime_status": status});
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
    pub(super) async fn conclude_cancel(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        report: CancelReport,
    ) -> TaskResult {
        let is_revoked = self.cleanup_attempt(&container, attempt).await.is_ok();
        let outcome = Outcome::Released(ContainerState::Cancelled, is_revoked);
        TaskResult::new(outcome, vec![report.event(container)])
    }

    /// Cancels with the dispatch token, since the attempt holds the lock but its token has expired.
    /// An unlock is impossible then. The update may contain nothing but the state.
    pub(super) async fn cancel_with_dispatch_token(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        report: impl Into<CancelReport>,
    ) -> TaskResult {
        let report = report.into();
        let bare = json!({"state": "Cancelled"});
        match self.api.update(None, &container, bare).await {
            Ok(()) => self.conclude_cancel(container, attempt, report).await,
            Err(error) => TaskResult::api_failed(&container, &error),
        }
    }
}
