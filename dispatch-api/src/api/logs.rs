//! `/arvados/v1/logs`.

use super::resource;
use super::route::Route;
use crate::auth::{Access, Caller};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::{self, LOGS};
use crate::store::transaction::Tx;

/// Maximum size in bytes of a posted log entry.
const MAX_ENTRY_BYTES: usize = 256 * 1024;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "logs", |call, _| resource::list(call, &LOGS)),
    Route::new("POST", "logs", |call, _| {
        let entry = parse_entry(&call.params.attributes(&LOGS)?)?;
        resource::write(call, &LOGS, move |tx, caller| insert(tx, caller, entry))
    }),
    Route::new("GET", "logs/{}", |call, uuid| {
        resource::get(call, &LOGS, uuid)
    }),
];

/// Inserts a posted entry. In Arvados, any user may write an entry about any object, even an
/// unreadable one.
pub fn insert(tx: &Tx<'_>, caller: &Caller, entry: Record) -> Result<Record> {
    if !tx.config.emulate.is_arvados() {
        Access::new(tx.conn, caller).require_loggable(&entry)?;
    }
    tx.insert_log(caller, entry)
}

/// The stored form of a posted entry.
pub fn parse_entry(attributes: &Record) -> Result<Record> {
    let mut attributes = attributes.clone();
    for assigned in ["id", "uuid", "owner_uuid", "object_owner_uuid"] {
        attributes.0.remove(assigned);
    }
    let mut entry = patch::apply(&LOGS, &Record::new(), &attributes, &[])?;
    let sizes = entry
        .0
        .values()
        .map(|field| field.value().to_string().len());
    if sizes.sum::<usize>() > MAX_ENTRY_BYTES {
        return Err(ApiError::invalid(format!(
            "The log entry is larger than {MAX_ENTRY_BYTES} bytes"
        )));
    }
    if let Some(resource) = entry.some_text("object_uuid").and_then(schema::by_uuid) {
        entry.set("object_kind", resource.kind);
    }
    Ok(entry)
}
