//! Which of the server's events are a reason to look. Each container has several that change nothing for a dispatcher,
//! most of them its own doing, and a look at a long queue is dear.

use arvados_client::ContainerUuid;
use arvados_client::events::Event;
use serde_json::Value;

/// Whether a look may show something new after this event. Where it is not certain, it may.
pub fn is_news(event: &Event) -> bool {
    let is_container = |uuid: &str| ContainerUuid::parse(uuid).is_ok();
    if !event.object_uuid.as_deref().is_some_and(is_container) {
        return false;
    }
    let (old, new) = (
        &event.properties["old_attributes"],
        &event.properties["new_attributes"],
    );
    let states = (old["state"].as_str(), new["state"].as_str());
    if states == (Some("Queued"), Some("Locked")) {
        // Whoever did that knows, and to all others it is one less.
        return false;
    }
    // A server that does not tell of priorities may have changed just that.
    let same = |name: &str| old[name] != Value::Null && old[name] == new[name];
    !(same("state") && same("priority"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_changes_something_is_news() {
        let at = |state: &str, priority: i64| json!({"state": state, "priority": priority});
        let told = |state: &str| json!({"state": state});
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
            // A server that tells less.
            ("update", told("Queued"), told("Locked"), false),
            ("update", told("Queued"), told("Queued"), true),
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
                is_news(&of_container),
                expected,
                "{event_type} {old} -> {new}"
            );
            assert!(!is_news(&event("local-xvhdp-0123456789abcde")));
        }
    }
}
