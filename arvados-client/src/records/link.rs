//! The link record: names images, among other things.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extra, lenient, time};
use crate::ids::LinkUuid;

/// A link between two objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Its own uuid.
    pub uuid: LinkUuid,
    /// What the link means, like `docker_image_repo+tag`.
    #[serde(default, deserialize_with = "lenient")]
    pub link_class: String,
    /// Its text, like `busybox:latest`.
    #[serde(default, deserialize_with = "lenient")]
    pub name: String,
    /// What it points to.
    #[serde(default, deserialize_with = "lenient")]
    pub head_uuid: String,
    /// What it points from.
    #[serde(default, deserialize_with = "lenient")]
    pub tail_uuid: String,
    /// Anything else.
    #[serde(default)]
    pub properties: Value,
    /// When it was made.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
