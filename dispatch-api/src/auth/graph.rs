//! The groups of all owners and the permissions of all links, in memory.
//!
//! Input: the database. Output: what a user reaches in it, with the level. One graph serves all
//! users until somebody changes a permission or moves a group: then what every user reaches is
//! found anew, which must not take long where one user has made thousands of groups.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, MAIN_DB, TransactionState};

use crate::db::group_tree::{GroupTree, SharedTree, Uuid};
use crate::error::Result;
use crate::schema::{self, GROUPS};

/// Levels of permission; each includes the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Read = 1,
    Write = 2,
    Manage = 3,
}

impl Level {
    /// The level that a permission link of this name gives.
    fn of_link(name: &str) -> Option<Level> {
        match name {
            "can_read" => Some(Level::Read),
            "can_write" => Some(Level::Write),
            "can_manage" => Some(Level::Manage),
            _ => None,
        }
    }
}

pub struct Graph {
    /// The value of `reach_version` before this was read.
    version: Vec<u8>,
    groups: SharedTree,
    /// Heads of permission links, by their tail.
    grants: HashMap<Uuid, Vec<(Uuid, Level)>>,
}

/// The graph that was read last.
static KEPT: Mutex<Option<Arc<Graph>>> = Mutex::new(None);

impl Graph {
    /// The graph of the database.
    pub fn of(connection: &Connection) -> Result<Arc<Graph>> {
        let mut version = connection.prepare_cached("SELECT version FROM reach_version")?;
        let version: Vec<u8> = version.query_row([], |row| row.get(0))?;
        let kept = KEPT.lock().clone();
        if let Some(kept) = kept.filter(|kept| kept.version == version) {
            return Ok(kept);
        }
        let groups = GroupTree::of(connection)?;
        let graph = Arc::new(Self::read(connection, version, groups)?);
        // What a transaction has written may be rolled back.
        if connection.transaction_state(Some(MAIN_DB))? != TransactionState::Write {
            *KEPT.lock() = Some(graph.clone());
        }
        Ok(graph)
    }

    fn read(connection: &Connection, version: Vec<u8>, groups: SharedTree) -> Result<Graph> {
        let mut grants: HashMap<Uuid, Vec<(Uuid, Level)>> = HashMap::new();
        let mut links = connection.prepare_cached(
            "SELECT tail_uuid, head_uuid, name FROM links WHERE link_class = 'permission'",
        )?;
        let mut rows = links.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(level) = Level::of_link(row.get_ref(2)?.as_str().unwrap_or_default()) {
                grants
                    .entry(row.get(0)?)
                    .or_default()
                    .push((row.get(1)?, level));
            }
        }
        Ok(Graph {
            version,
            groups,
            grants,
        })
    }

    /// The newest group; those made later may be missing from what is reached.
    pub fn newest_group(&self) -> i64 {
        self.groups.read().newest()
    }

    fn grants_of(&self, tail: &str) -> impl Iterator<Item = &(Uuid, Level)> {
        self.grants.get(tail).into_iter().flatten()
    }

    /// Everything that a user reaches, with the level: the weakest on the path to it, and the
    /// highest of all paths. Paths are permission links and the ownership of groups; they go on
    /// from groups, and from users who are managed. Each user is a member of the group `everyone`,
    /// but manages nothing through it.
    pub fn reached(&self, user: &str, everyone: &str) -> HashMap<Uuid, Level> {
        let groups = self.groups.read();
        let mut reached: HashMap<Uuid, Level> = HashMap::new();
        let of_everyone = self.grants_of(everyone);
        let mut next: Vec<(Uuid, Level)> = of_everyone
            .map(|(head, level)| (head.clone(), Level::Write.min(*level)))
            .collect();
        next.extend([(everyone.into(), Level::Read), (user.into(), Level::Manage)]);
        while let Some((uuid, level)) = next.pop() {
            if reached.get(&uuid).is_some_and(|known| *known >= level) {
                continue;
            }
            if level == Level::Manage || is_group(&uuid) {
                let grants = self.grants_of(&uuid);
                next.extend(grants.map(|(head, granted)| (head.clone(), level.min(*granted))));
                next.extend(groups.of_owner(&uuid).map(|group| (group.clone(), level)));
            }
            reached.insert(uuid, level);
        }
        reached
    }
}

