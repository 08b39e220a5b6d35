//! Pages of containers, read row by row.

use arvados_client::filter::Query;
use arvados_client::records::Container;
use arvados_client::{Client, ContainerUuid, Error};
use serde::Serialize;
use serde_json::{Value, json};

use super::{LOOK, Record, Row};

/// The records of `query` behind `after` in the order of `key` and uuid: by keyset, so that what comes and goes
/// meanwhile neither hides nor doubles others.
pub(super) async fn behind<T: Serialize>(
    client: &Client,
    query: Query,
    (key, beyond, order): (&str, &str, &str),
    after: Option<(T, &ContainerUuid)>,
) -> Result<Vec<Row>, Error> {
    let Some((value, uuid)) = after else {
        return rows(client, query.order(order).order("uuid asc")).await;
    };
    let value = json!(value);
    let equal = query.clone().filter(key, "=", &value);
    let equal = equal.filter("uuid", ">", uuid).order("uuid asc");
    let found = rows(client, equal).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    let rest = query.filter(key, beyond, &value);
    rows(client, rest.order(order).order("uuid asc")).await
}

/// The records of these names with these columns.
pub(super) async fn named(
    client: &Client,
    uuids: &[ContainerUuid],
    columns: &[&str],
) -> Result<Vec<Row>, Error> {
    let query = Query::new()
        .filter("uuid", "in", uuids)
        .select(columns)
        .limit(uuids.len() as u64);
    rows(&client.with_retry_budget(LOOK), query).await
}

pub(super) async fn rows(client: &Client, query: Query) -> Result<Vec<Row>, Error> {
    let page = client.page::<Value>("containers", &query).await?;
    Ok(page.items.into_iter().filter_map(row).collect())
}

/// A record by itself. One without a container's name is nobody's.
pub(crate) fn row(record: Value) -> Option<Row> {
    let uuid = record["uuid"]
        .as_str()
        .and_then(|uuid| ContainerUuid::parse(uuid).ok());
    let Some(uuid) = uuid else {
        tracing::warn!(uuid = %record["uuid"], "the API listed a container without a container's uuid");
        return None;
    };
    let tells_needs = record.get("mounts").is_some();
    let tells_end = record.get("exit_code").is_some();
    Some(match serde_json::from_value::<Container>(record) {
        Ok(record) => {
            let mut record = Record::from(record);
            record.needs = record.needs.filter(|_| tells_needs);
            record.tells_end = tells_end;
            Row::Container(Box::new(record))
        }
        Err(error) => Row::Unreadable(uuid, error.to_string()),
    })
}
