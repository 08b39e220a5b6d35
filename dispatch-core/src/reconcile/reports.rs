//! What was already reported about containers that do not run, so that nothing is reported twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use arvados_client::ContainerUuid;

use crate::model::decision::Decision;
use crate::model::world::MonotonicTime;
use crate::reconcile::pending_reasons::ReportedReasons;

/// Reports about containers that do not run.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Reasons not to run that were emitted.
    pub(crate) not_run: BTreeMap<ContainerUuid, String>,
    /// Reasons why jobs that had started stand still, as they were emitted.
    paused: BTreeMap<ContainerUuid, Arc<str>>,
    /// Reasons of the last failed attempts of containers that wait for the next attempt.
    last_failures: BTreeMap<ContainerUuid, String>,
    /// Pending reasons that were written to records.
    pub(crate) pending: ReportedReasons,
}

impl Reports {
    /// The decision not to run a container; `None` if it was already emitted with this reason.
    pub(crate) fn record_not_run(
        &mut self,
        container: ContainerUuid,
        reason: String,
    ) -> Option<Decision> {
        let known = self.not_run.insert(container.clone(), reason.clone());
        (known.as_ref() != Some(&reason)).then_some(Decision::DecidedNotToRun { container, reason })
    }

    /// The decisions about jobs that stand still now (`paused`), and about those that go on. Jobs
    /// for which `is_live` is false have ended.
    pub(crate) fn record_paused(
        &mut self,
        paused: BTreeMap<ContainerUuid, Arc<str>>,
        is_live: impl Fn(&ContainerUuid) -> bool,
    ) -> Vec<Decision> {
        let old = std::mem::replace(&mut self.paused, paused);
        let is_new =
            |(container, text): &(&ContainerUuid, &Arc<str>)| old.get(*container) != Some(*text);
        let stopped =
            self.paused
                .iter()
                .filter(is_new)
                .map(|(container, text)| Decision::JobPaused {
                    container: container.clone(),
                    reason: text.to_string(),
                });
        let is_over = |container: &&ContainerUuid| !self.paused.contains_key(*container);
        let continued = old
            .keys()
            .filter(is_over)
            .filter(|container| is_live(container));
        let continued = continued.map(|container| Decision::JobContinues {
            container: container.clone(),
        });
        stopped.chain(continued).collect()
    }

    /// Records why the last attempt at a container failed.
    pub(crate) fn record_failure(&mut self, container: &ContainerUuid, reason: &str) {
        self.last_failures
            .insert(container.clone(), reason.to_owned());
    }

    /// Removes the failures of containers that do not wait for another attempt.
    pub(crate) fn retain_failures(&mut self, retry_at: &BTreeMap<ContainerUuid, MonotonicTime>) {
        self.last_failures
            .retain(|container, _| retry_at.contains_key(container));
    }

    /// Text for the user on a container that waits `seconds` for its next attempt.
    pub(crate) fn describe_retry(&self, container: &ContainerUuid, seconds: u128) -> String {
        match self.last_failures.get(container) {
            Some(reason) => {
                format!("waits {seconds} s for its next attempt; the last one failed: {reason}")
            }
            None => format!("waits {seconds} s for its next attempt"),
        }
    }
}
