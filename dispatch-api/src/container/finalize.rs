//! Updates requests after their container has ended: hands over results, or retries.

use crunch_contract::runtime_status::PERMANENT_FAILURE;
use serde_json::{Value, json};

use crate::auth::{Caller, Identity};
use crate::clock;
use crate::collection::content::{self, ManifestContent};
use crate::collection::store;
use crate::container::{create, priority};
use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{COLLECTIONS, CONTAINER_REQUESTS, CONTAINERS};
use crate::store::transaction::Tx;

/// Finalizes or retries the requests of a container that is now Complete or Cancelled.
pub fn finalize(tx: &Tx<'_>, container: &Record) -> Result<()> {
    let system = Identity::system(tx.config.system_user());
    let requests = committed_requests(tx, "container_uuid", container.uuid())?;
    let mut retried = Vec::new();
    let mut finished = Vec::new();
    for request in requests {
        if container.text("state") == "Cancelled"
            && !is_permanent(tx, container)
            && should_retry(tx, &request)?
        {
            retried.push(request);
        } else {
            finished.push(request);
        }
    }
    if !retried.is_empty() {
        retry(tx, &system, container, &retried)?;
    }
    for request in finished {
        finalize_request(tx, &system, &request)?;
    }
    cancel_children(tx, &system, container.uuid())
}

fn committed_requests(tx: &Tx<'_>, attribute: &str, uuid: &str) -> Result<Vec<Record>> {
    rows::find(
        tx.conn,
        &CONTAINER_REQUESTS,
        &format!("{attribute} = ?1 AND state = 'Committed' ORDER BY created_at, uuid"),
        &[&uuid],
    )
}

/// Whether the executor found that every other attempt would fail like this one.
fn is_permanent(tx: &Tx<'_>, container: &Record) -> bool {
    tx.config.rules.permanent_failures && container.get("runtime_status")[PERMANENT_FAILURE] == true
}

fn should_retry(tx: &Tx<'_>, request: &Record) -> Result<bool> {
    let limit = request
        .get("container_count_max")
        .as_i64()
        .unwrap_or(tx.config.container_count_max);
    let parent_runs = match request.some_text("requesting_container_uuid") {
        None => true,
        Some(parent) => tx
            .fetch(&CONTAINERS, parent)?
            .is_some_and(|parent| parent.text("state") == "Running"),
    };
    Ok(request.int("priority") > 0 && request.int("container_count") < limit && parent_runs)
}

fn retry(tx: &Tx<'_>, system: &Caller, cancelled: &Record, requests: &[Record]) -> Result<()> {
    let secrets = requests.first().cloned().unwrap_or_default();
    let next = create::retry_of(tx, system, cancelled, merged_scheduling(requests), &secrets)?;
    for request in requests {
        let mut retried_request = request.clone();
        // The final log of a container that is retried is visible only here.
        if let Some(log) = log_collection(tx, system, request, cancelled)? {
            retried_request.set("log_uuid", log);
        }
        let retried_request = retried_request
            .with("container_uuid", next.uuid())
            .with("container_count", request.int("container_count") + 1)
            .with("cumulative_cost", cumulative_cost(request, cancelled));
        tx.update(&CONTAINER_REQUESTS, system, request, retried_request)?;
    }
    priority::refresh(tx, next.uuid())
}

/// Scheduling parameters of one container for several requests: the most permissive of each.
fn merged_scheduling(requests: &[Record]) -> Value {
    let each = || {
        requests
            .iter()
            .map(|request| request.get("scheduling_parameters"))
    };
    let lists: Vec<&Vec<Value>> = each()
        .filter_map(|one| one["partitions"].as_array())
        .collect();
    let mut partitions: Vec<Value> = Vec::new();
    if lists.iter().all(|list| !list.is_empty()) {
        for name in lists.into_iter().flatten() {
            if !partitions.contains(name) {
                partitions.push(name.clone());
            }
        }
    }
    let times: Vec<i64> = each()
        .map(|one| one["max_run_time"].as_i64().unwrap_or(0))
        .collect();
    let max_run_time = if times.contains(&0) {
        0
    } else {
        times.into_iter().max().unwrap_or(0)
    };
    json!({
        "partitions": partitions,
        "preemptible": each().all(|one| one["preemptible"] == true),
        "max_run_time": max_run_time,
        "supervisor": each().any(|one| one["supervisor"] == true),
    })
}

fn cumulative_cost(request: &Record, container: &Record) -> f64 {
    request.float("cumulative_cost") + container.float("cost") + container.float("subrequests_cost")
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
        if let Some(log) = log_collection(tx, system, request, &container)? {
            done.set("log_uuid", log);
        }
        if container.text("state") == "Complete" || container.text("state") == "Cancelled" {
            if let Some(output) = output_collection(tx, system, request, &container)? {
                done.set("output_uuid", output);
            }
            done.set("cumulative_cost", cumulative_cost(request, &container));
        }
    }
    let done = tx.update(&CONTAINER_REQUESTS, system, request, done)?;
    add_cost_to_parent(tx, system, &done)?;
    Ok(done)
}

