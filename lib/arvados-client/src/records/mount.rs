//! An entry of the `mounts` of a container.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attributes::{Extra, lenient};

/// Kind of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountKind {
    /// Files of a collection, or a new one.
    Collection,
    /// An empty directory.
    #[default]
    Tmp,
    /// The whole of Keep.
    Keep,
    /// A file under the output path that receives stdout or stderr.
    File,
    /// A file holding JSON.
    Json,
    /// A file holding text.
    Text,
    /// A kind this library does not know.
    #[serde(untagged)]
    Unknown(String),
}

impl std::fmt::Display for MountKind {
    /// The spelling in the API.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// Whether an attribute does not apply, and so is not sent.
fn empty<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A mount. Attributes that do not apply to its kind are empty and not sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Mount {
    /// Kind.
    pub kind: MountKind,
    /// Collection by portable data hash.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "empty")]
    pub portable_data_hash: String,
    /// Collection by uuid.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "empty")]
    pub uuid: String,
    /// Part of the collection, or the file that receives stdout.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "empty")]
    pub path: String,
    /// Whether the container can write to it.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "empty")]
    pub writable: bool,
    /// Whether it is excluded from the output.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "empty")]
    pub exclude_from_output: bool,
    /// Capacity of a tmp mount, in bytes.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "empty")]
    pub capacity: u64,
    /// Content of a json or text mount.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub content: Value,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
