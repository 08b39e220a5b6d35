//! Projects in the trash: they take all that is in them along, and are deleted with it.

use std::time::Duration;

use rusqlite::{Connection, ToSql};

use crate::auth::{Access, Caller};
use crate::clock;
use crate::container::request;
use crate::db::rows;
use crate::db::trash;
use crate::error::{ApiError, Result};
use crate::garbage;
use crate::record::Record;
use crate::schema::{COLLECTIONS, CONTAINER_REQUESTS, GROUPS, LINKS, WORKFLOWS};
use crate::store::transaction::Tx;
use crate::store::unique_name::make_name_unique;
/// The projects below one owner, and the owner itself. Placeholder: the owner.
pub const BELOW_SQL: &str = "WITH RECURSIVE below(uuid) AS (VALUES (?) UNION \
    SELECT groups.uuid FROM groups JOIN below ON groups.owner_uuid = below.uuid) \
    SELECT uuid FROM below";

/// Time until a project is looked at again whose collections are in use.
const IN_USE_DELAY: Duration = Duration::from_secs(3600);
/// Size in bytes of the records that one batch of deletions reads.
pub const MAX_BATCH_BYTES: usize = 16 << 20;

/// A project that the caller may manage; other groups have no trash.
fn manageable(tx: &Tx<'_>, caller: &Caller, uuid: &str) -> Result<Record> {
    let group = Access::new(tx.conn, caller).require_readable(&GROUPS, uuid)?;
    Access::new(tx.conn, caller).require_manageable(&group)?;
    match group.text("group_class") {
        "project" => Ok(group),
        class => Err(ApiError::invalid(format!(
            "a group of class {class} cannot be in the trash, only a project can"
        ))),
    }
}

/// Moves a project to the trash with all that is in it; expiry deletes it two weeks later.
pub fn trash(tx: &Tx<'_>, caller: &Caller, uuid: &str) -> Result<Record> {
    let old = manageable(tx, caller, uuid)?;
    let new = trash::trashed(&old, &tx.now);
    tx.update(&GROUPS, caller, &old, new)
}

pub fn untrash(tx: &Tx<'_>, caller: &Caller, uuid: &str, unique_name: bool) -> Result<Record> {
    let old = manageable(tx, caller, uuid)?;
    trash::require_trashed(&old, &tx.now)?;
    check_time_left(&old, &tx.now)?;
    let mut new = trash::restored(&old);
    if unique_name {
        make_name_unique(tx, &GROUPS, &mut new)?;
    }
    tx.update(&GROUPS, caller, &old, new)
}

/// Rejects to bring back a project that is being deleted with what is in it.
pub fn check_time_left(project: &Record, now: &str) -> Result<()> {
    match project.some_text("delete_at").is_some_and(|at| at <= now) {
        true => Err(ApiError::invalid(
            "the time of the project in the trash has ended; it is being deleted",
        )),
        false => Ok(()),
    }
}

/// Deletes a group for good. What is shared through it is shared no more without it.
pub fn delete(tx: &Tx<'_>, caller: &Caller, group: &Record) -> Result<()> {
    let uuid = group.uuid();
    let links = "head_uuid = ?1 OR tail_uuid = ?1";
    for link in rows::find(tx.conn, &LINKS, links, &[&uuid])? {
        tx.delete(&LINKS, caller, &link)?;
    }
    tx.delete(&GROUPS, caller, group)
}

/// Deletes part of what is in one of the projects whose time in the trash has ended, or the project
/// if nothing is in it. Returns the number of deleted records, at most about `limit`.
///
/// A collection that an unfinished container names stays until that has ended, with its project.
pub fn delete_expired(tx: &Tx<'_>, limit: i64) -> Result<usize> {
    let due = "trash_at IS NOT NULL AND delete_at <= ?1 ORDER BY delete_at LIMIT 1";
    let Some(project) = rows::find(tx.conn, &GROUPS, due, &[&tx.now])?.pop() else {
        return Ok(0);
    };
    let deleted = delete_contents(tx, project.uuid(), limit)?;
    if deleted > 0 {
        return Ok(deleted);
    }
    // Later, so that others have their turn.
    let later = project
        .clone()
        .with("delete_at", clock::after(IN_USE_DELAY));
    tx.update_derived(&GROUPS, &project, later)?;
    Ok(1)
}

