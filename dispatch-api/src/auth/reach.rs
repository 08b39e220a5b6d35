//! What a user reaches by ownership and by permission links.
//!
//! Input: the database and a user. Output: the [`Reach`], which is kept until somebody changes a
//! permission or moves a group: one user may share thousands of folders with everybody.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, MAIN_DB, TransactionState};
use serde_json::json;

use super::graph::{Graph, Level, is_group};
use super::identity::Identity;
use crate::db::group_tree::Uuid;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{self, GROUPS, Resource};

/// Maximum number of uuids that all kept reaches have together.
const MAX_KEPT: usize = 500_000;

/// Maximum number of new groups of a reach that are kept apart.
const MAX_NEW: usize = 100;

/// What a user reaches at one level.
pub struct Reach {
    level: Level,
    reached: Arc<Reached>,
}

/// What a user reaches at any level.
#[derive(Clone, Debug)]
struct Reached {
    found: Arc<Found>,
    /// Groups that were made since. A change of few costs little, however many are found.
    new: Vec<(Uuid, Level)>,
    /// The newest group when this was found.
    newest_group: i64,
}

#[derive(Debug, Default)]
struct Found {
    levels: HashMap<Uuid, Level>,
    /// As the items of JSON arrays for each level, once a listing has needed them.
    items: [OnceLock<Items>; 3],
}

#[derive(Debug)]
struct Items {
    /// The records that are reached themselves, of each kind, by its infix.
    targets: BTreeMap<String, String>,
    /// Those whose records are reached.
    owners: String,
}

/// What decides a reach, apart from new groups: the value of the table, and the user. The value is
/// random, so one map serves all servers of a process.
type Key = (Vec<u8>, String);

/// What was found before.
static KEPT: Mutex<BTreeMap<Key, Arc<Reached>>> = Mutex::new(BTreeMap::new());

impl Reach {
    /// What the caller reaches, from what was found before if nothing has changed that.
    pub fn of(connection: &Connection, caller: &Identity, level: Level) -> Result<Reach> {
        let version = connection
            .prepare_cached("SELECT version FROM reach_version")?
            .query_row([], |row| row.get(0))?;
        let key = (version, caller.user_uuid.clone());
        let before = KEPT.lock().get(&key).cloned();
        let reached = match before {
            Some(before) => match before.with_new_groups(connection)? {
                Some(found) => Arc::new(found),
                None => {
                    let reached = before;
                    return Ok(Reach { level, reached });
                }
            },
            None => {
                let found = Reached::find(&*Graph::of(connection)?, caller);
                let found = found.with_new_groups(connection)?.unwrap_or(found);
                Arc::new(found)
            }
        };
        // What a transaction has written may be rolled back, and another group has its number then.
        if connection.transaction_state(Some(MAIN_DB))? != TransactionState::Write {
            keep(key, reached.clone());
        }
        Ok(Reach { level, reached })
    }

    /// Whether records of this owner are reached: of a group, or of a user who is managed.
    pub fn has_owner(&self, owner_uuid: &str) -> bool {
        let level = self.reached.level_of_owner(owner_uuid);
        level.is_some_and(|level| level >= self.level)
    }

    /// Whether this record is reached, itself or by its owner.
    pub fn has_record(&self, record: &Record) -> bool {
        self.has_owner(record.text("owner_uuid")) || self.has_target(record.uuid())
    }

    /// Whether this record is reached itself.
    pub fn has_target(&self, uuid: &str) -> bool {
        let level = self.reached.level_of(uuid);
        level.is_some_and(|level| level >= self.level)
    }

    /// The records that are reached themselves, as a JSON array to bind.
    pub fn targets(&self) -> SqlValue {
        let found = &self.items().targets;
        self.array(&found.values().map(String::as_str).collect::<Vec<_>>())
    }

    /// Those of one kind.
    pub fn targets_of(&self, resource: &Resource) -> SqlValue {
        let found = self.items().targets.get(resource.infix);
        let found = found.map_or("", String::as_str);
        match resource.infix == GROUPS.infix {
            true => self.array(&[found]),
            false => SqlValue::Text(format!("[{found}]")),
        }
    }

    /// Whose records are reached, as a JSON array to bind.
    pub fn owners(&self) -> SqlValue {
        self.array(&[&self.items().owners])
    }

