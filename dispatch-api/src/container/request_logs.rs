//! The log collections of requests, to which the logs of their containers are added.

use serde_json::json;

use crate::collection::content::{self, ManifestContent};
use crate::collection::store;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{COLLECTIONS, CONTAINER_REQUESTS};
use crate::store::transaction::Tx;

/// Adds the container's current log to the log collection of a request, and returns the request.
pub fn give(tx: &Tx<'_>, request: &Record, container: &Record) -> Result<Record> {
    let Some(log) = save(tx, request, container)? else {
        return Ok(request.clone());
    };
    let updated = request.clone().with("log_uuid", log);
    tx.update_by_server(&CONTAINER_REQUESTS, request, updated)
}

/// Creates or updates the log collection of a request. Logs of earlier attempts stay in it.
pub fn save(tx: &Tx<'_>, request: &Record, container: &Record) -> Result<Option<String>> {
    let Some(source) = store::find_any_by_pdh(tx.conn, container.text("log"))? else {
        return Ok(None);
    };
    let existing = tx.fetch(&COLLECTIONS, request.text("log_uuid"))?;
    let before = existing.as_ref();
    let before = before.map_or("", |log| log.text("manifest_text"));
    let manifest = content::merge_log(before, source.text("manifest_text"), container.uuid());
    if let Some(log) = existing {
        store::replace_content(tx, &log, &manifest)?;
        return Ok(Some(log.uuid().to_owned()));
    }
    let name = format!("Container log for request {}", request.uuid());
    let properties = json!({"type": "log", "container_request": request.uuid()});
    let collection = Record::new()
        .with("owner_uuid", request.text("owner_uuid"))
        .with("name", name)
        .with("properties", properties);
    let content = ManifestContent::parse(&manifest)?;
    let created = store::create_from_content(tx, collection, content)?;
    Ok(Some(created.uuid().to_owned()))
}
