//! The event of a log entry, as websocket clients receive it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use crate::record::Record;

/// Maximum size in bytes of the properties of an event; without them, a client reads the object.
/// Events wait in memory for slow clients, and their texts are from other clients.
const MAX_PROPERTIES_BYTES: usize = 32 << 10;

#[derive(Clone, Debug)]
pub struct Event {
    pub id: i64,
    pub object_uuid: String,
    pub event_type: String,
    pub created_at: String,
    /// The message without its number: the beginning of a JSON object.
    text: String,
    /// Whether each user may receive it, once that was asked.
    decisions: Arc<Mutex<BTreeMap<String, Arc<OnceCell<bool>>>>>,
}

impl Event {
    /// Whether this user may receive it: asked once, however many listeners the user has.
    pub fn decision_of(&self, user_uuid: &str) -> Arc<OnceCell<bool>> {
        let mut decisions = self.decisions.lock();
        decisions.entry(user_uuid.to_owned()).or_default().clone()
    }

    /// The event of a log entry, with the named attributes of its object.
    pub fn from_log(entry: &Record, names: &[&str]) -> Event {
        let properties = entry.get("properties");
        let properties = if properties.get("text").is_some() {
            properties.clone()
        } else {
            json!({
                "old_attributes": keep_attributes(&properties["old_attributes"], names),
                "new_attributes": keep_attributes(&properties["new_attributes"], names),
            })
        };
        let properties = match properties.to_string().len() <= MAX_PROPERTIES_BYTES {
            true => properties,
            false => json!({}),
        };
        let mut body = Map::new();
        for name in [
            "id",
            "uuid",
            "object_uuid",
            "object_owner_uuid",
            "object_kind",
            "event_type",
        ] {
            body.insert(name.into(), entry.get(name).clone());
        }
        let event_at = to_microseconds(entry.text("event_at"));
        body.insert("event_at".into(), json!(event_at));
        body.insert("properties".into(), properties);
        let mut text = Value::Object(body).to_string();
        text.pop();
        Event {
            id: entry.int("id"),
            object_uuid: entry.text("object_uuid").to_owned(),
            event_type: entry.text("event_type").to_owned(),
            created_at: entry.text("created_at").to_owned(),
            text,
            decisions: Arc::default(),
        }
    }

    /// The message text for one connection.
    pub fn message(&self, message_id: u64) -> String {
        format!("{},\"msgID\":{message_id}}}", self.text)
    }
}

/// The object with only the named attributes.
fn keep_attributes(attributes: &Value, names: &[&str]) -> Value {
    let Value::Object(mut kept) = attributes.clone() else {
        return Value::Null;
    };
    kept.retain(|name, _| names.contains(&name.as_str()));
    kept.into()
}

/// Events have microseconds where records have nanoseconds.
fn to_microseconds(time: &str) -> String {
    match (time.get(..26), time.len()) {
        (Some(start), 30) => format!("{start}Z"),
        _ => time.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_properties_are_left_out() {
        for (bytes, is_kept) in [(1000, true), (MAX_PROPERTIES_BYTES, false)] {
            let entry = Record::new().with("properties", json!({"text": "x".repeat(bytes)}));
            let event = Event::from_log(&entry, &[]);
            assert_eq!(event.message(1).len() > bytes, is_kept, "{bytes}");
        }
    }

    #[test]
    fn an_event_carries_few_attributes_and_no_secret() {
        let entry = Record::new()
            .with("id", 7)
            .with("object_uuid", "local-dz642-0123456789abcde")
            .with("event_type", "update")
            .with("event_at", "2026-01-02T03:04:05.123456789Z")
            .with(
                "properties",
                json!({"old_attributes": {"state": "Queued", "mounts": {}}, "new_attributes": {"state": "Locked"}}),
            );
        let message: Value = serde_json::from_str(
            &Event::from_log(&entry, crate::Emulate::None.event_attributes()).message(3),
        )
        .unwrap();
        assert_eq!(message["msgID"], 3);
        assert_eq!(message["event_at"], "2026-01-02T03:04:05.123456Z");
        assert_eq!(
            message["properties"]["old_attributes"],
            json!({"state": "Queued"})
        );
    }
}
