//! `/arvados/v1/keep_services`: one service, this server, at the address that the client uses.

use serde_json::{Value, json};

use super::call::{Call, Reply};
use super::render;
use super::route::Route;
use crate::error::{ApiError, Result};
use crate::schema::KEEP_SERVICES;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "keep_services", list),
    Route::new("GET", "keep_services/accessible", list),
    Route::new("GET", "keep_services/{}", |call, uuid| {
        match uuid == uuid_of(call) {
            true => Ok(this_server(call).into()),
            false => Err(ApiError::path_not_found()),
        }
    }),
];

fn list(call: &Call, _: &str) -> Result<Reply> {
    let items = vec![this_server(call)];
    Ok(render::list(&KEEP_SERVICES.list_kind(), (None, None), items, Some(1)).into())
}

fn uuid_of(call: &Call) -> String {
    let config = &call.app.config;
    config.emulate.keep_service_uuid(&config.cluster_id)
}

fn this_server(call: &Call) -> Value {
    let (host, port) = split_host(&call.host);
    json!({
        "kind": KEEP_SERVICES.kind,
        "etag": "",
        "uuid": uuid_of(call),
        "owner_uuid": call.app.config.system_user(),
        "service_host": host,
        "service_port": port,
        "service_ssl_flag": true,
        "service_type": "disk",
        "read_only": false,
        "created_at": null,
        "modified_at": null,
        "modified_by_user_uuid": null,
    })
}

/// Splits `host:port`; an IPv6 address stands in brackets.
fn split_host(authority: &str) -> (&str, u16) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !port.contains(']') => {
            (host, port.parse().unwrap_or(443))
        }
        _ => (authority, 443),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_are_split() {
        assert_eq!(split_host("127.0.0.1:8443"), ("127.0.0.1", 8443));
        assert_eq!(split_host("[::1]:8443"), ("[::1]", 8443));
        assert_eq!(split_host("api.example"), ("api.example", 443));
        assert_eq!(split_host("[::1]"), ("[::1]", 443));
    }
}
