//! Fetches pages of container records and parses them row by row.
//!
//! Input: a query for the API server. Output: [`ListedRecord`]s, parsed or malformed.

use std::time::Duration;

use arvados_client::filter::Query;
use arvados_client::records::Container;
use arvados_client::{Client, ContainerUuid, Error};
use serde::Serialize;
use serde_json::{Value, json};

use crate::model::container_record::{ContainerSnapshot, ListedRecord};

/// Retry budget of the calls of one poll. The next poll retries anyway. Until then an unreachable
/// server is reported.
pub const POLL_RETRY_BUDGET: Duration = Duration::from_secs(10);

/// The page of `query` that follows `after` in the order of `key` and UUID. This is keyset
/// pagination: records that are added or removed meanwhile neither hide nor duplicate others.
pub(super) async fn fetch_page_after<T: Serialize>(
    client: &Client,
    query: Query,
    (key, beyond, order): (&str, &str, &str),
    after: Option<(T, &ContainerUuid)>,
) -> Result<Vec<ListedRecord>, Error> {
    let Some((value, uuid)) = after else {
        return fetch_page(client, query.order(order).order("uuid asc")).await;
    };
    let value = json!(value);
    let equal = query.clone().filter(key, "=", &value);
    let equal = equal.filter("uuid", ">", uuid).order("uuid asc");
    let found = fetch_page(client, equal).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    let rest = query.filter(key, beyond, &value);
    fetch_page(client, rest.order(order).order("uuid asc")).await
}

/// The given `columns` of the records of `uuids`.
pub(super) async fn fetch_named(
    client: &Client,
    uuids: &[ContainerUuid],
    columns: &[&str],
) -> Result<Vec<ListedRecord>, Error> {
    let query = Query::new()
        .filter("uuid", "in", uuids)
        .select(columns)
        .limit(uuids.len() as u64);
    fetch_page(&client.with_retry_budget(POLL_RETRY_BUDGET), query).await
}

pub(super) async fn fetch_page(client: &Client, query: Query) -> Result<Vec<ListedRecord>, Error> {
    let page = client.page::<Value>("containers", &query).await?;
    Ok(page.items.into_iter().filter_map(parse_row).collect())
}

/// Parses one record. None, with a warning, if its `uuid` is not the UUID of a container.
pub(crate) fn parse_row(record: Value) -> Option<ListedRecord> {
    let uuid = record["uuid"]
        .as_str()
        .and_then(|uuid| ContainerUuid::parse(uuid).ok());
    let Some(uuid) = uuid else {
        tracing::warn!(uuid = %record["uuid"], "ignoring a listed container: its uuid is not one of a container");
        return None;
    };
    let tells_needs = record.get("mounts").is_some();
    let tells_end = record.get("exit_code").is_some();
    Some(match serde_json::from_value::<Container>(record) {
        Ok(record) => {
            let mut record = ContainerSnapshot::from(record);
            record.needs = record.needs.filter(|_| tells_needs);
            record.has_end = tells_end;
            ListedRecord::Parsed(Box::new(record))
        }
        Err(error) => ListedRecord::Malformed(uuid, error.to_string()),
    })
}
