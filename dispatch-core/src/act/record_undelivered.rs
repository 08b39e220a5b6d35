//! Records results that an attempt left on its node, or whose existence is uncertain.
//!
//! Input: the [`JobExit`] from the scheduler and the container record. Output: an updated
//! `runtime_status`. The container's state stays as it is while its results may still be delivered.
//! `cancel_record` calls this instead of cancelling, until `--undelivered-wait` has passed
//! (`reconcile/apply_outcome.rs`).

use std::time::Duration;

use arvados_client::{ContainerUuid, Token};
use crunch_contract::StatusLine;
use crunch_contract::runtime_status::{UNDELIVERED_SINCE, WARNING_BEFORE, WARNING_DETAIL_BEFORE};
use serde_json::json;

use crate::act::holder::HolderError;
use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::{ContainerSnapshot, ListedRecord};
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::scheduler::{JobExit, Scheduler};

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// Writes to the record, once, why its state does not change although no job runs. No other
    /// program writes to the record then.
    pub(super) async fn record_uncertainty(
        &self,
        container: &ContainerUuid,
        by: &Token,
        why: &str,
    ) {
        let Ok(ListedRecord::Parsed(record)) = self.api.record(None, container).await else {
            return;
        };
        let mut status = record.status.map(|status| *status).unwrap_or_default();
        if status.activity.as_deref() == Some(why) {
            return;
        }
        status.activity = Some(why.to_owned());
        let change = json!({"runtime_status": status});
        if let Err(error) = self.api.update(Some(by), container, change).await {
            tracing::debug!(%container, %error, "cannot write to the record why its state is uncertain");
        }
    }

    /// Records that results wait on the node. Delivery needs the attempt's token and an unchanged
    /// state. The note in the record outlives the scheduler's job history and a restart of the
    /// dispatcher. None: there are no such results, or the attempt is over.
    pub(super) async fn record_undelivered(
        &self,
        container: &ContainerUuid,
        by: &AttemptToken,
        exit: &JobExit,
        record: &ContainerSnapshot,
    ) -> Option<TaskResult> {
        let now = self.api.now();
        if let Some(since) = record.undelivered_since() {
            let waited = now.duration_since(since).unsigned_abs();
            return Some(TaskResult::new(Outcome::Undelivered(waited), vec![]));
        }
        if !exit.undelivered {
            return None;
        }
        let (reason, results) = (exit.reason_or_default(), describe_results(exit));
        let status = record.status.clone();
        let mut status = status.map(|status| *status).unwrap_or_default();
        let mut note = |key: &str, value: String| {
            status.extra.insert(key.to_owned(), value.into());
        };
        note(UNDELIVERED_SINCE, now.to_string());
        // The program that delivers the results restores the earlier warning.
        if let Some(warning) = status.warning.take() {
            note(WARNING_BEFORE, warning);
        }
        if let Some(detail) = status.warning_detail.take() {
            note(WARNING_DETAIL_BEFORE, detail);
        }
        status.activity = Some(results.clone());
        status.warning = Some(format!("{reason}; {results}"));
        status.warning_detail = Some(exit.detail.clone());
        let change = json!({"runtime_status": status});
        let call = || self.api.update(Some(&by.token), container, change.clone());
        match self.as_holder(container, by, call).await {
            Ok(()) => {
                let container = container.clone();
                let reason = format!("{reason}; {results}");
                Some(TaskResult::new(
                    Outcome::Undelivered(Duration::ZERO),
                    vec![Decision::ResultsUndelivered { container, reason }],
                ))
            }
            Err(HolderError::NotHolder(_) | HolderError::Expired) => None,
            Err(HolderError::Unreadable(why)) => Some(TaskResult::failed(container, why)),
            Err(HolderError::Api(error)) => Some(TaskResult::api_failed(container, &error)),
        }
    }
}

/// The location of the results, and the command that delivers them.
fn describe_results(exit: &JobExit) -> String {
    let node = exit.node.as_deref().unwrap_or("its node");
    match &exit.status_line {
        Some(StatusLine::Undelivered { directory: dir }) => format!(
            "its results are on {node} in {dir} and wait for an administrator to deliver them: `crunch-run resume {dir}` there"
        ),
        _ => format!("its results are on {node} and wait for an administrator to deliver them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_node_directory_and_command() {
        let exit = |node: Option<&str>, status_line| JobExit {
            node: node.map(str::to_owned),
            status_line,
            ..JobExit::default()
        };
        let status_line = StatusLine::Undelivered {
            directory: "/scratch/x".into(),
        };
        assert_eq!(
            describe_results(&exit(Some("n7"), Some(status_line))),
            "its results are on n7 in /scratch/x and wait for an administrator to deliver them: `crunch-run resume /scratch/x` there"
        );
        assert_eq!(
            describe_results(&exit(None, None)),
            "its results are on its node and wait for an administrator to deliver them"
        );
    }
}
