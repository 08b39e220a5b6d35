//! Finds out whose containers are, for the snapshot.
//!
//! Input: the users of containers and the projects of their requests. Output: an [`Owner`] for
//! each. Names are remembered for some minutes, so that a container costs one call, shared with
//! others that are new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::api::NameKind;
use arvados_client::records::Container;
use arvados_client::{ContainerUuid, Error, GroupUuid, UserUuid};
use parking_lot::Mutex;

use crate::api::Api;
use crate::model::owner::{KnownOwner, Owner, shown_name};

/// Time for which a name is remembered.
const NAME_TTL: Duration = Duration::from_secs(600);
/// Maximum number of names that are remembered.
const MAX_NAMES: usize = 10_000;

/// Names of users and projects by their uuids.
#[derive(Debug, Default)]
pub struct OwnerNames(Mutex<BTreeMap<String, (Instant, Option<String>)>>);

impl OwnerNames {
    /// The name of `uuid`. The outer option is none if it is not remembered; the inner one, if
    /// there is no such name.
    fn get(&self, uuid: &str) -> Option<Option<String>> {
        let names = self.0.lock();
        let (since, name) = names.get(uuid)?;
        (since.elapsed() < NAME_TTL).then(|| name.clone())
    }

    fn remember(&self, uuid: String, name: Option<String>) {
        let mut names = self.0.lock();
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        names.insert(uuid, (Instant::now(), name));
    }

    /// The names of `uuids` that are remembered, and the uuids whose names are to be read.
    fn split(&self, uuids: impl Iterator<Item = String>) -> (Names, BTreeSet<String>) {
        let (mut known, mut missing) = (Names::new(), BTreeSet::new());
        for uuid in uuids {
            match self.get(&uuid) {
                Some(name) => drop(known.insert(uuid, name)),
                None => drop(missing.insert(uuid)),
            }
        }
        (known, missing)
    }
}

/// Names by uuid; none if there is no such name. What is in it does not expire: a name that is lost
/// between two looks would charge a job to nobody's account.
type Names = BTreeMap<String, Option<String>>;

/// The names of users or projects.
async fn names_of(
    api: &impl Api,
    remembered: &OwnerNames,
    kind: NameKind,
    uuids: impl Iterator<Item = String>,
) -> Result<Names, Error> {
    let (mut names, missing) = remembered.split(uuids);
    if missing.is_empty() {
        return Ok(names);
    }
    let mut found = api.names(kind, &missing).await?;
    for uuid in missing {
        let name = found.remove(&uuid).filter(|name| !name.is_empty());
        let name = name.map(|name| shown_name(&name));
        remembered.remember(uuid.clone(), name.clone());
        names.insert(uuid, name);
    }
    Ok(names)
}

/// A container, its user and the project of its request.
pub type Ownership = (ContainerUuid, Option<UserUuid>, Option<GroupUuid>);

/// The owner of each container.
pub async fn named_owners(
    api: &impl Api,
    names: &OwnerNames,
    containers: Vec<Ownership>,
) -> Result<BTreeMap<ContainerUuid, KnownOwner>, Error> {
    let users = containers.iter().filter_map(|(_, user, _)| user.as_ref());
    let users = users.map(ToString::to_string);
    let users = names_of(api, names, NameKind::User, users).await?;
    let groups = containers.iter().filter_map(|(.., group)| group.as_ref());
    let groups = groups.map(ToString::to_string);
    let groups = names_of(api, names, NameKind::Project, groups).await?;
    let owner = |(container, user, project): Ownership| {
        let name = |names: &Names, uuid: Option<&str>| names.get(uuid?).cloned().flatten();
        let owner = Owner {
            username: name(&users, user.as_ref().map(UserUuid::as_str)),
            project_name: name(&groups, project.as_ref().map(GroupUuid::as_str)),
            user,
            project,
        };
        let is_known = owner != Owner::default();
        (container, is_known.then(|| Arc::new(owner)))
    };
    Ok(containers.into_iter().map(owner).collect())
}

/// The owner of one container.
pub async fn owner_of(api: &impl Api, container: &Container) -> Result<KnownOwner, Error> {
    let uuid = &container.uuid;
    let mut facts = api.request_facts(std::slice::from_ref(uuid)).await?;
    let project = facts.remove(uuid).and_then(|facts| facts.project);
    let owned = (uuid.clone(), container.runtime_user_uuid.clone(), project);
    let mut owners = named_owners(api, &OwnerNames::default(), vec![owned]).await?;
    Ok(owners.remove(uuid).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_remembered_also_when_there_is_none() {
        let names = OwnerNames::default();
        let all = || ["a", "b", "c"].map(str::to_owned).into_iter();
        names.remember("a".into(), Some("ada".into()));
        names.remember("b".into(), None);
        let (known, missing) = names.split(all());
        assert_eq!(missing, BTreeSet::from(["c".into()]));
        for n in 0..MAX_NAMES {
            names.remember(n.to_string(), None);
        }
        assert!(names.0.lock().len() <= MAX_NAMES);
        assert_eq!(names.get("a"), None, "it made room");
        // What was looked up before stays.
        let expected = [("a".into(), Some("ada".into())), ("b".into(), None)];
        assert_eq!(known, Names::from(expected));
    }
}
