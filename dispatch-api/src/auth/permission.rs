//! Permissions to read and change records. All lists, requests, events and logs ask here.

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;

use super::graph::Level;
use super::identity::Identity;
use super::reach::Reach;
use crate::clock;
use crate::db::filter::Clause;
use crate::db::group_tree::GroupTree;
use crate::db::rows;
use crate::db::trash;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{self, Resource};

/// Event types of the log entries that the server itself writes.
const SERVER_EVENTS: [&str; 3] = ["create", "update", "delete"];

/// The caller has not this permission on this record or owner.
fn lacks(permission: &str, uuid: &str) -> ApiError {
    ApiError::denied(format!("you need {permission} on {uuid}"))
}

/// Rejects a project in the trash as an owner: nobody would see what is put there, and it would be
/// deleted with the project.
fn reject_trash(connection: &Connection, owner: &str) -> Result<()> {
    match trash::is_owner_in_trash(connection, owner, &clock::now())? {
        true => Err(ApiError::invalid(format!(
            "Owner uuid {owner} is a project in the trash"
        ))),
        false => Ok(()),
    }
}

/// The owners above a record with this owner: its groups from the inside out, and last the user.
/// They end before a group that is among them already.
pub fn owners(connection: &Connection, owner: &str) -> Result<Vec<String>> {
    let mut owners = vec![owner.to_owned()];
    while let Some(last) = owners.last()
        && let Some(group) = rows::fetch(connection, &schema::GROUPS, last)?
    {
        let next = group.text("owner_uuid").to_owned();
        if owners.contains(&next) {
            break;
        }
        owners.push(next);
    }
    Ok(owners)
}

/// A caller who reads or changes what is in a database.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    pub(super) connection: &'a Connection,
    pub(super) caller: &'a Identity,
}

impl<'a> Access<'a> {
    pub fn new(connection: &'a Connection, caller: &'a Identity) -> Self {
        Access { connection, caller }
    }

    pub(super) fn reach(&self, level: Level) -> Result<Reach> {
        Reach::of(self.connection, self.caller, level)
    }

    /// Finds what the caller reaches, and keeps it for the checks that follow.
    pub fn prepare(&self) -> Result<()> {
        self.reach(Level::Read).map(drop)
    }

    /// Leaves out of a listing what is in the trash now, by itself or with a project around it.
    pub fn leave_out_trash(&self, resource: &Resource, clause: &mut Clause) -> Result<()> {
        let now = clock::now();
        if resource.attr("trash_at").is_some() {
            clause.and(trash::NOT_TRASHED_SQL, [SqlValue::Text(now.clone())]);
        }
        if !trash::IN_PROJECTS.contains(&resource.table) {
            return Ok(());
        }
        if GroupTree::of(self.connection)?.read().has_trash() {
            clause.and("NOT in_trash(owner_uuid, ?)", [SqlValue::Text(now)]);
        }
        Ok(())
    }

    /// As [`Self::find_readable`], but with status 404 for a missing or unreadable record.
    pub fn require_readable(&self, resource: &Resource, uuid: &str) -> Result<Record> {
        self.find_readable(resource, uuid)?
            .ok_or_else(ApiError::path_not_found)
    }

    /// Whether the caller may create records of this owner, and move existing ones to it.
    fn may_own(&self, owner_uuid: &str) -> Result<bool> {
        if self.caller.is_admin || owner_uuid == self.caller.user_uuid {
            return Ok(true);
        }
        Ok(self.reach(Level::Write)?.has_owner(owner_uuid))
    }

    /// Gives a new record the owner that it names, else the caller. Rejects an owner for whom the
    /// caller may not create records.
    pub fn set_owner(&self, record: &mut Record) -> Result<()> {
        let owner = record.some_text("owner_uuid");
        let owner = owner.unwrap_or(&self.caller.user_uuid).to_owned();
        if !self.may_own(&owner)? {
            return Err(lacks("can_write", &owner));
        }
        reject_trash(self.connection, &owner)?;
        record.set("owner_uuid", owner);
        Ok(())
    }

