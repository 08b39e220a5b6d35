//! The task runner: one call for each kind of task.
//!
//! Input: one [`Task`] with all that its run needs. Output: a [`TaskResult`] for each container of
//! the task.

use std::sync::Arc;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::act::attempt_tokens::AttemptTokens;
use crate::api::Api;
use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::ListedRecord;
use crate::model::decision::Decision;
use crate::model::outcome::{Feedback, Outcome};
use crate::model::task::{PendingReport, Task};
use crate::scheduler::Scheduler;
use crate::scheduler::credentials::GatewayKey;
use crate::scheduler::submit_host::Precondition;

/// Runs tasks with the API server and the scheduler.
#[derive(Debug)]
pub struct TaskRunner<A, S> {
    /// The API server, with the dispatch token.
    pub api: A,
    /// The scheduler that runs the jobs.
    pub scheduler: Arc<S>,
    /// Attempt tokens of this dispatcher instance.
    pub attempts: AttemptTokens<A>,
    /// Key from which gateway secrets are derived, if the dispatcher has one.
    pub gateway: Option<GatewayKey>,
    /// Number of containers of a request up to which evictions do not count.
    pub max_evictions: u32,
    /// The file storage, in which attempts store logs and results.
    pub storage: Arc<Precondition>,
    /// Cancelled when the dispatcher stops. Nothing more is locked then: it would be given back,
    /// and the server allows few locks.
    pub stopping: CancellationToken,
}

impl<A: Clone, S> Clone for TaskRunner<A, S> {
    fn clone(&self) -> Self {
        Self {
            api: self.api.clone(),
            scheduler: self.scheduler.clone(),
            attempts: self.attempts.clone(),
            gateway: self.gateway.clone(),
            max_evictions: self.max_evictions,
            storage: self.storage.clone(),
            stopping: self.stopping.clone(),
        }
    }
}

/// The result of a task for one container.
#[derive(Debug)]
pub struct TaskResult {
    /// The observation.
    pub outcome: Outcome,
    /// Decisions to report, in order.
    pub events: Vec<Decision>,
    /// Additional observations.
    pub feedback: Feedback,
}

/// The results of one task: one for each of its containers.
pub type TaskResults = Vec<(ContainerUuid, TaskResult)>;

impl TaskResult {
    pub(super) fn new(outcome: Outcome, events: Vec<Decision>) -> Self {
        Self {
            outcome,
            events,
            feedback: Feedback::default(),
        }
    }

    /// The result of a failed task. A later poll plans it again.
    pub(crate) fn failed(container: &ContainerUuid, error: impl ToString) -> Self {
        let (container, error) = (container.clone(), error.to_string());
        Self::new(
            Outcome::Failed,
            vec![Decision::ActionFailed { container, error }],
        )
    }

    /// The result of a task whose call to the API server failed.
    pub(super) fn api_failed(container: &ContainerUuid, error: &Error) -> Self {
        Self::failed(container, error).with_feedback(error)
    }

    pub(super) fn with_feedback(mut self, error: &Error) -> Self {
        self.feedback.overloaded |= error.is_overload();
        self
    }
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// Runs one task.
    pub async fn run(&self, task: Task) -> TaskResults {
        let (container, result) = match task {
            Task::Start(batch) => return self.start(batch).await,
            Task::Submit(batch) => return self.submit(batch).await,
            Task::Stop(batch, mode) => return self.stop(batch, mode).await,
            Task::Unlock(unlock) => (unlock.container.clone(), self.unlock(unlock).await),
            Task::Cancel(cancellation) => {
                let container = cancellation.container.clone();
                (container, self.cancel(cancellation).await)
            }
            Task::CancelQueued(container, reason) => {
                let result = self.cancel_queued(&container, reason).await;
                (container, result)
            }
            Task::EndAttempt(end) => (end.container.clone(), self.end_attempt(end).await),
            Task::Renew(container, token) => {
                let result = self.renew(&container, &token).await;
                (container, result)
            }
            Task::ReportPendingReason(report) => {
                let container = report.container.clone();
                (container, self.report_pending_reason(report).await)
            }
            Task::RevokeOrphan(orphan) => {
                (orphan.container.clone(), self.revoke_orphan(orphan).await)
            }
        };
        vec![(container, result)]
    }

    async fn renew(&self, container: &ContainerUuid, token: &AttemptToken) -> TaskResult {
        match self.attempts.renew(token).await {
            Ok(token) => TaskResult::new(Outcome::Renewed(token), vec![]),
            Err(error) => {
                let message = format!("cannot renew the token of its attempt: {error}");
                TaskResult::failed(container, message).with_feedback(&error)
            }
        }
    }

    async fn report_pending_reason(&self, report: PendingReport) -> TaskResult {
        let PendingReport {
            container,
            token,
            text,
        } = report;
        let reported = |text| TaskResult::new(Outcome::Reported(text), vec![]);
        // An update replaces the whole status, so entries of an earlier attempt must be copied.
        let record = match self.api.record(Some(&token.token), &container).await {
            Ok(ListedRecord::Parsed(record))
                if matches!(
                    record.state,
                    ContainerState::Locked | ContainerState::Running
                ) =>
            {
                record
            }
            // The lock is lost, or the record is malformed.
            Ok(_) => return reported(text),
            Err(error) => return TaskResult::api_failed(&container, &error),
        };
        let mut status = record.status.map(|status| *status).unwrap_or_default();
        status.activity = Some(text.to_string());
        let change = json!({"runtime_status": status});
        match self
            .api
            .update(Some(&token.token), &container, change)
            .await
        {
            Ok(()) => reported(text),
            Err(error) => TaskResult::api_failed(&container, &error),
        }
    }
}
