//! Ends the requests of a container that no other attempt can bring further: one that failed for
//! good, or one that can never start.
//!
//! Input: a queued container that can never start, or a container whose job is gone. crunch-run
//! wrote to its record that the container cannot succeed, or the scheduler said that its job
//! reached a limit. Output: requests whose `container_count_max` is the number of containers they
//! had, and a cancelled record. A server makes the next container in the transaction that cancels
//! this one, so the limit comes first. dispatch-api needs no limit where crunch-run itself cancels
//! the record.

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error};
use crunch_contract::runtime_status::PERMANENT_FAILURE;
use serde_json::json;

use crate::act::cancel_record::CancelReport;
use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::{ContainerEnd, ContainerSnapshot, ListedRecord};
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::scheduler::Scheduler;

/// Whether the record of an attempt that is over says that every other one would fail as well.
fn is_left_to_dispatcher(record: &ContainerSnapshot, attempt: &AttemptToken) -> bool {
    let is_open = matches!(
        record.state,
        ContainerState::Locked | ContainerState::Running
    );
    let status = record.status.as_ref();
    let mark = status.and_then(|status| status.extra.get(PERMANENT_FAILURE));
    is_open && record.locked_by.as_ref() == Some(&attempt.uuid) && mark == Some(&true.into())
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// The record of a container whose job is gone, or the result of the task if it cannot be read.
    pub(super) async fn record_left(
        &self,
        container: &ContainerUuid,
    ) -> Result<Box<ContainerSnapshot>, TaskResult> {
        match self.api.record(None, container).await {
            Ok(ListedRecord::Parsed(record)) => Ok(record),
            // A change would fail in the same way.
            Ok(ListedRecord::Malformed(_, why)) => Err(TaskResult::failed(container, why)),
            Err(error) => Err(TaskResult::api_failed(container, &error)),
        }
    }

    /// Cancels a container whose record says that it cannot succeed. The record keeps what
    /// crunch-run wrote. `None`: the record does not say so.
    pub(super) async fn cancel_permanent_failure(
        &self,
        container: &ContainerUuid,
        attempt: &AttemptToken,
        mut record: Box<ContainerSnapshot>,
    ) -> Option<TaskResult> {
        if !is_left_to_dispatcher(&record, attempt) {
            return None;
        }
        if let Err(error) = self.forbid_retry(container).await {
            return Some(TaskResult::api_failed(container, &error));
        }
        record.state = ContainerState::Cancelled;
        let report = CancelReport::recorded(&record);
        let cancelled = json!({"state": "Cancelled"});
        let call = || {
            self.api
                .update(Some(&attempt.token), container, cancelled.clone())
        };
        let container = container.clone();
        Some(match self.as_holder(&container, attempt, call).await {
            Ok(()) => self.conclude_cancel(container, &attempt.uuid, report).await,
            Err(error) => {
                self.not_cancelled(container, &attempt.uuid, report, error)
                    .await
            }
        })
    }

    /// Cancels a container that no attempt was made for, unless a user waits for it, too.
    pub(super) async fn cancel_queued(
        &self,
        container: &ContainerUuid,
        reason: String,
    ) -> TaskResult {
        let text = format!("it can never start: {reason}");
        let cancelled = json!({"state": "Cancelled", "runtime_status": {"error": text}});
        let cancelling = async {
            // Requests come and go without a change of the container's record.
            let mut facts = self
                .api
                .request_facts(std::slice::from_ref(container))
                .await?;
            let facts = facts.remove(container).unwrap_or_default();
            if facts.requested_by.is_none() {
                return Ok(false);
            }
            self.forbid_retry(container).await?;
            self.api.update(None, container, cancelled).await?;
            Ok::<_, Error>(true)
        };
        match cancelling.await {
            Ok(true) => {
                let ended = Decision::Ended {
                    container: container.clone(),
                    how: ContainerEnd::described(format!("Cancelled: {text}")),
                };
                TaskResult::new(Outcome::QueuedCancelled, vec![ended])
            }
            Ok(false) => TaskResult::new(Outcome::NotCancelled, vec![]),
            Err(error) => {
                let failed = TaskResult::api_failed(container, &error);
                TaskResult {
                    outcome: Outcome::NotCancelled,
                    ..failed
                }
            }
        }
    }

    /// Lowers `container_count_max` of the container's requests to the containers they had.
    pub(super) async fn forbid_retry(&self, container: &ContainerUuid) -> Result<(), Error> {
        for request in self.api.requests_of(container).await? {
            let (uuid, had) = (&request.uuid, request.containers.max(1));
            if (1..=had).contains(&request.max_containers) {
                continue;
            }
            match self.api.set_max_containers(uuid, had).await {
                Ok(()) => {}
                // The request was deleted, or has ended.
                Err(error) if error.is_not_found() || error.is_refused() || error.is_denied() => {
                    tracing::warn!(
                        %container, request = %uuid, %error,
                        "the container cannot succeed, and may run again: the server does not lower container_count_max"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
