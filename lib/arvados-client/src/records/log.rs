//! The log record: an event of an object.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attributes::{Extra, lenient, time};

/// A log entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// Number, in increasing order.
    #[serde(default)]
    pub id: Option<i64>,
    /// Uuid of the entry.
    #[serde(default, deserialize_with = "lenient")]
    pub uuid: String,
    /// Uuid of the object.
    #[serde(default, deserialize_with = "lenient")]
    pub object_uuid: String,
    /// `create`, `update`, `delete`, `dispatch`, …
    #[serde(default, deserialize_with = "lenient")]
    pub event_type: String,
    /// Time of the event.
    #[serde(default, deserialize_with = "time")]
    pub event_at: Option<Timestamp>,
    /// `text`, or old and new attributes.
    #[serde(default)]
    pub properties: Value,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