pub fn is_group(uuid: &str) -> bool {
    schema::infix(uuid) == GROUPS.infix
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use proptest::sample::select;

    use super::{Connection, Graph, GroupTree};

    const USERS: [&str; 2] = ["local-tpzed-meeeeeeeeeeeeee", "local-tpzed-otherotherother"];
    const GROUPS: [&str; 5] = [
        "local-j7d0g-fffffffffffffff",
        "local-j7d0g-aaaaaaaaaaaaaaa",
        "local-j7d0g-bbbbbbbbbbbbbbb",
        "local-j7d0g-ccccccccccccccc",
        "local-j7d0g-ddddddddddddddd",
    ];
    const OBJECT: &str = "local-4zz18-objectobjectobj";
    const NAMES: [&str; 4] = ["can_read", "can_write", "can_manage", "can_fly"];

    /// The same rule as a query.
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
        SELECT uuid, max(level) FROM reached GROUP BY uuid";

    fn fill(connection: &Connection, owners: &[&str], links: &[(&str, &str, &str)]) {
        let begin = "BEGIN; DELETE FROM groups; DELETE FROM links";
        connection.execute_batch(begin).unwrap();
        for (group, owner) in GROUPS.iter().zip(owners) {
            let insert = "INSERT INTO groups (uuid, owner_uuid, created_at, modified_at) \
                          VALUES (?1, ?2, '', '')";
            connection.execute(insert, (group, owner)).unwrap();
        }
        for (number, (tail, name, head)) in links.iter().enumerate() {
            let insert = "INSERT INTO links (uuid, owner_uuid, created_at, modified_at, link_class, \
                          tail_uuid, name, head_uuid) VALUES (?1, '', '', '', 'permission', ?2, ?3, ?4)";
            connection
                .execute(insert, (number.to_string(), tail, name, head))
                .unwrap();
        }
        connection.execute_batch("COMMIT").unwrap();
    }

    #[test]
    fn a_user_reaches_what_the_query_finds() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let owner = || select([USERS.as_slice(), &GROUPS].concat());
        let head = select([USERS.as_slice(), &GROUPS, &[OBJECT]].concat());
        let link = (owner(), select(NAMES.as_slice()), head);
        let owners = prop::collection::vec(owner(), GROUPS.len());
        let links = prop::collection::vec(link, 0..8);
        proptest!(|(owners in owners, links in links)| {
            fill(&connection, &owners, &links);
            let groups = GroupTree::of(&connection).unwrap();
            let graph = Graph::read(&connection, Vec::new(), groups).unwrap();
            for user in USERS {
                let found = graph.reached(user, GROUPS[0]);
                let found: BTreeMap<String, i64> =
                    found.into_iter().map(|(uuid, level)| (uuid.to_string(), level as i64)).collect();
                let mut query = connection.prepare(REACHED_SQL).unwrap();
                let rows = query.query_map((user, GROUPS[0]), |row| Ok((row.get(0)?, row.get(1)?)));
                let expected: BTreeMap<String, i64> = rows.unwrap().map(|row| row.unwrap()).collect();
                prop_assert_eq!(found, expected);
            }
        });
    }
    /// The kept graph is that of one database, whatever is the same in another one.
    #[test]
    fn each_database_has_a_graph_of_its_own() {
        let [first, second] = USERS.map(|owner| {
            let directory = tempfile::tempdir().unwrap();
            let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
            fill(&connection, &[owner; GROUPS.len()], &[]);
            connection
        });
        // No group is moved or deleted, which would give each a value of its own.
        for (connection, owner) in [(&first, USERS[0]), (&second, USERS[1])] {
            let graph = Graph::of(connection).unwrap();
            let reached = graph.reached(owner, "");
            assert!(
                GROUPS.iter().all(|group| reached.contains_key(*group)),
                "{owner}"
            );
        }
    }
}
