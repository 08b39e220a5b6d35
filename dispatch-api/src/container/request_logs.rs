//! The log collections of requests, to which the logs of their containers are added.

use serde_json::json;

use crate::auth::{Caller, Identity};
use crate::collection::content::{self, ManifestContent};
use crate::collection::store;
use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{COLLECTIONS, CONTAINER_REQUESTS};
use crate::store::transaction::Tx;

/// The committed requests with this uuid in an attribute.
pub fn committed(tx: &Tx<'_>, attribute: &str, uuid: &str) -> Result<Vec<Record>> {
    let clause = format!("{attribute} = ?1 AND state = 'Committed' ORDER BY created_at, uuid");
    rows::find(tx.conn, &CONTAINER_REQUESTS, &clause, &[&uuid])
}

/// Adds the container's current log to the log collection of every committed request.
pub fn update(tx: &Tx<'_>, container: &Record) -> Result<()> {
    let system = Identity::system(tx.config.system_user());
    for request in committed(tx, "container_uuid", container.uuid())? {
        if let Some(log) = save(tx, &system, &request, container)? {
            let updated = request.clone().with("log_uuid", log);
            tx.update_by_server(&CONTAINER_REQUESTS, &system, &request, updated)?;
        }
    }
    Ok(())
}

/// Creates or updates the log collection of a request. Logs of earlier attempts stay in it.
pub fn save(
    tx: &Tx<'_>,
    system: &Caller,
    request: &Record,
    container: &Record,
) -> Result<Option<String>> {
    let Some(source) = store::find_any_by_pdh(tx.conn, container.text("log"))? else {
        return Ok(None);
    };
    let existing = tx.fetch(&COLLECTIONS, request.text("log_uuid"))?;
    let before = existing.as_ref();
    let before = before.map_or("", |log| log.text("manifest_text"));
    let manifest = content::merge_log(before, source.text("manifest_text"), container.uuid());
    if let Some(log) = existing {
        store::replace_content(tx, system, &log, &manifest)?;
        return Ok(Some(log.uuid().to_owned()));
    }
    let name = format!("Container log for request {}", request.uuid());
    let properties = json!({"type": "log", "container_request": request.uuid()});
    let collection = Record::new()
        .with("owner_uuid", request.text("owner_uuid"))
        .with("name", name)
        .with("properties", properties);
    let content = ManifestContent::parse(&manifest)?;
    let created = store::create_from_content(tx, system, collection, content)?;
    Ok(Some(created.uuid().to_owned()))
}