    fn items(&self) -> &Items {
        let found = &self.reached.found;
        found.items[self.level as usize - 1].get_or_init(|| {
            let is_wanted = |(_, level): &(&Uuid, &Level)| **level >= self.level;
            let wanted = found.levels.iter().filter(is_wanted);
            let mut wanted: Vec<_> = wanted.map(|(uuid, level)| (&**uuid, *level)).collect();
            // SQLite inserts them faster in their order.
            wanted.sort_unstable();
            let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (uuid, _) in &wanted {
                kinds.entry(schema::infix(uuid)).or_default().push(uuid);
            }
            let kinds = kinds.into_iter();
            let owners = wanted
                .into_iter()
                .filter(|(uuid, level)| is_owner(uuid, *level));
            Items {
                targets: kinds
                    .map(|(kind, uuids)| (kind.to_owned(), items(&uuids)))
                    .collect(),
                owners: items(&owners.map(|(uuid, _)| uuid).collect::<Vec<_>>()),
            }
        })
    }

    /// A JSON array of what was found, and of the new groups.
    fn array(&self, found: &[&str]) -> SqlValue {
        let new = self
            .reached
            .new
            .iter()
            .filter(|(_, level)| *level >= self.level);
        let new = items(&new.map(|(uuid, _)| &**uuid).collect::<Vec<_>>());
        let all = found.iter().copied().chain([new.as_str()]);
        let all: Vec<&str> = all.filter(|items| !items.is_empty()).collect();
        SqlValue::Text(format!("[{}]", all.join(",")))
    }
}

impl Reached {
    fn find(graph: &Graph, caller: &Identity) -> Reached {
        let cluster = caller.user_uuid.get(..5).unwrap_or_default();
        let everyone = format!("{cluster}-j7d0g-fffffffffffffff");
        let newest_group = graph.newest_group();
        let found = Found {
            levels: graph.reached(&caller.user_uuid, &everyone),
            ..Found::default()
        };
        Reached {
            found: Arc::new(found),
            new: Vec::new(),
            newest_group,
        }
    }

    /// This with the groups that were made since; none if there are none.
    fn with_new_groups(&self, connection: &Connection) -> Result<Option<Reached>> {
        let mut statement = connection.prepare_cached(
            "SELECT rowid, uuid, owner_uuid FROM groups WHERE rowid > ?1 ORDER BY rowid",
        )?;
        let mut groups = statement.query([self.newest_group])?;
        let mut reached: Option<Reached> = None;
        while let Some(row) = groups.next()? {
            let (number, uuid, owner): (i64, Uuid, String) =
                (row.get(0)?, row.get(1)?, row.get(2)?);
            let reached = reached.get_or_insert_with(|| self.clone());
            reached.newest_group = number;
            if let Some(level) = reached.level_of_owner(&owner) {
                reached.add(uuid, level);
            }
        }
        Ok(reached)
    }

    fn add(&mut self, group: Uuid, level: Level) {
        self.new.push((group, level));
        if self.new.len() > MAX_NEW {
            let mut levels = self.found.levels.clone();
            for (group, level) in self.new.drain(..) {
                let known = levels.entry(group).or_insert(level);
                *known = level.max(*known);
            }
            self.found = Arc::new(Found {
                levels,
                ..Found::default()
            });
        }
    }

    fn level_of(&self, uuid: &str) -> Option<Level> {
        let new = self.new.iter().filter(|(new, _)| &**new == uuid);
        let new = new.map(|(_, level)| *level).max();
        new.max(self.found.levels.get(uuid).copied())
    }

    /// The level at which records of this owner are reached.
    fn level_of_owner(&self, uuid: &str) -> Option<Level> {
        self.level_of(uuid).filter(|level| is_owner(uuid, *level))
    }

    fn size(&self) -> usize {
        self.found.levels.len() + self.new.len()
    }
}

/// Whether the records of what is reached at this level are reached.
fn is_owner(uuid: &str, level: Level) -> bool {
    level == Level::Manage || is_group(uuid)
}

/// The items of a JSON array.
fn items(uuids: &[&str]) -> String {
    let array = json!(uuids).to_string();
    array[1..array.len() - 1].to_owned()
}

/// Keeps a reach for the next request, and forgets all others where they are too many.
fn keep(key: Key, reach: Arc<Reached>) {
    let mut kept = KEPT.lock();
    kept.insert(key.clone(), reach.clone());
    let size: usize = kept.values().map(|reach| reach.size()).sum();
    if size > MAX_KEPT || kept.len() > MAX_KEPT / 100 {
        kept.clear();
        kept.insert(key, reach);
    }
}
