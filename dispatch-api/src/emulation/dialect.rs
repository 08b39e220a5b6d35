//! The format of errors and records: this server's own, or that of the two programs of Arvados.
//!
//! The Arvados controller passes requests for containers, logs and Keep services through to the
//! Rails server unchanged. Replies for other resources it decodes and encodes again.

use std::time::Duration;

use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use md5::{Digest, Md5};
use serde_json::{Map, Value, json};

use super::Emulate;
use crate::clock;
use crate::error::ApiError;

/// Resources that the Arvados controller encodes itself.
const CONTROLLER_RESOURCES: [&str; 8] = [
    "api_client_authorizations",
    "collections",
    "config",
    "container_requests",
    "groups",
    "links",
    "users",
    "vocabulary",
];

/// Text attributes of a token that the controller encodes as empty text instead of null.
const TOKEN_TEXT_ATTRIBUTES: [&str; 3] = [
    "created_by_ip_address",
    "last_used_by_ip_address",
    "modified_by_user_uuid",
];

/// Age of the discovery document in the cache of an emulated Arvados.
const CACHE_AGE: Duration = Duration::from_secs(600);

/// The fields of a mount that the controller encodes, with their empty values.
fn empty_mount() -> Map<String, Value> {
    let fields = json!({
        "capacity": 0, "content": null, "device_type": "", "exclude_from_output": false,
        "kind": "", "path": "", "portable_data_hash": "", "uuid": "", "writable": false,
    });
    fields.as_object().cloned().unwrap_or_default()
}

/// The program whose format the response to a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Responder {
    /// This server, or the Rails server behind the controller.
    Rails,
    Controller,
    Keepstore,
}

pub fn responder_for(emulate: Emulate, path: &str) -> Responder {
    if !emulate.is_arvados() {
        return Responder::Rails;
    }
    match path.strip_prefix("/arvados/v1/") {
        Some(rest) => {
            let resource = rest.split('/').next().unwrap_or("");
            match CONTROLLER_RESOURCES.contains(&resource) {
                true => Responder::Controller,
                false => Responder::Rails,
            }
        }
        None if crate::blocks::block_name(path).is_some() => Responder::Keepstore,
        None => Responder::Rails,
    }
}

/// The body of an error response.
pub fn error_body(responder: Responder, problem: &ApiError, path: &str, id: &str) -> String {
    let messages = problem.messages();
    let with_id = messages.iter().map(|message| format!("{message} ({id})"));
    match responder {
        Responder::Rails => {
            let token = format!(
                "{}+{:08x}",
                jiff::Timestamp::now().as_second(),
                fastrand::u32(..)
            );
            json!({"errors": with_id.collect::<Vec<_>>(), "error_token": token}).to_string()
        }
        Responder::Controller => {
            let text = match is_controller_error(problem) {
                true => messages.join("; "),
                false => format!(
                    "//railsapi.internal{path}: {}: {}",
                    status_line(problem.status()),
                    with_id.collect::<Vec<_>>().join("; ")
                ),
            };
            let body = json!({"errors": [text]}).to_string();
            format!("{}\n", body.replace('<', "\\u003c").replace('>', "\\u003e"))
        }
        Responder::Keepstore => format!("{}\n", messages.join("; ")),
    }
}

/// Whether the controller itself detects this error.
fn is_controller_error(problem: &ApiError) -> bool {
    match problem {
        ApiError::BadRequest(_) | ApiError::Cancelled => true,
        ApiError::NotFound(text) => text == "not found",
        _ => false,
    }
}

fn status_line(status: StatusCode) -> String {
    let reason = match status {
        StatusCode::UNPROCESSABLE_ENTITY => "Unprocessable Content",
        other => other.canonical_reason().unwrap_or(""),
    };
    format!("{} {reason}", status.as_u16())
}

/// The error for an unreadable body, which the controller reports itself.
pub fn body_error(responder: Responder, problem: ApiError) -> ApiError {
    match (responder, problem) {
        (Responder::Controller, ApiError::Invalid(texts)) => ApiError::BadRequest(texts.join("; ")),
        (_, problem) => problem,
    }
}

