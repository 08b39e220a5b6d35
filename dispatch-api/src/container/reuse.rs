//! Finding a container that already does, or did, exactly what is asked for.

use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::auth::Caller;
use crate::collection::store;
use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema::CONTAINERS;
use crate::tx::Tx;

/// What makes two containers do the same work.
const SPEC: [&str; 11] = [
    "command",
    "cwd",
    "environment",
    "output_path",
    "output_glob",
    "output_storage_classes",
    "container_image",
    "mounts",
    "secret_mounts",
    "runtime_constraints",
    "service",
];

/// A digest of the specification; equal specifications have equal keys whatever the order of object keys.
pub fn key(container: &Record) -> String {
    let mut text = String::new();
    for name in SPEC {
        text.push_str(name);
        text.push('=');
        canonical(container.get(name), &mut text);
        text.push('\n');
    }
    HEXLOWER.encode(&Sha256::digest(text))
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(object) => {
            let mut keys: Vec<&String> = object.keys().collect();
            keys.sort();
            out.push('{');
            for key in keys {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                canonical(&object[key], out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for item in list {
                canonical(item, out);
                out.push(',');
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// The best existing container with this key: one that has succeeded, else the one furthest along.
pub fn find(tx: &Tx<'_>, who: &Caller, key: &str) -> Result<Option<Record>> {
    let done = rows::find(
        tx.conn,
        &CONTAINERS,
        "reuse_key = ?1 AND state = 'Complete' AND exit_code = 0 AND log IS NOT NULL \
         AND output IS NOT NULL ORDER BY finished_at LIMIT 10",
        &[&key],
    )?;
    for container in done {
        let output = container.text("output");
        let log = container.text("log");
        // A result that nobody can fetch any more is no result.
        if store::find_by_pdh(tx.conn, who, output, false)?.is_some()
            && store::find_by_pdh(tx.conn, who, log, true)?.is_some()
        {
            return Ok(Some(container));
        }
    }
    let under_way = rows::find(
        tx.conn,
        &CONTAINERS,
        "reuse_key = ?1 AND (state IN ('Queued', 'Locked') \
           OR (state = 'Running' AND json_type(runtime_status, '$.error') IS NULL)) \
         ORDER BY CASE state WHEN 'Running' THEN 0 WHEN 'Locked' THEN 1 ELSE 2 END, \
           progress DESC, started_at, priority DESC, created_at LIMIT 1",
        &[&key],
    )?;
    Ok(under_way.into_iter().next())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_key_depends_on_the_work_and_on_nothing_else() {
        let one = Record::new()
            .with("command", json!(["true"]))
            .with("environment", json!({"A": "1", "B": "2"}));
        let same = one.clone().with("priority", 7).with("uuid", "x");
        let other = one.clone().with("environment", json!({"A": "1", "B": "3"}));
        assert_eq!(key(&one), key(&same));
        assert_ne!(key(&one), key(&other));
    }
}
