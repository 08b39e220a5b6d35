//! Housekeeping: what has reached its end is put into the trash, deleted, or forgotten. Done in small
//! pieces, so that no write waits long behind it.

use std::time::Duration;

use crate::auth::Identity;
use crate::clock;
use crate::db::rows;
use crate::error::Result;
use crate::schema::COLLECTIONS;
use crate::tx::Tx;

/// Rows handled in one piece.
const PIECE: i64 = 200;
/// Log entries are kept this long, and never more than this many.
const LOG_AGE: Duration = Duration::from_secs(14 * 24 * 3600);
const LOG_COUNT: i64 = 200_000;
/// Expired tokens can be looked up this long.
const TOKEN_AGE: Duration = Duration::from_secs(14 * 24 * 3600);

/// What one round of housekeeping did.
#[derive(Debug, Default)]
pub struct Swept {
    /// There may be more to do at once.
    pub more: bool,
    /// Attempt tokens that need no override any more.
    pub forgotten: Vec<String>,
}

pub fn sweep(tx: &Tx<'_>) -> Result<Swept> {
    let mut handled = 0;
    handled += trash_due(tx)?;
    handled += delete_due(tx)?;
    handled += prune(
        tx,
        "DELETE FROM logs WHERE id IN (SELECT id FROM logs WHERE created_at < ?1 ORDER BY id LIMIT ?2)",
        &clock::before(LOG_AGE),
    )?;
    handled += prune_extra_logs(tx)?;
    handled += prune(
        tx,
        "DELETE FROM api_client_authorizations WHERE uuid IN \
         (SELECT uuid FROM api_client_authorizations WHERE expires_at < ?1 LIMIT ?2)",
        &clock::before(TOKEN_AGE),
    )?;
    let forgotten = forget_overrides(tx)?;
    Ok(Swept {
        more: handled > 0,
        forgotten,
    })
}

fn trash_due(tx: &Tx<'_>) -> Result<usize> {
    let system = Identity::system(tx.setting.system_user());
    let due = rows::find(
        tx.conn,
        &COLLECTIONS,
        "is_trashed = 0 AND trash_at <= ?1 LIMIT ?2",
        &[&tx.now, &PIECE],
    )?;
    for collection in &due {
        let trashed = collection.clone().with("is_trashed", true);
        tx.update_quietly(&COLLECTIONS, &system, collection, &trashed)?;
    }
    Ok(due.len())
}

fn delete_due(tx: &Tx<'_>) -> Result<usize> {
    let system = Identity::system(tx.setting.system_user());
    let due = rows::find(
        tx.conn,
        &COLLECTIONS,
        "delete_at <= ?1 LIMIT ?2",
        &[&tx.now, &PIECE],
    )?;
    for collection in &due {
        tx.delete(&COLLECTIONS, &system, collection)?;
    }
    Ok(due.len())
}

fn prune(tx: &Tx<'_>, sql: &str, before: &str) -> Result<usize> {
    Ok(tx.conn.prepare_cached(sql)?.execute((before, PIECE))?)
}

fn prune_extra_logs(tx: &Tx<'_>) -> Result<usize> {
    let sql = "DELETE FROM logs WHERE id IN (SELECT id FROM logs \
               WHERE id <= (SELECT max(id) FROM logs) - ?1 ORDER BY id LIMIT ?2)";
    Ok(tx
        .conn
        .prepare_cached(sql)?
        .execute((LOG_COUNT, PIECE * 10))?)
}

fn forget_overrides(tx: &Tx<'_>) -> Result<Vec<String>> {
    let mut statement = tx.conn.prepare_cached(
        "DELETE FROM attempt_overrides WHERE signed_until < ?1 AND expires_at < ?1 RETURNING uuid",
    )?;
    let uuids = statement
        .query_map([&clock::before(Duration::from_secs(3600))], |row| {
            row.get(0)
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(uuids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::lifetime;
    use crate::record::Record;
    use crate::schema::TOKENS;
    use crate::tx::Setting;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn what_has_reached_its_end_goes_and_the_rest_stays() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let setting = Setting::of_a_test();
        let tx = Tx::new(&connection, &setting);
        let who = Identity::system(setting.system_user());
        let collection = |name: &str, trash_at: String, delete_at: String| {
            let uuid = setting.new_uuid(&COLLECTIONS);
            let record = Record::new()
                .with("uuid", uuid.as_str())
                .with("current_version_uuid", uuid)
                .with("name", name)
                .with("portable_data_hash", "x")
                .with("trash_at", trash_at)
                .with("delete_at", delete_at);
            tx.create(&COLLECTIONS, &who, record)
                .unwrap()
                .uuid()
                .to_owned()
        };
        let fresh = collection("fresh", clock::after(DAY), clock::after(2 * DAY));
        let due = collection("due", clock::before(DAY), clock::after(DAY));
        let gone = collection("gone", clock::before(2 * DAY), clock::before(DAY));
        let token = |name: &str, expires_at: String| {
            let record = Record::new()
                .with("api_token", name)
                .with("expires_at", expires_at);
            tx.create(&TOKENS, &who, record).unwrap()
        };
        let recent = token("recent", clock::before(DAY));
        let old = token("old", clock::before(TOKEN_AGE + DAY));
        lifetime::override_expiry(&tx, &recent, Some(clock::after(DAY))).unwrap();
        lifetime::override_expiry(&tx, &old, Some(clock::before(DAY))).unwrap();

        let swept = sweep(&tx).unwrap();
        assert!(swept.more);
        assert_eq!(swept.forgotten, [old.uuid()]);
        let trashed = |uuid: &str| {
            tx.fetch(&COLLECTIONS, uuid)
                .unwrap()
                .map(|collection| collection.bool("is_trashed"))
        };
        assert_eq!(trashed(&fresh), Some(false));
        assert_eq!(trashed(&due), Some(true));
        assert_eq!(trashed(&gone), None);
        assert!(tx.fetch(&TOKENS, recent.uuid()).unwrap().is_some());
        assert!(tx.fetch(&TOKENS, old.uuid()).unwrap().is_none());
        assert!(!sweep(&tx).unwrap().more, "a second round finds nothing");
    }
}
