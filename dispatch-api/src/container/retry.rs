//! Gives requests another container after theirs was cancelled, as long as their
//! `container_count_max` allows it, they have a priority, the container that made the request still
//! runs, and the end was no permanent failure.

use crunch_contract::runtime_status::PERMANENT_FAILURE;
use serde_json::{Value, json};

use crate::container::{cost, create, request_logs};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{CONTAINER_REQUESTS, CONTAINERS};
use crate::store::cluster_config::CONTAINER_COUNT_MAX;
use crate::store::transaction::Tx;

/// Whether the request of an ended container gets another one.
pub fn is_due(tx: &Tx<'_>, container: &Record, request: &Record) -> Result<bool> {
    let was_cancelled = container.text("state") == "Cancelled";
    Ok(was_cancelled && !is_permanent(tx, container) && may_run_again(tx, request)?)
}

/// Whether the executor found that every other attempt would fail like this one.
fn is_permanent(tx: &Tx<'_>, container: &Record) -> bool {
    !tx.config.emulate.is_arvados() && container.get("runtime_status")[PERMANENT_FAILURE] == true
}

fn may_run_again(tx: &Tx<'_>, request: &Record) -> Result<bool> {
    let limit = request.get("container_count_max").as_i64();
    let limit = limit.unwrap_or(CONTAINER_COUNT_MAX);
    let parent_runs = match request.some_text("requesting_container_uuid") {
        None => true,
        Some(parent) => tx
            .fetch(&CONTAINERS, parent)?
            .is_some_and(|parent| parent.text("state") == "Running"),
    };
    Ok(request.int("priority") > 0 && request.int("container_count") < limit && parent_runs)
}

/// Gives the request another container, and returns its uuid. All requests of the cancelled
/// container get the same: `next`, after the first.
pub fn with_new_container(
    tx: &Tx<'_>,
    cancelled: &Record,
    next: Option<String>,
    request: &Record,
) -> Result<String> {
    let next = match next {
        Some(next) => next,
        None => {
            let wishes = merged_scheduling(&scheduling_of_all(tx, cancelled, request)?);
            let next = create::retry_of(tx, cancelled, wishes, request)?;
            next.uuid().to_owned()
        }
    };
    let mut retried_request = request.clone();
    // The final log of a container that is retried is visible only here.
    if let Some(log) = request_logs::save(tx, request, cancelled)? {
        retried_request.set("log_uuid", log);
    }
    let retried_request = retried_request
        .with("container_uuid", next.as_str())
        .with("container_count", request.int("container_count") + 1)
        .with("cumulative_cost", cost::cumulative(request, cancelled));
    tx.update_by_server(&CONTAINER_REQUESTS, request, retried_request)?;
    Ok(next)
}

/// The different scheduling parameters of `request` and of others that get another container.
/// The first thousand are asked: a container can have any number.
fn scheduling_of_all(tx: &Tx<'_>, cancelled: &Record, request: &Record) -> Result<Vec<Value>> {
    let sql = "SELECT scheduling_parameters FROM ( \
                 SELECT * FROM container_requests WHERE container_uuid = ?1 \
                 AND state = 'Committed' ORDER BY created_at, uuid LIMIT 1000 \
               ) WHERE priority > 0 AND container_count < coalesce(container_count_max, ?2) \
               GROUP BY scheduling_parameters ORDER BY min(created_at)";
    let mut statement = tx.conn.prepare_cached(sql)?;
    let texts = statement.query_map((cancelled.uuid(), CONTAINER_COUNT_MAX), |row| {
        row.get::<_, String>(0)
    })?;
    let parse = |text: rusqlite::Result<String>| {
        serde_json::from_str(&text?)
            .map_err(|problem| ApiError::BadRecord(format!("scheduling parameters: {problem}")))
    };
    let own = std::iter::once(Ok(request.get("scheduling_parameters").clone()));
    own.chain(texts.map(parse)).collect()
}

/// Scheduling parameters of one container for several requests: the most permissive of each.
fn merged_scheduling(requests: &[Value]) -> Value {
    let each = || requests.iter();
    let lists = each().filter_map(|one| one["partitions"].as_array());
    let lists: Vec<&Vec<Value>> = lists.collect();
    let mut partitions: Vec<Value> = Vec::new();
    if lists.iter().all(|list| !list.is_empty()) {
        for name in lists.into_iter().flatten() {
            if !partitions.contains(name) {
                partitions.push(name.clone());
            }
        }
    }
    // Zero is no limit.
    let times = each().map(|one| one["max_run_time"].as_i64().filter(|time| *time != 0));
    let times: Option<Vec<i64>> = times.collect();
    let max_run_time = times.unwrap_or_default().into_iter().max().unwrap_or(0);
    json!({
        "partitions": partitions,
        "preemptible": each().all(|one| one["preemptible"] == true),
        "max_run_time": max_run_time,
        "supervisor": each().any(|one| one["supervisor"] == true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(partitions: Value, max_run_time: i64) -> Value {
        json!({"partitions": partitions, "max_run_time": max_run_time, "preemptible": false, "supervisor": false})
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
