//! Live events: every log entry, told to whoever listens and may read its object.

pub mod socket;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::sync::broadcast;

use crate::record::Record;

/// Events a listener may lag behind before it is disconnected.
const BUFFER: usize = 8192;

#[derive(Clone, Debug)]
pub struct Event {
    pub id: i64,
    pub object_uuid: String,
    pub event_type: String,
    pub created_at: String,
    body: Map<String, Value>,
}

impl Event {
    /// The event of a log entry, with the named attributes of its object.
    pub fn from_log(entry: &Record, names: &[&str]) -> Event {
        let properties = entry.get("properties");
        let properties = if properties.get("text").is_some() {
            properties.clone()
        } else {
            json!({
                "old_attributes": cut_down(&properties["old_attributes"], names),
                "new_attributes": cut_down(&properties["new_attributes"], names),
            })
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
        body.insert("event_at".into(), json!(micros(entry.text("event_at"))));
        body.insert("properties".into(), properties);
        Event {
            id: entry.int("id"),
            object_uuid: entry.text("object_uuid").to_owned(),
            event_type: entry.text("event_type").to_owned(),
            created_at: entry.text("created_at").to_owned(),
            body,
        }
    }

    /// The message of one listener's connection.
    pub fn message(&self, message_id: u64) -> String {
        let mut body = self.body.clone();
        body.insert("msgID".into(), json!(message_id));
        Value::Object(body).to_string()
    }
}

/// What events carry of a record.
pub fn carried(record: &Record, names: &[&str]) -> Value {
    names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), record.0.get(*name)?.clone())))
        .collect::<Map<_, _>>()
        .into()
}

/// Only what events carry of an object's attributes.
fn cut_down(attributes: &Value, names: &[&str]) -> Value {
    match attributes.as_object() {
        Some(all) => Value::Object(
            all.iter()
                .filter(|(name, _)| names.contains(&name.as_str()))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        ),
        None => Value::Null,
    }
}

/// Events have six digits of a second where records have nine.
fn micros(time: &str) -> String {
    match (time.get(..26), time.len()) {
        (Some(start), 30) => format!("{start}Z"),
        _ => time.to_owned(),
    }
}

/// Where committed events are published.
pub struct Feed {
    sender: broadcast::Sender<Arc<Event>>,
}

impl Default for Feed {
    fn default() -> Self {
        Feed {
            sender: broadcast::channel(BUFFER).0,
        }
    }
}

impl Feed {
    pub fn publish(&self, events: Vec<Event>) {
        for event in events {
            // Nobody listening is not an error.
            let _ = self.sender.send(Arc::new(event));
        }
    }

    pub fn listen(&self) -> broadcast::Receiver<Arc<Event>> {
        self.sender.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            &Event::from_log(&entry, crate::emulation::OWN.carried).message(3),
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
