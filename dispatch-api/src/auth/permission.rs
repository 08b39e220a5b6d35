//! Who may see and change what, as SQL over ownership and permission links.

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;

use super::Identity;
use crate::db::filter::Clause;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{self, Resource};

/// Owners whose records a user may read (or write): himself, his projects all the way down, and what
/// permission links grant. Placeholders: user, the all-users group.
fn owners(write: bool) -> String {
    let grants = if write {
        "'can_write', 'can_manage'"
    } else {
        "'can_read', 'can_write', 'can_manage'"
    };
    format!(
        "WITH RECURSIVE mine(uuid) AS (\
           SELECT ?1 \
           UNION SELECT head_uuid FROM links WHERE link_class = 'permission' \
                 AND tail_uuid IN (?1, ?2) AND name IN ({grants}) \
           UNION SELECT groups.uuid FROM groups JOIN mine ON groups.owner_uuid = mine.uuid) \
         SELECT uuid FROM mine"
    )
}

fn owner_list(connection: &Connection, who: &Identity, write: bool) -> Result<SqlValue> {
    let cluster = who.user_uuid.get(..5).unwrap_or_default();
    let everyone = format!("{cluster}-j7d0g-fffffffffffffff");
    let mut statement = connection.prepare_cached(&owners(write))?;
    let found: Vec<String> = statement
        .query_map([&who.user_uuid, &everyone], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(SqlValue::Text(serde_json::json!(found).to_string()))
}

const OWNED: &str =
    "(owner_uuid IN (SELECT value FROM json_each(?)) OR uuid IN (SELECT value FROM json_each(?)))";

/// Restrict a listing to what the caller may read.
pub fn restrict(
    connection: &Connection,
    resource: &Resource,
    who: &Identity,
    clause: &mut Clause,
) -> Result<()> {
    if who.is_admin {
        return Ok(());
    }
    let mine = owner_list(connection, who, false)?;
    let me = SqlValue::Text(who.user_uuid.clone());
    match resource.table {
        "containers" => clause.and(
            "(uuid = ? OR locked_by_uuid = ? OR uuid IN (SELECT container_uuid FROM container_requests \
              WHERE container_uuid IS NOT NULL AND (owner_uuid IN (SELECT value FROM json_each(?)) \
              OR uuid IN (SELECT value FROM json_each(?)))))",
            [
                SqlValue::Text(who.container_uuid.clone().unwrap_or_default()),
                SqlValue::Text(who.token_uuid.clone()),
                mine.clone(),
                mine,
            ],
        ),
        "users" => clause.and("uuid = ?", [me]),
        "api_client_authorizations" => clause.and("owner_uuid = ?", [me]),
        "links" => clause.and(
            "(owner_uuid IN (SELECT value FROM json_each(?)) OR uuid IN (SELECT value FROM json_each(?)) \
              OR head_uuid = ? OR tail_uuid = ? \
              OR (link_class <> 'permission' AND head_uuid IN (SELECT value FROM json_each(?))))",
            [mine.clone(), mine.clone(), me.clone(), me, mine],
        ),
        "logs" => clause.and(
            "(owner_uuid = ? OR object_uuid = ? OR object_owner_uuid IN (SELECT value FROM json_each(?)) \
              OR object_uuid IN (SELECT container_uuid FROM container_requests \
              WHERE owner_uuid IN (SELECT value FROM json_each(?))))",
            [me.clone(), me, mine.clone(), mine],
        ),
        _ => clause.and(OWNED, [mine.clone(), mine]),
    }
    Ok(())
}

/// One record by uuid if the caller may read it.
pub fn readable(
    connection: &Connection,
    resource: &Resource,
    who: &Identity,
    uuid: &str,
) -> Result<Option<Record>> {
    let mut clause = Clause::default();
    clause.and("uuid = ?", [SqlValue::Text(uuid.to_owned())]);
    restrict(connection, resource, who, &mut clause)?;
    let values: Vec<&dyn rusqlite::ToSql> = clause
        .values
        .iter()
        .map(|value| value as &dyn rusqlite::ToSql)
        .collect();
    Ok(rows::find(connection, resource, &clause.sql(), &values)?.pop())
}

/// As `readable`, with the answer the API gives when it is not: 404, whatever the reason.
pub fn must_read(
    connection: &Connection,
    resource: &Resource,
    who: &Identity,
    uuid: &str,
) -> Result<Record> {
    readable(connection, resource, who, uuid)?.ok_or_else(ApiError::path_not_found)
}

/// May the caller create records under this owner, and change those it owns?
pub fn may_write(connection: &Connection, who: &Identity, owner_uuid: &str) -> Result<bool> {
    if who.is_admin || owner_uuid == who.user_uuid {
        return Ok(true);
    }
    let SqlValue::Text(mine) = owner_list(connection, who, true)? else {
        return Ok(false);
    };
    let found: bool = connection
        .prepare_cached("SELECT ?1 IN (SELECT value FROM json_each(?2))")?
        .query_row([owner_uuid, &mine], |row| row.get(0))?;
    Ok(found)
}

pub fn must_write(connection: &Connection, who: &Identity, record: &Record) -> Result<()> {
    if may_write(connection, who, record.text("owner_uuid"))? {
        return Ok(());
    }
    Err(ApiError::denied())
}

/// May the caller hear about this object? Used for live events.
pub fn may_hear(connection: &Connection, who: &Identity, object_uuid: &str) -> Result<bool> {
    if who.is_admin {
        return Ok(true);
    }
    match schema::by_uuid(object_uuid) {
        Some(resource) => Ok(readable(connection, resource, who, object_uuid)?.is_some()),
        None => Ok(false),
    }
}
