//! Which records a user may read: all of a listing, as a part of its query, or one.
//!
//! The rule stands twice, as SQL for listings and in Rust for one record, because a listing finds
//! everything that the user reaches. A property test holds them together.

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;

use super::graph::Level;
use super::identity::Identity;
use super::permission::Access;
use super::reach::Reach;
use crate::db::filter::Clause;
use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{self, Resource};

/// Placeholders: owners, targets.
const REACHED_SQL: &str =
    "(owner_uuid IN (SELECT value FROM json_each(?)) OR uuid IN (SELECT value FROM json_each(?)))";

/// Containers are read by those who read a request for them. Placeholders: owners, targets.
const REQUESTED_SQL: &str = "IN (SELECT container_uuid FROM container_requests \
    WHERE container_uuid IS NOT NULL AND (owner_uuid IN (SELECT value FROM json_each(?)) \
    OR uuid IN (SELECT value FROM json_each(?))))";

/// The links with which an administrator says which image a collection is. Those of others would
/// name images for clients that take the newest of a name.
const IMAGE_LINK_SQL: &str = "link_class LIKE 'docker\\_image\\_%' ESCAPE '\\' \
    AND modified_by_user_uuid IN (SELECT uuid FROM users WHERE is_admin)";

/// Links on a record that is reached. Placeholders: targets, owners, owners, owners.
const LINKED_SQL: &str = "(head_uuid IN (SELECT value FROM json_each(?)) \
    OR head_uuid IN (SELECT uuid FROM collections \
                     WHERE owner_uuid IN (SELECT value FROM json_each(?))) \
    OR head_uuid IN (SELECT uuid FROM container_requests \
                     WHERE owner_uuid IN (SELECT value FROM json_each(?))) \
    OR head_uuid IN (SELECT uuid FROM workflows \
                     WHERE owner_uuid IN (SELECT value FROM json_each(?))))";

/// The system user of the caller's cluster.
fn system_user(caller: &Identity) -> String {
    let cluster = caller.user_uuid.get(..5).unwrap_or_default();
    format!("{cluster}-tpzed-000000000000000")
}

/// Whether a request for this container is reached.
fn is_requested(connection: &Connection, reach: &Reach, container: &str) -> Result<bool> {
    let requests = &schema::CONTAINER_REQUESTS;
    if !owners_with(connection, requests, "container_uuid", container, |owner| {
        reach.has_owner(owner)
    })?
    .is_empty()
    {
        return Ok(true);
    }
    let mut shared = connection.prepare_cached(
        "SELECT 1 FROM container_requests WHERE container_uuid = ?1 \
         AND uuid IN (SELECT value FROM json_each(?2))",
    )?;
    Ok(shared.exists((container, reach.targets_of(requests)))?)
}

