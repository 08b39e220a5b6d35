//! The open transaction of a write: record changes, and the effects to publish after the commit.

use std::cell::{Cell, RefCell, RefMut};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::auth::attempt_token::ExpiryOverride;
use crate::auth::{Caller, Identity};
use crate::clock;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::events::event::Event;
use crate::record::Record;
use crate::schema::{self, Resource};
use crate::store::audit_log::{self, Change};
use crate::store::cluster_config::ClusterConfig;
use crate::store::follow_up_progress::FollowUp;
use crate::store::quota;

/// Numbers of requests that one write brings up to date with containers: at least, and at most if
/// it takes no longer than [`FOLLOW_UP_TIME`]. All other writes wait meanwhile.
const MIN_FOLLOW_UPS: usize = 4;
const MAX_FOLLOW_UPS: usize = 64;
const FOLLOW_UP_TIME: Duration = Duration::from_millis(4);

/// Events and overrides to publish after the commit.
#[derive(Default)]
pub struct Effects {
    pub events: Vec<Event>,
    pub overrides: Vec<ExpiryOverride>,
    /// Containers whose requests have to follow a change. The last follows from those before.
    pub follow_ups: Vec<(FollowUp, String)>,
    /// Whether later writes have to go on with that.
    pub is_unfinished: bool,
}

impl Effects {
    /// The numbers of effects so far.
    fn lengths(&self) -> [usize; 3] {
        [
            self.events.len(),
            self.overrides.len(),
            self.follow_ups.len(),
        ]
    }

    /// Removes all effects but these first ones.
    fn truncate(&mut self, [events, overrides, follow_ups]: [usize; 3]) {
        self.events.truncate(events);
        self.overrides.truncate(overrides);
        self.follow_ups.truncate(follow_ups);
    }

    pub fn append(&mut self, later: Effects) {
        self.events.extend(later.events);
        self.overrides.extend(later.overrides);
        self.is_unfinished |= later.is_unfinished;
    }
}

pub struct Tx<'a> {
    pub conn: &'a Connection,
    pub config: &'a ClusterConfig,
    pub now: String,
    /// The caller of what the server itself changes.
    pub system: Caller,
    began: Instant,
    follow_ups: Cell<usize>,
    effects: RefCell<Effects>,
}

impl<'a> Tx<'a> {
    pub fn new(conn: &'a Connection, config: &'a ClusterConfig) -> Self {
        Tx {
            conn,
            config,
            now: clock::now(),
            system: Identity::system(config.system_user()),
            began: Instant::now(),
            follow_ups: Cell::default(),
            effects: RefCell::default(),
        }
    }

    pub fn into_effects(self) -> Effects {
        self.effects.into_inner()
    }

    /// Runs a part of the write in a savepoint. If the part fails, only its changes are rolled
    /// back.
    pub fn in_savepoint<T>(&self, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.effects().lengths();
        self.conn.execute_batch("SAVEPOINT part")?;
        let result = part();
        match &result {
            Ok(_) => self.conn.execute_batch("RELEASE part")?,
            // SQLite may have rolled back the whole transaction, so the whole write fails.
            Err(ApiError::DiskFull) => {}
            Err(_) => {
                self.conn.execute_batch("ROLLBACK TO part; RELEASE part")?;
                self.effects().truncate(before);
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
        let record = rows::insert(self.conn, resource, record)?;
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
        self.write_update(resource, caller, old, new)
    }

    /// Like `update`, for what the server adds to a user's record: the last user who changed it
    /// stays, as in Arvados, whose clients show this user as its author.
    pub fn update_by_server(
        &self,
        resource: &'static Resource,
        old: &Record,
        new: Record,
    ) -> Result<Record> {
        match old.changed_attributes(&new).is_empty() {
            true => Ok(old.clone()),
            false => self.write_update(resource, &self.system, old, new),
        }
    }

    fn write_update(
        &self,
        resource: &'static Resource,
        caller: &Caller,
        old: &Record,
        mut new: Record,
    ) -> Result<Record> {
        new.set("modified_at", self.now.as_str());
        let new = rows::update(self.conn, resource, old, new)?;
        self.record_change(resource, caller, "update", Some(old), Some(&new))?;
        Ok(new)
    }

    /// Like `update`, but for changes derived from another record: `modified_at` stays.
    pub fn update_derived(
        &self,
        resource: &'static Resource,
        old: &Record,
        new: Record,
    ) -> Result<Record> {
        let new = rows::update(self.conn, resource, old, new)?;
        if !self.config.emulate.is_arvados() {
            self.record_change(resource, &self.system, "update", Some(old), Some(&new))?;
        }
        Ok(new)
    }

    pub fn delete(&self, resource: &'static Resource, caller: &Caller, old: &Record) -> Result<()> {
        rows::delete(self.conn, resource, old.uuid())?;
        self.record_change(resource, caller, "delete", Some(old), None)
    }

    /// Whether this write may bring one more request up to date with a container.
    pub fn take_turn(&self) -> bool {
        let taken = self.follow_ups.get();
        self.follow_ups.set(taken + 1);
        taken < MIN_FOLLOW_UPS || taken < MAX_FOLLOW_UPS && self.began.elapsed() < FOLLOW_UP_TIME
    }

    /// Lets the requests of a container follow its change, at the end of this write.
    pub fn queue_follow_up(&self, kind: FollowUp, container_uuid: &str) {
        let follow_up = (kind, container_uuid.to_owned());
        self.effects().follow_ups.push(follow_up);
    }

    /// What is to be done after this write.
    pub fn effects(&self) -> RefMut<'_, Effects> {
        self.effects.borrow_mut()
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
        let entry = rows::insert(self.conn, &schema::LOGS, entry)?;
        let event = Event::from_log(&entry, self.config.emulate.event_attributes());
        self.effects().events.push(event);
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
        let event = audit_log::record_change(self.conn, self.config, &self.now, caller, &change)?;
        self.effects().events.extend(event);
        Ok(())
    }
}
