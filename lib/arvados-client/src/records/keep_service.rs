//! The Keep service record.

use serde::{Deserialize, Serialize};

use super::attributes::lenient;
use crate::ids::KeepServiceUuid;

/// A Keep service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeepService {
    /// Uuid, which determines the order in which services are tried.
    pub uuid: KeepServiceUuid,
    #[serde(default, deserialize_with = "lenient")]
    pub service_host: String,
    #[serde(default, deserialize_with = "lenient")]
    pub service_port: u16,
    /// Whether it uses https.
    #[serde(default, deserialize_with = "lenient")]
    pub service_ssl_flag: bool,
    /// `disk` or `proxy`.
    #[serde(default, deserialize_with = "lenient")]
    pub service_type: String,
    /// Whether it refuses new blocks.
    #[serde(default, deserialize_with = "lenient")]
    pub read_only: bool,
}
