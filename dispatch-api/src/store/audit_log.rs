//! The audit log: an entry for every change of a container, request or collection.

use std::io;

use rusqlite::Connection;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::events::event::{self, Event};
use crate::record::Record;
use crate::schema::{LOGS, Resource};
use crate::store::cluster_config::ClusterConfig;

const AUDITED: [&str; 4] = ["containers", "container_requests", "collections", "groups"];

/// Size in bytes above which properties contain only the attributes that events carry.
const MAX_PROPERTIES_BYTES: usize = 32 * 1024;

/// One change: `old` is missing for a creation, `new` for a deletion.
#[derive(Debug)]
pub struct Change<'a> {
    pub resource: &'static Resource,
    pub event_type: &'static str,
    pub old: Option<&'a Record>,
    pub new: Option<&'a Record>,
}

/// Writes the log entry of an audited change and returns its event. Other changes have no entry.
pub fn record_change(
    connection: &Connection,
    config: &ClusterConfig,
    now: &str,
    caller: &Caller,
    change: &Change<'_>,
) -> Result<Option<Event>> {
    let Some(object) = change.new.or(change.old) else {
        return Ok(None);
    };
    if !AUDITED.contains(&change.resource.table) {
        return Ok(None);
    }
    let uuid = config.new_uuid(&LOGS);
    let names = config.emulate.event_attributes();
    let properties = match properties(change, None, MAX_PROPERTIES_BYTES) {
        Ok(properties) => properties,
        Err(_) => properties(change, Some(names), usize::MAX)?,
    };
    connection
        .prepare_cached(
            "INSERT INTO logs (uuid, owner_uuid, modified_by_user_uuid, created_at, modified_at, event_at, \
             object_uuid, object_owner_uuid, object_kind, event_type, summary, properties) \
             VALUES (?1, ?2, ?2, ?3, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute((
            &uuid,
            &caller.user_uuid,
            now,
            object.uuid(),
            object.text("owner_uuid"),
            change.resource.kind,
            change.event_type,
            format!("{} of {}", change.event_type, object.uuid()),
            properties,
        ))?;
    let event_attributes = |record: Option<&Record>| {
        record.map_or(Value::Null, |record| {
            event::select_attributes(record, names)
        })
    };
    let entry = Record::new()
        .with("id", connection.last_insert_rowid())
        .with("uuid", uuid)
        .with("object_uuid", object.uuid())
        .with("object_owner_uuid", object.text("owner_uuid"))
        .with("object_kind", change.resource.kind)
        .with("event_type", change.event_type)
        .with("event_at", now)
        .with("created_at", now)
        .with(
            "properties",
            json!({"old_attributes": event_attributes(change.old), "new_attributes": event_attributes(change.new)}),
        );
    Ok(Some(Event::from_log(&entry, names)))
}

/// The properties as JSON, or an error if they take more bytes.
fn properties(change: &Change<'_>, only: Option<&[&str]>, max_bytes: usize) -> Result<String> {
    let unencodable =
        |why: String| ApiError::BadRecord(format!("cannot encode a log entry: {why}"));
    let mut text = Bounded {
        bytes: Vec::new(),
        max_bytes,
    };
    serde_json::to_writer(&mut text, &Properties { change, only })
        .map_err(|problem| unencodable(problem.to_string()))?;
    String::from_utf8(text.bytes).map_err(|problem| unencodable(problem.to_string()))
}

/// A text that may have so many bytes.
struct Bounded {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.max_bytes {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serializes directly from the records, because this runs at every change.
struct Properties<'a> {
    change: &'a Change<'a>,
    only: Option<&'a [&'a str]>,
}

impl Serialize for Properties<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, record) in [("old", self.change.old), ("new", self.change.new)] {
            let Some(record) = record else { continue };
            let etag = record.etag();
            map.serialize_entry(&format!("{key}_etag"), &etag)?;
            let attributes = Attributes {
                resource: self.change.resource,
                record,
                only: self.only,
            };
            map.serialize_entry(&format!("{key}_attributes"), &attributes)?;
        }
        map.end()
    }
}

struct Attributes<'a> {
    resource: &'static Resource,
    record: &'a Record,
    only: Option<&'a [&'a str]>,
}

impl Serialize for Attributes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.resource
                .public_attrs()
                .filter(|attr| {
                    !attr.bulky && self.only.is_none_or(|only| only.contains(&attr.name))
                })
                .map(|attr| (attr.name, self.record.get(attr.name))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Identity;
    use crate::clock;
    use crate::db::rows;
    use crate::schema::CONTAINERS;
    use crate::store::cluster_config::ClusterConfig;

    #[test]
    fn an_entry_tells_what_was_and_what_is_and_no_secret() {
        let old = Record::new()
            .with("uuid", "local-dz642-0123456789abcde")
            .with("state", "Queued")
            .with("mounts", json!({"/in": "x".repeat(20_000)}))
            .with("secret_mounts", json!({"/key": "hush"}));
        let new = old.clone().with("state", "Locked");
        let mut change = Change {
            resource: &CONTAINERS,
            event_type: "update",
            old: Some(&old),
            new: Some(&new),
        };
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let config = ClusterConfig::for_tests();
        let caller = Identity::system(config.system_user());
        let record = |change: &Change<'_>| {
            record_change(&connection, &config, &clock::now(), &caller, change).unwrap()
        };
        let first = record(&change);
        change.old = None;
        let second = record(&change);
        let entries = rows::find(&connection, &LOGS, "1 ORDER BY id", &[]).unwrap();
        let large = entries[0].get("properties");
        assert_eq!(large["old_attributes"]["state"], "Queued");
        assert_eq!(large["new_attributes"]["state"], "Locked");
        assert_eq!(large["new_attributes"].get("mounts"), None, "cut down");
        let small = entries[1].get("properties");
        assert_eq!(small.get("old_attributes"), None);
        assert!(small["new_attributes"]["mounts"].is_object());
        assert!(!small.to_string().contains("hush"));
        assert!(first.is_some() && second.is_some());
    }
}
