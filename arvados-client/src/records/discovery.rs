//! The few facts of the discovery document that clients need.

use serde::{Deserialize, Serialize};

use super::{Extra, lenient};

/// `GET /discovery/v1/apis/arvados/v1/rest`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Discovery {
    /// The cluster's five characters.
    #[serde(default, deserialize_with = "lenient")]
    pub uuid_prefix: String,
    /// API revision, a date.
    #[serde(default, deserialize_with = "lenient")]
    pub revision: String,
    /// Live events; empty where there are none.
    #[serde(default, deserialize_with = "lenient")]
    pub websocket_url: String,
    /// Largest page of a listing.
    #[serde(default, deserialize_with = "lenient")]
    pub max_items_per_response: u64,
    /// Copies of a block by default.
    #[serde(default, deserialize_with = "lenient")]
    pub default_collection_replication: u32,
    /// Seconds a signature lasts.
    #[serde(default, deserialize_with = "lenient")]
    pub blob_signature_ttl: u64,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
