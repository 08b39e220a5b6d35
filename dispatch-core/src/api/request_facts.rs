//! Finds what the requests of containers say of them: the project, and the workflow that asked.
//!
//! Input: uuids of containers. Output: the [`RequestFacts`] of each. Only committed requests with a
//! priority above 0 count, and among them the one with the highest.

use std::collections::BTreeMap;

use arvados_client::filter::Query;
use arvados_client::{Client, ContainerUuid, Error, GroupUuid};
use serde_json::Value;

use super::listing::POLL_RETRY_BUDGET;
use crate::model::snapshot::RequestFacts;

/// Maximum number of requests read in one call.
const PAGE_SIZE: u64 = 1000;

/// The facts of those of `containers` that have a committed request with a priority above 0.
pub(super) async fn request_facts(
    client: &Client,
    containers: &[ContainerUuid],
) -> Result<BTreeMap<ContainerUuid, RequestFacts>, Error> {
    let client = client.with_retry_budget(POLL_RETRY_BUDGET);
    let mut facts: BTreeMap<ContainerUuid, RequestFacts> = BTreeMap::new();
    let mut unread = containers.to_vec();
    // One container may have so many requests that they fill a page. Each page has at least one
    // container, and the next one asks for the others.
    while !unread.is_empty() {
        let page = requests(&client, &unread).await?;
        for (container, of_request) in page.iter().filter_map(facts_of) {
            let known = facts.entry(container).or_insert_with(|| of_request.clone());
            if of_request.requested_by.is_none() {
                known.requested_by = None;
            }
        }
        let before = unread.len();
        unread.retain(|uuid| !facts.contains_key(uuid));
        if unread.len() == before {
            break;
        }
    }
    Ok(facts)
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
        .select(&[
            "uuid",
            "container_uuid",
            "owner_uuid",
            "requesting_container_uuid",
        ])
        // Jobs of a project in the trash go on, as its jobs.
        .include_trash()
        .limit(PAGE_SIZE);
    let page = client.page::<Value>("container_requests", &query).await?;
    Ok(page.items)
}

/// The container of a request and its facts. A value of another kind counts as missing: one odd
/// request must not hide the others.
fn facts_of(request: &Value) -> Option<(ContainerUuid, RequestFacts)> {
    let text = |key: &str| request.get(key).and_then(Value::as_str);
    let container = ContainerUuid::parse(text("container_uuid")?).ok()?;
    let requested_by = text("requesting_container_uuid");
    let facts = RequestFacts {
        project: text("owner_uuid").and_then(|uuid| GroupUuid::parse(uuid).ok()),
        requested_by: requested_by.and_then(|uuid| ContainerUuid::parse(uuid).ok()),
    };
    Some((container, facts))
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
            facts_of(&row).unwrap().1.project.map(String::from)
        };
        assert_eq!(found(json!(project)).as_deref(), Some(project));
        // In a home project the owner is the user.
        assert_eq!(found(json!(user)), None);
        assert_eq!(found(json!(7)), None);
        for container in [json!(null), json!("x"), json!(user)] {
            assert!(facts_of(&json!({"container_uuid": container})).is_none());
        }
    }

    #[test]
    fn who_asked_is_the_container_of_the_workflow() {
        let container = "zzzzz-dz642-queuedcontainer";
        let runner = "zzzzz-dz642-runnercontainer";
        for (asked, expected) in [
            (json!(runner), Some(runner)),
            (json!(null), None),
            (json!("zzzzz-tpzed-000000000000001"), None),
            (json!(7), None),
        ] {
            let row = json!({"container_uuid": container, "requesting_container_uuid": asked});
            let found = facts_of(&row).unwrap().1.requested_by;
            assert_eq!(found.as_ref().map(ContainerUuid::as_str), expected);
        }
    }
}
