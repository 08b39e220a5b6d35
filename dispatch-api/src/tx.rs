//! What a write sees: the open transaction, the server's constants, and what must happen after the commit.

use std::cell::RefCell;

use rusqlite::Connection;

use crate::auth::Caller;
use crate::auth::attempt::{AttemptKey, Override};
use crate::clock;
use crate::db::rows;
use crate::emulation::Rules;
use crate::error::{ApiError, Result};
use crate::events::Event;
use crate::record::Record;
use crate::schema::{self, Resource};
use crate::trail::{self, Change};

/// Constants of one server, shared by every write.
pub struct Setting {
    pub cluster_id: String,
    pub attempt_key: AttemptKey,
    pub blob_signing_key: String,
    pub max_dispatch_attempts: i64,
    pub container_count_max: i64,
    pub rules: &'static Rules,
}

impl Setting {
    /// Constants for a database of a test.
    #[cfg(test)]
    pub fn of_a_test() -> Self {
        Setting {
            cluster_id: "local".into(),
            attempt_key: AttemptKey::new(b"key"),
            blob_signing_key: "key".into(),
            max_dispatch_attempts: 10,
            container_count_max: 3,
            rules: crate::emulation::Emulate::None.rules(),
        }
    }

    pub fn system_user(&self) -> String {
        format!("{}-tpzed-000000000000000", self.cluster_id)
    }

    pub fn all_users_group(&self) -> String {
        format!("{}-j7d0g-fffffffffffffff", self.cluster_id)
    }

    /// A fresh uuid for a record of this resource.
    pub fn new_uuid(&self, resource: &Resource) -> String {
        const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let tail: String = (0..15)
            .map(|_| char::from(DIGITS[fastrand::usize(..DIGITS.len())]))
            .collect();
        format!("{}-{}-{tail}", self.cluster_id, resource.infix)
    }
}

/// What is told to the rest of the server once the transaction is on disk.
#[derive(Default)]
pub struct Effects {
    pub events: Vec<Event>,
    pub overrides: Vec<Override>,
}

impl Effects {
    /// As it was when it had so many of each.
    fn cut(&mut self, (events, overrides): (usize, usize)) {
        self.events.truncate(events);
        self.overrides.truncate(overrides);
    }

    pub fn absorb(&mut self, later: Effects) {
        self.events.extend(later.events);
        self.overrides.extend(later.overrides);
    }
}

pub struct Tx<'a> {
    pub conn: &'a Connection,
    pub setting: &'a Setting,
    pub now: String,
    effects: RefCell<Effects>,
}

impl<'a> Tx<'a> {
    pub fn new(conn: &'a Connection, setting: &'a Setting) -> Self {
        Tx {
            conn,
            setting,
            now: clock::now(),
            effects: RefCell::default(),
        }
    }

    pub fn into_effects(self) -> Effects {
        self.effects.into_inner()
    }

    /// Does a part of the write wholly or not at all. What was refused takes nothing else with it.
    pub fn apart<T>(&self, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = {
            let effects = self.effects.borrow();
            (effects.events.len(), effects.overrides.len())
        };
        self.conn.execute_batch("SAVEPOINT part")?;
        let done = part();
        match &done {
            Ok(_) => self.conn.execute_batch("RELEASE part")?,
            // The transaction may be gone, and the write fails as a whole.
            Err(ApiError::DiskFull) => {}
            Err(_) => {
                self.conn.execute_batch("ROLLBACK TO part; RELEASE part")?;
                self.effects.borrow_mut().cut(before);
            }
        }
        done
    }

    pub fn fetch(&self, resource: &Resource, uuid: &str) -> Result<Option<Record>> {
        rows::fetch(self.conn, resource, uuid)
    }

    /// Insert a record with the common attributes filled in, and log it.
    pub fn create(
        &self,
        resource: &'static Resource,
        who: &Caller,
        mut record: Record,
    ) -> Result<Record> {
        if record.some_text("uuid").is_none() {
            record.set("uuid", self.setting.new_uuid(resource));
        }
        if record.some_text("owner_uuid").is_none() {
            record.set("owner_uuid", who.user_uuid.as_str());
        }
        record.set("created_at", self.now.as_str());
        record.set("modified_at", self.now.as_str());
        record.set("modified_by_user_uuid", who.user_uuid.as_str());
        let record = rows::insert(self.conn, resource, &record)?;
        self.log(resource, who, "create", None, Some(&record))?;
        Ok(record)
    }

    /// Write the changed attributes, move `modified_at`, and log it. No change writes nothing.
    pub fn update(
        &self,
        resource: &'static Resource,
        who: &Caller,
        old: &Record,
        mut new: Record,
    ) -> Result<Record> {
        if old.changed(&new).is_empty() {
            return Ok(old.clone());
        }
        new.set("modified_at", self.now.as_str());
        new.set("modified_by_user_uuid", who.user_uuid.as_str());
        let new = rows::update(self.conn, resource, old, &new)?;
        self.log(resource, who, "update", Some(old), Some(&new))?;
        Ok(new)
    }

    /// As `update`, for changes that follow from another record and leave `modified_at` alone.
    pub fn update_quietly(
        &self,
        resource: &'static Resource,
        who: &Caller,
        old: &Record,
        new: &Record,
    ) -> Result<Record> {
        let new = rows::update(self.conn, resource, old, new)?;
        if self.setting.rules.consequences_logged {
            self.log(resource, who, "update", Some(old), Some(&new))?;
        }
        Ok(new)
    }

    pub fn delete(&self, resource: &'static Resource, who: &Caller, old: &Record) -> Result<()> {
        rows::delete(self.conn, resource, old.uuid())?;
        self.log(resource, who, "delete", Some(old), None)
    }

    pub fn add_override(&self, change: Override) {
        self.effects.borrow_mut().overrides.push(change);
    }

    pub fn add_event(&self, event: Event) {
        self.effects.borrow_mut().events.push(event);
    }

    /// Write a log entry and queue it as an event.
    pub fn add_log(&self, who: &Caller, mut entry: Record) -> Result<Record> {
        let uuid = self.setting.new_uuid(&schema::LOGS);
        entry.set("uuid", uuid);
        entry.set("owner_uuid", who.user_uuid.as_str());
        entry.set("modified_by_user_uuid", who.user_uuid.as_str());
        for name in ["created_at", "modified_at"] {
            entry.set(name, self.now.as_str());
        }
        if entry.some_text("event_at").is_none() {
            entry.set("event_at", self.now.as_str());
        }
        let entry = rows::insert(self.conn, &schema::LOGS, &entry)?;
        self.add_event(Event::from_log(&entry, self.setting.rules.carried));
        Ok(entry)
    }

    /// Leave a trail of a change.
    fn log(
        &self,
        resource: &'static Resource,
        who: &Caller,
        event_type: &'static str,
        old: Option<&Record>,
        new: Option<&Record>,
    ) -> Result<()> {
        let change = Change {
            resource,
            event_type,
            old,
            new,
        };
        trail::leave(self, who, &change)
    }
}
