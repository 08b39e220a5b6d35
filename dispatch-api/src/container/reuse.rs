//! Finds an existing container that does the same work.

use data_encoding::HEXLOWER;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::auth::{Access, Caller};
use crate::collection::store;
use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema::CONTAINERS;
use crate::store::transaction::Tx;

/// Attributes that determine the work of a container.
const WORK_ATTRIBUTES: [&str; 11] = [
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

/// A hash of the work attributes, independent of the order of object keys.
pub fn reuse_key(container: &Record) -> String {
    let mut text = Vec::new();
    for name in WORK_ATTRIBUTES {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        canonical(container.get(name), &mut text);
        text.push(b'\n');
    }
    HEXLOWER.encode(&Sha256::digest(text))
}

fn canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(object) => {
            let mut keys: Vec<&String> = object.keys().collect();
            keys.sort();
            out.push(b'{');
            for key in keys {
                write_json(key, out);
                out.push(b':');
                canonical(&object[key], out);
                out.push(b',');
            }
            out.push(b'}');
        }
        Value::Array(list) => {
            out.push(b'[');
            for item in list {
                canonical(item, out);
                out.push(b',');
            }
            out.push(b']');
        }
        other => write_json(other, out),
    }
}

/// Text and scalars can always be written to memory.
fn write_json(value: &impl Serialize, out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, value);
}

/// The best existing container that does the work of a new one: a successful one, else the one that
/// has progressed most. The result of a container with API access depends on what its user may do,
/// and whoever shares a container with secrets knows that they are the same.
pub fn find_reusable(tx: &Tx<'_>, caller: &Caller, new: &Record) -> Result<Option<Record>> {
    let key = new.text("reuse_key");
    let has_api = new.get("runtime_constraints")["API"] == true;
    let has_secrets = new
        .get("secret_mounts")
        .as_object()
        .is_some_and(|mounts| !mounts.is_empty());
    let user = match (has_api || has_secrets) && !tx.config.emulate.is_arvados() {
        true => new.text("runtime_user_uuid"),
        false => "%",
    };
    let find = |condition: &str| {
        let clause =
            format!("reuse_key = ?1 AND coalesce(runtime_user_uuid, '') LIKE ?2 AND {condition}");
        rows::find(tx.conn, &CONTAINERS, &clause, &[&key, &user])
    };
    let done = "state = 'Complete' AND exit_code = 0 AND log IS NOT NULL AND output IS NOT NULL \
                ORDER BY finished_at LIMIT 10";
    for container in find(done)? {
        let output = container.text("output");
        let log = container.text("log");
        // A result that the caller cannot read is not reused. The log of a readable container is
        // readable by way of its request, under another hash.
        let reads_log = Access::new(tx.conn, caller)
            .find_brief(&CONTAINERS, container.uuid())?
            .is_some()
            || store::find_by_pdh(tx.conn, caller, log, true)?.is_some();
        if reads_log && store::find_by_pdh(tx.conn, caller, output, false)?.is_some() {
            return Ok(Some(container));
        }
    }
    let unfinished = "(state IN ('Queued', 'Locked') \
           OR (state = 'Running' AND json_type(runtime_status, '$.error') IS NULL)) \
         ORDER BY CASE state WHEN 'Running' THEN 0 WHEN 'Locked' THEN 1 ELSE 2 END, \
           progress DESC, started_at, priority DESC, created_at LIMIT 1";
    Ok(find(unfinished)?.pop())
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
        assert_eq!(reuse_key(&one), reuse_key(&same));
        assert_ne!(reuse_key(&one), reuse_key(&other));
    }
}
