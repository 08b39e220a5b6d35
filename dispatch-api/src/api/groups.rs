//! `/arvados/v1/groups`: projects.

use super::call::{Call, Reply};
use super::resource::{change, get, list, write};
use super::route::Route;
use crate::auth::{Access, Caller, permission};
use crate::db::trash;
use crate::error::{ApiError, Result};
use crate::project;
use crate::record::Record;
use crate::record::patch;
use crate::schema::{COLLECTIONS, CONTAINER_REQUESTS, GROUPS, WORKFLOWS};
use crate::store::transaction::Tx;
use crate::store::unique_name::make_name_unique;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "groups", |call, _| list(call, &GROUPS)),
    Route::new("POST", "groups", create),
    Route::new("GET", "groups/{}", |call, uuid| get(call, &GROUPS, uuid)),
    Route::new("PUT", "groups/{}", update),
    Route::new("DELETE", "groups/{}", delete),
    Route::new("POST", "groups/{}/trash", move_to_trash),
    Route::new("POST", "groups/{}/untrash", untrash),
];

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&GROUPS)?;
    let unique = call.params.flag("ensure_unique_name");
    change(call, &GROUPS, uuid, move |tx, caller, old| {
        Access::new(tx.conn, caller).require_writable(&old)?;
        let mut new = patch::apply(&GROUPS, &old, &attributes, &[])?;
        Access::new(tx.conn, caller).require_owners(&old, &new)?;
        if old.get("owner_uuid") != new.get("owner_uuid") {
            // Its new owner manages it.
            Access::new(tx.conn, caller).require_manageable(&old)?;
        }
        if old.get("group_class") != new.get("group_class") {
            return Err(ApiError::invalid("Group class cannot be changed"));
        }
        if old.get("name") != new.get("name") {
            tx.config.emulate.check_name(new.text("name"))?;
        }
        check_no_loop(tx, &new)?;
        if TRASH_ATTRIBUTES
            .iter()
            .any(|name| old.get(name) != new.get(name))
        {
            Access::new(tx.conn, caller).require_manageable(&old)?;
        }
        normalise_trash(caller, &tx.now, &old, &mut new)?;
        if unique {
            make_name_unique(tx, &GROUPS, &mut new)?;
        }
        tx.update(&GROUPS, caller, &old, new)
    })
}

/// Attributes that only who manages a project may change.
const TRASH_ATTRIBUTES: [&str; 3] = ["is_trashed", "trash_at", "delete_at"];

/// Makes the attributes of the trash consistent, and rejects them for groups without a trash.
/// Nobody but an administrator shortens the time there, because others may have records in it.
fn normalise_trash(caller: &Caller, now: &str, old: &Record, new: &mut Record) -> Result<()> {
    if trash::normalise_request(caller.is_admin, now, old, new)? {
        return Err(ApiError::invalid(
            "Delete at must be at least two weeks from now",
        ));
    }
    if !trash::is_trashed(new, now) {
        project::check_time_left(old, now)?;
    }
    match new.some_text("trash_at").is_some() && new.text("group_class") != "project" {
        true => Err(ApiError::invalid("Only a project can be in the trash")),
        false => Ok(()),
    }
}

/// Rejects the deletion of a group that owns records: nobody but an administrator would find them
/// again.
fn check_empty(tx: &Tx<'_>, uuid: &str) -> Result<()> {
    for resource in [&COLLECTIONS, &CONTAINER_REQUESTS, &GROUPS, &WORKFLOWS] {
        let owned = format!("SELECT 1 FROM {} WHERE owner_uuid = ?1", resource.table);
        if tx.conn.prepare_cached(&owned)?.exists([uuid])? {
            return Err(ApiError::invalid(format!(
                "The group is not empty: it owns {}; move or delete them first",
                resource.table
            )));
        }
    }
    Ok(())
}

/// Rejects a group that would own itself, over any number of groups: nobody but an administrator
/// would find it again.
fn check_no_loop(tx: &Tx<'_>, group: &Record) -> Result<()> {
    let owners = permission::owners(tx.conn, group.text("owner_uuid"))?;
    match owners.iter().any(|owner| owner == group.uuid()) {
        false => Ok(()),
        true => Err(ApiError::invalid(
            "Owner uuid would make the group own itself",
        )),
    }
}

/// Moves a project to the trash. A group of another class is deleted at once, if it is empty.
fn delete(call: &Call, uuid: &str) -> Result<Reply> {
    change(call, &GROUPS, uuid, |tx, caller, old| {
        if old.text("group_class") == "project" {
            return project::trash(tx, caller, old.uuid());
        }
        Access::new(tx.conn, caller).require_manageable(&old)?;
        check_empty(tx, old.uuid())?;
        project::delete(tx, caller, &old)?;
        Ok(old)
    })
}

fn move_to_trash(call: &Call, uuid: &str) -> Result<Reply> {
    let uuid = uuid.to_owned();
    write(call, &GROUPS, move |tx, caller| {
        project::trash(tx, caller, &uuid)
    })
}

fn untrash(call: &Call, uuid: &str) -> Result<Reply> {
    let unique = call.params.flag("ensure_unique_name");
    let uuid = uuid.to_owned();
    write(call, &GROUPS, move |tx, caller| {
        project::untrash(tx, caller, &uuid, unique)
    })
}

fn create(call: &Call, _: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&GROUPS)?;
    let unique = call.params.flag("ensure_unique_name");
    write(call, &GROUPS, move |tx, caller| {
        let mut group = patch::create(&GROUPS, &attributes, caller.is_admin)?;
        if !matches!(group.text("group_class"), "project" | "role") {
            return Err(ApiError::invalid(
                "Group class must be project or role; groups that show what a filter finds \
                 (filter) are not built",
            ));
        }
        tx.config.emulate.check_name(group.text("name"))?;
        Access::new(tx.conn, caller).set_owner(&mut group)?;
        normalise_trash(caller, &tx.now, &Record::new(), &mut group)?;
        if unique {
            make_name_unique(tx, &GROUPS, &mut group)?;
        }
        tx.create(&GROUPS, caller, group)
    })
}
