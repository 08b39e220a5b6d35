//! The parts of the discovery document that clients need.

use serde::{Deserialize, Serialize};

use super::attributes::{Extra, lenient};

/// `GET /discovery/v1/apis/arvados/v1/rest`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Discovery {
    /// Id of the cluster, five characters.
    #[serde(default, deserialize_with = "lenient")]
    pub uuid_prefix: String,
    /// API revision, a date.
    #[serde(default, deserialize_with = "lenient")]
    pub revision: String,
    /// Address of live events; empty if the server has none.
    #[serde(default, deserialize_with = "lenient")]
    pub websocket_url: String,
    /// Default number of copies of a block.
    #[serde(default, deserialize_with = "lenient")]
    pub default_collection_replication: u32,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
