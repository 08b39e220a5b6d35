//! The collection record.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extra, lenient, optional, time};
use crate::ids::{Pdh, Uuid};

/// A collection. Fetched by content its `uuid` is the portable data hash, so it is plain text here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    /// uuid, or PDH when it was asked for by PDH.
    #[serde(default, deserialize_with = "lenient")]
    pub uuid: String,
    /// Who owns it.
    #[serde(default, deserialize_with = "optional")]
    pub owner_uuid: Option<Uuid>,
    /// What people call it.
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// Its content's name.
    #[serde(default, deserialize_with = "optional")]
    pub portable_data_hash: Option<Pdh>,
    /// Its content, with locators signed for the token that asked.
    #[serde(default, deserialize_with = "lenient")]
    pub manifest_text: String,
    /// Files in it.
    #[serde(default, deserialize_with = "lenient")]
    pub file_count: u64,
    /// Bytes in it.
    #[serde(default, deserialize_with = "lenient")]
    pub file_size_total: u64,
    /// Anything people say about it.
    #[serde(default)]
    pub properties: Value,
    /// When it was made.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
