//! Rules for the mounts of a container request.

use serde_json::{Map, Value};

use crate::error::{ApiError, Result};

/// Fields of a mount, and the kinds that support each.
const MOUNT_FIELDS: [(&str, &[&str]); 9] = [
    ("portable_data_hash", &["collection"]),
    ("uuid", &["collection"]),
    ("writable", &["collection"]),
    ("path", &["collection", "file"]),
    ("capacity", &["tmp"]),
    ("device_type", &["tmp"]),
    ("content", &["json", "text"]),
    ("exclude_from_output", &KINDS),
    ("kind", &KINDS),
];

const KINDS: [&str; 6] = ["collection", "tmp", "keep", "file", "json", "text"];

const STREAM_TARGETS: [&str; 3] = ["stdin", "stdout", "stderr"];

/// Validates the mounts and secret mounts of a request that is being committed.
pub fn check(mounts: &Value, secret_mounts: &Value, output_path: &str) -> Result<()> {
    let mut problems = Vec::new();
    let none = Map::new();
    let plain = mounts.as_object().unwrap_or(&none);
    let secret = secret_mounts.as_object().unwrap_or(&none);
    for (target, mount) in plain {
        if !target.starts_with('/') && !STREAM_TARGETS.contains(&target.as_str()) {
            problems.push(format!(
                "Mounts target '{target}' must be an absolute path, stdin, stdout or stderr"
            ));
        }
        check_one(target, mount, &mut problems);
    }
    for (target, mount) in secret {
        if !target.starts_with('/') && target != "stdin" {
            problems.push(format!(
                "Secret mounts target '{target}' must be an absolute path or stdin"
            ));
        }
        if !matches!(mount["kind"].as_str(), Some("json" | "text")) {
            problems.push(format!(
                "Secret mounts kind {} of '{target}' is not permitted: only json and text are",
                mount["kind"]
            ));
        }
        if plain.contains_key(target) {
            problems.push(format!(
                "Secret mounts conflict with non-secret mounts: ['{target}']"
            ));
        }
        check_one(target, mount, &mut problems);
    }
    if !plain.contains_key(output_path) {
        problems.push(format!(
            "Output path '{output_path}' must be the target of a mount"
        ));
    }
    ApiError::reject_all(problems)
}

fn check_one(target: &str, mount: &Value, problems: &mut Vec<String>) {
    let Some(mount) = mount.as_object() else {
        problems.push(format!("Mounts entry '{target}' must be an object"));
        return;
    };
    let kind = mount.get("kind").and_then(Value::as_str).unwrap_or("");
    if !KINDS.contains(&kind) {
        problems.push(format!("Mounts kind '{kind}' of '{target}' is not known"));
        return;
    }
    for (field, value) in mount {
        match MOUNT_FIELDS.iter().find(|(name, _)| name == field) {
            None => problems.push(format!("Mounts field '{field}' of '{target}' is not known")),
            Some((_, understood)) if !understood.contains(&kind) && !is_blank(value) => problems
                .push(format!(
                    "Mounts field '{field}' of '{target}' is not supported by kind '{kind}'"
                )),
            Some(_) => {
                if let Some(must) = expected_type(field, value) {
                    problems.push(format!(
                        "Mounts field '{field}' of '{target}' must be {must}"
                    ));
                }
            }
        }
    }
    let device = mount.get("device_type").and_then(Value::as_str);
    let device = device.unwrap_or("");
    if kind == "tmp" && !["", "ram", "ssd", "disk", "network"].contains(&device) {
        problems.push(format!(
            "Mounts device_type '{device}' of '{target}' is not one of ram, ssd, disk, network"
        ));
    }
    if kind == "file" && !["stdout", "stderr"].contains(&target) {
        problems.push(format!(
            "Mounts kind 'file' of '{target}' is possible only for stdout and stderr"
        ));
    }
    if kind == "text" && !mount.get("content").is_none_or(Value::is_string) {
        problems.push(format!("Mounts content of '{target}' must be a string"));
    }
}

