//! Which requests have yet to follow a change of their container: a row for each container and kind
//! of change. Rows outlive a restart.

use rusqlite::{Connection, OptionalExtension};

use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema::CONTAINER_REQUESTS;

/// How requests follow a change of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowUp {
    /// The container has ended: its requests get its results, or another container.
    End,
    /// The container has saved its log: its requests get a copy.
    Log,
    /// The container has ended: the requests that it made are cancelled.
    Children,
    /// The priority of the container has changed: those that it requested get the same.
    Priority,
}

impl FollowUp {
    const ALL: [FollowUp; 4] = [Self::End, Self::Log, Self::Children, Self::Priority];

    pub fn as_str(self) -> &'static str {
        match self {
            FollowUp::End => "end",
            FollowUp::Log => "log",
            FollowUp::Children => "children",
            FollowUp::Priority => "priority",
        }
    }

    /// The attribute of a request that names the container.
    fn attribute(self) -> &'static str {
        match self {
            FollowUp::End | FollowUp::Log => "container_uuid",
            FollowUp::Children | FollowUp::Priority => "requesting_container_uuid",
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Progress {
    pub container_uuid: String,
    pub kind: FollowUp,
    /// `created_at` and `uuid` of the last request that was done.
    pub after: (String, String),
    /// The container that replaces one that was cancelled.
    pub retry_uuid: Option<String>,
}

impl Progress {
    pub fn new(kind: FollowUp, container_uuid: String) -> Self {
        Progress {
            container_uuid,
            kind,
            after: Default::default(),
            retry_uuid: None,
        }
    }

    /// The row that was saved first.
    pub fn first(connection: &Connection) -> Result<Option<Self>> {
        let sql = "SELECT container_uuid, kind, after_created_at, after_uuid, retry_uuid \
                   FROM follow_ups ORDER BY rowid LIMIT 1";
        let mut statement = connection.prepare_cached(sql)?;
        let row = statement.query_row([], |row| {
            let kind: String = row.get(1)?;
            let kind = FollowUp::ALL.into_iter().find(|one| one.as_str() == kind);
            Ok(Progress {
                container_uuid: row.get(0)?,
                kind: kind.ok_or(rusqlite::Error::InvalidQuery)?,
                after: (row.get(2)?, row.get(3)?),
                retry_uuid: row.get(4)?,
            })
        });
        Ok(row.optional()?)
    }

    /// The next request that has to follow.
    pub fn next_request(&self, connection: &Connection) -> Result<Option<Record>> {
        let attribute = self.kind.attribute();
        let clause = format!(
            "{attribute} = ?1 AND state = 'Committed' AND (created_at, uuid) > (?2, ?3) \
             ORDER BY created_at, uuid LIMIT 1"
        );
        let (created_at, uuid) = &self.after;
        let params: [&dyn rusqlite::ToSql; 3] = [&self.container_uuid, created_at, uuid];
        Ok(rows::find(connection, &CONTAINER_REQUESTS, &clause, &params)?.pop())
    }

    /// Leaves the rest to later writes, behind the other rows.
    pub fn save(&self, connection: &Connection) -> Result<()> {
        let sql = "INSERT OR REPLACE INTO follow_ups \
                   (container_uuid, kind, after_created_at, after_uuid, retry_uuid) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let (created_at, uuid) = &self.after;
        connection.prepare_cached(sql)?.execute((
            &self.container_uuid,
            self.kind.as_str(),
            created_at,
            uuid,
            &self.retry_uuid,
        ))?;
        Ok(())
    }

    /// All have followed.
    pub fn remove(&self, connection: &Connection) -> Result<()> {
        let sql = "DELETE FROM follow_ups WHERE container_uuid = ?1 AND kind = ?2";
        let mut statement = connection.prepare_cached(sql)?;
        statement.execute((&self.container_uuid, self.kind.as_str()))?;
        Ok(())
    }
}
