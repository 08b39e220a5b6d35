//! Finds out whose containers are: reads their requests, and the names of users and projects.
//!
//! Input: uuids of containers with their users. Output: an [`Owner`] for each. Names
//! are remembered for some minutes, so that a container costs one call, shared with others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::filter::Query;
use arvados_client::{Client, ContainerUuid, Error, GroupUuid, UserUuid};
use serde_json::Value;

use super::listing::POLL_RETRY_BUDGET;
use crate::model::owner::{KnownOwner, Owner, shown_project_name};

/// Time for which a name is remembered.
const NAME_TTL: Duration = Duration::from_secs(600);
/// Maximum number of names that are remembered.
const MAX_NAMES: usize = 10_000;
/// Maximum number of requests read in one call.
const PAGE_SIZE: u64 = 1000;

/// Names of users and projects by their uuids.
#[derive(Debug, Default)]
pub struct OwnerNames(Mutex<BTreeMap<String, (Instant, Option<String>)>>);

impl OwnerNames {
    fn names(&self) -> MutexGuard<'_, BTreeMap<String, (Instant, Option<String>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of `uuid`. The outer option is none if it is not remembered; the inner one, if
    /// there is no such name.
    fn get(&self, uuid: &str) -> Option<Option<String>> {
        let names = self.names();
        let (since, name) = names.get(uuid)?;
        (since.elapsed() < NAME_TTL).then(|| name.clone())
    }

    fn remember(&self, uuid: String, name: Option<String>) {
        let mut names = self.names();
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        names.insert(uuid, (Instant::now(), name));
    }

    fn missing(&self, uuids: impl Iterator<Item = String>) -> BTreeSet<String> {
        uuids.filter(|uuid| self.get(uuid).is_none()).collect()
    }
}

/// The owners of `containers`. A container without a committed request has no project.
pub(super) async fn owners(
    client: &Client,
    containers: &[(ContainerUuid, Option<UserUuid>)],
    names: &OwnerNames,
) -> Result<BTreeMap<ContainerUuid, KnownOwner>, Error> {
    let client = client.with_retry_budget(POLL_RETRY_BUDGET);
    let mut projects: BTreeMap<ContainerUuid, Option<GroupUuid>> = BTreeMap::new();
    let mut unread: Vec<ContainerUuid> = containers.iter().map(|(uuid, _)| uuid.clone()).collect();
    // One container may have so many requests that they fill a page. Each page has at least one
    // container, and the next one asks for the others.
    while !unread.is_empty() {
        let page = requests(&client, &unread).await?;
        if page.is_empty() {
            break;
        }
        for row in &page {
            if let Some((container, project)) = project_of(row) {
                projects.entry(container).or_insert(project);
            }
        }
        let before = unread.len();
        unread.retain(|uuid| !projects.contains_key(uuid));
        if unread.len() == before {
            break;
        }
    }
    let users = containers.iter().filter_map(|(_, user)| user.as_ref());
    let users = users.map(ToString::to_string);
    fetch_names(&client, ("users", "username"), names.missing(users), names).await?;
    let groups = projects.values().flatten().map(ToString::to_string);
    fetch_names(&client, ("groups", "name"), names.missing(groups), names).await?;
    let owner = |(container, user): &(ContainerUuid, Option<UserUuid>)| {
        let project = projects.get(container).cloned().flatten();
        let name = |uuid: Option<&str>| names.get(uuid?).flatten();
        let owner = Owner {
            username: name(user.as_ref().map(UserUuid::as_str)),
            project_name: name(project.as_ref().map(GroupUuid::as_str)),
            user: user.clone(),
            project,
        };
        let is_known = owner != Owner::default();
        (container.clone(), is_known.then(|| Arc::new(owner)))
    };
    Ok(containers.iter().map(owner).collect())
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

/// Reads the names of `uuids` and remembers them.
async fn fetch_names(
    client: &Client,
    (resource, attribute): (&str, &str),
    uuids: BTreeSet<String>,
    names: &OwnerNames,
) -> Result<(), Error> {
    if uuids.is_empty() {
        return Ok(());
    }
    let query = Query::new()
        .filter("uuid", "in", &uuids)
        .select(&["uuid", attribute])
        .limit(uuids.len() as u64);
    let page = client.page::<Value>(resource, &query).await?;
    let mut found: BTreeMap<&str, &str> = BTreeMap::new();
    for row in &page.items {
        if let (Some(uuid), Some(name)) = (row["uuid"].as_str(), row[attribute].as_str()) {
            found.insert(uuid, name);
        }
    }
    for uuid in &uuids {
        let name = found.get(uuid.as_str()).filter(|name| !name.is_empty());
        let name = name.map(|name| shown_project_name(name));
        names.remember(uuid.clone(), name);
    }
    Ok(())
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

    #[test]
    fn names_are_remembered_also_when_there_is_none() {
        let names = OwnerNames::default();
        let all = ["a", "b", "c"].map(str::to_owned);
        names.remember("a".into(), Some("ada".into()));
        names.remember("b".into(), None);
        assert_eq!(names.missing(all.into_iter()), BTreeSet::from(["c".into()]));
        assert_eq!(names.get("a"), Some(Some("ada".into())));
        assert_eq!(names.get("b"), Some(None));
        for n in 0..MAX_NAMES {
            names.remember(n.to_string(), None);
        }
        assert!(names.names().len() <= MAX_NAMES);
    }
}
