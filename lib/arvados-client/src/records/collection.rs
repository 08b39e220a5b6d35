//! The collection record.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attributes::{Extra, lenient, optional, time};
use crate::ids::{Pdh, Uuid};

/// A collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collection {
    /// Uuid, or portable data hash if it was fetched by that.
    #[serde(default, deserialize_with = "lenient")]
    pub uuid: String,
    /// Uuid of its owner.
    #[serde(default, deserialize_with = "optional")]
    pub owner_uuid: Option<Uuid>,
    /// Name.
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// Hash of its content.
    #[serde(default, deserialize_with = "optional")]
    pub portable_data_hash: Option<Pdh>,
    /// Its manifest, with locators signed for the token of the caller.
    #[serde(default, deserialize_with = "lenient")]
    pub manifest_text: String,
    /// Number of files.
    #[serde(default, deserialize_with = "lenient")]
    pub file_count: u64,
    /// Total size in bytes.
    #[serde(default, deserialize_with = "lenient")]
    pub file_size_total: u64,
    /// Properties.
    #[serde(default)]
    pub properties: Value,
    /// Time of creation.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
