//! The trail: containers, requests and collections leave a log entry of every change.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::events::{self, Event};
use crate::record::Record;
use crate::schema::{LOGS, Resource};
use crate::tx::Tx;

const TRAILED: [&str; 3] = ["containers", "container_requests", "collections"];

/// Properties larger than this are cut down to the few attributes that events carry.
const LARGEST: usize = 32 * 1024;

/// One change: `old` is missing for a creation, `new` for a deletion.
#[derive(Debug)]
pub struct Change<'a> {
    pub resource: &'static Resource,
    pub event_type: &'static str,
    pub old: Option<&'a Record>,
    pub new: Option<&'a Record>,
}

/// Write the entry and queue its event.
pub fn leave(tx: &Tx<'_>, who: &Caller, change: &Change<'_>) -> Result<()> {
    let Some(object) = change.new.or(change.old) else {
        return Ok(());
    };
    if !TRAILED.contains(&change.resource.table) {
        return Ok(());
    }
    let uuid = tx.setting.new_uuid(&LOGS);
    let names = tx.setting.rules.carried;
    let mut properties = properties(change, None)?;
    if properties.len() > LARGEST {
        properties = self::properties(change, Some(names))?;
    }
    tx.conn
        .prepare_cached(
            "INSERT INTO logs (uuid, owner_uuid, modified_by_user_uuid, created_at, modified_at, event_at, \
             object_uuid, object_owner_uuid, object_kind, event_type, summary, properties) \
             VALUES (?1, ?2, ?2, ?3, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute((
            &uuid,
            &who.user_uuid,
            &tx.now,
            object.uuid(),
            object.text("owner_uuid"),
            change.resource.kind,
            change.event_type,
            format!("{} of {}", change.event_type, object.uuid()),
            properties,
        ))?;
    let carried = |record: Option<&Record>| {
        record.map_or(Value::Null, |record| events::carried(record, names))
    };
    let entry = Record::new()
        .with("id", tx.conn.last_insert_rowid())
        .with("uuid", uuid)
        .with("object_uuid", object.uuid())
        .with("object_owner_uuid", object.text("owner_uuid"))
        .with("object_kind", change.resource.kind)
        .with("event_type", change.event_type)
        .with("event_at", tx.now.as_str())
        .with("created_at", tx.now.as_str())
        .with(
            "properties",
            json!({"old_attributes": carried(change.old), "new_attributes": carried(change.new)}),
        );
    tx.add_event(Event::from_log(&entry, names));
    Ok(())
}

fn properties(change: &Change<'_>, few: Option<&[&str]>) -> Result<String> {
    serde_json::to_string(&Properties { change, few })
        .map_err(|problem| ApiError::BadRecord(format!("a log entry cannot be written: {problem}")))
}

/// Written straight from the records, because this happens with every change.
struct Properties<'a> {
    change: &'a Change<'a>,
    few: Option<&'a [&'a str]>,
}

impl Serialize for Properties<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, record) in [("old", self.change.old), ("new", self.change.new)] {
            let Some(record) = record else { continue };
            let etag = rows::etag(record.uuid(), record.int("row_version"));
            map.serialize_entry(&format!("{key}_etag"), &etag)?;
            let attributes = Attributes {
                resource: self.change.resource,
                record,
                few: self.few,
            };
            map.serialize_entry(&format!("{key}_attributes"), &attributes)?;
        }
        map.end()
    }
}

struct Attributes<'a> {
    resource: &'static Resource,
    record: &'a Record,
    few: Option<&'a [&'a str]>,
}

impl Serialize for Attributes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.resource
                .public_attrs()
                .filter(|attr| !attr.bulky && self.few.is_none_or(|few| few.contains(&attr.name)))
                .map(|attr| (attr.name, self.record.get(attr.name))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Identity;
    use crate::schema::CONTAINERS;
    use crate::tx::Setting;

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
        let setting = Setting::of_a_test();
        let tx = Tx::new(&connection, &setting);
        let who = Identity::system(setting.system_user());
        leave(&tx, &who, &change).unwrap();
        change.old = None;
        leave(&tx, &who, &change).unwrap();
        let entries = rows::find(&connection, &LOGS, "1 ORDER BY id", &[]).unwrap();
        let large = entries[0].get("properties");
        assert_eq!(large["old_attributes"]["state"], "Queued");
        assert_eq!(large["new_attributes"]["state"], "Locked");
        assert_eq!(large["new_attributes"].get("mounts"), None, "cut down");
        let small = entries[1].get("properties");
        assert_eq!(small.get("old_attributes"), None);
        assert!(small["new_attributes"]["mounts"].is_object());
        assert!(!small.to_string().contains("hush"));
        assert_eq!(tx.into_effects().events.len(), 2);
    }
}
