//! Changes reported between two polls. They wake the poll loop and select the records to read.
//!
//! Input: websocket events of the API server. Output: a wake-up and [`PendingChanges`].
//!
//! Only some events cause a poll. Each container has several events that are irrelevant for a
//! dispatcher, most of them caused by the dispatcher itself. A poll of a long queue is expensive. A
//! relevant event names its container, so the record is read even if no listing shows the change.

use arvados_client::ContainerUuid;
use arvados_client::events::Event;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use crate::model::snapshot::PendingChanges;

/// Changes since the last poll, and a wake-up for the poll loop.
#[derive(Debug, Default)]
pub struct ChangeFeed {
    wakeup: Notify,
    named: Mutex<PendingChanges>,
}

impl ChangeFeed {
    /// Wakes the poll loop without naming a change.
    pub fn notify(&self) {
        self.wakeup.notify_one();
    }

    /// Marks a container as changed and wakes the poll loop.
    pub fn mark_changed(&self, container: ContainerUuid) {
        self.named.lock().add(container);
        self.notify();
    }

    /// Marks everything as possibly changed and wakes the poll loop, because events may have been
    /// lost.
    pub fn request_resync(&self) {
        self.named.lock().everything = true;
        self.notify();
    }

    /// Waits for the next wake-up.
    pub async fn notified(&self) {
        self.wakeup.notified().await;
    }

    /// Takes all pending changes.
    pub fn drain(&self) -> PendingChanges {
        std::mem::take(&mut *self.named.lock())
    }
}

/// The container that the event may have changed in a relevant way. If in doubt, it counts as
/// changed.
pub fn changed_container(event: &Event) -> Option<ContainerUuid> {
    let container = ContainerUuid::parse(event.object_uuid.as_deref()?).ok()?;
    is_relevant(event).then_some(container)
}

fn is_relevant(event: &Event) -> bool {
    let (old, new) = (
        &event.properties["old_attributes"],
        &event.properties["new_attributes"],
    );
    let states = (old["state"].as_str(), new["state"].as_str());
    if states == (Some("Queued"), Some("Locked")) {
        // The dispatcher that took the lock has it from the lock call. For other dispatchers the
        // queue is only shorter.
        return false;
    }
    // An event without the priority may be a change of the priority.
    let same = |name: &str| old[name] != Value::Null && old[name] == new[name];
    !(same("state") && same("priority"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::snapshot::MAX_NAMED_CHANGES;

    #[test]
    fn only_relevant_events_name_a_container() {
        let at = |state: &str, priority: i64| json!({"state": state, "priority": priority});
        let without_priority = |state: &str| json!({"state": state});
        #[rustfmt::skip]
        let rows = [
            ("create", Value::Null, at("Queued", 5), true),
            ("update", at("Queued", 0), at("Queued", 5), true),
            ("update", at("Queued", 5), at("Locked", 5), false),
            ("update", at("Locked", 5), at("Queued", 5), true),
            ("update", at("Locked", 5), at("Locked", 5), false),
            ("update", at("Locked", 5), at("Running", 5), true),
            ("update", at("Running", 5), at("Running", 5), false),
            ("update", at("Running", 5), at("Running", 0), true),
            ("update", at("Running", 5), at("Complete", 5), true),
            ("delete", at("Complete", 0), Value::Null, true),
            // Events without a priority.
            ("update", without_priority("Queued"), without_priority("Locked"), false),
            ("update", without_priority("Queued"), without_priority("Queued"), true),
            ("update", Value::Null, Value::Null, true),
        ];
        for (event_type, old, new, expected) in rows {
            let event = |uuid: &str| Event {
                object_uuid: Some(uuid.into()),
                event_type: Some(event_type.into()),
                properties: json!({"old_attributes": old, "new_attributes": new}),
            };
            let of_container = event("local-dz642-0123456789abcde");
            assert_eq!(
                changed_container(&of_container).is_some(),
                expected,
                "{event_type} {old} -> {new}"
            );
            assert_eq!(
                changed_container(&event("local-xvhdp-0123456789abcde")),
                None
            );
        }
    }

    #[test]
    fn more_names_than_are_kept_are_everything() {
        let feed = ChangeFeed::default();
        (0..=MAX_NAMED_CHANGES).for_each(|_| feed.mark_changed(ContainerUuid::generate("zzzzz")));
        let named = feed.drain();
        assert_eq!(
            (named.containers.len(), named.everything),
            (MAX_NAMED_CHANGES, true)
        );
        assert_eq!(feed.drain(), PendingChanges::default());
    }
}
