//! Names of the users and projects of jobs, for tables.
//!
//! Input: jobs. Output: names, as far as this token may read them; else the uuid is shown.

use std::collections::{BTreeMap, BTreeSet};

use arvados_client::api::NameKind;
use arvados_client::{Client, GroupUuid, UserUuid};

use crate::job::Job;

/// Names by uuid.
#[derive(Debug, Default)]
pub struct OwnerNames(BTreeMap<String, String>);

impl OwnerNames {
    /// Reads the names. An error is ignored: they are only more readable than uuids.
    pub async fn of(client: &Client, jobs: &[Job]) -> Self {
        let users: BTreeSet<String> = jobs.iter().filter_map(user_uuid).collect();
        let projects: BTreeSet<String> = jobs.iter().filter_map(project_uuid).collect();
        let (users, projects) = tokio::join!(
            client.names(NameKind::User, &users),
            client.names(NameKind::Project, &projects)
        );
        let mut names = users.unwrap_or_default();
        names.extend(projects.unwrap_or_default());
        Self(names)
    }

    /// The user of a job.
    pub fn user(&self, job: &Job) -> Option<String> {
        Some(self.named(user_uuid(job)?))
    }

    /// The project of a job; none if it is in a home project.
    pub fn project(&self, job: &Job) -> Option<String> {
        Some(self.named(project_uuid(job)?))
    }

    fn named(&self, uuid: String) -> String {
        self.0.get(&uuid).cloned().unwrap_or(uuid)
    }
}

/// The user as whom the container acts.
pub fn user_uuid(job: &Job) -> Option<String> {
    let user = job.container.as_ref()?.runtime_user_uuid.as_ref();
    user.map(UserUuid::to_string)
}

/// The project that the request is in.
pub fn project_uuid(job: &Job) -> Option<String> {
    let owner = job.request.owner_uuid.as_ref()?.as_str();
    GroupUuid::parse(owner).ok().map(String::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_has_a_user_and_perhaps_a_project() {
        let (user, project) = ("zzzzz-tpzed-000000000000001", "zzzzz-j7d0g-000000000000001");
        let job = |owner: &str| {
            let request = json!({"uuid": "zzzzz-xvhdp-0123456789abcde", "owner_uuid": owner});
            let container =
                json!({"uuid": "zzzzz-dz642-0123456789abcde", "runtime_user_uuid": user});
            Job::new(
                serde_json::from_value(request).unwrap(),
                Some(serde_json::from_value(container).unwrap()),
                "me",
            )
        };
        let names = OwnerNames(BTreeMap::from([(user.into(), "ada".into())]));
        assert_eq!(names.user(&job(user)).as_deref(), Some("ada"));
        assert_eq!(names.project(&job(user)), None);
        // Its name cannot be read.
        assert_eq!(names.project(&job(project)).as_deref(), Some(project));
    }
}
