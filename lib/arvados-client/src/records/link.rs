//! The link record, which names images, among other things.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::attributes::{Extra, lenient, time};
use crate::ids::LinkUuid;

/// A link between two objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Uuid of the link.
    pub uuid: LinkUuid,
    /// Class, like `docker_image_repo+tag`.
    #[serde(default, deserialize_with = "lenient")]
    pub link_class: String,
    /// Name, like `busybox:latest`.
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// Uuid of the object it points to.
    #[serde(default, deserialize_with = "lenient")]
    pub head_uuid: String,
    /// Uuid of the object it points from.
    #[serde(default, deserialize_with = "lenient")]
    pub tail_uuid: String,
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
