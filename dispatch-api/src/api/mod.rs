//! The routes under `/arvados/v1`, one module per resource.

pub mod bulk;
pub mod changes;
mod collections;
mod container_requests;
mod containers;
pub mod discovery;
mod groups;
mod keep_services;
mod links;
mod logs;
mod present;
mod public_config;
mod resource;
mod tokens;
mod users;

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::request::Params;

pub use public_config::public_config;

/// One authenticated request.
pub struct Call {
    pub app: Arc<App>,
    pub who: Caller,
    pub params: Params,
    pub if_match: Option<String>,
    /// `host:port` as the client knows this server.
    pub host: String,
    pub remote: String,
}

/// A successful answer.
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

/// Find the handler. `path` is what follows `/arvados/v1/`.
pub fn route(call: &Call, method: &Method, path: &str) -> Result<Reply> {
    let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let verb = match *method {
        Method::HEAD => "GET",
        // PUT and PATCH differ for scopes only.
        Method::PATCH => "PUT",
        ref other => other.as_str(),
    };
    let is_extension = segments
        .last()
        .is_some_and(|name| name.starts_with("bulk_"));
    if is_extension && !call.app.setting.rules.extensions {
        return Err(ApiError::path_not_found());
    }
    match segments.as_slice() {
        ["containers", rest @ ..] => containers::route(call, verb, rest),
        ["container_requests", rest @ ..] => container_requests::route(call, verb, rest),
        ["collections", rest @ ..] => collections::route(call, verb, rest),
        ["api_client_authorizations", rest @ ..] => tokens::route(call, verb, rest),
        ["users", rest @ ..] => users::route(call, verb, rest),
        ["links", rest @ ..] => links::route(call, verb, rest),
        ["groups", rest @ ..] => groups::route(call, verb, rest),
        ["logs", rest @ ..] => logs::route(call, verb, rest),
        ["keep_services", rest @ ..] => keep_services::route(call, verb, rest),
        ["vocabulary"] if verb == "GET" => Ok(json!({"strict_tags": false, "tags": {}}).into()),
        _ => Err(ApiError::path_not_found()),
    }
}
