//! Creating, changing and finding collections inside a transaction.

use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Map, Value, json};

use super::content::{self, Content};
use crate::api::changes;
use crate::auth::{Caller, permission};
use crate::clock;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::COLLECTIONS;
use crate::tx::Tx;

/// How long a trashed collection is kept: two weeks.
pub const TRASH_LIFETIME: Duration = Duration::from_secs(14 * 24 * 3600);

pub fn in_trash(collection: &Record, now: &str) -> bool {
    collection.bool("is_trashed") || collection.some_text("trash_at").is_some_and(|at| at <= now)
}

/// POST of a collection.
pub fn create(
    tx: &Tx<'_>,
    who: &Caller,
    attributes: &Map<String, Value>,
    unique_name: bool,
) -> Result<Record> {
    let who = &who.beyond_container();
    let mut collection = changes::apply(&COLLECTIONS, &Record::new(), attributes, &[])?;
    let owner = collection
        .some_text("owner_uuid")
        .unwrap_or(&who.user_uuid)
        .to_owned();
    if !permission::may_write(tx.conn, who, &owner)? {
        return Err(ApiError::denied());
    }
    collection.set("owner_uuid", owner);
    let manifest = collection.text("manifest_text").to_owned();
    take_content(tx, who, &mut collection, &manifest)?;
    settle_trash(tx, &Record::new(), &mut collection);
    insert(tx, who, collection, unique_name)
}

/// A collection made by the server itself from content it already has; its name is made unique.
pub fn create_from(
    tx: &Tx<'_>,
    who: &Caller,
    mut collection: Record,
    manifest: &str,
) -> Result<Record> {
    set_content(&mut collection, Content::parse(manifest)?);
    insert(tx, who, collection, true)
}

fn insert(tx: &Tx<'_>, who: &Caller, mut collection: Record, unique_name: bool) -> Result<Record> {
    let uuid = match collection.some_text("uuid").filter(|_| who.is_admin) {
        Some(uuid) => uuid.to_owned(),
        None => tx.setting.new_uuid(&COLLECTIONS),
    };
    tx.setting.rules.check_name(collection.text("name"))?;
    collection
        .set("uuid", uuid.as_str())
        .set("current_version_uuid", uuid);
    if unique_name {
        make_name_unique(tx, &mut collection)?;
    }
    tx.create(&COLLECTIONS, who, collection)
}

/// PUT or PATCH of a collection.
pub fn update(
    tx: &Tx<'_>,
    who: &Caller,
    uuid: &str,
    attributes: &Map<String, Value>,
    options: Options<'_>,
) -> Result<Record> {
    let old = permission::must_read(tx.conn, &COLLECTIONS, who, uuid)?;
    if in_trash(&old, &tx.now) && !options.include_trash {
        return Err(ApiError::path_not_found());
    }
    permission::must_write(tx.conn, who, &old)?;
    changes::check_etag(&old, options.if_match)?;
    let mut new = changes::apply(&COLLECTIONS, &old, attributes, &[])?;
    permission::must_write(tx.conn, who, &new)?;
    if old.get("name") != new.get("name") {
        tx.setting.rules.check_name(new.text("name"))?;
    }
    if attributes.contains_key("manifest_text") {
        let manifest = new.text("manifest_text").to_owned();
        take_content(tx, who, &mut new, &manifest)?;
    } else {
        keep_content(&old, &mut new);
    }
    settle_trash(tx, &old, &mut new);
    if options.unique_name {
        make_name_unique(tx, &mut new)?;
    }
    tx.update(&COLLECTIONS, who, &old, new)
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    pub include_trash: bool,
    pub unique_name: bool,
    pub if_match: Option<&'a str>,
}

pub fn replace_content(tx: &Tx<'_>, who: &Caller, old: &Record, manifest: &str) -> Result<Record> {
    let mut new = old.clone();
    set_content(&mut new, Content::parse(manifest)?);
    tx.update(&COLLECTIONS, who, old, new)
}

/// DELETE and `trash`: into the trash, from where it is deleted two weeks later.
pub fn trash(tx: &Tx<'_>, who: &Caller, uuid: &str) -> Result<Record> {
    let old = permission::must_read(tx.conn, &COLLECTIONS, who, uuid)?;
    permission::must_write(tx.conn, who, &old)?;
    let mut new = old.clone().with("is_trashed", true);
    settle_trash(tx, &old, &mut new);
    tx.update(&COLLECTIONS, who, &old, new)
}

pub fn untrash(tx: &Tx<'_>, who: &Caller, uuid: &str, unique_name: bool) -> Result<Record> {
    let old = permission::must_read(tx.conn, &COLLECTIONS, who, uuid)?;
    permission::must_write(tx.conn, who, &old)?;
    let mut new = old
        .clone()
        .with("is_trashed", false)
        .with("trash_at", Value::Null)
        .with("delete_at", Value::Null);
    if unique_name {
        make_name_unique(tx, &mut new)?;
    }
    tx.update(&COLLECTIONS, who, &old, new)
}

