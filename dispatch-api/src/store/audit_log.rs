//! The audit log: an entry for every change of a container, request or collection.

use std::collections::BTreeMap;

use rusqlite::Connection;
use serde::Serialize;
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::events::event::Event;
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
    let changed = change.new.or(change.old);
    let Some(object) = changed.filter(|_| AUDITED.contains(&change.resource.table)) else {
        return Ok(None);
    };
    let uuid = config.new_uuid(&LOGS);
    let names = config.emulate.event_attributes();
    let properties = properties_text(change, names)
        .map_err(|problem| ApiError::BadRecord(format!("cannot encode a log entry: {problem}")))?;
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
    let properties = json!(Properties::of(change, |name| names.contains(&name)));
    let entry = Record::new()
        .with("id", connection.last_insert_rowid())
        .with("uuid", uuid)
        .with("object_uuid", object.uuid())
        .with("object_owner_uuid", object.text("owner_uuid"))
        .with("object_kind", change.resource.kind)
        .with("event_type", change.event_type)
        .with("event_at", now)
        .with("created_at", now)
        .with("properties", properties);
    Ok(Some(Event::from_log(&entry, names)))
}

/// The properties as JSON: of all attributes, unless they take too many bytes.
fn properties_text(change: &Change<'_>, names: &[&str]) -> serde_json::Result<String> {
    let few = || serde_json::to_string(&Properties::of(change, |name| names.contains(&name)));
    let records = change.old.into_iter().chain(change.new);
    let mut fields = records.flat_map(|record| record.0.values());
    if fields.any(|field| field.long_json().is_some()) {
        return few();
    }
    let mut text = [0; MAX_PROPERTIES_BYTES];
    let mut free = &mut text[..];
    let all = serde_json::to_writer(&mut free, &Properties::of(change, |_| true));
    let length = MAX_PROPERTIES_BYTES - free.len();
    match all.ok().and_then(|()| str::from_utf8(&text[..length]).ok()) {
        Some(text) => Ok(text.to_owned()),
        None => few(),
    }
}

/// Borrows the values from the records, because this runs at every change.
#[derive(Serialize)]
struct Properties<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    old_etag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_attributes: Option<BTreeMap<&'static str, &'a Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_etag: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_attributes: Option<BTreeMap<&'static str, &'a Value>>,
}

impl<'a> Properties<'a> {
    fn of(change: &Change<'a>, is_wanted: impl Fn(&str) -> bool) -> Self {
        let attributes = |record: &'a Record| {
            let shown = change.resource.public_attrs().filter(|attr| !attr.bulky);
            let wanted = shown.filter(|attr| is_wanted(attr.name));
            wanted
                .map(|attr| (attr.name, record.get(attr.name)))
                .collect()
        };
        Properties {
            old_etag: change.old.map(Record::etag),
            old_attributes: change.old.map(attributes),
            new_etag: change.new.map(Record::etag),
            new_attributes: change.new.map(attributes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Identity;
    use crate::clock;
    use crate::db::rows;
    use crate::schema::CONTAINERS;

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
