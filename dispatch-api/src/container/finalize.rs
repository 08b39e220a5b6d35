//! Updates requests after their container has ended: hands over results, or retries.

use serde_json::json;

use crate::auth::{Caller, Identity};
use crate::clock;
use crate::collection::content::ManifestContent;
use crate::collection::store;
use crate::container::{cost, priority, request_logs, retry};
use crate::error::Result;
use crate::record::Record;
use crate::schema::{CONTAINER_REQUESTS, CONTAINERS};
use crate::store::transaction::Tx;

/// Finalizes or retries the requests of a container that is now Complete or Cancelled.
pub fn finalize(tx: &Tx<'_>, container: &Record) -> Result<()> {
    let system = Identity::system(tx.config.system_user());
    let requests = request_logs::committed(tx, "container_uuid", container.uuid())?;
    let (mut retried, mut finished) = (Vec::new(), Vec::new());
    for request in requests {
        if retry::is_due(tx, container, &request)? {
            retried.push(request);
        } else {
            finished.push(request);
        }
    }
    if !retried.is_empty() {
        retry::with_new_container(tx, &system, container, &retried)?;
    }
    for request in finished {
        finalize_request(tx, &system, &request)?;
    }
    cancel_children(tx, &system, container.uuid())
}

/// Hands the results over to a request and makes it Final.
pub fn finalize_request(tx: &Tx<'_>, system: &Caller, request: &Record) -> Result<Record> {
    let mut done = request
        .clone()
        .with("state", "Final")
        .with("secret_mounts", json!({}))
        .with("runtime_token", "");
    if let Some(uuid) = request.some_text("container_uuid")
        && let Some(container) = tx.fetch(&CONTAINERS, uuid)?
    {
        if let Some(log) = request_logs::save(tx, system, request, &container)? {
            done.set("log_uuid", log);
        }
        if container.text("state") == "Complete" || container.text("state") == "Cancelled" {
            if let Some(output) = output_collection(tx, system, request, &container)? {
                done.set("output_uuid", output);
            }
            done.set("cumulative_cost", cost::cumulative(request, &container));
        }
    }
    let done = tx.update_by_server(&CONTAINER_REQUESTS, system, request, done)?;
    cost::add_to_parent(tx, system, &done)?;
    Ok(done)
}

fn output_collection(
    tx: &Tx<'_>,
    system: &Caller,
    request: &Record,
    container: &Record,
) -> Result<Option<String>> {
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
    let created = store::create_from_content(tx, system, collection, output)?;
    Ok(Some(created.uuid().to_owned()))
}

/// Cancels the requests that an ended container had made.
fn cancel_children(tx: &Tx<'_>, system: &Caller, container_uuid: &str) -> Result<()> {
    for child in request_logs::committed(tx, "requesting_container_uuid", container_uuid)? {
        let cancelled = child.clone().with("priority", 0);
        let child = tx.update_by_server(&CONTAINER_REQUESTS, system, &child, cancelled)?;
        let Some(uuid) = child.some_text("container_uuid") else {
            continue;
        };
        let started = tx
            .fetch(&CONTAINERS, uuid)?
            .is_some_and(|container| !matches!(container.text("state"), "Queued" | "Locked"));
        let uuid = uuid.to_owned();
        if !started {
            finalize_request(tx, system, &child)?;
        }
        priority::refresh(tx, &uuid)?;
    }
    Ok(())
}
