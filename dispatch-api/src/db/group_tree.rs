//! All groups of a database with their owners, in memory.
//!
//! Input: the database. Output: the groups of an owner, and whether an owner is in the trash, also
//! as the SQL function `in_trash(owner_uuid, now)`. All connections to a file share one tree. It
//! follows the file by the groups that have changed, so a user who makes, moves or trashes
//! thousands of them slows down nobody's listings.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, MAIN_DB, OptionalExtension, TransactionState};

/// Uuids are shared by all that have them.
pub type Uuid = Arc<str>;

/// A tree that others may bring up to date meanwhile.
pub type SharedTree = Arc<RwLock<GroupTree>>;

#[derive(Default)]
pub struct GroupTree {
    /// The last change that was read; 0 before the first.
    read_to: i64,
    /// The newest group.
    newest: i64,
    groups: HashMap<Uuid, Group>,
    by_owner: HashMap<Uuid, HashSet<Uuid>>,
    /// Number of groups that are in the trash, or have a time for it.
    trashed: usize,
}

struct Group {
    owner: Uuid,
    trash_at: Option<Box<str>>,
}

/// The trees of all open files.
static SHARED: Mutex<BTreeMap<String, Weak<RwLock<GroupTree>>>> = Mutex::new(BTreeMap::new());

/// The tree of the connection's file, as it was read last.
fn shared(connection: &Connection) -> SharedTree {
    let mut shared = SHARED.lock();
    shared.retain(|_, tree| tree.strong_count() > 0);
    let path = connection.path().unwrap_or_default().to_owned();
    if let Some(tree) = shared.get(&path).and_then(Weak::upgrade) {
        return tree;
    }
    let tree = SharedTree::default();
    shared.insert(path, Arc::downgrade(&tree));
    tree
}

/// Adds the SQL function to a connection. It uses the tree of the last [`GroupTree::of`].
pub fn add_function(connection: &Connection) -> rusqlite::Result<()> {
    /// One execution of a statement.
    struct Walk {
        now: String,
        /// Owners that were looked at.
        known: Mutex<HashMap<Uuid, bool>>,
    }
    let tree = shared(connection);
    connection.create_scalar_function("in_trash", 2, FunctionFlags::SQLITE_UTF8, move |call| {
        // SQLite keeps it as long as the statement runs.
        let walk: Arc<Walk> = call.get_or_create_aux(1, |now| {
            now.as_str().map(|now| Walk {
                now: now.to_owned(),
                known: Mutex::default(),
            })
        })?;
        let owner = call.get_raw(0).as_str().unwrap_or_default();
        let mut known = walk.known.lock();
        Ok(tree.read().is_in_trash(owner, &walk.now, &mut known))
    })
}

impl GroupTree {
    /// The tree of the database; one of its own for a transaction that writes, because that may be
    /// rolled back.
    pub fn of(connection: &Connection) -> rusqlite::Result<SharedTree> {
        if connection.transaction_state(Some(MAIN_DB))? == TransactionState::Write {
            return Ok(Arc::new(RwLock::new(Self::read(connection)?)));
        }
        let tree = shared(connection);
        let is_current = {
            let mut last = connection.prepare_cached("SELECT max(id) FROM group_changes")?;
            let last: i64 = last.query_row([], |row| row.get(0))?;
            tree.read().read_to >= last
        };
        if !is_current {
            tree.write().catch_up(connection)?;
        }
        Ok(tree)
    }

    fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut tree = Self::default();
        let sql = "SELECT uuid, owner_uuid, trash_at FROM groups";
        let mut groups = connection.prepare_cached(sql)?;
        let mut rows = groups.query([])?;
        while let Some(row) = rows.next()? {
            let (owner, trash_at) = (row.get(1)?, row.get(2)?);
            tree.put(row.get(0)?, Group { owner, trash_at });
        }
        tree.note_position(connection)?;
        Ok(tree)
    }

    /// Applies the changes since the last, or reads all groups if some of these are not known any
    /// more.
    fn catch_up(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut first = connection.prepare_cached("SELECT min(id) FROM group_changes")?;
        let first: i64 = first.query_row([], |row| row.get(0))?;
        if self.read_to == 0 || first > self.read_to + 1 {
            *self = Self::read(connection)?;
            return Ok(());
        }
        let sql = "SELECT DISTINCT uuid FROM group_changes WHERE id > ?1";
        let mut changed = connection.prepare_cached(sql)?;
        let changed = changed.query_map([self.read_to], |row| row.get(0))?;
        let changed: Vec<Uuid> = changed.collect::<rusqlite::Result<_>>()?;
        let sql = "SELECT owner_uuid, trash_at FROM groups WHERE uuid = ?1";
        let mut group = connection.prepare_cached(sql)?;
        for uuid in changed {
            let group = group.query_row([&uuid], |row| {
                let (owner, trash_at) = (row.get(0)?, row.get(1)?);
                Ok(Group { owner, trash_at })
            });
            // A read that fails changes nothing here; the next one repeats it.
            let group = group.optional()?;
            self.remove(&uuid);
            if let Some(group) = group {
                self.put(uuid, group);
            }
        }
        self.note_position(connection)
    }

    /// Records up to where the database was read.
    fn note_position(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut position = connection.prepare_cached(
            "SELECT (SELECT max(id) FROM group_changes), coalesce(max(rowid), 0) FROM groups",
        )?;
        (self.read_to, self.newest) =
            position.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(())
    }

    fn put(&mut self, uuid: Uuid, group: Group) {
        self.trashed += usize::from(group.trash_at.is_some());
        let siblings = self.by_owner.entry(group.owner.clone()).or_default();
        siblings.insert(uuid.clone());
        self.groups.insert(uuid, group);
    }

    fn remove(&mut self, uuid: &Uuid) {
        let Some(group) = self.groups.remove(uuid) else {
            return;
        };
        self.trashed -= usize::from(group.trash_at.is_some());
        if let Some(siblings) = self.by_owner.get_mut(&group.owner) {
            siblings.remove(uuid);
            if siblings.is_empty() {
                self.by_owner.remove(&group.owner);
            }
        }
    }

    /// The newest group.
    pub fn newest(&self) -> i64 {
        self.newest
    }

    /// The groups that this owner has.
    pub fn of_owner(&self, owner: &str) -> impl Iterator<Item = &Uuid> {
        self.by_owner.get(owner).into_iter().flatten()
    }

    /// Whether any group is in the trash, or has a time for it.
    pub fn has_trash(&self) -> bool {
        self.trashed > 0
    }

    /// Whether what this owner has is in the trash at `now`, with a group around it. `known` are
    /// owners that were looked at before: a user may put very many groups into each other.
    fn is_in_trash(&self, owner: &str, now: &str, known: &mut HashMap<Uuid, bool>) -> bool {
        let (mut passed, mut next) = (Vec::new(), owner);
        let found = loop {
            if let Some(known) = known.get(next) {
                break *known;
            }
            // A user, or a ring of groups.
            let Some((uuid, group)) = self.groups.get_key_value(next) else {
                break false;
            };
            if passed.len() > self.groups.len() {
                break false;
            }
            passed.push(uuid);
            if group.trash_at.as_deref().is_some_and(|at| at <= now) {
                break true;
            }
            next = &group.owner;
        };
        known.extend(passed.into_iter().map(|uuid| (uuid.clone(), found)));
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::db::trash;

    const NOW: &str = "2026-06-01T00:00:00Z";
    const USER: &str = "local-tpzed-useruseruserus";

    fn group(number: u32) -> String {
        format!("local-j7d0g-{number:015}")
    }

    fn owner(number: Option<u32>) -> String {
        number.map_or(USER.to_owned(), group)
    }

    /// A change of one group.
    #[derive(Debug, Clone)]
    enum Change {
        Make(u32, Option<u32>),
        Move(u32, Option<u32>),
        Trash(u32, Option<&'static str>),
        Delete(u32),
        /// Many changes of one group.
        Repeat(u32),
        RollBack(u32),
    }

    const GROUPS: u32 = 6;

    fn change() -> impl Strategy<Value = Change> {
        let times = [
            None,
            Some("2026-05-01T00:00:00Z"),
            Some("2026-07-01T00:00:00Z"),
        ];
        let number = 0..GROUPS;
        let owner = prop::option::of(0..GROUPS);
        prop_oneof![
            4 => (number.clone(), owner.clone()).prop_map(|(n, o)| Change::Make(n, o)),
            2 => (number.clone(), owner).prop_map(|(n, o)| Change::Move(n, o)),
            3 => (number.clone(), prop::sample::select(times.to_vec()))
                .prop_map(|(n, t)| Change::Trash(n, t)),
            1 => number.clone().prop_map(Change::Delete),
            1 => number.clone().prop_map(Change::Repeat),
            1 => number.prop_map(Change::RollBack),
        ]
    }

    fn apply(connection: &Connection, change: &Change) {
        let run = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
            connection.execute(sql, values).unwrap();
        };
        let delete = "DELETE FROM groups WHERE uuid = ?1";
        match change {
            Change::Make(number, of) => run(
                "INSERT OR IGNORE INTO groups (uuid, owner_uuid, created_at, modified_at) \
                 VALUES (?1, ?2, '', '')",
                &[&group(*number), &owner(*of)],
            ),
            Change::Move(number, to) => run(
                "UPDATE groups SET owner_uuid = ?2 WHERE uuid = ?1",
                &[&group(*number), &owner(*to)],
            ),
            Change::Trash(number, at) => run(
                "UPDATE groups SET trash_at = ?2 WHERE uuid = ?1",
                &[&group(*number), at],
            ),
            Change::Delete(number) => run(delete, &[&group(*number)]),
            Change::Repeat(number) => {
                connection.execute_batch("BEGIN").unwrap();
                for count in 0..1100 {
                    let time = format!("2026-05-01T00:00:00.{count:04}Z");
                    let update = "UPDATE groups SET trash_at = ?2 WHERE uuid = ?1";
                    run(update, &[&group(*number), &time]);
                }
                connection.execute_batch("COMMIT").unwrap();
            }
            Change::RollBack(number) => {
                connection.execute_batch("BEGIN").unwrap();
                run(delete, &[&group(*number)]);
                let own = GroupTree::of(connection).unwrap();
                assert!(!own.read().groups.contains_key(group(*number).as_str()));
                connection.execute_batch("ROLLBACK").unwrap();
            }
        }
    }

    fn opened() -> (tempfile::TempDir, Connection) {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        (directory, connection)
    }

    fn is_in_trash(connection: &Connection, owner: &str) -> bool {
        let asked = "SELECT in_trash(?1, ?2)";
        let found = connection.query_row(asked, (owner, NOW), |row| row.get(0));
        found.unwrap()
    }

    #[test]
    fn the_tree_follows_the_database() {
        let changes = prop::collection::vec(prop::collection::vec(change(), 1..6), 1..12);
        proptest!(ProptestConfig::with_cases(32), |(rounds in changes)| {
            let (_directory, connection) = opened();
            for changes in rounds {
                changes.iter().for_each(|change| apply(&connection, change));
                let tree = GroupTree::of(&connection).unwrap();
                let (tree, new) = (tree.read(), GroupTree::read(&connection).unwrap());
                prop_assert_eq!(&tree.by_owner, &new.by_owner);
                let position = |tree: &GroupTree| (tree.read_to, tree.newest, tree.trashed);
                prop_assert_eq!(position(&tree), position(&new));
                drop(tree);
                for number in 0..GROUPS {
                    let group = group(number);
                    let expected = trash::is_owner_in_trash(&connection, &group, NOW).unwrap();
                    prop_assert_eq!(is_in_trash(&connection, &group), expected);
                }
                prop_assert!(!is_in_trash(&connection, USER));
            }
        });
    }

    /// One user may have very many groups, and change one after the other.
    #[test]
    fn only_what_has_changed_is_read() {
        let (_directory, connection) = opened();
        for number in 0..GROUPS {
            apply(&connection, &Change::Make(number, None));
        }
        GroupTree::of(&connection).unwrap();
        connection
            .execute_batch("DROP TRIGGER group_changed")
            .unwrap();
        let past = Some("2026-05-01T00:00:00Z");
        apply(&connection, &Change::Trash(1, past));
        apply(&connection, &Change::Make(GROUPS, Some(1)));
        let tree = GroupTree::of(&connection).unwrap();
        assert!(!tree.read().has_trash(), "nobody noted that change");
        assert_eq!(tree.read().of_owner(&group(1)).count(), 1);
    }
}
