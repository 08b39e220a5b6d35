//! Writes the record's `runtime_status` during the attempt: activity and warnings.
//!
//! The server replaces the whole attribute, and a container with API access may write it too. So
//! other writers' keys are read and kept.

use std::time::Duration;

use arvados_client::client::Call;
use arvados_client::records::{Container, RuntimeStatus};
use arvados_client::{Client, ContainerUuid};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// Minimum duration of an activity that is reported.
const MIN_ACTIVITY: Duration = Duration::from_secs(2);
/// Minimum interval between two updates.
const UPDATE_INTERVAL: Duration = Duration::from_secs(2);
/// Retry budget of one update.
const UPDATE_RETRY_BUDGET: Duration = Duration::from_secs(5);

/// crunch-run's part of the attribute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatusUpdate {
    pub activity: Option<String>,
    pub warnings: Vec<String>,
    /// Warnings that the command is near one of its limits.
    pub near_limits: Vec<String>,
    /// Whether a limit ended the command: the warnings before say nothing more.
    pub ended_by_limit: bool,
    /// Notice that the node will be taken away.
    pub preemption: Option<String>,
}

impl StatusUpdate {
    /// Merges into the attribute: the activity is replaced, warnings are added.
    pub fn merge_into(&self, original: &RuntimeStatus) -> RuntimeStatus {
        let mut status = original.clone();
        status.activity.clone_from(&self.activity);
        if self.preemption.is_some() {
            status.preemption_notice.clone_from(&self.preemption);
        }
        let near_limits = self.near_limits.iter();
        if self.ended_by_limit {
            near_limits
                .clone()
                .for_each(|text| retract(&mut status, text));
        }
        let new: Vec<&String> = near_limits
            .filter(|_| !self.ended_by_limit)
            .chain(&self.warnings)
            .filter(|w| status.warning.as_ref() != Some(w))
            .filter(|w| {
                let detail = status.warning_detail.as_deref().unwrap_or_default();
                !detail.lines().any(|line| line == w.as_str())
            })
            .collect();
        let mut details: Vec<String> = status.warning_detail.take().into_iter().collect();
        for warning in new {
            if status.warning.is_none() {
                status.warning = Some(warning.clone());
            } else {
                details.push(warning.clone());
            }
        }
        status.warning_detail = (!details.is_empty()).then(|| details.join("\n"));
        status
    }
}

/// Removes a warning that was written before.
fn retract(status: &mut RuntimeStatus, warning: &str) {
    let lines = |text: Option<String>| -> Vec<String> {
        text.iter()
            .flat_map(|text| text.lines())
            .map(str::to_owned)
            .collect()
    };
    if status.warning.as_deref() == Some(warning) {
        let mut others = lines(status.warning_detail.take());
        status.warning = (!others.is_empty()).then(|| others.remove(0));
        status.warning_detail = (!others.is_empty()).then(|| others.join("\n"));
    } else if let Some(detail) = status.warning_detail.take() {
        let mut others = lines(Some(detail));
        others.retain(|line| line != warning);
        status.warning_detail = (!others.is_empty()).then(|| others.join("\n"));
    }
}

/// Writes the attribute in the background. The attempt never waits for it.
#[derive(Debug)]
pub struct Status {
    update: watch::Sender<StatusUpdate>,
    writer: StatusWriter,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Clone)]
struct StatusWriter {
    client: Client,
    uuid: ContainerUuid,
    /// The attribute when the attempt began.
    original: RuntimeStatus,
    /// Whether the container may write the attribute.
    shared: bool,
}

