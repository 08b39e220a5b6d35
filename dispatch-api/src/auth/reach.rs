//! What a user reaches by ownership and by permission links, as a recursive query.

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;
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

/// What a user reaches at one level.
pub struct Reach {
    /// Uuids of the records that are reached themselves.
    targets: Vec<String>,
    /// Uuids whose records are reached: groups, and users at level manage.
    owners: Vec<String>,
}

impl Reach {
    pub fn of(connection: &Connection, caller: &Identity, level: Level) -> Result<Reach> {
        let cluster = caller.user_uuid.get(..5).unwrap_or_default();
        let everyone = format!("{cluster}-j7d0g-fffffffffffffff");
        let mut statement = connection.prepare_cached(REACHED_SQL)?;
        let mut found = statement.query((&caller.user_uuid, &everyone, level as i64))?;
        let mut reach = Reach {
            targets: Vec::new(),
            owners: Vec::new(),
        };
        while let Some(row) = found.next()? {
            let (uuid, level): (String, i64) = (row.get(0)?, row.get(1)?);
            if level == Level::Manage as i64 || uuid.get(6..11) == Some("j7d0g") {
                reach.owners.push(uuid.clone());
            }
            reach.targets.push(uuid);
        }
        Ok(reach)
    }

    /// Whether records of this owner are reached.
    pub fn has_owner(&self, owner_uuid: &str) -> bool {
        self.owners.iter().any(|uuid| uuid == owner_uuid)
    }

    /// Whether this record is reached, itself or by its owner.
    pub fn has_record(&self, record: &Record) -> bool {
        self.has_owner(record.text("owner_uuid"))
            || self.targets.iter().any(|target| target == record.uuid())
    }

    /// The targets as a JSON array to bind.
    pub fn targets(&self) -> SqlValue {
        SqlValue::Text(json!(self.targets).to_string())
    }

    /// The owners as a JSON array to bind.
    pub fn owners(&self) -> SqlValue {
        SqlValue::Text(json!(self.owners).to_string())
    }
}