    fn require(&self, level: Level, record: &Record) -> Result<()> {
        if self.caller.is_admin || self.reach(level)?.has_record(record) {
            return Ok(());
        }
        let permission = match level {
            Level::Read => "can_read",
            Level::Write => "can_write",
            Level::Manage => "can_manage",
        };
        Err(lacks(permission, record.uuid()))
    }

    /// For each of these records, whether the caller may change it, and whether it may manage it.
    pub fn rights(&self, records: &[Record]) -> Result<Vec<(bool, bool)>> {
        if self.caller.is_admin {
            return Ok(vec![(true, true); records.len()]);
        }
        let write = self.reach(Level::Write)?;
        let manage = self.reach(Level::Manage)?;
        let of = |record| (write.has_record(record), manage.has_record(record));
        Ok(records.iter().map(of).collect())
    }

    /// Rejects a caller who may not manage this record.
    pub fn require_manageable(&self, record: &Record) -> Result<()> {
        self.require(Level::Manage, record)
    }

    /// Rejects a caller who may not change this record.
    pub fn require_writable(&self, record: &Record) -> Result<()> {
        self.require(Level::Write, record)
    }

    /// Rejects a change of owner unless the caller may write to the old and to the new one.
    pub fn require_owners(&self, old: &Record, new: &Record) -> Result<()> {
        if old.get("owner_uuid") == new.get("owner_uuid") {
            return Ok(());
        }
        for record in [old, new] {
            let owner = record.text("owner_uuid");
            if !self.may_own(owner)? {
                return Err(lacks("can_write", owner));
            }
        }
        reject_trash(self.connection, new.text("owner_uuid"))
    }

    /// Rejects a caller who may not create, change or delete this link. A permission link needs
    /// permission to manage its head; the owner of the link may delete one whose head is gone.
    pub fn require_linkable(&self, link: &Record) -> Result<()> {
        if link.text("link_class") != "permission" || self.caller.is_admin {
            return self.require_writable(link);
        }
        let uuid = link.text("head_uuid");
        let resource = schema::by_uuid(uuid).ok_or_else(|| {
            ApiError::invalid(format!("Head uuid '{uuid}' of a permission is no record"))
        })?;
        let is_own = link.text("owner_uuid") == self.caller.user_uuid && !link.uuid().is_empty();
        if is_own && rows::fetch_brief(self.connection, resource, uuid)?.is_none() {
            return Ok(());
        }
        let head = self.find_brief(resource, uuid)?;
        self.require_manageable(&head.ok_or_else(ApiError::path_not_found)?)
    }

    /// Rejects a log entry about an object that the caller may not read, and one with a server's
    /// event type about an object that the caller may not change.
    pub fn require_loggable(&self, entry: &Record) -> Result<()> {
        let Some(uuid) = entry.some_text("object_uuid") else {
            return Ok(());
        };
        if self.caller.is_admin {
            return Ok(());
        }
        let object = match schema::by_uuid(uuid) {
            Some(resource) => self.find_brief(resource, uuid)?,
            None => None,
        };
        let object = object.ok_or_else(|| lacks("can_read", uuid))?;
        match SERVER_EVENTS.contains(&entry.text("event_type")) {
            true => self.require_writable(&object),
            false => Ok(()),
        }
    }