/// The owners of the records with this value, each looked at once: one may have very many of them.
/// An index has the column and `owner_uuid`.
fn owners_with(
    connection: &Connection,
    resource: &Resource,
    column: &str,
    value: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<String>> {
    let next = format!(
        "SELECT min(owner_uuid) FROM {} WHERE {column} = ?1 AND owner_uuid > ?2",
        resource.table
    );
    let mut next = connection.prepare_cached(&next)?;
    let (mut owners, mut last) = (Vec::new(), String::new());
    loop {
        let owner: Option<String> = next.query_row((value, &last), |row| row.get(0))?;
        let Some(owner) = owner else {
            return Ok(owners);
        };
        if is_wanted(&owner) {
            owners.push(owner.clone());
        }
        last = owner;
    }
}

/// [`LINKED_SQL`] for one link.
fn is_linked(connection: &Connection, reach: &Reach, head: &str) -> Result<bool> {
    if reach.has_target(head) {
        return Ok(true);
    }
    let owned = ["collections", "container_requests", "workflows"];
    match schema::by_uuid(head).filter(|resource| owned.contains(&resource.table)) {
        Some(resource) => {
            let record = rows::fetch_brief(connection, resource, head)?;
            Ok(record.is_some_and(|record| reach.has_record(&record)))
        }
        None => Ok(false),
    }
}

/// [`IMAGE_LINK_SQL`] for one link.
fn is_image_link(connection: &Connection, link: &Record) -> Result<bool> {
    if !link.text("link_class").starts_with("docker_image_") {
        return Ok(false);
    }
    let writer = rows::fetch(
        connection,
        &schema::USERS,
        link.text("modified_by_user_uuid"),
    )?;
    Ok(writer.is_some_and(|writer| writer.bool("is_admin")))
}

impl Access<'_> {
    /// Limits a listing to the records that the caller may read.
    pub fn restrict_to_readable(&self, resource: &Resource, clause: &mut Clause) -> Result<()> {
        let me = SqlValue::Text(self.caller.user_uuid.clone());
        if self.caller.is_admin {
            if resource.table == "api_client_authorizations" {
                // The tokens of the system user have no end; other administrators cannot read them.
                let hidden = SqlValue::Text(system_user(self.caller));
                clause.and("(owner_uuid <> ? OR owner_uuid = ?)", [hidden, me]);
            }
            return Ok(());
        }
        let read = self.reach(Level::Read)?;
        let owners = read.owners();
        let requests = read.targets_of(&schema::CONTAINER_REQUESTS);
        match resource.table {
            "containers" => clause.and(
                format!("(uuid = ? OR locked_by_uuid = ? OR uuid {REQUESTED_SQL})"),
                [
                    SqlValue::Text(self.caller.container_uuid.clone().unwrap_or_default()),
                    SqlValue::Text(self.caller.token_uuid.clone()),
                    owners,
                    requests,
                ],
            ),
            "users" => clause.and(
                "uuid IN (SELECT value FROM json_each(?))",
                [read.targets_of(resource)],
            ),
            "api_client_authorizations" => clause.and("owner_uuid = ?", [me]),
            "links" => {
                let manage = self.reach(Level::Manage)?;
                let managed = manage.owners();
                clause.and(
                    format!(
                        "CASE link_class WHEN 'permission' \
                         THEN owner_uuid = ? OR head_uuid = ? OR tail_uuid = ? OR {LINKED_SQL} \
                         ELSE {REACHED_SQL} OR tail_uuid = ? \
                         OR ({IMAGE_LINK_SQL} AND {LINKED_SQL}) END"
                    ),
                    [
                        me.clone(),
                        me.clone(),
                        me.clone(),
                        manage.targets(),
                        managed.clone(),
                        managed.clone(),
                        managed,
                        owners.clone(),
                        read.targets_of(resource),
                        me,
                        read.targets(),
                        owners.clone(),
                        owners.clone(),
                        owners,
                    ],
                );
            }
            "logs" => clause.and(
                format!(
                    "(owner_uuid = ? OR object_owner_uuid IN (SELECT value FROM json_each(?)) \
                     OR object_uuid IN (SELECT value FROM json_each(?)) \
                     OR object_uuid {REQUESTED_SQL})"
                ),
                [me, owners.clone(), read.targets(), owners, requests],
            ),
            _ => clause.and(REACHED_SQL, [owners, read.targets_of(resource)]),
        }
        Ok(())
    }

    /// A record by uuid, if the caller may read it.
    pub fn find_readable(&self, resource: &Resource, uuid: &str) -> Result<Option<Record>> {
        let found = rows::fetch(self.connection, resource, uuid)?;
        self.if_readable(resource, found)
    }

    /// Like [`Self::find_readable`], but with the attributes of [`rows::fetch_brief`] alone.
    pub fn find_brief(&self, resource: &Resource, uuid: &str) -> Result<Option<Record>> {
        let found = rows::fetch_brief(self.connection, resource, uuid)?;
        self.if_readable(resource, found)
    }

    fn if_readable(&self, resource: &Resource, found: Option<Record>) -> Result<Option<Record>> {
        match found {
            Some(record) if self.may_read(resource, &record)? => Ok(Some(record)),
            _ => Ok(None),
        }
    }

    /// Whether [`Self::restrict_to_readable`] leaves this record, which may have the attributes of
    /// [`rows::fetch_brief`] alone. That finds all which the caller reaches; this takes as long for
    /// one who reaches much as for others.
    fn may_read(&self, resource: &Resource, record: &Record) -> Result<bool> {
        let me = self.caller.user_uuid.as_str();
        let is_mine = |name: &str| record.text(name) == me;
        if self.caller.is_admin {
            let is_hidden =
                record.text("owner_uuid") == system_user(self.caller) && !is_mine("owner_uuid");
            return Ok(resource.table != "api_client_authorizations" || !is_hidden);
        }
        let read = self.reach(Level::Read)?;
        let is_linked = |reach: &Reach| is_linked(self.connection, reach, record.text("head_uuid"));
        let is_requested = |container: &str| is_requested(self.connection, &read, container);
        Ok(match resource.table {
            "containers" => {
                self.caller.container_uuid.as_deref() == Some(record.uuid())
                    || record.some_text("locked_by_uuid") == Some(&self.caller.token_uuid)
                    || is_requested(record.uuid())?
            }
            "users" => read.has_target(record.uuid()),
            "api_client_authorizations" => is_mine("owner_uuid"),
            "links" if record.text("link_class") == "permission" => {
                ["owner_uuid", "head_uuid", "tail_uuid"]
                    .into_iter()
                    .any(is_mine)
                    || is_linked(&self.reach(Level::Manage)?)?
            }
            "links" => {
                read.has_record(record)
                    || is_mine("tail_uuid")
                    || (is_image_link(self.connection, record)? && is_linked(&read)?)
            }
            "logs" => {
                let object = record.text("object_uuid");
                is_mine("owner_uuid")
                    || read.has_owner(record.text("object_owner_uuid"))
                    || read.has_target(object)
                    || is_requested(object)?
            }
            _ => read.has_record(record),
        })
    }

    /// Where the caller may read collections with this content: at each owner, of whom the newest
    /// one is enough, and those that are shared by themselves. Each as a condition, its value `?2`,
    /// and the number of collections to look at.
    pub fn places_of_content(&self, pdh: &str) -> Result<Vec<(&'static str, SqlValue, i64)>> {
        let owned = |owner| ("owner_uuid = ?2", SqlValue::Text(owner), 1);
        let find = |is_wanted: &dyn Fn(&str) -> bool| {
            owners_with(
                self.connection,
                &schema::COLLECTIONS,
                "portable_data_hash",
                pdh,
                is_wanted,
            )
        };
        if self.caller.is_admin {
            return Ok(find(&|_| true)?.into_iter().map(owned).collect());
        }
        let read = self.reach(Level::Read)?;
        let owners = find(&|owner| read.has_owner(owner))?;
        let shared = "uuid IN (SELECT value FROM json_each(?2))";
        let shared = (shared, read.targets_of(&schema::COLLECTIONS), i64::MAX);
        Ok(owners.into_iter().map(owned).chain([shared]).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const ME: &str = "local-tpzed-meeeeeeeeeeeeee";
    /// The first of the users.
    const ADMIN: &str = "local-tpzed-000000000000001";
    const OTHER: &str = "local-tpzed-otherotherother";
    const EVERYONE: &str = "local-j7d0g-fffffffffffffff";
    const TOKEN: &str = "local-gj3su-tokentokentoken";
    const NAMES: [&str; 5] = ["can_read", "can_write", "can_manage", "can_fly", "tag"];
    const CLASSES: [&str; 4] = ["permission", "permission", "docker_image_hash", "tag"];
    /// Number of records of each kind.
    const EACH: usize = 3;
    const KINDS: [&Resource; 9] = [
        &schema::GROUPS,
        &schema::COLLECTIONS,
        &schema::CONTAINER_REQUESTS,
        &schema::WORKFLOWS,
        &schema::CONTAINERS,
        &schema::USERS,
        &schema::TOKENS,
        &schema::LINKS,
        &schema::LOGS,
    ];

    fn uuid(resource: &Resource, number: usize) -> String {
        format!("local-{}-{number:015}", resource.infix)
    }

    /// A user, a group, or a record of any kind.
    fn anything() -> impl Strategy<Value = String> {
        let records = KINDS
            .iter()
            .flat_map(|kind| (1..=EACH).map(|number| uuid(kind, number)));
        let users = [ME, ADMIN, OTHER, EVERYONE].map(str::to_owned);
        select(records.chain(users).collect::<Vec<_>>())
    }

    fn owner() -> impl Strategy<Value = String> {
        let groups = (1..=EACH).map(|number| uuid(&schema::GROUPS, number));
        let users = [ME, ADMIN, OTHER].map(str::to_owned);
        select(groups.chain(users).collect::<Vec<_>>())
    }

    /// What all kinds of records refer to: owner, other ends, and words.
    fn record() -> impl Strategy<Value = (String, String, String, &'static str, &'static str)> {
        (
            owner(),
            anything(),
            prop_oneof![select(vec![ME.to_owned(), EVERYONE.to_owned()]), anything()],
            select(&CLASSES[..]),
            select(&NAMES[..]),
        )
    }

    fn insert(connection: &Connection, kind: &'static Resource, record: Record) {
        let now = crate::clock::now();
        let known = |(name, value): (&str, &str)| {
            let is_stored = kind.stored_attrs().any(|attr| attr.name == name);
            is_stored.then(|| (name.to_owned(), serde_json::json!(value)))
        };
        let times = ["created_at", "modified_at", "event_at"].map(|name| (name, now.as_str()));
        let mut stored: Record = times.into_iter().filter_map(known).collect();
        for attr in kind.stored_attrs() {
            if let Some(text) = record.some_text(attr.name) {
                stored.set(attr.name, text);
            }
        }
        rows::insert(connection, kind, stored).unwrap();
    }

    /// Also whoever reads one record reads what a listing shows, and no more.
    #[test]
    fn one_record_is_read_if_it_is_listed() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let records = prop::collection::vec(record(), KINDS.len() * EACH);
        proptest!(ProptestConfig::with_cases(150), |(records in records, is_admin in any::<bool>())| {
            connection.execute_batch("BEGIN").unwrap();
            for kind in KINDS {
                connection.execute(&format!("DELETE FROM {}", kind.table), []).unwrap();
            }
            for (index, (owner, head, tail, class, name)) in records.iter().enumerate() {
                let (kind, number) = (KINDS[index % KINDS.len()], index / KINDS.len() + 1);
                let record = Record::new()
                    .with("uuid", uuid(kind, number))
                    .with("owner_uuid", owner.as_str())
                    .with("head_uuid", head.as_str())
                    .with("tail_uuid", tail.as_str())
                    .with("object_uuid", head.as_str())
                    .with("object_owner_uuid", tail.as_str())
                    .with("container_uuid", uuid(&schema::CONTAINERS, head.len() % EACH + number % 2))
                    .with("locked_by_uuid", if tail.len() % 2 == 0 { TOKEN } else { ADMIN })
                    .with("modified_by_user_uuid", if number == 1 { ADMIN } else { owner.as_str() })
                    .with("link_class", *class)
                    .with("name", if kind.table == "links" { (*name).to_owned() } else { index.to_string() })
                    .with("current_version_uuid", uuid(kind, number))
                    .with("portable_data_hash", "d41d8cd98f00b204e9800998ecf8427e+0")
                    .with("api_token", index.to_string())
                    .with("username", format!("user{index}"))
                    .with("state", "Queued");
                insert(&connection, kind, record);
            }
            connection.execute("UPDATE users SET is_admin = (uuid = ?1)", [ADMIN]).unwrap();
            connection.execute_batch("COMMIT").unwrap();
            let me = Identity {
                user_uuid: ME.into(),
                token_uuid: TOKEN.into(),
                is_admin,
                ..Identity::default()
            };
            for kind in KINDS {
                let mut clause = Clause::default();
                Access::new(&connection, &me).restrict_to_readable(kind, &mut clause).unwrap();
                let listed = rows::find(&connection, kind, &clause.sql(), &clause.params()).unwrap();
                let listed: BTreeSet<String> = listed.iter().map(|r| r.uuid().to_owned()).collect();
                let all = rows::find(&connection, kind, "1", &[]).unwrap();
                for record in all {
                    let read = Access::new(&connection, &me).find_readable(kind, record.uuid()).unwrap();
                    prop_assert_eq!(
                        read.is_some(), listed.contains(record.uuid()), "{} {:?}", kind.table, record
                    );
                }
            }
        });
    }
}
