//! Input and output of an API handler.

use std::sync::Arc;

use serde_json::Value;

use super::params::Params;
use crate::app::App;
use crate::auth::Caller;

/// An authenticated request.
pub struct Call {
    pub app: Arc<App>,
    pub caller: Caller,
    pub params: Params,
    pub if_match: Option<String>,
    /// `host:port` of this server, as the client addressed it.
    pub host: String,
    pub remote: String,
}

/// A successful response.
#[derive(Debug)]
pub struct Reply {
    pub body: Value,
    pub etag: Option<String>,
}

impl From<Value> for Reply {
    fn from(body: Value) -> Self {
        Reply { body, etag: None }
    }
}