/// Take a client's manifest: only blocks he may read, unless he is an administrator.
fn take_content(tx: &Tx<'_>, who: &Caller, collection: &mut Record, manifest: &str) -> Result<()> {
    if !who.is_admin {
        content::check_signatures(manifest, &tx.setting.blob_signing_key, &who.presented)?;
    }
    set_content(collection, Content::parse(manifest)?);
    Ok(())
}

fn set_content(collection: &mut Record, content: Content) {
    collection
        .set("manifest_text", content.text)
        .set("unsigned_manifest_text", "")
        .set("portable_data_hash", content.pdh)
        .set("file_count", content.file_count)
        .set("file_size_total", content.total_size);
}

/// What follows from the manifest cannot be changed without it.
fn keep_content(old: &Record, new: &mut Record) {
    const DERIVED: [&str; 5] = [
        "portable_data_hash",
        "unsigned_manifest_text",
        "file_count",
        "file_size_total",
        "version",
    ];
    for name in DERIVED {
        new.set(name, old.get(name).clone());
    }
}

/// `is_trashed`, `trash_at` and `delete_at` made to agree, whichever of them was given.
fn settle_trash(tx: &Tx<'_>, old: &Record, new: &mut Record) {
    let turned = |name: &str| old.get(name) != new.get(name);
    let now = tx.now.as_str();
    if new.bool("is_trashed") && new.some_text("trash_at").is_none_or(|at| at > now) {
        new.set("trash_at", now);
    } else if turned("is_trashed") && !new.bool("is_trashed") && !turned("trash_at") {
        new.set("trash_at", Value::Null)
            .set("delete_at", Value::Null);
    }
    match new.some_text("trash_at").map(str::to_owned) {
        None => {
            new.set("is_trashed", false).set("delete_at", Value::Null);
        }
        Some(at) => {
            let trashed = at.as_str() <= now;
            new.set("is_trashed", trashed);
            if new
                .some_text("delete_at")
                .is_none_or(|delete| delete < at.as_str())
            {
                let delete = clock::parse(&at)
                    .and_then(|at| at.checked_add(TRASH_LIFETIME).ok())
                    .map(clock::stamp);
                new.set("delete_at", json!(delete));
            }
        }
    }
}

/// Add a suffix to the name if another collection of the same owner has it.
fn make_name_unique(tx: &Tx<'_>, collection: &mut Record) -> Result<()> {
    let Some(name) = collection.some_text("name").map(str::to_owned) else {
        return Ok(());
    };
    let mut taken = tx.conn.prepare_cached(
        "SELECT 1 FROM collections WHERE owner_uuid = ?1 AND name = ?2 AND is_trashed = 0 AND uuid <> ?3",
    )?;
    let owner = collection.text("owner_uuid").to_owned();
    let uuid = collection.uuid().to_owned();
    let mut candidate = name.clone();
    let mut round = 0;
    while taken.exists([&owner, &candidate, &uuid])? {
        round += 1;
        candidate = match round {
            1 => format!("{name} ({})", tx.now),
            _ => format!("{name} ({} {round})", tx.now),
        };
    }
    collection.set("name", candidate);
    Ok(())
}

/// A collection with this content that the caller may read.
pub fn find_by_pdh(
    connection: &Connection,
    who: &Caller,
    pdh: &str,
    include_trash: bool,
) -> Result<Option<Record>> {
    let mut clause = crate::db::filter::Clause::default();
    clause.and(
        "portable_data_hash = ?",
        [rusqlite::types::Value::Text(pdh.to_owned())],
    );
    if !include_trash {
        clause.and(
            "is_trashed = 0 AND (trash_at IS NULL OR trash_at > ?)",
            [rusqlite::types::Value::Text(clock::now())],
        );
    }
    permission::restrict(connection, &COLLECTIONS, who, &mut clause)?;
    let values: Vec<&dyn rusqlite::ToSql> = clause
        .values
        .iter()
        .map(|value| value as &dyn rusqlite::ToSql)
        .collect();
    let sql = format!(
        "{} ORDER BY is_trashed, modified_at DESC LIMIT 1",
        clause.sql()
    );
    Ok(rows::find(connection, &COLLECTIONS, &sql, &values)?.pop())
}

/// A collection with this content whoever owns it; for the server's own copies only.
pub fn any_by_pdh(connection: &Connection, pdh: &str) -> Result<Option<Record>> {
    Ok(rows::find(
        connection,
        &COLLECTIONS,
        "portable_data_hash = ?1 ORDER BY is_trashed LIMIT 1",
        &[&pdh],
    )?
    .pop())
}