impl Status {
    pub fn start(client: Client, record: &Container) -> Self {
        let writer = StatusWriter {
            client,
            uuid: record.uuid.clone(),
            original: record.runtime_status.clone(),
            shared: record.runtime_constraints.api,
        };
        let (update, updates) = watch::channel(StatusUpdate::default());
        let task = tokio::spawn(writer.clone().run(updates));
        Self {
            update,
            writer,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Sets the current activity; `None` clears it.
    pub fn set_activity(&self, text: Option<String>) {
        self.update.send_if_modified(|update| {
            let is_new = update.activity != text;
            update.activity = text;
            is_new
        });
    }

    pub fn warn(&self, sentence: String) {
        self.update
            .send_modify(|update| update.warnings.push(sentence));
    }

    /// Warns that the command is near a limit.
    pub fn warn_near_limit(&self, sentence: String) {
        self.update
            .send_modify(|update| update.near_limits.push(sentence));
    }

    /// Takes the warnings back that the command is near a limit: one of them ended it.
    pub fn note_ended_by_limit(&self) {
        self.update
            .send_modify(|update| update.ended_by_limit = true);
    }

    /// Adds a preemption notice; the command continues.
    pub fn set_preemption_notice(&self, notice: String) {
        self.update.send_modify(|update| {
            update.warnings.push(format!("preemption notice: {notice}"));
            update.preemption = Some(notice);
        });
    }

    /// The attribute for the update to Running, if it changes: the dispatcher's reason for waiting
    /// is removed.
    pub fn initial_status(&self) -> Option<RuntimeStatus> {
        let status = self.update.borrow().merge_into(&self.writer.original);
        (status != self.writer.original).then_some(status)
    }

    /// The final attribute without the verdict, as far as it is known now.
    pub fn final_status(&self) -> RuntimeStatus {
        let mut last = self.update.borrow().clone();
        last.activity = None;
        last.merge_into(&self.writer.original)
    }

    /// Stops updates. Returns the final attribute without the verdict.
    pub async fn finish(self) -> RuntimeStatus {
        let Self {
            update,
            writer,
            _task,
        } = self;
        drop(_task);
        let mut last = update.borrow().clone();
        last.activity = None;
        last.merge_into(&writer.now().await)
    }
}

impl StatusWriter {
    async fn run(self, mut updates: watch::Receiver<StatusUpdate>) {
        let mut written = StatusUpdate::default();
        let mut next = Instant::now();
        while updates.changed().await.is_ok() {
            sleep(MIN_ACTIVITY).await;
            sleep_until(next).await;
            let update = updates.borrow_and_update().clone();
            if update == written {
                continue;
            }
            let status = update.merge_into(&self.now().await);
            let body = json!({"container": {"runtime_status": status}, "select": ["uuid"]});
            let call =
                Call::put(format!("containers/{}", self.uuid), body).budget(UPDATE_RETRY_BUDGET);
            match self.client.send::<serde_json::Value>(call).await {
                Ok(_) => written = update,
                Err(error) => tracing::debug!(%error, "could not write runtime_status"),
            }
            next = Instant::now() + UPDATE_INTERVAL;
        }
    }

    /// Reads the current attribute if others may have changed it.
    async fn now(&self) -> RuntimeStatus {
        if self.shared {
            let call = Call::get(format!("containers/{}", self.uuid)).budget(UPDATE_RETRY_BUDGET);
            if let Ok(record) = self.client.send::<Container>(call).await {
                return record.runtime_status;
            }
        }
        self.original.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_kept() {
        let original: RuntimeStatus = serde_json::from_value(json!({
            "activity": "waiting for a place", "warning": "w0", "progress": 3
        }))
        .unwrap();
        let update = StatusUpdate {
            activity: None,
            warnings: vec!["w1".into(), "w2".into()],
            preemption: Some("soon".into()),
            ..StatusUpdate::default()
        };
        let over = update.merge_into(&original);
        assert_eq!(
            serde_json::to_value(&over).unwrap(),
            json!({"warning": "w0", "warningDetail": "w1\nw2", "preemptionNotice": "soon", "progress": 3})
        );
        // A repeated warning is written once.
        assert_eq!(update.merge_into(&over), over);
        let alone = update.merge_into(&RuntimeStatus::default());
        assert_eq!(alone.warning.as_deref(), Some("w1"));
        assert_eq!(alone.warning_detail.as_deref(), Some("w2"));
        assert_eq!(update.merge_into(&alone), alone);
    }

    #[test]
    fn who_is_ended_by_a_limit_is_not_near_it() {
        let mut update = StatusUpdate {
            near_limits: vec!["near memory".into(), "near time".into()],
            warnings: vec!["bad entry".into()],
            ..StatusUpdate::default()
        };
        let status = |text: [Option<&str>; 2]| RuntimeStatus {
            warning: text[0].map(str::to_owned),
            warning_detail: text[1].map(str::to_owned),
            ..RuntimeStatus::default()
        };
        let before = update.merge_into(&RuntimeStatus::default());
        let all = [Some("near memory"), Some("near time\nbad entry")];
        assert_eq!(before, status(all));
        update.ended_by_limit = true;
        let alone = status([Some("bad entry"), None]);
        assert_eq!(update.merge_into(&RuntimeStatus::default()), alone);
        // Also those that are in the record already, and only those.
        assert_eq!(update.merge_into(&before), alone);
        let theirs = status([Some("theirs"), Some("near time")]);
        let both = status([Some("theirs"), Some("bad entry")]);
        assert_eq!(update.merge_into(&theirs), both);
    }

    #[test]
    fn our_activity_replaces_any_other() {
        let original = RuntimeStatus {
            activity: Some("old".into()),
            ..RuntimeStatus::default()
        };
        let update = StatusUpdate {
            activity: Some("fetching image 1/2 MiB".into()),
            ..StatusUpdate::default()
        };
        assert_eq!(update.merge_into(&original).activity, update.activity);
        assert_eq!(StatusUpdate::default().merge_into(&original).activity, None);
    }
}
