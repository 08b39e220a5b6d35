//! How errors and records are written: as this server does, or as the two programs of the real one do.
//!
//! The real server's controller passes requests for containers, logs and Keep services through to the API server behind
//! it, untouched. Those for other resources it decodes and writes anew.

use http::StatusCode;
use md5::{Digest, Md5};
use serde_json::{Value, json};

use super::Rules;
use crate::error::ApiError;

/// Resources that the controller of the real server writes anew.
const CONTROLLER: [&str; 8] = [
    "api_client_authorizations",
    "collections",
    "config",
    "container_requests",
    "groups",
    "links",
    "users",
    "vocabulary",
];

/// Fields of a mount as the controller knows it, each with the value that stands for none.
const MOUNT: [(&str, Empty); 9] = [
    ("capacity", Empty::Zero),
    ("content", Empty::Null),
    ("device_type", Empty::Text),
    ("exclude_from_output", Empty::False),
    ("path", Empty::Text),
    ("portable_data_hash", Empty::Text),
    ("uuid", Empty::Text),
    ("writable", Empty::False),
    ("kind", Empty::Text),
];

/// Texts of a token that the controller shows as empty where there are none.
const TOKEN_TEXTS: [&str; 3] = [
    "created_by_ip_address",
    "last_used_by_ip_address",
    "modified_by_user_uuid",
];

#[derive(Clone, Copy)]
enum Empty {
    Zero,
    Null,
    Text,
    False,
}

impl Empty {
    fn value(self) -> Value {
        match self {
            Empty::Zero => json!(0),
            Empty::Null => Value::Null,
            Empty::Text => json!(""),
            Empty::False => json!(false),
        }
    }
}

/// Who writes the answer to a request for this path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// This server, or the API server behind the controller.
    Rails,
    Controller,
    Keepstore,
}

pub fn writer(rules: &Rules, path: &str) -> Writer {
    if !rules.controller {
        return Writer::Rails;
    }
    match path.strip_prefix("/arvados/v1/") {
        Some(rest) => {
            let resource = rest.split('/').next().unwrap_or("");
            match CONTROLLER.contains(&resource) {
                true => Writer::Controller,
                false => Writer::Rails,
            }
        }
        None if crate::edge::block_name(path).is_some() => Writer::Keepstore,
        None => Writer::Rails,
    }
}

/// The body of a refusal.
pub fn refusal(writer: Writer, problem: &ApiError, path: &str, id: &str) -> String {
    let messages = problem.messages();
    let with_id = messages.iter().map(|message| format!("{message} ({id})"));
    match writer {
        Writer::Rails => {
            let token = format!(
                "{}+{:08x}",
                jiff::Timestamp::now().as_second(),
                fastrand::u32(..)
            );
            json!({"errors": with_id.collect::<Vec<_>>(), "error_token": token}).to_string()
        }
        Writer::Controller => {
            let text = match is_its_own(problem) {
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
        Writer::Keepstore => format!("{}\n", messages.join("; ")),
    }
}

/// What the controller finds out without asking further.
fn is_its_own(problem: &ApiError) -> bool {
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

/// A body that could not be read: the controller says so itself.
pub fn unreadable(writer: Writer, problem: ApiError) -> ApiError {
    match (writer, problem) {
        (Writer::Controller, ApiError::Invalid(texts)) => ApiError::BadRequest(texts.join("; ")),
        (_, problem) => problem,
    }
}

/// A success as the controller writes it.
pub fn rewritten(path: &str, mut body: Value) -> Value {
    let is_list = body["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List"));
    if !is_list {
        rewrite_record(path, &mut body);
        return body;
    }
    // Of tokens, it does not even tell how many there are.
    let told: &[&str] = match path {
        "/arvados/v1/api_client_authorizations" => &["items", "kind"],
        _ => &["items", "items_available", "kind", "limit", "offset"],
    };
    if let Some(list) = body.as_object_mut() {
        list.retain(|name, _| told.contains(&name.as_str()));
    }
    for item in body["items"].as_array_mut().into_iter().flatten() {
        rewrite_record(path, item);
    }
    body
}

fn rewrite_record(path: &str, record: &mut Value) {
    if path.starts_with("/arvados/v1/container_requests") {
        for mount in record["mounts"]
            .as_object_mut()
            .into_iter()
            .flat_map(|mounts| mounts.values_mut())
            .filter_map(Value::as_object_mut)
        {
            for (name, empty) in MOUNT {
                mount.entry(name).or_insert_with(|| empty.value());
            }
        }
    }
    if path.starts_with("/arvados/v1/api_client_authorizations") {
        for name in TOKEN_TEXTS {
            if let Some(value) = record.get_mut(name).filter(|value| value.is_null()) {
                *value = json!("");
            }
        }
    }
}

/// The weak etag of an answer that the controller passes through.
pub fn weak_etag(body: &str) -> String {
    format!(
        "W/\"{}\"",
        data_encoding::HEXLOWER.encode(&Md5::digest(body))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulation::{ARVADOS_3, OWN};

    #[test]
    fn each_path_has_its_writer() {
        let block = "/acbd18db4cc2f85cedef654fccc4a4d8+3";
        for (path, writer_there) in [
            ("/arvados/v1/containers/U", Writer::Rails),
            ("/arvados/v1/logs", Writer::Rails),
            ("/arvados/v1/keep_services/accessible", Writer::Rails),
            ("/arvados/v1/container_requests/U", Writer::Controller),
            ("/arvados/v1/collections", Writer::Controller),
            ("/arvados/v1/users/current", Writer::Controller),
            (block, Writer::Keepstore),
        ] {
            assert_eq!(writer(&ARVADOS_3, path), writer_there, "{path}");
            assert_eq!(writer(&OWN, path), Writer::Rails, "{path}");
        }
    }

    #[test]
    fn the_controller_quotes_the_server_behind_it_and_not_itself() {
        let path = "/arvados/v1/collections";
        let quoted = refusal(Writer::Controller, &ApiError::denied(), path, "req-1");
        assert!(
            quoted.starts_with(
                r#"{"errors":["//railsapi.internal/arvados/v1/collections: 403 Forbidden: #\u003c"#
            ),
            "{quoted}"
        );
        assert!(quoted.ends_with("(req-1)\"]}\n"), "{quoted}");
        let own = ApiError::NotFound("not found".into());
        let own = refusal(Writer::Controller, &own, path, "req-1");
        assert_eq!(own, "{\"errors\":[\"not found\"]}\n");
    }

    #[test]
    fn lists_and_mounts_are_written_anew() {
        let list = json!({"kind": "arvados#containerRequestList", "etag": "", "self_link": "", "offset": 0,
                          "limit": 1, "items": [{"mounts": {"/out": {"kind": "tmp"}}}]});
        let list = rewritten("/arvados/v1/container_requests", list);
        assert_eq!(list.get("etag"), None);
        let mount = &list["items"][0]["mounts"]["/out"];
        assert_eq!(
            (&mount["kind"], &mount["capacity"], &mount["writable"]),
            (&json!("tmp"), &json!(0), &json!(false))
        );
    }
}
