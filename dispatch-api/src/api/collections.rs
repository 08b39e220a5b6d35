//! `/arvados/v1/collections`.

use serde_json::Value;

use super::{Call, Reply, resource};
use crate::auth::permission;
use crate::clock;
use crate::collection::{content, store};
use crate::container::image::is_pdh;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::COLLECTIONS;

pub fn route(call: &Call, verb: &str, rest: &[&str]) -> Result<Reply> {
    match (verb, rest) {
        ("GET", []) => resource::list(call, &COLLECTIONS, |record| sign(call, record)),
        ("POST", []) => create(call),
        ("GET", [name]) if is_pdh(name) => by_pdh(call, name),
        ("GET", [uuid]) => by_uuid(call, uuid),
        ("PUT", [uuid]) => update(call, uuid),
        ("DELETE", [uuid]) | ("POST", [uuid, "trash"]) => {
            let (who, uuid) = (call.who.clone(), (*uuid).to_owned());
            let trashed = call.app.write(move |tx| store::trash(tx, &who, &uuid))?;
            show(call, trashed)
        }
        ("POST", [uuid, "untrash"]) => {
            let unique = call.params.flag("ensure_unique_name");
            let (who, uuid) = (call.who.clone(), (*uuid).to_owned());
            let back = call
                .app
                .write(move |tx| store::untrash(tx, &who, &uuid, unique))?;
            show(call, back)
        }
        _ => Err(ApiError::path_not_found()),
    }
}

fn create(call: &Call) -> Result<Reply> {
    let attributes = call.params.attributes(&COLLECTIONS)?;
    let unique = call.params.flag("ensure_unique_name");
    let who = call.who.clone();
    let made = call
        .app
        .write(move |tx| store::create(tx, &who, &attributes, unique))?;
    show(call, made)
}

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&COLLECTIONS)?;
    let include_trash = call.params.flag("include_trash");
    let unique_name = call.params.flag("ensure_unique_name");
    let (who, uuid, etag) = (call.who.clone(), uuid.to_owned(), call.if_match.clone());
    let updated = call.app.write(move |tx| {
        let options = store::Options {
            include_trash,
            unique_name,
            if_match: etag.as_deref(),
        };
        store::update(tx, &who, &uuid, &attributes, options)
    })?;
    show(call, updated)
}

fn by_uuid(call: &Call, uuid: &str) -> Result<Reply> {
    let record = call
        .app
        .readers
        .read(|connection| permission::must_read(connection, &COLLECTIONS, &call.who, uuid))?;
    if store::in_trash(&record, &clock::now()) && !call.params.flag("include_trash") {
        return Err(ApiError::path_not_found());
    }
    show(call, record)
}

/// By content: which collection it came from is nobody's business, so little more than the content is shown.
fn by_pdh(call: &Call, pdh: &str) -> Result<Reply> {
    let trash = call.params.flag("include_trash");
    let found = call
        .app
        .readers
        .read(|connection| store::find_by_pdh(connection, &call.who, pdh, trash))?
        .ok_or_else(|| ApiError::NotFound("not found".into()))?;
    let mut shown = Record::new()
        .with("uuid", pdh)
        .with("properties", Value::Null)
        .with("owner_uuid", "")
        .with("row_version", 1);
    for name in [
        "portable_data_hash",
        "manifest_text",
        "file_count",
        "file_size_total",
        "is_trashed",
        "trash_at",
        "delete_at",
    ] {
        shown.set(name, found.get(name).clone());
    }
    show(call, shown)
}

fn show(call: &Call, mut record: Record) -> Result<Reply> {
    sign(call, &mut record);
    resource::show(call, &COLLECTIONS, &record)
}

/// Readers get signatures for their own token; what lies in the trash is shown unsigned.
fn sign(call: &Call, record: &mut Record) {
    if store::in_trash(record, &clock::now()) {
        return;
    }
    let Some(text) = record.some_text("manifest_text") else {
        return;
    };
    let signed = content::signed(
        text,
        &call.app.setting.blob_signing_key,
        &call.who.presented,
    );
    record.set("manifest_text", signed);
}
