//! The open transaction of a write: record changes, and the effects to publish after the commit.

use std::cell::RefCell;

use rusqlite::Connection;

use crate::auth::Caller;
use crate::auth::attempt_token::ExpiryOverride;
use crate::clock;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::events::event::Event;
use crate::record::Record;
use crate::schema::{self, Resource};
use crate::store::audit_log::{self, Change};
use crate::store::cluster_config::ClusterConfig;
use crate::store::quota;

/// Events and overrides to publish after the commit.
#[derive(Default)]
pub struct Effects {
    pub events: Vec<Event>,
    pub overrides: Vec<ExpiryOverride>,
}

impl Effects {
    /// Removes the effects after the first `events` and `overrides`.
    fn truncate(&mut self, (events, overrides): (usize, usize)) {
        self.events.truncate(events);
        self.overrides.truncate(overrides);
    }

    pub fn append(&mut self, later: Effects) {
        self.events.extend(later.events);
        self.overrides.extend(later.overrides);
    }
}

pub struct Tx<'a> {
    pub conn: &'a Connection,
    pub config: &'a ClusterConfig,
    pub now: String,
    effects: RefCell<Effects>,
}

impl<'a> Tx<'a> {
    pub fn new(conn: &'a Connection, config: &'a ClusterConfig) -> Self {
        Tx {
            conn,
            config,
            now: clock::now(),
            effects: RefCell::default(),
        }
    }

    pub fn into_effects(self) -> Effects {
        self.effects.into_inner()
    }

    /// Runs a part of the write in a savepoint. If the part fails, only its changes are rolled
    /// back.
    pub fn in_savepoint<T>(&self, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = {
            let effects = self.effects.borrow();
            (effects.events.len(), effects.overrides.len())
        };
        self.conn.execute_batch("SAVEPOINT part")?;
        let result = part();
        match &result {
            Ok(_) => self.conn.execute_batch("RELEASE part")?,
            // SQLite may have rolled back the whole transaction, so the whole write fails.
            Err(ApiError::DiskFull) => {}
            Err(_) => {
                self.conn.execute_batch("ROLLBACK TO part; RELEASE part")?;
                self.effects.borrow_mut().truncate(before);
            }
        }
        result
    }

    pub fn fetch(&self, resource: &Resource, uuid: &str) -> Result<Option<Record>> {
        rows::fetch(self.conn, resource, uuid)
    }

    /// Inserts a record with the common attributes, and records the change.
    pub fn create(
        &self,
        resource: &'static Resource,
        caller: &Caller,
        mut record: Record,
    ) -> Result<Record> {
        if record.some_text("uuid").is_none() {
            record.set("uuid", self.config.new_uuid(resource));
        }
        if record.some_text("owner_uuid").is_none() {
            record.set("owner_uuid", caller.user_uuid.as_str());
        }
        if quota::counts(resource) {
            quota::check(self.conn, resource, caller)?;
            record.set("created_by", caller.user_uuid.as_str());
        }
        record.set("created_at", self.now.as_str());
        record.set("modified_at", self.now.as_str());
        record.set("modified_by_user_uuid", caller.user_uuid.as_str());
        let record = rows::insert(self.conn, resource, &record)?;
        self.record_change(resource, caller, "create", None, Some(&record))?;
        Ok(record)
    }

    /// Writes the changed attributes and `modified_at`, and records the change. Without a
    /// difference nothing is written.
    pub fn update(
        &self,
        resource: &'static Resource,
        caller: &Caller,
        old: &Record,
        mut new: Record,
    ) -> Result<Record> {
        if old.changed_attributes(&new).is_empty() {
            return Ok(old.clone());
        }
        new.set("modified_by_user_uuid", caller.user_uuid.as_str());
        self.update_by_server(resource, caller, old, new)
    }

    /// Like `update`, for what the server adds to a user's record: the last user who changed it
    /// stays, as in Arvados, whose clients show this user as its author.
    pub fn update_by_server(
        &self,
        resource: &'static Resource,
        system: &Caller,
        old: &Record,
        mut new: Record,
    ) -> Result<Record> {
        if old.changed_attributes(&new).is_empty() {
            return Ok(old.clone());
        }
        new.set("modified_at", self.now.as_str());
        let new = rows::update(self.conn, resource, old, &new)?;
        self.record_change(resource, system, "update", Some(old), Some(&new))?;
        Ok(new)
    }

    /// Like `update`, but for changes derived from another record: `modified_at` stays.
    pub fn update_derived(
        &self,
        resource: &'static Resource,
        caller: &Caller,
        old: &Record,
        new: &Record,
    ) -> Result<Record> {
        let new = rows::update(self.conn, resource, old, new)?;
        if self.config.rules.logs_derived_changes {
            self.record_change(resource, caller, "update", Some(old), Some(&new))?;
        }
        Ok(new)
    }

    pub fn delete(&self, resource: &'static Resource, caller: &Caller, old: &Record) -> Result<()> {
        rows::delete(self.conn, resource, old.uuid())?;
        self.record_change(resource, caller, "delete", Some(old), None)
    }

    pub fn queue_override(&self, change: ExpiryOverride) {
        self.effects.borrow_mut().overrides.push(change);
    }

    pub fn queue_event(&self, event: Event) {
        self.effects.borrow_mut().events.push(event);
    }

    /// Inserts a log entry and queues its event.
    pub fn insert_log(&self, caller: &Caller, mut entry: Record) -> Result<Record> {
        let uuid = self.config.new_uuid(&schema::LOGS);
        entry.set("uuid", uuid);
        entry.set("owner_uuid", caller.user_uuid.as_str());
        entry.set("modified_by_user_uuid", caller.user_uuid.as_str());
        for name in ["created_at", "modified_at"] {
            entry.set(name, self.now.as_str());
        }
        if entry.some_text("event_at").is_none() {
            entry.set("event_at", self.now.as_str());
        }
        let entry = rows::insert(self.conn, &schema::LOGS, &entry)?;
        self.queue_event(Event::from_log(&entry, self.config.rules.event_attributes));
        Ok(entry)
    }

    /// Adds a change to the audit log and queues its event.
    fn record_change(
        &self,
        resource: &'static Resource,
        caller: &Caller,
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
        if let Some(event) =
            audit_log::record_change(self.conn, self.config, &self.now, caller, &change)?
        {
            self.queue_event(event);
        }
        Ok(())
    }
}
