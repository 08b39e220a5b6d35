//! The part of a container record that a dispatcher keeps.
//!
//! Input: rows of the API server. Output: [`ContainerSnapshot`], or [`ListedRecord::Malformed`].

use arvados_client::records::{Container, ContainerState, RuntimeStatus};
use arvados_client::{ContainerUuid, Pdh, TokenUuid, UserUuid};
use crunch_contract::runtime_status::UNDELIVERED_SINCE;
use jiff::Timestamp;

use crate::model::resources::ResourceRequest;
use preflight::words;

/// Maximum length of a quoted word in bytes. Longer words are likely to be keys.
const MAX_WORD_LENGTH: usize = 120;
/// Maximum number of characters of a quoted text in a log line.
const MAX_QUOTED_LENGTH: usize = 300;

/// The part of a container record that a dispatcher keeps. A snapshot may have many thousands of
/// them, and the mounts of one full record may have any size.
#[derive(Debug, Clone)]
pub struct ContainerSnapshot {
    /// UUID of the container.
    pub uuid: ContainerUuid,
    /// Version of the record, for `If-Match`.
    pub etag: String,
    /// State of the container.
    pub state: ContainerState,
    /// Priority. 0 means that the container is on hold or must be stopped.
    pub priority: i64,
    /// Token that holds the lock.
    pub locked_by: Option<TokenUuid>,
    /// Time of the last change, by the server's clock.
    pub modified_at: Option<Timestamp>,
    /// Number of times that it was locked. The server allows few.
    pub locks: u32,
    /// Log collection, if it was requested.
    pub log: Option<Pdh>,
    /// Runtime status for the users, if it was requested and is not empty. An update replaces all
    /// of it.
    pub status: Option<Box<RuntimeStatus>>,
    /// Exit code of the container's command, if it was requested.
    pub exit_code: Option<i32>,
    /// Whether the exit code was requested.
    pub has_end: bool,
    /// Resource request, if it was requested.
    pub needs: Option<ResourceRequest>,
    /// The user who asked for it, if that was requested.
    pub user: Option<UserUuid>,
    /// Creation time, by the server's clock.
    pub created_at: Option<Timestamp>,
    /// Seconds between its start and its end, if it ran and that was requested.
    pub run_seconds: Option<i64>,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEnd {
    /// A short description.
    pub text: String,
    /// Seconds that it ran, if it did.
    pub run_seconds: Option<i64>,
}

impl ContainerEnd {
    /// An end that has only a description.
    pub fn described(text: String) -> Self {
        Self {
            text,
            run_seconds: None,
        }
    }
}

impl ContainerSnapshot {
    /// The time since which results have been waiting on a node for delivery.
    pub fn undelivered_since(&self) -> Option<Timestamp> {
        let since = self.status.as_ref()?.extra.get(UNDELIVERED_SINCE)?;
        since.as_str()?.parse().ok()
    }

    /// The end that a final record describes.
    pub fn end(&self) -> ContainerEnd {
        ContainerEnd {
            text: self.end_text(),
            run_seconds: self.run_seconds,
        }
    }

    fn end_text(&self) -> String {
        let error = self.status.as_ref().and_then(|s| s.error.as_deref());
        let error = error.map(quoted).filter(|line| !line.is_empty());
        match (&self.state, self.exit_code, error) {
            (ContainerState::Complete, Some(code), None) => {
                format!("Complete, with exit code {code}")
            }
            (ContainerState::Complete, Some(code), Some(error)) => {
                format!("Complete, with exit code {code}: {error}")
            }
            (state, _, Some(error)) => format!("{state}, {error}"),
            (state, ..) => state.to_string(),
        }
    }
}

impl From<Container> for ContainerSnapshot {
    fn from(container: Container) -> Self {
        let needs = ResourceRequest::of(&container);
        Self {
            uuid: container.uuid,
            etag: container.etag,
            state: container.state,
            priority: container.priority,
            locked_by: container.locked_by_uuid,
            modified_at: container.modified_at,
            locks: container.lock_count,
            log: container.log,
            status: (container.runtime_status != RuntimeStatus::default())
                .then(|| Box::new(container.runtime_status)),
            exit_code: container.exit_code,
            has_end: true,
            needs: Some(needs),
            user: container.runtime_user_uuid,
            created_at: container.created_at,
            run_seconds: (container.started_at.zip(container.finished_at))
                .map(|(start, end)| end.duration_since(start).as_secs()),
        }
    }
}

/// Quotes text from a record for an administrator's log: one short line. Words that may be tokens
/// or keys are replaced.
fn quoted(text: &str) -> String {
    let is_secret = |word: &str| word.contains("v2/") || word.len() > MAX_WORD_LENGTH;
    let shown = words(text).map(|word| if is_secret(word) { "…" } else { word });
    let line = shown.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_QUOTED_LENGTH) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// One record of a listing. A malformed record does not affect the others.
#[derive(Debug, Clone)]
pub enum ListedRecord {
    /// A valid container record.
    Parsed(Box<ContainerSnapshot>),
    /// UUID of a record that cannot be parsed, and the error.
    Malformed(ContainerUuid, String),
}

impl ListedRecord {
    /// UUID of the container.
    pub fn uuid(&self) -> &ContainerUuid {
        match self {
            ListedRecord::Parsed(record) => &record.uuid,
            ListedRecord::Malformed(uuid, _) => uuid,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn end(record: Value) -> String {
        let mut all = json!({"uuid": "zzzzz-dz642-queuedcontainer"});
        for (key, value) in record.as_object().unwrap() {
            all[key] = value.clone();
        }
        ContainerSnapshot::from(serde_json::from_value::<Container>(all).unwrap()).end_text()
    }

    #[test]
    fn an_end_is_one_line_whatever_is_in_the_record() {
        let error = |text: &str| json!({"state": "Cancelled", "runtime_status": {"error": text}});
        let long = "why ".repeat(1000);
        let rows = [
            (
                json!({"state": "Complete", "exit_code": 3}),
                "Complete, with exit code 3",
            ),
            (json!({"state": "Complete"}), "Complete"),
            (
                json!({"state": "Complete", "exit_code": 137,
                    "runtime_status": {"error": "killed by its memory limit"}}),
                "Complete, with exit code 137: killed by its memory limit",
            ),
            (json!({"state": "Cancelled"}), "Cancelled"),
            (error(" \n"), "Cancelled"),
            (error("no disk"), "Cancelled, no disk"),
            (
                error(&format!("key {}", "x".repeat(150))),
                "Cancelled, key …",
            ),
            (
                error("a\n2026 ERROR b\u{1b}[31m\r"),
                "Cancelled, a 2026 ERROR b [31m",
            ),
            (
                error("(v2/zzzzz-gj3su-000000000000000/secret) is it"),
                "Cancelled, … is it",
            ),
        ];
        for (record, words) in rows {
            assert_eq!(end(record), words);
        }
        assert_eq!(
            end(error(&long)).chars().count(),
            "Cancelled, …".chars().count() + MAX_QUOTED_LENGTH
        );
    }
}
