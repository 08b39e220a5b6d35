//! Quotas: how many records of each kind an ordinary user may have.
//!
//! Triggers of the database count them by the user who created them, so that a check takes the same
//! time however many there are. Administrators, dispatchers among them, have none.

use rusqlite::Connection;

use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::schema::Resource;

/// Table, maximum number of records, and what people call them.
const QUOTAS: [(&str, i64, &str); 4] = [
    ("links", 50_000, "links"),
    ("groups", 10_000, "projects and groups"),
    ("api_client_authorizations", 20_000, "tokens"),
    (
        "container_requests",
        200_000,
        "requests that have not ended",
    ),
];

/// Whether records of the resource are counted.
pub fn counts(resource: &Resource) -> bool {
    QUOTAS.iter().any(|(table, ..)| *table == resource.table)
}

/// Refuses one more record to a user who has as many as permitted.
pub fn check(connection: &Connection, resource: &Resource, caller: &Caller) -> Result<()> {
    let quota = QUOTAS.iter().find(|(table, ..)| *table == resource.table);
    let Some((table, most, name)) = quota.filter(|_| !caller.is_admin) else {
        return Ok(());
    };
    let sql = "SELECT coalesce(max(count), 0) FROM quota_use WHERE user_uuid = ?1 AND kind = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let used: i64 = statement.query_row([caller.user_uuid.as_str(), table], |row| row.get(0))?;
    if used < *most {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "you have {used} {name}, which is the limit for one user: delete or end some of them first, \
         or ask an administrator"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Identity;
    use crate::record::Record;
    use crate::schema::{CONTAINER_REQUESTS, GROUPS, LINKS, TOKENS};
    use crate::store::cluster_config::ClusterConfig;
    use crate::store::transaction::Tx;

    const USER: &str = "zzzzz-tpzed-000000000000001";

    fn ordinary_user() -> Caller {
        Identity::system(USER.into()).as_plain_user(USER)
    }

    fn used(connection: &Connection, resource: &Resource) -> i64 {
        let sql = "SELECT sum(count) FROM quota_use WHERE kind = ?1 AND user_uuid = ?2";
        let used = connection.query_row(sql, [resource.table, USER], |row| row.get(0));
        used.unwrap()
    }

    #[test]
    fn each_kind_is_counted_and_refused_at_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let config = ClusterConfig::for_tests();
        let tx = Tx::new(&connection, &config);
        let (user, admin) = (ordinary_user(), Identity::system(USER.into()));
        for resource in [&LINKS, &GROUPS, &TOKENS, &CONTAINER_REQUESTS] {
            let make = |caller: &Caller, name: &str| {
                let token = config.new_uuid(resource);
                let record = Record::new().with("name", name).with("api_token", token);
                tx.create(resource, caller, record)
            };
            let first = make(&user, "first").unwrap();
            make(&user, "second").unwrap();
            assert_eq!(used(&connection, resource), 2, "{}", resource.table);
            let most = QUOTAS.iter().find(|(table, ..)| *table == resource.table);
            let most = most.unwrap().1;
            let fill = "UPDATE quota_use SET count = ?1 WHERE kind = ?2";
            connection.execute(fill, (most, resource.table)).unwrap();
            let refused = make(&user, "third").unwrap_err();
            assert_eq!(refused.status().as_u16(), 422);
            assert!(refused.to_string().contains(&most.to_string()), "{refused}");
            make(&admin, "the administrator's").unwrap();
            assert_eq!(used(&connection, resource), most + 1);
            tx.delete(resource, &user, &first).unwrap();
            assert_eq!(used(&connection, resource), most, "{}", resource.table);
        }
    }

    #[test]
    fn a_request_that_ended_counts_no_longer() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let config = ClusterConfig::for_tests();
        let (tx, user) = (Tx::new(&connection, &config), ordinary_user());
        let request = tx
            .create(&CONTAINER_REQUESTS, &user, Record::new())
            .unwrap();
        let change = |old: &Record, state: &str| {
            let new = old.clone().with("state", state);
            tx.update(&CONTAINER_REQUESTS, &user, old, new).unwrap()
        };
        let committed = change(&request, "Committed");
        assert_eq!(used(&connection, &CONTAINER_REQUESTS), 1);
        let ended = change(&committed, "Final");
        assert_eq!(used(&connection, &CONTAINER_REQUESTS), 0);
        tx.delete(&CONTAINER_REQUESTS, &user, &ended).unwrap();
        assert_eq!(used(&connection, &CONTAINER_REQUESTS), 0);
    }
}
