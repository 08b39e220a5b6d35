//! Results that an attempt left on its node: the record says so, and nothing else happens to it while they may still be
//! delivered.

use std::time::Duration;

use arvados_client::{ContainerUuid, Token};
use serde_json::json;

use super::holder::HolderError;
use super::{Hands, Outcome, Report};
use crate::api::{Api, Row, UNDELIVERED_SINCE, WARNING_BEFORE, WARNING_DETAIL_BEFORE};
use crate::attempts::AttemptToken;
use crate::events::Event;
use crate::exit_status;
use crate::scheduler::{Ending, Scheduler};

impl<A: Api, S: Scheduler> Hands<A, S> {
    /// Says in the record, once, why it stays as it is though nothing runs any more. Nobody else writes there.
    pub(super) async fn tell_doubt(&self, container: &ContainerUuid, by: &Token, why: &str) {
        let Ok(Row::Container(record)) = self.api.record(None, container).await else {
            return;
        };
        let mut status = record.status.map(|status| *status).unwrap_or_default();
        if status.activity.as_deref() == Some(why) {
            return;
        }
        status.activity = Some(why.to_owned());
        let change = json!({"runtime_status": status});
        if let Err(error) = self.api.update(Some(by), container, change).await {
            tracing::debug!(%container, %error, "its record does not say what is in doubt");
        }
    }

    /// Results that are kept on the node may still be delivered, which takes the record as it is and the attempt's
    /// token. The record says so: a scheduler forgets its jobs, and a dispatcher may be restarted. None: there are no
    /// such results, or the attempt is over.
    pub(super) async fn undelivered(
        &self,
        container: &ContainerUuid,
        by: &AttemptToken,
        ending: &Ending,
    ) -> Option<Report> {
        let now = self.api.now();
        let record = match self.api.record(None, container).await {
            Ok(Row::Container(record)) => record,
            // The cancel that follows would do no better.
            Ok(Row::Unreadable(_, why)) => return Some(Report::failed(container, why)),
            Err(error) => return Some(Report::failed(container, &error).after(&error)),
        };
        if let Some(since) = record.undelivered_since() {
            let waited = now.duration_since(since).unsigned_abs();
            return Some(Report::new(Outcome::Undelivered(waited), vec![]));
        }
        if !ending.undelivered {
            return None;
        }
        let (reason, waits) = (ending.sentence(), results_wait(ending));
        let mut status = record.status.map(|status| *status).unwrap_or_default();
        let mut note = |key: &str, value: String| {
            status.extra.insert(key.to_owned(), value.into());
        };
        note(UNDELIVERED_SINCE, now.to_string());
        // Who delivers the results puts them back.
        if let Some(warning) = status.warning.take() {
            note(WARNING_BEFORE, warning);
        }
        if let Some(detail) = status.warning_detail.take() {
            note(WARNING_DETAIL_BEFORE, detail);
        }
        status.activity = Some(waits.clone());
        status.warning = Some(format!("{reason}; {waits}"));
        status.warning_detail = Some(ending.detail.clone());
        let change = json!({"runtime_status": status});
        let call = || self.api.update(Some(&by.token), container, change.clone());
        match self.as_holder(container, by, call).await {
            Ok(()) => {
                let container = container.clone();
                let reason = format!("{reason}; {waits}");
                Some(Report::new(
                    Outcome::Undelivered(Duration::ZERO),
                    vec![Event::ResultsUndelivered { container, reason }],
                ))
            }
            Err(HolderError::NotHolder(_) | HolderError::Expired) => None,
            Err(HolderError::Unreadable(why)) => Some(Report::failed(container, why)),
            Err(HolderError::Api(error)) => Some(Report::failed(container, &error).after(&error)),
        }
    }
}

/// Where the results are, and what delivers them.
fn results_wait(ending: &Ending) -> String {
    let node = ending.node.as_deref().unwrap_or("its node");
    match exit_status::results_directory(&ending.detail) {
        Some(dir) => format!(
            "its results are on {node} in {dir} and wait for an administrator to deliver them: `crunch-run resume {dir}` there"
        ),
        None => format!("its results are on {node} and wait for an administrator to deliver them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_node_directory_and_command() {
        let ending = |node: Option<&str>, detail: &str| Ending {
            node: node.map(str::to_owned),
            detail: detail.to_owned(),
            ..Ending::default()
        };
        let said = "u The results are not delivered and stay in /scratch/x: no answer. `crunch-run resume /scratch/x` on this node delivers them later\n";
        assert_eq!(
            results_wait(&ending(Some("n7"), said)),
            "its results are on n7 in /scratch/x and wait for an administrator to deliver them: `crunch-run resume /scratch/x` there"
        );
        assert_eq!(
            results_wait(&ending(None, "")),
            "its results are on its node and wait for an administrator to deliver them"
        );
    }
}