    /// Whether the caller may receive events about this object.
    pub fn may_receive(&self, object_uuid: &str) -> Result<bool> {
        if self.caller.is_admin {
            return Ok(true);
        }
        match schema::by_uuid(object_uuid) {
            Some(resource) => Ok(self.find_brief(resource, object_uuid)?.is_some()),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::schema::{COLLECTIONS, GROUPS, LINKS};

    const ME: &str = "local-tpzed-meeeeeeeeeeeeee";
    const OTHER: &str = "local-tpzed-otherotherother";
    const EVERYONE: &str = "local-j7d0g-fffffffffffffff";
    const ROLE: &str = "local-j7d0g-rolerolerolerol";
    const INNER: &str = "local-j7d0g-innerroleinnerr";
    const PROJECT: &str = "local-j7d0g-projectprojectp";
    const SUB: &str = "local-j7d0g-subprojectsubpr";
    const OBJECT: &str = "local-4zz18-objectobjectobj";

    /// Tail, level and head.
    type Grant = (&'static str, &'static str, &'static str);

    fn insert(connection: &Connection, resource: &'static Resource, record: Record) -> Record {
        let now = crate::clock::now();
        let record = record.with("created_at", now.as_str());
        rows::insert(connection, resource, record.with("modified_at", now)).unwrap()
    }

    /// Makes a collection of `owner`. Another user owns a project, a project in it, and two role
    /// groups.
    fn fill(connection: &Connection, owner: &str, links: &[Grant]) -> Record {
        for (uuid, owner, class) in [
            (PROJECT, OTHER, "project"),
            (SUB, PROJECT, "project"),
            (ROLE, OTHER, "role"),
            (INNER, OTHER, "role"),
        ] {
            let group = Record::new().with("uuid", uuid).with("owner_uuid", owner);
            let group = group.with("name", uuid).with("group_class", class);
            insert(connection, &GROUPS, group);
        }
        let object = Record::new()
            .with("uuid", OBJECT)
            .with("owner_uuid", owner)
            .with("current_version_uuid", OBJECT)
            .with("portable_data_hash", "d41d8cd98f00b204e9800998ecf8427e+0");
        let object = insert(connection, &COLLECTIONS, object);
        for (number, (tail, name, head)) in links.iter().enumerate() {
            let link = Record::new()
                .with("uuid", format!("local-o0j2j-{number:015}"))
                .with("owner_uuid", OTHER)
                .with("link_class", "permission")
                .with("tail_uuid", *tail)
                .with("name", *name)
                .with("head_uuid", *head);
            insert(connection, &LINKS, link);
        }
        object
    }

    /// The level on the collection.
    fn level_of(owner: &str, links: &[Grant]) -> Option<Level> {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let object = fill(&connection, owner, links);
        let me = Identity::system(ME.into()).as_plain_user(ME);
        let readable = Access::new(&connection, &me)
            .find_readable(&COLLECTIONS, OBJECT)
            .unwrap();
        let level = [Level::Manage, Level::Write, Level::Read]
            .into_iter()
            .find(|level| {
                Access::new(&connection, &me)
                    .require(*level, &object)
                    .is_ok()
            });
        assert_eq!(readable.is_some(), level.is_some(), "{owner} {links:?}");
        level
    }

    #[test]
    fn ownership_and_links_give_the_weakest_level_of_their_path() {
        use Level::{Manage, Read, Write};
        const READ: &str = "can_read";
        const WRITE: &str = "can_write";
        const MANAGE: &str = "can_manage";
        let table: &[(&str, &[Grant], Option<Level>)] = &[
            (ME, &[], Some(Manage)),
            (OTHER, &[], None),
            (SUB, &[], None),
            // On the object itself.
            (OTHER, &[(ME, READ, OBJECT)], Some(Read)),
            (OTHER, &[(ME, WRITE, OBJECT)], Some(Write)),
            (OTHER, &[(ME, MANAGE, OBJECT)], Some(Manage)),
            (OTHER, &[(ME, "can_fly", OBJECT)], None),
            (OTHER, &[(OTHER, READ, OBJECT)], None),
            // On a project, and on a project in it.
            (SUB, &[(ME, READ, PROJECT)], Some(Read)),
            (SUB, &[(ME, WRITE, PROJECT)], Some(Write)),
            (SUB, &[(ME, MANAGE, PROJECT)], Some(Manage)),
            (SUB, &[(ME, READ, SUB)], Some(Read)),
            (PROJECT, &[(ME, MANAGE, SUB)], None),
            (SUB, &[(ME, READ, PROJECT), (ME, WRITE, SUB)], Some(Write)),
            // By role groups.
            (SUB, &[(ME, WRITE, ROLE), (ROLE, READ, PROJECT)], Some(Read)),
            (
                SUB,
                &[(ME, READ, ROLE), (ROLE, MANAGE, PROJECT)],
                Some(Read),
            ),
            (
                SUB,
                &[(ME, MANAGE, ROLE), (ROLE, MANAGE, SUB)],
                Some(Manage),
            ),
            (SUB, &[(ME, WRITE, ROLE)], None),
            (SUB, &[(ROLE, WRITE, PROJECT)], None),
            (
                SUB,
                &[
                    (ME, WRITE, ROLE),
                    (ROLE, WRITE, INNER),
                    (INNER, WRITE, PROJECT),
                ],
                Some(Write),
            ),
            (
                SUB,
                &[
                    (ME, WRITE, ROLE),
                    (ROLE, WRITE, INNER),
                    (INNER, WRITE, ROLE),
                ],
                None,
            ),
            // By the group of all users.
            (SUB, &[(EVERYONE, READ, PROJECT)], Some(Read)),
            (OTHER, &[(EVERYONE, WRITE, OBJECT)], Some(Write)),
            (OTHER, &[(EVERYONE, MANAGE, OBJECT)], Some(Write)),
            // By another user, who must be managed.
            (OTHER, &[(ME, READ, OTHER)], None),
            (OTHER, &[(ME, WRITE, OTHER)], None),
            (OTHER, &[(ME, MANAGE, OTHER)], Some(Manage)),
            (SUB, &[(ME, MANAGE, OTHER)], Some(Manage)),
            (SUB, &[(ME, READ, OTHER), (OTHER, MANAGE, PROJECT)], None),
        ];
        for (owner, links, expected) in table {
            assert_eq!(level_of(owner, links), *expected, "{owner} {links:?}");
        }
    }

    /// A user whose projects are in the trash, with many in them, slows down nobody's listings.
    #[test]
    fn nobody_reads_what_others_have_in_the_trash() {
        const IN_TRASH: usize = 1000;
        let directory = tempfile::tempdir().unwrap();
        let of_project: &[Grant] = &[(ME, "can_read", PROJECT)];
        let of_object: &[Grant] = &[(ME, "can_read", OBJECT)];
        for (row, (owner, links, is_listed, reaches_few)) in [
            (ME, &[][..], true, true),
            (SUB, of_project, false, false),
            (SUB, of_object, false, true),
            (OTHER, of_object, true, true),
        ]
        .into_iter()
        .enumerate()
        {
            let connection = crate::db::open(&directory.path().join(format!("{row}.db"))).unwrap();
            connection.execute_batch("BEGIN").unwrap();
            fill(&connection, owner, links);
            let trash = "UPDATE groups SET trash_at = '2026-01-01T00:00:00Z' WHERE uuid = ?1";
            connection.execute(trash, [PROJECT]).unwrap();
            for number in 0..IN_TRASH {
                let group = Record::new()
                    .with("uuid", format!("local-j7d0g-{number:015}"))
                    .with("owner_uuid", SUB)
                    .with("group_class", "project");
                insert(&connection, &GROUPS, group);
            }
            connection.execute_batch("COMMIT").unwrap();
            for is_admin in [false, true] {
                let me = Identity {
                    user_uuid: ME.into(),
                    is_admin,
                    ..Identity::default()
                };
                let (access, mut clause) = (Access::new(&connection, &me), Clause::default());
                access
                    .restrict_to_readable(&COLLECTIONS, &mut clause)
                    .unwrap();
                let find = |clause: &Clause| {
                    let query = format!("SELECT uuid FROM collections WHERE {}", clause.sql());
                    let mut query = connection.prepare(&query).unwrap();
                    let found = query.exists(clause.params().as_slice()).unwrap();
                    (found, query.get_status(StatementStatus::VmStep) as usize)
                };
                let (_, with_trash) = find(&clause);
                access.leave_out_trash(&COLLECTIONS, &mut clause).unwrap();
                let (found, steps) = find(&clause);
                assert_eq!(found, is_listed, "{owner} {links:?} {is_admin}");
                let more = steps.saturating_sub(with_trash);
                assert!(more < IN_TRASH, "{owner} {links:?}: {more} steps");
                let is_cheap = steps < IN_TRASH || !reaches_few;
                assert!(is_cheap, "{owner} {links:?}: {steps} steps");
            }
        }
    }
}
