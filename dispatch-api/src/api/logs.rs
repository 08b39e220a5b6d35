//! `/arvados/v1/logs`.

use serde_json::{Map, Value};

use super::{Call, Reply, bulk, changes, resource};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{self, LOGS};

/// A posted entry larger than this is refused.
const LARGEST: usize = 256 * 1024;

pub fn route(call: &Call, verb: &str, rest: &[&str]) -> Result<Reply> {
    let record = match (verb, rest) {
        ("GET", []) => return resource::list(call, &LOGS, |_| ()),
        ("POST", []) => {
            let entry = entry(&call.params.attributes(&LOGS)?)?;
            let who = call.who.clone();
            call.app.write(move |tx| tx.add_log(&who, entry))?
        }
        ("POST", ["bulk_create"]) => return bulk::create_logs(call),
        ("GET", [uuid]) => resource::get(call, &LOGS, uuid)?,
        _ => return Err(ApiError::path_not_found()),
    };
    resource::show(call, &LOGS, &record)
}

/// What is kept of a posted entry. Anybody may leave a note about any object, also about one he cannot read, as in the
/// real server.
pub fn entry(attributes: &Map<String, Value>) -> Result<Record> {
    let mut attributes = attributes.clone();
    for assigned in ["id", "uuid", "owner_uuid", "object_owner_uuid"] {
        attributes.remove(assigned);
    }
    let mut entry = changes::apply(&LOGS, &Record::new(), &attributes, &[])?;
    if Value::Object(entry.0.clone()).to_string().len() > LARGEST {
        return Err(ApiError::invalid(format!(
            "The log entry is larger than {LARGEST} bytes"
        )));
    }
    if let Some(resource) = entry.some_text("object_uuid").and_then(schema::by_uuid) {
        entry.set("object_kind", resource.kind);
    }
    Ok(entry)
}
