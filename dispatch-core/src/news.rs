//! What is heard between two looks. Of the server's events only some are a reason to look: each container has several
//! that change nothing for a dispatcher, most of them its own doing, and a look at a long queue is dear. But those name
//! the container whose record is to be read, also where nothing else shows that it changed.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arvados_client::ContainerUuid;
use arvados_client::events::Event;
use serde_json::Value;
use tokio::sync::Notify;

/// More names than that are not kept: everything is looked at.
const MOST: usize = 5000;

/// What was heard since the last look, and a bell for it.
#[derive(Debug, Default)]
pub struct News {
    bell: Notify,
    named: Mutex<Named>,
}

/// What a look is to see.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// These changed.
    pub containers: BTreeSet<ContainerUuid>,
    /// Others may have.
    pub everything: bool,
}

impl Named {
    fn add(&mut self, container: ContainerUuid) {
        match self.containers.len() < MOST || self.containers.contains(&container) {
            true => drop(self.containers.insert(container)),
            false => self.everything = true,
        }
    }

    /// These too.
    pub fn take_in(&mut self, more: Named) {
        self.everything |= more.everything;
        more.containers.into_iter().for_each(|one| self.add(one));
    }
}

impl News {
    /// There is something to see; what, a look tells.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// This container changed.
    pub fn tell(&self, container: ContainerUuid) {
        self.named().add(container);
        self.ring();
    }

    /// Something may have happened that was not heard.
    pub fn missed(&self) {
        self.named().everything = true;
        self.ring();
    }

    /// Until something is heard.
    pub async fn heard(&self) {
        self.bell.notified().await;
    }

    /// What was heard until now.
    pub fn take(&self) -> Named {
        std::mem::take(&mut *self.named())
    }

    fn named(&self) -> MutexGuard<'_, Named> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The container of which a look may show something new after this event. Where that is not certain, it may.
pub fn news(event: &Event) -> Option<ContainerUuid> {
    let container = ContainerUuid::parse(event.object_uuid.as_deref()?).ok()?;
    is_news(event).then_some(container)
}

fn is_news(event: &Event) -> bool {
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
                news(&of_container).is_some(),
                expected,
                "{event_type} {old} -> {new}"
            );
            assert_eq!(news(&event("local-xvhdp-0123456789abcde")), None);
        }
    }

    #[test]
    fn more_names_than_are_kept_are_everything() {
        let news = News::default();
        (0..=MOST).for_each(|_| news.tell(ContainerUuid::generate("zzzzz")));
        let named = news.take();
        assert_eq!((named.containers.len(), named.everything), (MOST, true));
        assert_eq!(news.take(), Named::default());
    }
}
