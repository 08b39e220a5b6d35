//! Creates, updates and finds collections inside a transaction.

use rusqlite::Connection;

use super::content::ManifestContent;
use crate::auth::{Access, Caller};
use crate::clock;
use crate::db::rows;
use crate::db::trash;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::COLLECTIONS;
use crate::store::transaction::Tx;
use crate::store::unique_name::make_name_unique;

/// Creates a collection from a client's attributes and content.
pub fn create(
    tx: &Tx<'_>,
    caller: &Caller,
    attributes: &Record,
    content: ManifestContent,
    unique_name: bool,
) -> Result<Record> {
    let caller = &caller.without_attempt_privileges();
    let mut collection = patch::apply(&COLLECTIONS, &Record::new(), attributes, &[])?;
    // There is one version only. As in Arvados, what a client says of it has no effect here.
    collection.0.remove("version");
    Access::new(tx.conn, caller).set_owner(&mut collection)?;
    check_hash("", &collection, &content.pdh)?;
    set_content(&mut collection, content);
    trash::normalise_request(caller.is_admin, &tx.now, &Record::new(), &mut collection)?;
    insert(tx, caller, collection, unique_name)
}

/// Creates a collection for the server itself from stored content, with a unique name.
pub fn create_from_content(
    tx: &Tx<'_>,
    mut collection: Record,
    content: ManifestContent,
) -> Result<Record> {
    set_content(&mut collection, content);
    insert(tx, &tx.system, collection, true)
}

fn insert(
    tx: &Tx<'_>,
    caller: &Caller,
    mut collection: Record,
    unique_name: bool,
) -> Result<Record> {
    let uuid = match collection.some_text("uuid").filter(|_| caller.is_admin) {
        Some(uuid) => uuid.to_owned(),
        None => tx.config.new_uuid(&COLLECTIONS),
    };
    tx.config.emulate.check_name(collection.text("name"))?;
    collection
        .set("uuid", uuid.as_str())
        .set("current_version_uuid", uuid);
    if unique_name {
        make_name_unique(tx, &COLLECTIONS, &mut collection)?;
    }
    tx.create(&COLLECTIONS, caller, collection)
}

/// Updates a collection from a client's attributes and, if it is given, content.
pub fn update(
    tx: &Tx<'_>,
    caller: &Caller,
    uuid: &str,
    attributes: &Record,
    content: Option<ManifestContent>,
    options: UpdateOptions<'_>,
) -> Result<Record> {
    let old = Access::new(tx.conn, caller).require_readable(&COLLECTIONS, uuid)?;
    if trash::is_in_trash(tx.conn, &old, &tx.now)? && !options.include_trash {
        return Err(ApiError::path_not_found());
    }
    Access::new(tx.conn, caller).require_writable(&old)?;
    patch::check_etag(&old, options.if_match)?;
    let mut new = patch::apply(&COLLECTIONS, &old, attributes, &[])?;
    Access::new(tx.conn, caller).require_owners(&old, &new)?;
    for name in ["version", "current_version_uuid"] {
        if old.get(name) != new.get(name) {
            return Err(ApiError::invalid(format!("{name} cannot be updated")));
        }
    }
    if old.get("name") != new.get("name") {
        tx.config.emulate.check_name(new.text("name"))?;
    }
    let old_hash = old.text("portable_data_hash");
    let new_hash = content.as_ref().map_or(old_hash, |content| &content.pdh);
    check_hash(old_hash, &new, new_hash)?;
    match content {
        Some(content) => set_content(&mut new, content),
        None => restore_derived(&old, &mut new),
    }
    // As in Arvados, a time of deletion that is too early becomes the earliest one.
    trash::normalise_request(caller.is_admin, &tx.now, &old, &mut new)?;
    if options.unique_name {
        make_name_unique(tx, &COLLECTIONS, &mut new)?;
    }
    tx.update(&COLLECTIONS, caller, &old, new)
}

#[derive(Clone, Copy, Debug, Default)]
pub struct UpdateOptions<'a> {
    pub include_trash: bool,
    pub unique_name: bool,
    pub if_match: Option<&'a str>,
}

pub fn replace_content(tx: &Tx<'_>, old: &Record, manifest: &str) -> Result<Record> {
    let mut new = old.clone();
    set_content(&mut new, ManifestContent::parse(manifest)?);
    tx.update(&COLLECTIONS, &tx.system, old, new)
}

/// Moves a collection to the trash; expiry deletes it two weeks later.
pub fn trash(tx: &Tx<'_>, caller: &Caller, uuid: &str) -> Result<Record> {
    let old = Access::new(tx.conn, caller).require_readable(&COLLECTIONS, uuid)?;
    Access::new(tx.conn, caller).require_writable(&old)?;
    let new = trash::trashed(&old, &tx.now);
    tx.update(&COLLECTIONS, caller, &old, new)
}

