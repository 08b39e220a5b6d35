//! Rules of the links that give a permission: its name, who gets it, and that two links between the
//! same two ends count as one. They are those of Arvados.

use serde_json::json;

use crate::auth::Caller;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{self, GROUPS, LINKS, USERS};
use crate::store::transaction::Tx;

/// The class of these links.
pub const CLASS: &str = "permission";

/// What a link permits on a record, each with what is before it.
const LEVELS: [&str; 3] = ["can_read", "can_write", "can_manage"];

/// Rejects a new link that would permit nothing, or nobody.
pub fn check(tx: &Tx<'_>, link: &Record) -> Result<()> {
    if link.text("link_class") != CLASS {
        return Ok(());
    }
    check_name(link)?;
    let tail = link.text("tail_uuid");
    let resource =
        schema::by_uuid(tail).filter(|tail| [USERS.table, GROUPS.table].contains(&tail.table));
    let resource = resource.ok_or_else(|| ApiError::invalid("Tail uuid must be a user or role"))?;
    let record = tx.fetch(resource, tail)?;
    let record =
        record.ok_or_else(|| ApiError::invalid(format!("Tail uuid '{tail}' does not exist")))?;
    match record.some_text("group_class") {
        None | Some("role") => Ok(()),
        Some(class) => Err(ApiError::invalid(format!(
            "Tail uuid must be a user or role, was group with group_class {class}"
        ))),
    }
}

/// Rejects a change of anything but the level.
pub fn check_change(old: &Record, new: &Record) -> Result<()> {
    if [old, new]
        .iter()
        .all(|link| link.text("link_class") != CLASS)
    {
        return Ok(());
    }
    let fixed = ["link_class", "head_uuid", "tail_uuid"];
    if fixed.iter().any(|name| old.get(name) != new.get(name)) {
        return Err(ApiError::invalid(
            "Can only alter permission link level; delete this one and create another",
        ));
    }
    check_name(new)
}

fn check_name(link: &Record) -> Result<()> {
    let name = link.text("name");
    match LEVELS.contains(&name) || name == "can_login" {
        true => Ok(()),
        false => Err(ApiError::invalid(format!(
            "Name is invalid permission, must be one of {}, can_login",
            LEVELS.join(", ")
        ))),
    }
}

fn level(link: &Record) -> Option<usize> {
    LEVELS.iter().position(|level| *level == link.text("name"))
}

/// The other links that permit the same user or role something on the same record. There are none
/// but those that an earlier release has accepted.
fn overlapping(tx: &Tx<'_>, link: &Record) -> Result<Vec<Record>> {
    if link.text("link_class") != CLASS || level(link).is_none() {
        return Ok(Vec::new());
    }
    let same = "link_class = 'permission' AND head_uuid = ? AND tail_uuid = ? AND uuid <> ? \
                AND name IN (SELECT value FROM json_each(?))";
    let levels = json!(LEVELS).to_string();
    let [head, tail] = ["head_uuid", "tail_uuid"].map(|end| link.text(end));
    let values: [&dyn rusqlite::ToSql; 4] = [&head, &tail, &link.uuid(), &levels];
    rows::find(tx.conn, &LINKS, same, &values)
}

/// The link that permits something already between the ends of this one, and at least this one's
/// level from now on. `None` if there is none.
pub fn join_existing(tx: &Tx<'_>, caller: &Caller, link: &Record) -> Result<Option<Record>> {
    let others = overlapping(tx, link)?;
    let Some(existing) = others.into_iter().max_by_key(level) else {
        return Ok(None);
    };
    delete_overlapping(tx, caller, &existing)?;
    if level(link) <= level(&existing) {
        return Ok(Some(existing));
    }
    let stronger = existing.clone().with("name", link.text("name"));
    tx.update(&LINKS, caller, &existing, stronger).map(Some)
}

/// Gives a changed link the level of the strongest one between the same ends, which it replaces.
pub fn strengthen(tx: &Tx<'_>, link: &mut Record) -> Result<()> {
    let others = overlapping(tx, link)?;
    if let Some(strongest) = others.iter().max_by_key(|other| level(other))
        && level(strongest) > level(link)
    {
        link.set("name", strongest.text("name"));
    }
    Ok(())
}

/// Deletes the others between the same ends, so that nothing is permitted any more when this one is
/// deleted.
pub fn delete_overlapping(tx: &Tx<'_>, caller: &Caller, link: &Record) -> Result<()> {
    for other in overlapping(tx, link)? {
        tx.delete(&LINKS, caller, &other)?;
    }
    Ok(())
}
