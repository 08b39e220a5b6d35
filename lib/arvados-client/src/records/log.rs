//! The log record, an event of an object: what this suite reads of it.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::attributes::time;
use crate::ids::UserUuid;

/// A log entry.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Log {
    /// The user who wrote it, as the server says.
    #[serde(default)]
    pub modified_by_user_uuid: Option<UserUuid>,
    /// Time of the event.
    #[serde(default, deserialize_with = "time")]
    pub event_at: Option<Timestamp>,
    /// `text`, or old and new attributes.
    #[serde(default)]
    pub properties: Value,
}
