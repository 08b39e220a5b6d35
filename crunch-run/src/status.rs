//! `runtime_status` while the attempt goes on: what is being done, and what the user should know.
//!
//! The server replaces the whole attribute, and a container with API access may write to it too; so what others
//! wrote is read and kept.

use std::time::Duration;

use arvados_client::client::Call;
use arvados_client::records::{Container, RuntimeStatus};
use arvados_client::{Client, ContainerUuid};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// What ends within this time needs no word.
const QUIET: Duration = Duration::from_secs(2);
/// At most one update in this time.
const PACE: Duration = Duration::from_secs(2);
/// Words are not worth much insistence.
const BUDGET: Duration = Duration::from_secs(5);

/// Our part of the attribute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    pub activity: Option<String>,
    pub warnings: Vec<String>,
    /// Warnings that hold for every container here. All others stand before them.
    pub of_node: Vec<String>,
    /// That the node will be taken away.
    pub preemption: Option<String>,
}

impl Words {
    /// Laid over what is there: our activity replaces any other, warnings are added.
    pub fn over(&self, there: &RuntimeStatus) -> RuntimeStatus {
        let mut status = there.clone();
        status.activity.clone_from(&self.activity);
        if self.preemption.is_some() {
            status.preemption_notice.clone_from(&self.preemption);
        }
        let is_of_node = |line: &str| self.of_node.iter().any(|w| w == line);
        status.warning = status.warning.take().filter(|w| !is_of_node(w));
        status.warning_detail = status.warning_detail.take().and_then(|detail| {
            let lines: Vec<&str> = detail.lines().filter(|line| !is_of_node(line)).collect();
            (!lines.is_empty()).then(|| lines.join("\n"))
        });
        let new: Vec<&String> = self
            .warnings
            .iter()
            .chain(&self.of_node)
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

/// Speaks in the background; the attempt never waits for it.
#[derive(Debug)]
pub struct Status {
    words: watch::Sender<Words>,
    speaker: Speaker,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Clone)]
struct Speaker {
    client: Client,
    uuid: ContainerUuid,
    /// As the record had it when the attempt began.
    there: RuntimeStatus,
    /// The container itself may write to it.
    shared: bool,
}

impl Status {
    pub fn start(client: Client, record: &Container) -> Self {
        let speaker = Speaker {
            client,
            uuid: record.uuid.clone(),
            there: record.runtime_status.clone(),
            shared: record.runtime_constraints.api,
        };
        let (words, hear) = watch::channel(Words::default());
        let task = tokio::spawn(speaker.clone().speak(hear));
        Self {
            words,
            speaker,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// What is being done now; `None` when there is nothing to say.
    pub fn activity(&self, text: Option<String>) {
        self.words.send_if_modified(|words| {
            let is_new = words.activity != text;
            words.activity = text;
            is_new
        });
    }

    pub fn warn(&self, sentence: String) {
        self.words
            .send_modify(|words| words.warnings.push(sentence));
    }

    pub fn warn_of_node(&self, sentence: String) {
        self.words.send_modify(|words| words.of_node.push(sentence));
    }

    /// The node will be taken away; the command goes on as long as it can.
    pub fn preemption(&self, notice: String) {
        self.words.send_modify(|words| {
            words.warnings.push(format!("preemption notice: {notice}"));
            words.preemption = Some(notice);
        });
    }

    /// What the attribute is to be when the command starts, where that is not what it was: what a dispatcher said of
    /// waiting is over.
    pub fn at_start(&self) -> Option<RuntimeStatus> {
        let status = self.words.borrow().over(&self.speaker.there);
        (status != self.speaker.there).then_some(status)
    }

    /// What the attribute is to be at the end, but for the verdict, as far as it is known now.
    pub fn at_end(&self) -> RuntimeStatus {
        let mut last = self.words.borrow().clone();
        last.activity = None;
        last.over(&self.speaker.there)
    }

    /// Falls silent. What the attribute is to be at the end, but for the verdict.
    pub async fn finish(self) -> RuntimeStatus {
        let Self {
            words,
            speaker,
            _task,
        } = self;
        drop(_task);
        let mut last = words.borrow().clone();
        last.activity = None;
        last.over(&speaker.now().await)
    }
}

impl Speaker {
    async fn speak(self, mut hear: watch::Receiver<Words>) {
        let mut said = Words::default();
        let mut next = Instant::now();
        while hear.changed().await.is_ok() {
            sleep(QUIET).await;
            sleep_until(next).await;
            let words = hear.borrow_and_update().clone();
            if words == said {
                continue;
            }
            let status = words.over(&self.now().await);
            let body = json!({"container": {"runtime_status": status}, "select": ["uuid"]});
            let call = Call::put(format!("containers/{}", self.uuid), body).budget(BUDGET);
            match self.client.send::<serde_json::Value>(call).await {
                Ok(_) => said = words,
                Err(error) => tracing::debug!(%error, "the activity is not told"),
            }
            next = Instant::now() + PACE;
        }
    }

    /// What others have written, where others can.
    async fn now(&self) -> RuntimeStatus {
        if self.shared {
            let call = Call::get(format!("containers/{}", self.uuid)).budget(BUDGET);
            if let Ok(record) = self.client.send::<Container>(call).await {
                return record.runtime_status;
            }
        }
        self.there.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_are_kept() {
        let there: RuntimeStatus = serde_json::from_value(json!({
            "activity": "waiting for a place", "warning": "w0", "progress": 3
        }))
        .unwrap();
        let words = Words {
            activity: None,
            warnings: vec!["w1".into(), "w2".into()],
            of_node: vec![],
            preemption: Some("soon".into()),
        };
        let over = words.over(&there);
        assert_eq!(
            serde_json::to_value(&over).unwrap(),
            json!({"warning": "w0", "warningDetail": "w1\nw2", "preemptionNotice": "soon", "progress": 3})
        );
        // Said twice it is still there once.
        assert_eq!(words.over(&over), over);
        let alone = words.over(&RuntimeStatus::default());
        assert_eq!(alone.warning.as_deref(), Some("w1"));
        assert_eq!(alone.warning_detail.as_deref(), Some("w2"));
        assert_eq!(words.over(&alone), alone);
    }

    #[test]
    fn what_holds_for_every_container_comes_last() {
        let first = Words {
            of_node: vec!["no limits".into()],
            ..Words::default()
        };
        let alone = first.over(&RuntimeStatus::default());
        assert_eq!(alone.warning.as_deref(), Some("no limits"));
        assert_eq!(alone.warning_detail, None);
        let later = Words {
            warnings: vec!["disk full".into(), "GPU lost".into()],
            ..first
        };
        // Also over what was told before.
        for there in [RuntimeStatus::default(), alone] {
            let over = later.over(&there);
            assert_eq!(over.warning.as_deref(), Some("disk full"));
            let detail = over.warning_detail.as_deref();
            assert_eq!(detail, Some("GPU lost\nno limits"));
            assert_eq!(later.over(&over), over);
        }
    }

    #[test]
    fn our_activity_replaces_any_other() {
        let there = RuntimeStatus {
            activity: Some("old".into()),
            ..RuntimeStatus::default()
        };
        let words = Words {
            activity: Some("fetching image 1/2 MiB".into()),
            ..Words::default()
        };
        assert_eq!(words.over(&there).activity, words.activity);
        assert_eq!(Words::default().over(&there).activity, None);
    }
}
