//! Updates a request after a container has ended: its own, or the one that made it.

use serde_json::json;

use crate::clock;
use crate::collection::content::ManifestContent;
use crate::collection::store;
use crate::container::{cost, priority, request_logs};
use crate::error::Result;
use crate::record::Record;
use crate::schema::{CONTAINER_REQUESTS, CONTAINERS};
use crate::store::transaction::Tx;

/// Whether the container is Complete or Cancelled.
pub fn has_ended(container: &Record) -> bool {
    matches!(container.text("state"), "Complete" | "Cancelled")
}

/// Hands the results of the container over to a request and makes it Final.
pub fn finalize_request(
    tx: &Tx<'_>,
    request: &Record,
    container: Option<&Record>,
) -> Result<Record> {
    let mut done = request
        .clone()
        .with("state", "Final")
        .with("secret_mounts", json!({}))
        .with("runtime_token", "");
    if let Some(container) = container {
        if let Some(log) = request_logs::save(tx, request, container)? {
            done.set("log_uuid", log);
        }
        if has_ended(container) {
            if let Some(output) = output_collection(tx, request, container)? {
                done.set("output_uuid", output);
            }
            done.set("cumulative_cost", cost::cumulative(request, container));
        }
    }
    let done = tx.update_by_server(&CONTAINER_REQUESTS, request, done)?;
    cost::add_to_parent(tx, &done)?;
    Ok(done)
}

fn output_collection(tx: &Tx<'_>, request: &Record, container: &Record) -> Result<Option<String>> {
    let Some(source) = store::find_any_by_pdh(tx.conn, container.text("output"))? else {
        return Ok(None);
    };
    let mut properties = json!({"type": "output", "container_request": request.uuid()});
    for extra in [container, request] {
        let extra = extra.get("output_properties").as_object();
        for (key, value) in extra.into_iter().flatten() {
            properties[key] = value.clone();
        }
    }
    let default_name = format!("Container output for request {}", request.uuid());
    let name = request.some_text("output_name").unwrap_or(&default_name);
    let classes = request.get("output_storage_classes").clone();
    let mut collection = Record::new()
        .with("owner_uuid", request.text("owner_uuid"))
        .with("name", name)
        .with("properties", properties)
        .with("storage_classes_desired", classes);
    let ttl = request.int("output_ttl");
    if ttl > 0 {
        let end = clock::after(std::time::Duration::from_secs(ttl.unsigned_abs()));
        collection
            .set("trash_at", end.as_str())
            .set("delete_at", end);
    }
    let output = ManifestContent::of_stored(&source);
    let created = store::create_from_content(tx, collection, output)?;
    Ok(Some(created.uuid().to_owned()))
}

/// Cancels a request of a container that has ended.
pub fn cancel_child(tx: &Tx<'_>, child: &Record) -> Result<()> {
    let cancelled = child.clone().with("priority", 0);
    let child = tx.update_by_server(&CONTAINER_REQUESTS, child, cancelled)?;
    let Some(uuid) = child.some_text("container_uuid") else {
        return Ok(());
    };
    let container = tx.fetch(&CONTAINERS, uuid)?;
    let state = container.as_ref().map(|container| container.text("state"));
    if matches!(state, None | Some("Queued" | "Locked")) {
        finalize_request(tx, &child, container.as_ref())?;
    }
    priority::refresh(tx, uuid)
}
