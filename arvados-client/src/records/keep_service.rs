//! The Keep service record.

use serde::{Deserialize, Serialize};

use super::{Extra, lenient};
use crate::ids::KeepServiceUuid;

/// A place that stores blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeepService {
    /// Its name; decides the probe order.
    pub uuid: KeepServiceUuid,
    /// Host.
    #[serde(default, deserialize_with = "lenient")]
    pub service_host: String,
    /// Port.
    #[serde(default, deserialize_with = "lenient")]
    pub service_port: u16,
    /// HTTPS.
    #[serde(default, deserialize_with = "lenient")]
    pub service_ssl_flag: bool,
    /// `disk` or `proxy`.
    #[serde(default, deserialize_with = "lenient")]
    pub service_type: String,
    /// Takes no new blocks.
    #[serde(default, deserialize_with = "lenient")]
    pub read_only: bool,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
