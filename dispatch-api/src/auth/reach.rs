//! What a user reaches by ownership and by permission links.
//!
//! Input: the database and a user. Output: the [`Reach`], which is kept until somebody changes a
//! permission or moves a group: one user may share thousands of folders with everybody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, MAIN_DB, TransactionState};
use serde_json::json;

use super::graph::{Graph, Level, is_group};
use super::identity::Identity;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{self, GROUPS, Resource};

/// Maximum number of uuids that all kept reaches have together.
const MAX_KEPT: usize = 500_000;

/// Maximum number of new groups of a reach that are kept apart.
const MAX_NEW: usize = 100;

/// What a user reaches at one level.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    found: Arc<Found>,
    /// Groups that were made since. A change of few costs little, however many are found.
    new: Vec<String>,
    /// The newest group when this was found.
    newest_group: i64,
}

#[derive(Clone, Debug, Default)]
struct Found {
    /// Uuids of the records that are reached themselves.
    targets: BTreeSet<String>,
    /// Uuids whose records are reached: groups, and users at level manage.
    owners: BTreeSet<String>,
    /// Both as the items of JSON arrays, once a listing has needed them.
    items: OnceLock<Items>,
}

#[derive(Clone, Debug)]
struct Items {
    /// The targets of each kind, by its infix.
    targets: BTreeMap<String, String>,
    owners: String,
}

impl Found {
    fn items(&self) -> &Items {
        self.items.get_or_init(|| {
            let mut kinds: BTreeMap<String, Vec<&String>> = BTreeMap::new();
            for uuid in &self.targets {
                let kind = schema::infix(uuid).to_owned();
                kinds.entry(kind).or_default().push(uuid);
            }
            let kinds = kinds.into_iter().map(|(kind, uuids)| (kind, items(uuids)));
            Items {
                targets: kinds.collect(),
                owners: items(&self.owners),
            }
        })
    }
}

/// What decides a reach, apart from new groups: the value of the table, user, and level. The value
/// is random, so one map serves all servers of a process.
type Key = (Vec<u8>, String, Level);

/// Reaches that were found before.
static KEPT: Mutex<BTreeMap<Key, Arc<Reach>>> = Mutex::new(BTreeMap::new());

impl Reach {
    /// What the caller reaches, from what was found before if nothing has changed that.
    pub fn of(connection: &Connection, caller: &Identity, level: Level) -> Result<Arc<Reach>> {
        let version = connection
            .prepare_cached("SELECT version FROM reach_version")?
            .query_row([], |row| row.get(0))?;
        let key = (version, caller.user_uuid.clone(), level);
        let before = KEPT.lock().get(&key).cloned();
        let reach = match before {
            Some(before) => match before.with_new_groups(connection)? {
                Some(found) => Arc::new(found),
                None => return Ok(before),
            },
            None => {
                let graph = Graph::of(connection, &key.0)?;
                Arc::new(Self::find(&graph, caller, level))
            }
        };
        // What a transaction has written may be rolled back, and another group has its number then.
        if connection.transaction_state(Some(MAIN_DB))? != TransactionState::Write {
            keep(key, reach.clone());
        }
        Ok(reach)
    }

    fn find(graph: &Graph, caller: &Identity, level: Level) -> Reach {
        let cluster = caller.user_uuid.get(..5).unwrap_or_default();
        let everyone = format!("{cluster}-j7d0g-fffffffffffffff");
        let mut found = Found::default();
        for (uuid, reached) in graph.reached(&caller.user_uuid, &everyone) {
            if reached < level {
                continue;
            }
            if reached == Level::Manage || is_group(uuid) {
                found.owners.insert(uuid.to_owned());
            }
            found.targets.insert(uuid.to_owned());
        }
        Reach {
            found: Arc::new(found),
            new: Vec::new(),
            newest_group: graph.newest_group,
        }
    }

    /// This with the groups that were made since; none if there are none.
    fn with_new_groups(&self, connection: &Connection) -> Result<Option<Reach>> {
        let mut statement = connection.prepare_cached(
            "SELECT rowid, uuid, owner_uuid FROM groups WHERE rowid > ?1 ORDER BY rowid",
        )?;
        let mut groups = statement.query([self.newest_group])?;
        let mut reach: Option<Reach> = None;
        while let Some(row) = groups.next()? {
            let (number, uuid, owner): (i64, String, String) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let reach = reach.get_or_insert_with(|| self.clone());
            reach.newest_group = number;
            if reach.has_owner(&owner) {
                reach.add(uuid);
            }
        }
        Ok(reach)
    }

    fn add(&mut self, group: String) {
        self.new.push(group);
        if self.new.len() > MAX_NEW {
            let (mut targets, mut owners) = (self.found.targets.clone(), self.found.owners.clone());
            targets.extend(self.new.iter().cloned());
            owners.extend(self.new.drain(..));
            self.found = Arc::new(Found {
                targets,
                owners,
                items: OnceLock::new(),
            });
        }
    }

    /// Whether records of this owner are reached.
    pub fn has_owner(&self, owner_uuid: &str) -> bool {
        self.found.owners.contains(owner_uuid) || self.is_new(owner_uuid)
    }

    /// Whether this record is reached, itself or by its owner.
    pub fn has_record(&self, record: &Record) -> bool {
        self.has_owner(record.text("owner_uuid")) || self.has_target(record.uuid())
    }

    fn is_new(&self, group: &str) -> bool {
        self.new.iter().any(|new| new == group)
    }

    fn size(&self) -> usize {
        self.found.targets.len() + self.new.len()
    }

    /// Whether this record is reached itself.
    pub fn has_target(&self, uuid: &str) -> bool {
        self.found.targets.contains(uuid) || self.is_new(uuid)
    }

    /// The targets as a JSON array to bind.
    pub fn targets(&self) -> SqlValue {
        let found = &self.found.items().targets;
        self.array(&found.values().map(String::as_str).collect::<Vec<_>>())
    }

    /// Those of one kind.
    pub fn targets_of(&self, resource: &Resource) -> SqlValue {
        let found = self.found.items().targets.get(resource.infix);
        let found = found.map_or("", String::as_str);
        match resource.infix == GROUPS.infix {
            true => self.array(&[found]),
            false => SqlValue::Text(format!("[{found}]")),
        }
    }

    /// The owners as a JSON array to bind.
    pub fn owners(&self) -> SqlValue {
        self.array(&[&self.found.items().owners])
    }

    /// A JSON array of what was found, and of the new groups.
    fn array(&self, found: &[&str]) -> SqlValue {
        let new = items(&self.new);
        let all = found.iter().copied().chain([new.as_str()]);
        let all: Vec<&str> = all.filter(|items| !items.is_empty()).collect();
        SqlValue::Text(format!("[{}]", all.join(",")))
    }
}

/// The items of a JSON array.
fn items<'a>(uuids: impl IntoIterator<Item = &'a String>) -> String {
    let items: Vec<String> = uuids
        .into_iter()
        .map(|uuid| json!(uuid).to_string())
        .collect();
    items.join(",")
}

/// Keeps a reach for the next request, and forgets all others where they are too many.
fn keep(key: Key, reach: Arc<Reach>) {
    let mut kept = KEPT.lock();
    kept.insert(key.clone(), reach.clone());
    let size: usize = kept.values().map(|reach| reach.size()).sum();
    if size > MAX_KEPT || kept.len() > MAX_KEPT / 100 {
        kept.clear();
        kept.insert(key, reach);
    }
}
