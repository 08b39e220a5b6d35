//! What a user reaches by ownership and by permission links, as a recursive query.
//!
//! Input: the database and a user. Output: the [`Reach`], which is kept until somebody changes a
//! permission or moves a group: one user may share thousands of folders with everybody.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, MAIN_DB, TransactionState};
use serde_json::json;

use super::identity::Identity;
use crate::error::Result;
use crate::record::Record;

/// Levels of permission; each includes the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Read = 1,
    Write = 2,
    Manage = 3,
}

/// Everything that `?1`, a user, reaches, with the level: the weakest on the path to it. Paths are
/// permission links and the ownership of projects. Everyone is a member of the group `?2`, but
/// manages nothing through it.
const REACHED_SQL: &str = "\
    WITH RECURSIVE grants(tail, head, level) AS ( \
      SELECT tail_uuid, head_uuid, \
             CASE name WHEN 'can_read' THEN 1 WHEN 'can_write' THEN 2 ELSE 3 END \
      FROM links WHERE link_class = 'permission' \
      AND name IN ('can_read', 'can_write', 'can_manage')), \
    reached(uuid, level) AS ( \
      SELECT ?1, 3 \
      UNION SELECT ?2, 1 \
      UNION SELECT head, min(level, 2) FROM grants WHERE tail = ?2 \
      UNION SELECT grants.head, min(grants.level, reached.level) \
        FROM reached JOIN grants ON grants.tail = reached.uuid \
        WHERE reached.level = 3 OR substr(reached.uuid, 7, 5) = 'j7d0g' \
      UNION SELECT groups.uuid, reached.level \
        FROM reached JOIN groups ON groups.owner_uuid = reached.uuid \
        WHERE reached.level = 3 OR substr(reached.uuid, 7, 5) = 'j7d0g') \
    SELECT uuid, max(level) FROM reached GROUP BY uuid HAVING max(level) >= ?3";

/// Maximum number of uuids that all kept reaches have together.
const MAX_KEPT: usize = 500_000;

/// What a user reaches at one level.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Uuids of the records that are reached themselves.
    targets: HashSet<String>,
    /// Uuids whose records are reached: groups, and users at level manage.
    owners: HashSet<String>,
    /// Both as JSON arrays, to bind.
    targets_text: String,
    owners_text: String,
    /// The newest group when this was found.
    newest_group: i64,
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
            None => Arc::new(Self::find(connection, caller, level)?),
        };
        // What a transaction has written may be rolled back, and another group has its number then.
        if connection.transaction_state(Some(MAIN_DB))? != TransactionState::Write {
            keep(key, reach.clone());
        }
        Ok(reach)
    }

    fn find(connection: &Connection, caller: &Identity, level: Level) -> Result<Reach> {
        let cluster = caller.user_uuid.get(..5).unwrap_or_default();
        let everyone = format!("{cluster}-j7d0g-fffffffffffffff");
        // First: one that is made meanwhile is looked at again.
        let newest_group = connection
            .prepare_cached("SELECT coalesce(max(rowid), 0) FROM groups")?
            .query_row([], |row| row.get(0))?;
        let mut reach = Reach {
            newest_group,
            ..Reach::default()
        };
        let mut statement = connection.prepare_cached(REACHED_SQL)?;
        let mut found = statement.query((&caller.user_uuid, &everyone, level as i64))?;
        while let Some(row) = found.next()? {
            let (uuid, level): (String, i64) = (row.get(0)?, row.get(1)?);
            if level == Level::Manage as i64 || uuid.get(6..11) == Some("j7d0g") {
                reach.owners.insert(uuid.clone());
            }
            reach.targets.insert(uuid);
        }
        Ok(reach.with_texts())
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
            if reach.owners.contains(&owner) {
                reach.owners.insert(uuid.clone());
                reach.targets.insert(uuid);
            }
        }
        Ok(
            reach.map(|reach| match reach.targets.len() == self.targets.len() {
                true => reach,
                false => reach.with_texts(),
            }),
        )
    }

    fn with_texts(mut self) -> Self {
        self.targets_text = json!(self.targets).to_string();
        self.owners_text = json!(self.owners).to_string();
        self
    }

    /// Whether records of this owner are reached.
    pub fn has_owner(&self, owner_uuid: &str) -> bool {
        self.owners.contains(owner_uuid)
    }

    /// Whether this record is reached, itself or by its owner.
    pub fn has_record(&self, record: &Record) -> bool {
        self.has_owner(record.text("owner_uuid")) || self.targets.contains(record.uuid())
    }

    /// The targets as a JSON array to bind.
    pub fn targets(&self) -> SqlValue {
        SqlValue::Text(self.targets_text.clone())
    }

    /// The owners as a JSON array to bind.
    pub fn owners(&self) -> SqlValue {
        SqlValue::Text(self.owners_text.clone())
    }
}

/// Keeps a reach for the next request, and forgets all others where they are too many.
fn keep(key: Key, reach: Arc<Reach>) {
    let mut kept = KEPT.lock();
    kept.insert(key.clone(), reach.clone());
    let size: usize = kept.values().map(|reach| reach.targets.len()).sum();
    if size > MAX_KEPT || kept.len() > MAX_KEPT / 100 {
        kept.clear();
        kept.insert(key, reach);
    }
}