/// The body of a successful response in the controller's encoding.
pub fn rewrite_body(path: &str, mut body: Value) -> Value {
    let is_list = body["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    if !is_list {
        rewrite_record(path, &mut body);
        return body;
    }
    // For tokens, the controller omits the number of items.
    let visible: &[&str] = match path {
        "/arvados/v1/api_client_authorizations" => &["items", "kind"],
        _ => &["items", "items_available", "kind", "limit", "offset"],
    };
    if let Some(list) = body.as_object_mut() {
        list.retain(|name, _| visible.contains(&name.as_str()));
    }
    for item in body["items"].as_array_mut().into_iter().flatten() {
        rewrite_record(path, item);
    }
    body
}

fn rewrite_record(path: &str, record: &mut Value) {
    if path.starts_with("/arvados/v1/container_requests") {
        let mounts = record["mounts"].as_object_mut().into_iter().flatten();
        for mount in mounts.filter_map(|(_, mount)| mount.as_object_mut()) {
            for (name, empty) in empty_mount() {
                mount.entry(name).or_insert(empty);
            }
        }
    }
    if path.starts_with("/arvados/v1/api_client_authorizations") {
        for name in TOKEN_TEXT_ATTRIBUTES {
            if let Some(value) = record.get_mut(name).filter(|value| value.is_null()) {
                *value = json!("");
            }
        }
    }
}

/// Gives an answer the time at which a cache took it, [`CACHE_AGE`] ago.
pub fn date_of_cache(response: &mut Response) {
    let taken = clock::http_date(&clock::before(CACHE_AGE));
    if let Ok(date) = HeaderValue::try_from(taken) {
        response.headers_mut().insert(header::DATE, date);
    }
}

/// The weak etag of a response that the controller passes through.
pub fn weak_etag(body: &str) -> String {
    format!(
        "W/\"{}\"",
        data_encoding::HEXLOWER.encode(&Md5::digest(body))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_its_writer() {
        let block = "/acbd18db4cc2f85cedef654fccc4a4d8+3";
        for (path, writer_there) in [
            ("/arvados/v1/containers/U", Responder::Rails),
            ("/arvados/v1/logs", Responder::Rails),
            ("/arvados/v1/keep_services/accessible", Responder::Rails),
            ("/arvados/v1/container_requests/U", Responder::Controller),
            ("/arvados/v1/collections", Responder::Controller),
            ("/arvados/v1/users/current", Responder::Controller),
            (block, Responder::Keepstore),
        ] {
            assert_eq!(
                responder_for(Emulate::Arvados3, path),
                writer_there,
                "{path}"
            );
            assert_eq!(
                responder_for(Emulate::None, path),
                Responder::Rails,
                "{path}"
            );
        }
    }

    #[test]
    fn the_controller_quotes_the_server_behind_it_and_not_itself() {
        let path = "/arvados/v1/collections";
        let quoted = error_body(Responder::Controller, &ApiError::denied("x"), path, "req-1");
        assert!(
            quoted.starts_with(
                r#"{"errors":["//railsapi.internal/arvados/v1/collections: 403 Forbidden: #\u003c"#
            ),
            "{quoted}"
        );
        assert!(quoted.ends_with("(req-1)\"]}\n"), "{quoted}");
        let own = ApiError::NotFound("not found".into());
        let own = error_body(Responder::Controller, &own, path, "req-1");
        assert_eq!(own, "{\"errors\":[\"not found\"]}\n");
    }

    #[test]
    fn lists_and_mounts_are_written_anew() {
        let list = json!({"kind": "arvados#containerRequestList", "etag": "", "self_link": "", "offset": 0,
                          "limit": 1, "items": [{"mounts": {"/out": {"kind": "tmp"}}}]});
        let list = rewrite_body("/arvados/v1/container_requests", list);
        assert_eq!(list.get("etag"), None);
        let mount = &list["items"][0]["mounts"]["/out"];
        assert_eq!(
            (&mount["kind"], &mount["capacity"], &mount["writable"]),
            (&json!("tmp"), &json!(0), &json!(false))
        );
    }
}
