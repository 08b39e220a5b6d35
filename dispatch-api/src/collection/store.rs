//! Creates, updates and finds collections inside a transaction.

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;
use serde_json::{Map, Value};

use super::content::ManifestContent;
use crate::auth::{Caller, permission};
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
    attributes: &Map<String, Value>,
    content: ManifestContent,
    unique_name: bool,
) -> Result<Record> {
    let caller = &caller.without_attempt_privileges();
    let mut collection = patch::apply(&COLLECTIONS, &Record::new(), attributes, &[])?;
    // There is one version only. As in Arvados, what a client says of it has no effect here.
    collection.0.remove("version");
    permission::set_owner(tx.conn, caller, &mut collection)?;
    check_hash("", &collection, &content.pdh)?;
    set_content(&mut collection, content);
    trash::normalise_request(caller.is_admin, &tx.now, &Record::new(), &mut collection)?;
    insert(tx, caller, collection, unique_name)
}

/// Creates a collection for the server itself from stored content, with a unique name.
pub fn create_from_content(
    tx: &Tx<'_>,
    caller: &Caller,
    mut collection: Record,
    content: ManifestContent,
) -> Result<Record> {
    set_content(&mut collection, content);
    insert(tx, caller, collection, true)
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
    tx.config.rules.check_name(collection.text("name"))?;
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
    attributes: &Map<String, Value>,
    content: Option<ManifestContent>,
    options: UpdateOptions<'_>,
) -> Result<Record> {
    let old = permission::require_readable(tx.conn, &COLLECTIONS, caller, uuid)?;
    if trash::is_in_trash(tx.conn, &old, &tx.now)? && !options.include_trash {
        return Err(ApiError::path_not_found());
    }
    permission::require_writable(tx.conn, caller, &old)?;
    patch::check_etag(&old, options.if_match)?;
    let mut new = patch::apply(&COLLECTIONS, &old, attributes, &[])?;
    permission::require_owners(tx.conn, caller, &old, &new)?;
    for name in ["version", "current_version_uuid"] {
        if old.get(name) != new.get(name) {
            return Err(ApiError::invalid(format!("{name} cannot be updated")));
        }
    }
    if old.get("name") != new.get("name") {
        tx.config.rules.check_name(new.text("name"))?;
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

pub fn replace_content(
    tx: &Tx<'_>,
    caller: &Caller,
    old: &Record,
    manifest: &str,
) -> Result<Record> {
    let mut new = old.clone();
    set_content(&mut new, ManifestContent::parse(manifest)?);
    tx.update(&COLLECTIONS, caller, old, new)
}

/// Moves a collection to the trash; expiry deletes it two weeks later.
pub fn trash(tx: &Tx<'_>, caller: &Caller, uuid: &str) -> Result<Record> {
    let old = permission::require_readable(tx.conn, &COLLECTIONS, caller, uuid)?;
    permission::require_writable(tx.conn, caller, &old)?;
    let new = trash::trashed(&old, &tx.now);
    tx.update(&COLLECTIONS, caller, &old, new)
}

pub fn untrash(tx: &Tx<'_>, caller: &Caller, uuid: &str, unique_name: bool) -> Result<Record> {
    let old = permission::require_readable(tx.conn, &COLLECTIONS, caller, uuid)?;
    permission::require_writable(tx.conn, caller, &old)?;
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
        new.set(name, old.get(name).clone());
    }
}

/// A collection with this content that the caller may read.
pub fn find_by_pdh(
    connection: &Connection,
    caller: &Caller,
    pdh: &str,
    include_trash: bool,
) -> Result<Option<Record>> {
    let mut clause = crate::db::filter::Clause::default();
    clause.and("portable_data_hash = ?", [SqlValue::Text(pdh.to_owned())]);
    let now = SqlValue::Text(clock::now());
    if !include_trash {
        clause.and(trash::NOT_TRASHED_SQL, [now.clone()]);
        clause.and(trash::COLLECTION_NOT_IN_TRASH_SQL, [now.clone()]);
    }
    permission::restrict_to_readable(connection, &COLLECTIONS, caller, &mut clause)?;
    let sql = format!(
        "{} ORDER BY is_trashed, NOT {}, modified_at DESC LIMIT 1",
        clause.sql(),
        trash::COLLECTION_NOT_IN_TRASH_SQL
    );
    clause.values.push(now);
    Ok(rows::find(connection, &COLLECTIONS, &sql, &clause.params())?.pop())
}

/// A collection with this content and any owner; only for the server's own copies. None has an
/// empty hash.
pub fn find_any_by_pdh(connection: &Connection, pdh: &str) -> Result<Option<Record>> {
    let clause = "portable_data_hash = ?1 ORDER BY is_trashed LIMIT 1";
    Ok(rows::find(connection, &COLLECTIONS, clause, &[&pdh])?.pop())
}
