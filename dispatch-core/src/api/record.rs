//! What a dispatcher keeps of a container's record.

use arvados_client::records::{Container, ContainerState, RuntimeStatus};
use arvados_client::{ContainerUuid, Pdh, TokenUuid};
use jiff::Timestamp;

use crate::lines::words;
use crate::needs::Needs;

/// No word of any language is so long, but keys are.
const LONGEST: usize = 120;
/// So many letters of what somebody wrote are shown in a log.
const MOST: usize = 300;

/// What a dispatcher keeps of a container's record. A look may hold many thousands, of records whose mounts alone may
/// be any size.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its name.
    pub uuid: ContainerUuid,
    /// The record's version, for `If-Match`.
    pub etag: String,
    /// Its state.
    pub state: ContainerState,
    /// 0 is on hold or to be stopped.
    pub priority: i64,
    /// Which token holds the lock.
    pub locked_by: Option<TokenUuid>,
    /// By the server's clock.
    pub modified_at: Option<Timestamp>,
    /// Its log collection, where that was asked for.
    pub log: Option<Pdh>,
    /// What its users read, where that was asked for and is not empty. An update replaces all of it.
    pub status: Option<Box<RuntimeStatus>>,
    /// What its command ended with, where that was asked for.
    pub exit_code: Option<i32>,
    /// What came of it was asked for.
    pub tells_end: bool,
    /// What it asks for, where that was asked for.
    pub needs: Option<Needs>,
}

/// Where the dispatcher writes that, in `runtime_status`.
pub const UNDELIVERED_SINCE: &str = "undeliveredSince";
/// Key in `runtime_status` of the warning that was there before that of undelivered results.
pub const WARNING_BEFORE: &str = "warningBefore";
/// Key in `runtime_status` of that warning's detail.
pub const WARNING_DETAIL_BEFORE: &str = "warningDetailBefore";

impl Record {
    /// Since when its results wait on a node to be delivered.
    pub fn undelivered_since(&self) -> Option<Timestamp> {
        let since = self.status.as_ref()?.extra.get(UNDELIVERED_SINCE)?;
        since.as_str()?.parse().ok()
    }

    /// How it is, in a few words, once it has ended.
    pub fn end(&self) -> String {
        let error = self.status.as_ref().and_then(|s| s.error.as_deref());
        let error = error.map(quoted).filter(|line| !line.is_empty());
        match (&self.state, self.exit_code, error) {
            (ContainerState::Complete, Some(code), _) => format!("Complete, with exit code {code}"),
            (state, _, Some(error)) => format!("{state}, {error}"),
            (state, ..) => state.to_string(),
        }
    }
}

impl From<Container> for Record {
    fn from(container: Container) -> Self {
        let needs = Needs::of(&container);
        Self {
            uuid: container.uuid,
            etag: container.etag,
            state: container.state,
            priority: container.priority,
            locked_by: container.locked_by_uuid,
            modified_at: container.modified_at,
            log: container.log,
            status: (container.runtime_status != RuntimeStatus::default())
                .then(|| Box::new(container.runtime_status)),
            exit_code: container.exit_code,
            tells_end: true,
            needs: Some(needs),
        }
    }
}

/// What somebody wrote into a record, for an admin's log: one line that is not long, without anything like a token.
fn quoted(text: &str) -> String {
    let is_secret = |word: &str| word.contains("v2/") || word.len() > LONGEST;
    let shown = words(text).map(|word| if is_secret(word) { "…" } else { word });
    let line = shown.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// One record of a listing. A record that is not what it should be blinds nobody to the others.
#[derive(Debug, Clone)]
pub enum Row {
    /// A container.
    Container(Box<Record>),
    /// A record of that name which cannot be read, and why.
    Unreadable(ContainerUuid, String),
}

impl Row {
    /// Its name.
    pub fn uuid(&self) -> &ContainerUuid {
        match self {
            Row::Container(record) => &record.uuid,
            Row::Unreadable(uuid, _) => uuid,
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
        Record::from(serde_json::from_value::<Container>(all).unwrap()).end()
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
            "Cancelled, …".chars().count() + MOST
        );
    }
}