/// The required type of a field whose value has another type. Executors and dispatchers rely on
/// types.
fn expected_type(field: &str, value: &Value) -> Option<&'static str> {
    let (fits, must) = match field {
        "capacity" => (value.is_u64(), "a whole number of bytes"),
        "writable" | "exclude_from_output" => (value.is_boolean(), "true or false"),
        "content" => (true, ""),
        _ => (value.is_string(), "a string"),
    };
    (!fits && !is_blank(value)).then_some(must)
}

fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

/// Whether a container has the mounts as they are: none has blank fields, or names a collection
/// by its uuid. They may be large, and are shared then.
pub fn are_resolved(mounts: &Value) -> bool {
    let is_resolved = |mount: &Value| {
        let fields = mount.as_object().into_iter().flatten();
        mount.is_object()
            && fields
                .clone()
                .all(|(name, value)| name != "uuid" && (name == "content" || !is_blank(value)))
    };
    let mounts = mounts.as_object();
    mounts.is_some_and(|mounts| mounts.values().all(is_resolved))
}

/// The mount without blank fields, which clients add as padding.
pub fn strip_blank_fields(mount: &Value) -> Value {
    match mount {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(name, value)| name.as_str() == "content" || !is_blank(value))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        ),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mounts_are_shared_unless_something_is_to_be_replaced() {
        for (mount, expected) in [
            (json!({"kind": "tmp", "capacity": 1}), true),
            (json!({"kind": "json", "content": null}), true),
            (json!({"kind": "tmp", "capacity": 1, "path": ""}), false),
            (json!({"kind": "collection", "uuid": "x"}), false),
            (json!("tmp"), false),
        ] {
            let mounts = json!({"/out": {"kind": "tmp"}, "/in": mount});
            assert_eq!(are_resolved(&mounts), expected, "{mounts}");
            let stripped = strip_blank_fields(&mounts["/in"]);
            assert!(!expected || stripped == mounts["/in"], "{mounts}");
        }
        assert!(!are_resolved(&Value::Null));
    }

    #[test]
    fn ordinary_mounts_pass() {
        let mounts = json!({
            "/out": {"kind": "tmp", "capacity": 1000},
            "/in": {"kind": "collection", "portable_data_hash": "x", "capacity": 0, "content": null},
            "/conf": {"kind": "json", "content": [1, 2]},
            "stdout": {"kind": "file", "path": "/out/stdout.txt"},
        });
        let secret = json!({"/key": {"kind": "text", "content": "s"}});
        check(&mounts, &secret, "/out").unwrap();
    }

    #[test]
    fn each_rule_names_what_breaks_it() {
        let out = json!({"kind": "tmp"});
        let cases = [
            (
                json!({"/out": out, "rel": {"kind": "tmp"}}),
                json!({}),
                "rel",
            ),
            (json!({"/in": {"kind": "tmp"}}), json!({}), "Output path"),
            (json!({"/out": {"kind": "git_tree"}}), json!({}), "git_tree"),
            (
                json!({"/out": {"kind": "tmp", "path": "x"}}),
                json!({}),
                "path",
            ),
            (
                json!({"/out": {"kind": "tmp", "capacity": 1e9}}),
                json!({}),
                "a whole number of bytes",
            ),
            (
                json!({"/out": out, "/in": {"kind": "collection", "writable": "yes"}}),
                json!({}),
                "true or false",
            ),
            (
                json!({"/out": {"kind": "tmp", "size": 1}}),
                json!({}),
                "size",
            ),
            (
                json!({"/out": {"kind": "tmp", "device_type": "tape"}}),
                json!({}),
                "tape",
            ),
            (
                json!({"/out": out, "/f": {"kind": "file", "path": "/out/f"}}),
                json!({}),
                "/f",
            ),
            (
                json!({"/out": out}),
                json!({"/s": {"kind": "tmp"}}),
                "Secret",
            ),
            (
                json!({"/out": out, "/s": {"kind": "text", "content": ""}}),
                json!({"/s": {"kind": "text", "content": "x"}}),
                "conflict",
            ),
        ];
        for (mounts, secret, word) in cases {
            let error = check(&mounts, &secret, "/out").unwrap_err().to_string();
            assert!(error.contains(word), "{mounts}: {error}");
        }
    }
}
