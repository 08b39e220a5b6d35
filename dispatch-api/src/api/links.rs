//! `/arvados/v1/links`: image names and permissions.

use rusqlite::types::Value as SqlValue;
use serde_json::{Map, Value, json};

use super::call::{Call, Reply};
use super::resource;
use super::route::Route;
use crate::auth::{Caller, permission};
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::{self, LINKS};
use crate::store::transaction::Tx;

/// What a permission link permits on a record, each with what is before it.
const LEVELS: [&str; 3] = ["can_read", "can_write", "can_manage"];

pub const ROUTES: &[Route] = &[
    Route::new("GET", "links", |call, _| {
        resource::list(call, &LINKS, |_| ())
    }),
    Route::new("POST", "links", |call, _| show(call, create(call)?)),
    Route::new("GET", "links/{}", |call, uuid| {
        show(call, resource::get(call, &LINKS, uuid)?)
    }),
    Route::new("PUT", "links/{}", |call, uuid| {
        show(call, update(call, uuid)?)
    }),
    Route::new("DELETE", "links/{}", |call, uuid| {
        show(call, delete(call, uuid)?)
    }),
    Route::new("GET", "permissions/{}", permissions),
];

/// The permission links on a record, for who may manage it.
fn permissions(call: &Call, uuid: &str) -> Result<Reply> {
    let resource = schema::by_uuid(uuid).ok_or_else(ApiError::path_not_found)?;
    resource::list_where(call, &LINKS, |connection, clause| {
        let record = permission::require_readable(connection, resource, &call.caller, uuid)?;
        permission::require_manageable(connection, &call.caller, &record)?;
        let head = SqlValue::Text(uuid.to_owned());
        clause.and("link_class = 'permission' AND head_uuid = ?", [head]);
        Ok(())
    })
}

fn show(call: &Call, link: Record) -> Result<Reply> {
    resource::show(call, &LINKS, &link)
}

fn delete(call: &Call, uuid: &str) -> Result<Record> {
    let uuid = uuid.to_owned();
    resource::write(call, &LINKS, move |tx, caller| {
        let old = permission::require_readable(tx.conn, &LINKS, caller, &uuid)?;
        permission::require_linkable(tx.conn, caller, &old)?;
        delete_overlapping(tx, caller, &old)?;
        tx.delete(&LINKS, caller, &old)?;
        Ok(old)
    })
}

fn create(call: &Call) -> Result<Record> {
    let mut attributes = call.params.attributes(&LINKS)?;
    take_kind(&mut attributes, "head_kind", "head_uuid")?;
    take_kind(&mut attributes, "tail_kind", "tail_uuid")?;
    resource::write(call, &LINKS, move |tx, caller| {
        let mut link = patch::create(&LINKS, &attributes, caller.is_admin)?;
        if link.some_text("link_class").is_none() {
            return Err(ApiError::invalid("Link class can't be blank"));
        }
        check_name(&link)?;
        permission::set_owner(tx.conn, caller, &mut link)?;
        permission::require_linkable(tx.conn, caller, &link)?;
        strengthen(tx, &mut link)?;
        tx.create(&LINKS, caller, link)
    })
}

/// Rejects a permission that would permit nothing.
fn check_name(link: &Record) -> Result<()> {
    let name = link.text("name");
    let is_known = LEVELS.contains(&name) || name == "can_login";
    match link.text("link_class") == "permission" && !is_known {
        true => Err(ApiError::invalid(format!(
            "Name is invalid permission, must be one of {}, can_login",
            LEVELS.join(", ")
        ))),
        false => Ok(()),
    }
}

/// Takes out the kind that a client says one end has. As in Arvados, it must be the right one.
fn take_kind(attributes: &mut Map<String, Value>, kind: &str, end: &str) -> Result<()> {
    let Some(said) = attributes.remove(kind).filter(|said| !said.is_null()) else {
        return Ok(());
    };
    let uuid = attributes.get(end).and_then(Value::as_str);
    let resource = uuid.and_then(schema::by_uuid);
    match resource.map(|resource| resource.kind) {
        actual if actual == said.as_str() => Ok(()),
        _ => Err(ApiError::invalid(format!(
            "{kind} {said} is not the kind of {end}"
        ))),
    }
}

fn update(call: &Call, uuid: &str) -> Result<Record> {
    let attributes = call.params.attributes(&LINKS)?;
    let uuid = uuid.to_owned();
    resource::write(call, &LINKS, move |tx, caller| {
        let old = permission::require_readable(tx.conn, &LINKS, caller, &uuid)?;
        permission::require_linkable(tx.conn, caller, &old)?;
        let mut new = patch::apply(&LINKS, &old, &attributes, &[])?;
        check_name(&new)?;
        permission::require_owners(tx.conn, caller, &old, &new)?;
        permission::require_linkable(tx.conn, caller, &new)?;
        strengthen(tx, &mut new)?;
        delete_overlapping(tx, caller, &new)?;
        tx.update(&LINKS, caller, &old, new)
    })
}

/// The other links that permit the same user or group something on the same record.
fn overlapping(tx: &Tx<'_>, link: &Record) -> Result<Vec<Record>> {
    if link.text("link_class") != "permission" || !LEVELS.contains(&link.text("name")) {
        return Ok(Vec::new());
    }
    let same = "link_class = 'permission' AND head_uuid = ? AND tail_uuid = ? AND uuid <> ? \
                AND name IN (SELECT value FROM json_each(?))";
    let levels = json!(LEVELS).to_string();
    let [head, tail] = ["head_uuid", "tail_uuid"].map(|end| link.text(end));
    rows::find(
        tx.conn,
        &LINKS,
        same,
        &[&head, &tail, &link.uuid(), &levels],
    )
}

/// As in Arvados, no link permits less than another one with the same ends: each shows what is
/// permitted.
fn strengthen(tx: &Tx<'_>, link: &mut Record) -> Result<()> {
    let others = overlapping(tx, link)?;
    let names = others.iter().map(|other| other.text("name"));
    let level = |name: &str| LEVELS.iter().position(|level| *level == name);
    if let Some(strongest) = names.max_by_key(|name| level(name))
        && level(strongest) > level(link.text("name"))
    {
        let strongest = strongest.to_owned();
        link.set("name", strongest);
    }
    Ok(())
}

/// As in Arvados, so that nothing is permitted any more when a permission is deleted.
fn delete_overlapping(tx: &Tx<'_>, caller: &Caller, link: &Record) -> Result<()> {
    for other in overlapping(tx, link)? {
        tx.delete(&LINKS, caller, &other)?;
    }
    Ok(())
}
