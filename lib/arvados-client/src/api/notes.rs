//! Notes of dispatchers: log entries about containers, which people read.
//!
//! Input: the text and the name of a decision. Output: entries of type `dispatch` in the server's
//! `logs`, and the newest of them. A dispatcher writes them; its `explain` and the CLI show them.

use jiff::Timestamp;
use serde_json::json;

use super::NewLog;
use crate::client::Client;
use crate::error::Error;
use crate::filter::Query;
use crate::ids::{ContainerUuid, UserUuid};
use crate::records::Log;

/// The `event_type` of all notes.
const EVENT_TYPE: &str = "dispatch";
/// Property with the sentence for people, and property with the name of the decision.
const TEXT: &str = "text";
const DECISION: &str = "dispatch_event";

/// What a dispatcher wrote about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// When it was written.
    pub at: Timestamp,
    /// The user who wrote it. Any user may write about any object (API server, `logs`).
    pub by: Option<UserUuid>,
    /// One sentence.
    pub text: String,
    /// Name of the decision, such as `dispatched`; empty in an entry of another program.
    pub decision: String,
}

impl NewLog {
    /// A note on a container.
    pub fn note(container: &ContainerUuid, decision: &str, text: &str) -> Self {
        Self {
            object_uuid: container.to_string(),
            event_type: EVENT_TYPE,
            properties: json!({TEXT: text, DECISION: decision}),
        }
    }
}

impl Client {
    /// Fetches the last notes on a container, the newest first, at most `limit`.
    pub async fn last_notes(&self, uuid: &ContainerUuid, limit: u64) -> Result<Vec<Note>, Error> {
        let query = Query::new()
            .filter("object_uuid", "=", uuid)
            .filter("event_type", "=", EVENT_TYPE)
            .order("id desc")
            .limit(limit);
        let page = self.page::<Log>("logs", &query).await?;
        let note = |entry: Log| {
            let decision = entry.properties[DECISION].as_str().unwrap_or_default();
            Some(Note {
                at: entry.event_at?,
                by: entry.modified_by_user_uuid,
                text: entry.properties[TEXT].as_str()?.to_owned(),
                decision: decision.to_owned(),
            })
        };
        Ok(page.items.into_iter().filter_map(note).collect())
    }
}
