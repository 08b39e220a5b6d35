//! Periodic deletion: moves expired collections and projects to the trash, deletes trashed ones,
//! and prunes log entries, tokens and expiry overrides.
//!
//! One call handles one small batch, so that other writes wait only briefly.

use std::time::Duration;

use crate::clock;
use crate::db::rows;
use crate::error::Result;
use crate::garbage;
use crate::project;
use crate::schema::{COLLECTIONS, GROUPS, Resource};
use crate::store::transaction::Tx;

/// Maximum number of rows that one batch handles per kind of record.
const BATCH_ROWS: i64 = 200;
/// Age and number up to which log entries are kept.
const LOG_RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);
const MAX_LOGS: i64 = 200_000;
/// Time for which expired tokens can still be looked up.
const EXPIRED_TOKEN_RETENTION: Duration = Duration::from_secs(14 * 24 * 3600);

/// Result of one batch.
#[derive(Debug, Default)]
pub struct BatchResult {
    /// Whether another batch should follow immediately.
    pub more: bool,
    /// Uuids of attempt tokens whose override was deleted.
    pub removed_overrides: Vec<String>,
}

pub fn run_batch(tx: &Tx<'_>) -> Result<BatchResult> {
    let mut handled = 0;
    handled += trash_expired(tx, &COLLECTIONS)?;
    handled += delete_expired(tx)?;
    handled += trash_expired(tx, &GROUPS)?;
    handled += project::delete_expired(tx, BATCH_ROWS)?;
    handled += prune(
        tx,
        "DELETE FROM logs WHERE id IN (SELECT id FROM logs WHERE created_at < ?1 ORDER BY id LIMIT ?2)",
        &clock::before(LOG_RETENTION),
    )?;
    handled += prune_extra_logs(tx)?;
    handled += prune(
        tx,
        "DELETE FROM api_client_authorizations WHERE uuid IN \
         (SELECT uuid FROM api_client_authorizations WHERE expires_at < ?1 LIMIT ?2)",
        &clock::before(EXPIRED_TOKEN_RETENTION),
    )?;
    let removed_overrides = remove_expired_overrides(tx)?;
    Ok(BatchResult {
        more: handled > 0,
        removed_overrides,
    })
}

/// Moves collections or projects to the trash whose time has come. Returns how many.
fn trash_expired(tx: &Tx<'_>, resource: &'static Resource) -> Result<usize> {
    let due = "is_trashed = 0 AND trash_at <= ?1 LIMIT ?2";
    let due = rows::find(tx.conn, resource, due, &[&tx.now, &BATCH_ROWS])?;
    for record in &due {
        let trashed = record.clone().with("is_trashed", true);
        tx.update_derived(resource, record, trashed)?;
    }
    Ok(due.len())
}

fn delete_expired(tx: &Tx<'_>) -> Result<usize> {
    let mut any = tx
        .conn
        .prepare_cached("SELECT 1 FROM collections WHERE delete_at <= ?1")?;
    if !any.exists([&tx.now])? {
        return Ok(0);
    }
    let in_use = garbage::content_in_use(tx.conn)?;
    let due = rows::find_up_to(
        tx.conn,
        &COLLECTIONS,
        "delete_at <= ?1 AND portable_data_hash NOT IN (SELECT value FROM json_each(?2)) LIMIT ?3",
        &[&tx.now, &in_use, &BATCH_ROWS],
        project::MAX_BATCH_BYTES,
    )?;
    for collection in &due {
        tx.delete(&COLLECTIONS, &tx.system, collection)?;
    }
    Ok(due.len())
}

fn prune(tx: &Tx<'_>, sql: &str, before: &str) -> Result<usize> {
    Ok(tx.conn.prepare_cached(sql)?.execute((before, BATCH_ROWS))?)
}

fn prune_extra_logs(tx: &Tx<'_>) -> Result<usize> {
    let sql = "DELETE FROM logs WHERE id IN (SELECT id FROM logs \
               WHERE id <= (SELECT max(id) FROM logs) - ?1 ORDER BY id LIMIT ?2)";
    Ok(tx
        .conn
        .prepare_cached(sql)?
        .execute((MAX_LOGS, BATCH_ROWS * 10))?)
}

fn remove_expired_overrides(tx: &Tx<'_>) -> Result<Vec<String>> {
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
    use crate::auth::Identity;
    use crate::record::Record;
    use crate::schema::{CONTAINERS, TOKENS};
    use crate::store::cluster_config::ClusterConfig;
    use crate::store::revocation;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn what_has_reached_its_end_goes_and_the_rest_stays() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let config = ClusterConfig::for_tests();
        let tx = Tx::new(&connection, &config);
        let caller = Identity::system(config.system_user());
        let collection = |name: &str, trash_at: String, delete_at: String| {
            let uuid = config.new_uuid(&COLLECTIONS);
            let record = Record::new()
                .with("uuid", uuid.as_str())
                .with("current_version_uuid", uuid)
                .with("name", name)
                .with("portable_data_hash", name)
                .with("trash_at", trash_at)
                .with("delete_at", delete_at);
            tx.create(&COLLECTIONS, &caller, record)
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
            tx.create(&TOKENS, &caller, record).unwrap()
        };
        let recent = token("recent", clock::before(DAY));
        let old = token("old", clock::before(EXPIRED_TOKEN_RETENTION + DAY));
        revocation::set_expiry_override(&tx, &recent, Some(clock::after(DAY))).unwrap();
        revocation::set_expiry_override(&tx, &old, Some(clock::before(DAY))).unwrap();

        // A container that runs names it.
        let needed = collection("needed", clock::before(2 * DAY), clock::before(DAY));
        let container = Record::new()
            .with("state", "Running")
            .with("container_image", "needed");
        tx.create(&CONTAINERS, &caller, container).unwrap();

        let result = run_batch(&tx).unwrap();
        assert!(result.more);
        assert_eq!(result.removed_overrides, [old.uuid()]);
        let trashed = |uuid: &str| {
            tx.fetch(&COLLECTIONS, uuid)
                .unwrap()
                .map(|collection| collection.bool("is_trashed"))
        };
        assert_eq!(trashed(&fresh), Some(false));
        assert_eq!(trashed(&due), Some(true));
        assert_eq!(trashed(&gone), None);
        assert_eq!(trashed(&needed), Some(true));
        assert!(tx.fetch(&TOKENS, recent.uuid()).unwrap().is_some());
        assert!(tx.fetch(&TOKENS, old.uuid()).unwrap().is_none());
        assert!(
            !run_batch(&tx).unwrap().more,
            "a second round finds nothing"
        );
    }
}
