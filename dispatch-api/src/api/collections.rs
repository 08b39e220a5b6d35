//! `/arvados/v1/collections`.

use serde_json::{Map, Value};

use super::call::{Call, Reply};
use super::resource;
use super::route::Route;
use crate::auth::permission;
use crate::blocks::sweep::Hold;
use crate::clock;
use crate::collection::content::ManifestContent;
use crate::collection::store;
use crate::container::image::is_pdh;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::COLLECTIONS;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "collections", |call, _| {
        resource::list(call, &COLLECTIONS, |record| sign(call, record))
    }),
    Route::new("POST", "collections", |call, _| create(call)),
    Route::new("GET", "collections/{}", |call, name| match is_pdh(name) {
        true => by_pdh(call, name),
        false => by_uuid(call, name),
    }),
    Route::new("PUT", "collections/{}", update),
    Route::new("DELETE", "collections/{}", trash),
    Route::new("POST", "collections/{}/trash", trash),
    Route::new("POST", "collections/{}/untrash", untrash),
];

fn trash(call: &Call, uuid: &str) -> Result<Reply> {
    let (caller, uuid) = (call.caller.clone(), uuid.to_owned());
    let trashed = call.app.write(move |tx| store::trash(tx, &caller, &uuid))?;
    show(call, trashed)
}

fn untrash(call: &Call, uuid: &str) -> Result<Reply> {
    let unique = call.params.flag("ensure_unique_name");
    let (caller, uuid) = (call.caller.clone(), uuid.to_owned());
    let back = call
        .app
        .write(move |tx| store::untrash(tx, &caller, &uuid, unique))?;
    show(call, back)
}

fn create(call: &Call) -> Result<Reply> {
    let mut attributes = call.params.attributes(&COLLECTIONS)?;
    // Until the collection is committed.
    let hold = call.app.blocks.hold();
    let content = match take_content(call, &mut attributes, &hold)? {
        Some(content) => content,
        None => ManifestContent::parse("")?,
    };
    let unique = call.params.flag("ensure_unique_name");
    let caller = call.caller.clone();
    let created = call
        .app
        .write(move |tx| store::create(tx, &caller, &attributes, content, unique))?;
    show(call, created)
}

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let mut attributes = call.params.attributes(&COLLECTIONS)?;
    let hold = call.app.blocks.hold();
    let content = take_content(call, &mut attributes, &hold)?;
    let include_trash = call.params.flag("include_trash");
    let unique_name = call.params.flag("ensure_unique_name");
    let (caller, uuid, etag) = (call.caller.clone(), uuid.to_owned(), call.if_match.clone());
    let updated = call.app.write(move |tx| {
        let options = store::UpdateOptions {
            include_trash,
            unique_name,
            if_match: etag.as_deref(),
        };
        store::update(tx, &caller, &uuid, &attributes, content, options)
    })?;
    show(call, updated)
}

fn take_content(
    call: &Call,
    attributes: &mut Map<String, Value>,
    hold: &Hold<'_>,
) -> Result<Option<ManifestContent>> {
    let signer = &call.app.config.block_signer;
    let content = ManifestContent::take_from_client(attributes, signer, &call.caller)?;
    // Administrators may name blocks that are stored elsewhere, and so may all in Arvados.
    let must_exist =
        call.app.config.rules.extensions && !call.caller.without_attempt_privileges().is_admin;
    if let Some(content) = &content {
        call.app.blocks.refer_to(&content.text, must_exist, hold)?;
    }
    Ok(content)
}

fn by_uuid(call: &Call, uuid: &str) -> Result<Reply> {
    let record = call.app.readers.read(|connection| {
        permission::require_readable(connection, &COLLECTIONS, &call.caller, uuid)
    })?;
    if store::is_in_trash(&record, &clock::now()) && !call.params.flag("include_trash") {
        return Err(ApiError::path_not_found());
    }
    show(call, record)
}

/// A collection by content hash. The caller may not learn which collection has this content, so
/// only few attributes are shown.
fn by_pdh(call: &Call, pdh: &str) -> Result<Reply> {
    let trash = call.params.flag("include_trash");
    let found = call
        .app
        .readers
        .read(|connection| store::find_by_pdh(connection, &call.caller, pdh, trash))?
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

/// Signs the manifest for the caller's token. Manifests of trashed collections stay unsigned.
fn sign(call: &Call, record: &mut Record) {
    if store::is_in_trash(record, &clock::now()) {
        return;
    }
    let Some(text) = record.some_text("manifest_text") else {
        return;
    };
    let signer = &call.app.config.block_signer;
    let signed = signer.sign(text, &call.caller.presented_token);
    record.set("manifest_text", signed);
}