/// Adds the cost of a child request to its parent container.
fn add_cost_to_parent(tx: &Tx<'_>, system: &Caller, request: &Record) -> Result<()> {
    let cost = request.float("cumulative_cost");
    let Some(parent) = request
        .some_text("requesting_container_uuid")
        .filter(|_| cost > 0.0)
    else {
        return Ok(());
    };
    if let Some(parent) = tx.fetch(&CONTAINERS, parent)? {
        let updated = parent
            .clone()
            .with("subrequests_cost", parent.float("subrequests_cost") + cost);
        tx.update_derived(&CONTAINERS, system, &parent, &updated)?;
    }
    Ok(())
}

fn output_collection(
    tx: &Tx<'_>,
    system: &Caller,
    request: &Record,
    container: &Record,
) -> Result<Option<String>> {
    let Some(pdh) = container.some_text("output") else {
        return Ok(None);
    };
    let Some(source) = store::find_any_by_pdh(tx.conn, pdh)? else {
        return Ok(None);
    };
    let mut properties = json!({"type": "output", "container_request": request.uuid()});
    for extra in [container, request] {
        for (key, value) in extra
            .get("output_properties")
            .as_object()
            .into_iter()
            .flatten()
        {
            properties[key] = value.clone();
        }
    }
    let default_name = format!("Container output for request {}", request.uuid());
    let ttl = request.int("output_ttl");
    let mut collection = Record::new()
        .with("owner_uuid", request.text("owner_uuid"))
        .with(
            "name",
            request.some_text("output_name").unwrap_or(&default_name),
        )
        .with("properties", properties)
        .with(
            "storage_classes_desired",
            request.get("output_storage_classes").clone(),
        );
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

/// Adds the container's current log to the log collection of every committed request.
pub fn update_request_logs(tx: &Tx<'_>, container: &Record) -> Result<()> {
    let system = Identity::system(tx.config.system_user());
    for request in committed_requests(tx, "container_uuid", container.uuid())? {
        if let Some(log) = log_collection(tx, &system, &request, container)? {
            let updated = request.clone().with("log_uuid", log);
            tx.update(&CONTAINER_REQUESTS, &system, &request, updated)?;
        }
    }
    Ok(())
}

/// Creates or updates the log collection of a request. Logs of earlier attempts stay in it.
fn log_collection(
    tx: &Tx<'_>,
    system: &Caller,
    request: &Record,
    container: &Record,
) -> Result<Option<String>> {
    let Some(source) = container
        .some_text("log")
        .map(|pdh| store::find_any_by_pdh(tx.conn, pdh))
        .transpose()?
        .flatten()
    else {
        return Ok(None);
    };
    let existing = match request.some_text("log_uuid") {
        Some(uuid) => tx.fetch(&COLLECTIONS, uuid)?,
        None => None,
    };
    let before = existing
        .as_ref()
        .map_or("", |log| log.text("manifest_text"));
    let manifest = content::merge_log(before, source.text("manifest_text"), container.uuid());
    if let Some(log) = existing {
        store::replace_content(tx, system, &log, &manifest)?;
        return Ok(Some(log.uuid().to_owned()));
    }
    let collection = Record::new()
        .with("owner_uuid", request.text("owner_uuid"))
        .with(
            "name",
            format!("Container log for request {}", request.uuid()),
        )
        .with(
            "properties",
            json!({"type": "log", "container_request": request.uuid()}),
        );
    let content = ManifestContent::parse(&manifest)?;
    let created = store::create_from_content(tx, system, collection, content)?;
    Ok(Some(created.uuid().to_owned()))
}

/// Cancels the requests that an ended container had made.
fn cancel_children(tx: &Tx<'_>, system: &Caller, container_uuid: &str) -> Result<()> {
    for child in committed_requests(tx, "requesting_container_uuid", container_uuid)? {
        let cancelled = child.clone().with("priority", 0);
        let child = tx.update(&CONTAINER_REQUESTS, system, &child, cancelled)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(partitions: Value, max_run_time: i64) -> Record {
        Record::new().with(
            "scheduling_parameters",
            json!({"partitions": partitions, "max_run_time": max_run_time, "preemptible": false, "supervisor": false}),
        )
    }

    #[test]
    fn scheduling_wishes_are_merged_permissively() {
        let both = merged_scheduling(&[request(json!(["a"]), 10), request(json!(["b", "a"]), 20)]);
        assert_eq!(both["partitions"], json!(["a", "b"]));
        assert_eq!(both["max_run_time"], 20);
        let open = merged_scheduling(&[request(json!(["a"]), 10), request(json!([]), 0)]);
        assert_eq!(open["partitions"], json!([]));
        assert_eq!(open["max_run_time"], 0);
    }
}