fn delete_contents(tx: &Tx<'_>, project: &str, limit: i64) -> Result<usize> {
    let find = |resource, condition: &str, params: &[&dyn ToSql]| {
        let clause = format!("owner_uuid IN ({BELOW_SQL}) {condition} LIMIT ?");
        rows::find_up_to(tx.conn, resource, &clause, params, MAX_BATCH_BYTES)
    };
    let requests = find(&CONTAINER_REQUESTS, "", &[&project, &limit])?;
    for request in &requests {
        // Its container ends, if nobody else asks for it.
        request::delete(tx, &tx.system, request.uuid())?;
    }
    let workflows = find(&WORKFLOWS, "", &[&project, &limit])?;
    for workflow in &workflows {
        tx.delete(&WORKFLOWS, &tx.system, workflow)?;
    }
    let in_use = garbage::content_in_use(tx.conn)?;
    let unused = "AND portable_data_hash NOT IN (SELECT value FROM json_each(?))";
    let collections = find(&COLLECTIONS, unused, &[&project, &in_use, &limit])?;
    for collection in &collections {
        tx.delete(&COLLECTIONS, &tx.system, collection)?;
    }
    let deleted = requests.len() + workflows.len() + collections.len();
    if deleted > 0 || has_collections(tx.conn, project)? {
        return Ok(deleted);
    }
    // From the inside out, so that the rest stays below the project.
    let innermost = format!(
        "uuid IN ({BELOW_SQL}) \
         AND NOT EXISTS (SELECT 1 FROM groups AS inner WHERE inner.owner_uuid = groups.uuid) LIMIT ?"
    );
    let groups = rows::find(tx.conn, &GROUPS, &innermost, &[&project, &limit])?;
    for group in &groups {
        delete(tx, &tx.system, group)?;
    }
    Ok(groups.len())
}

fn has_collections(connection: &Connection, project: &str) -> Result<bool> {
    let sql = format!("SELECT 1 FROM collections WHERE owner_uuid IN ({BELOW_SQL})");
    Ok(connection.prepare_cached(&sql)?.exists([project])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{CONTAINERS, Resource};
    use crate::store::cluster_config::ClusterConfig;

    #[test]
    fn a_project_is_deleted_with_all_that_is_in_it_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let config = ClusterConfig::for_tests();
        let tx = Tx::new(&connection, &config);
        let create = |resource: &'static Resource, owner: &str, name: &str| {
            let record = Record::new().with("owner_uuid", owner).with("name", name);
            let record = match resource.table {
                "collections" => record
                    .with("portable_data_hash", name)
                    .with("current_version_uuid", name),
                _ => record,
            };
            tx.create(resource, &tx.system, record).unwrap()
        };
        let me = config.system_user();
        let [gone, other] = ["gone", "other"].map(|name| create(&GROUPS, &me, name));
        let inner = create(&GROUPS, gone.uuid(), "inner");
        for project in [&gone, &inner, &other] {
            create(
                &COLLECTIONS,
                project.uuid(),
                &format!("of {}", project.uuid()),
            );
            create(&WORKFLOWS, project.uuid(), "workflow");
            create(&CONTAINER_REQUESTS, project.uuid(), "request");
        }
        let link = Record::new()
            .with("tail_uuid", me.as_str())
            .with("head_uuid", inner.uuid())
            .with("link_class", "permission");
        tx.create(&LINKS, &tx.system, link).unwrap();
        let trashed = trash(&tx, &tx.system, gone.uuid()).unwrap();
        assert_eq!(delete_expired(&tx, 100).unwrap(), 0, "it was just trashed");

        let end = |project: &Record| {
            let old = tx.fetch(&GROUPS, project.uuid()).unwrap().unwrap();
            let ended = old.clone().with("delete_at", clock::before(TEST_AGE));
            tx.update_derived(&GROUPS, &old, ended).unwrap();
        };
        end(&trashed);
        untrash(&tx, &tx.system, gone.uuid(), false).unwrap_err();
        // A container that runs reads one of its collections.
        let container = Record::new()
            .with("state", "Running")
            .with("container_image", format!("of {}", inner.uuid()));
        let container = tx.create(&CONTAINERS, &tx.system, container).unwrap();
        for _ in 0..100 {
            delete_expired(&tx, 1).unwrap();
        }
        for group in [&gone, &inner] {
            assert!(tx.fetch(&GROUPS, group.uuid()).unwrap().is_some());
        }
        let later = delete_expired(&tx, 1).unwrap();
        assert_eq!(later, 0, "it is looked at again in an hour");
        let done = container.clone().with("state", "Complete");
        tx.update_derived(&CONTAINERS, &container, done).unwrap();
        end(&gone);
        // In parts, as the periodic task does.
        let mut parts = 0;
        while delete_expired(&tx, 1).unwrap() > 0 {
            parts += 1;
        }
        assert!(parts > 1, "{parts}");
        let left = |resource: &Resource| {
            let found = rows::find(&connection, resource, "1", &[]).unwrap();
            let names = found
                .iter()
                .map(|record| record.text("owner_uuid").to_owned());
            names.collect::<Vec<_>>()
        };
        for resource in [&COLLECTIONS, &WORKFLOWS, &CONTAINER_REQUESTS] {
            assert_eq!(left(resource), [other.uuid()], "{}", resource.table);
        }
        assert!(left(&LINKS).is_empty());
        assert!(tx.fetch(&GROUPS, other.uuid()).unwrap().is_some());
        for group in [gone, inner] {
            assert!(tx.fetch(&GROUPS, group.uuid()).unwrap().is_none());
        }
    }

    const TEST_AGE: std::time::Duration = std::time::Duration::from_secs(60);
}