pub fn untrash(tx: &Tx<'_>, caller: &Caller, uuid: &str, unique_name: bool) -> Result<Record> {
    let old = Access::new(tx.conn, caller).require_readable(&COLLECTIONS, uuid)?;
    Access::new(tx.conn, caller).require_writable(&old)?;
    trash::require_trashed(&old, &tx.now)?;
    let mut new = trash::restored(&old);
    if unique_name {
        make_name_unique(tx, &COLLECTIONS, &mut new)?;
    }
    tx.update(&COLLECTIONS, caller, &old, new)
}

/// Rejects a hash that a client sent and that the content has not. As in Arvados, the size in it
/// is not compared, and `old` may be sent back with another content.
fn check_hash(old: &str, sent: &Record, computed: &str) -> Result<()> {
    let sent = sent.text("portable_data_hash");
    let hash_of = |pdh| str::split(pdh, '+').next();
    match sent.is_empty() || sent == old || hash_of(sent) == hash_of(computed) {
        true => Ok(()),
        false => Err(ApiError::invalid(format!(
            "Portable data hash '{sent}' does not match computed hash '{computed}'"
        ))),
    }
}

fn set_content(collection: &mut Record, content: ManifestContent) {
    collection
        .set("manifest_text", content.text)
        .set("unsigned_manifest_text", "")
        .set("portable_data_hash", content.pdh)
        .set("file_count", content.file_count)
        .set("file_size_total", content.total_size);
}

/// Restores the attributes that only a manifest determines.
fn restore_derived(old: &Record, new: &mut Record) {
    const DERIVED_ATTRIBUTES: [&str; 4] = [
        "portable_data_hash",
        "unsigned_manifest_text",
        "file_count",
        "file_size_total",
    ];
    for name in DERIVED_ATTRIBUTES {
        new.copy(name, old);
    }
}

/// Statement for the newest copies of the content `?1` in one place, those in the trash last. `?3`
/// is the time now.
fn copies_sql(place: &str, include_trash: bool, limit: i64) -> String {
    let trash = match include_trash {
        true => "?3 IS NOT NULL",
        false => "is_trashed = 0 AND (trash_at IS NULL OR trash_at > ?3)",
    };
    format!(
        "SELECT uuid, owner_uuid, is_trashed, modified_at FROM collections \
         WHERE portable_data_hash = ?1 AND {place} AND {trash} \
         ORDER BY is_trashed, modified_at DESC LIMIT {limit}"
    )
}

/// The uuid of the newest collection with this content that the caller may read.
pub fn find_by_pdh(
    connection: &Connection,
    caller: &Caller,
    pdh: &str,
    include_trash: bool,
) -> Result<Option<String>> {
    let now = clock::now();
    let mut newest = None;
    for (place, value, limit) in Access::new(connection, caller).places_of_content(pdh)? {
        let mut copies = connection.prepare_cached(&copies_sql(place, include_trash, limit))?;
        let mut rows = copies.query((pdh, &value, &now))?;
        while let Some(row) = rows.next()? {
            let (uuid, owner): (String, String) = (row.get(0)?, row.get(1)?);
            let is_trashed: bool = row.get(2)?;
            let in_trash = trash::is_owner_in_trash(connection, &owner, &now)?;
            if in_trash && !include_trash {
                continue;
            }
            let modified_at: String = row.get(3)?;
            newest = newest.max(Some((!is_trashed, !in_trash, modified_at, uuid)));
            break;
        }
    }
    Ok(newest.map(|(_, _, _, uuid)| uuid))
}

/// A collection with this content and any owner; only for the server's own copies. None has an
/// empty hash.
pub fn find_any_by_pdh(connection: &Connection, pdh: &str) -> Result<Option<Record>> {
    Ok(rows::find(
        connection,
        &COLLECTIONS,
        "portable_data_hash = ?1 LIMIT 1",
        &[&pdh],
    )?
    .pop())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever makes 100,000 collections of one content must not hold up those who use it.
    #[test]
    fn the_newest_copy_of_an_owner_is_found_in_the_order_of_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&dir.path().join("state.db")).unwrap();
        for include_trash in [false, true] {
            let sql = copies_sql("owner_uuid = ?2", include_trash, 1);
            let mut plan = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .unwrap();
            let steps = plan.query_map(["x", "y", "z"], |row| row.get(3)).unwrap();
            let steps: Vec<String> = steps.map(|step| step.unwrap()).collect();
            let seek = "collections_pdh (portable_data_hash=? AND owner_uuid=?";
            assert!(steps.len() == 1 && steps[0].contains(seek), "{steps:?}");
        }
    }
}
