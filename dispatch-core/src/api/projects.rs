//! Finds the projects of containers. Input: uuids of containers. Output: the project of the request
//! that counts, for each.

use std::collections::BTreeMap;

use arvados_client::filter::Query;
use arvados_client::{Client, ContainerUuid, Error, GroupUuid};
use serde_json::Value;

use super::listing::POLL_RETRY_BUDGET;

/// Maximum number of requests read in one call.
const PAGE_SIZE: u64 = 1000;

/// The projects of those of `containers` that have a committed request with a priority above 0.
pub(super) async fn projects(
    client: &Client,
    containers: &[ContainerUuid],
) -> Result<BTreeMap<ContainerUuid, Option<GroupUuid>>, Error> {
    let client = client.with_retry_budget(POLL_RETRY_BUDGET);
    let mut projects: BTreeMap<ContainerUuid, Option<GroupUuid>> = BTreeMap::new();
    let mut unread = containers.to_vec();
    // One container may have so many requests that they fill a page. Each page has at least one
    // container, and the next one asks for the others.
    while !unread.is_empty() {
        let page = requests(&client, &unread).await?;
        for (container, project) in page.iter().filter_map(project_of) {
            projects.entry(container).or_insert(project);
        }
        let before = unread.len();
        unread.retain(|uuid| !projects.contains_key(uuid));
        if unread.len() == before {
            break;
        }
    }
    Ok(projects)
}

/// Requests for the containers, in the order in which they count.
async fn requests(client: &Client, containers: &[ContainerUuid]) -> Result<Vec<Value>, Error> {
    let query = Query::new()
        .filter("container_uuid", "in", containers)
        .filter("state", "=", "Committed")
        .filter("priority", ">", 0)
        .order("priority desc")
        .order("created_at asc")
        .order("uuid asc")
        .select(&["uuid", "container_uuid", "owner_uuid"])
        .limit(PAGE_SIZE);
    let page = client.page::<Value>("container_requests", &query).await?;
    Ok(page.items)
}

/// The container of a request and its project. A value of another kind counts as missing: one odd
/// request must not hide the others.
fn project_of(request: &Value) -> Option<(ContainerUuid, Option<GroupUuid>)> {
    let text = |key: &str| request.get(key).and_then(Value::as_str);
    let container = ContainerUuid::parse(text("container_uuid")?).ok()?;
    let project = text("owner_uuid").and_then(|uuid| GroupUuid::parse(uuid).ok());
    Some((container, project))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_project_is_the_owner_of_the_request() {
        let container = "zzzzz-dz642-queuedcontainer";
        let (user, project) = ("zzzzz-tpzed-000000000000001", "zzzzz-j7d0g-000000000000001");
        let found = |owner: Value| {
            let row = json!({"container_uuid": container, "owner_uuid": owner});
            project_of(&row).unwrap().1.map(String::from)
        };
        assert_eq!(found(json!(project)).as_deref(), Some(project));
        // In a home project the owner is the user.
        assert_eq!(found(json!(user)), None);
        assert_eq!(found(json!(7)), None);
        for container in [json!(null), json!("x"), json!(user)] {
            assert!(project_of(&json!({"container_uuid": container})).is_none());
        }
    }
}
