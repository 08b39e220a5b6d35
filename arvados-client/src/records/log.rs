//! The log record: what happened to an object.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extra, lenient, time};

/// An entry of the server's `logs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// Counts up.
    #[serde(default)]
    pub id: Option<i64>,
    /// Its own uuid.
    #[serde(default, deserialize_with = "lenient")]
    pub uuid: String,
    /// What it is about.
    #[serde(default, deserialize_with = "lenient")]
    pub object_uuid: String,
    /// `create`, `update`, `delete`, `dispatch`, …
    #[serde(default, deserialize_with = "lenient")]
    pub event_type: String,
    /// When.
    #[serde(default, deserialize_with = "time")]
    pub event_at: Option<Timestamp>,
    /// `text`, or old and new attributes.
    #[serde(default)]
    pub properties: Value,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
