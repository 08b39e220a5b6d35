//! `dispatch retry`: submits ended jobs once more.

use arvados_client::Client;
use arvados_client::client::Call;
use serde_json::{Value, json};

use super::submit;
use crate::error::CliError;
use crate::exit::Exit;
use crate::image::ImageName;
use crate::image::store::{self, ListedImage};
use crate::job::{Job, RETRIED_PROPERTY, RETRY_OF_PROPERTY};
use crate::job_flags::DEFAULT_PRIORITY;
use crate::job_request;
use crate::jobs;
use crate::printer::{Output, eprint_note};
use crate::selection::{Scope, Selection};
use crate::session::Session;
use crate::text::plural;

/// What the new request has in common with the old one.
const COPIED: &str = "name description command container_image cwd environment mounts output_path \
     output_name output_ttl output_glob output_storage_classes runtime_constraints \
     scheduling_parameters";
/// Maximum number of attempts of the new job: Arvados' default.
const MAX_ATTEMPTS: u64 = 3;

pub async fn run(selection: Selection, session: &Session, out: Output) -> Result<Exit, CliError> {
    let client = &session.client;
    let mut jobs = selection.find(client, Scope::Any).await?;
    if selection.jobs.is_empty() {
        let found = jobs.len();
        jobs.retain(|job| job.property(RETRIED_PROPERTY).is_none());
        let before = plural((found - jobs.len()) as u64, "job");
        if found > jobs.len() {
            eprint_note(&format!("{before} left alone: submitted once more before"));
        }
    }
    let images = store::list(client).await?;
    let capacity = submit::local_capacity(session).await;
    let mut exit = Exit::Ok;
    let mut left_alone = 0;
    for job in jobs {
        if !job.state().has_ended() {
            exit = exit.or(selection.leave_alone(&job));
            left_alone += 1;
            continue;
        }
        let path = format!("container_requests/{}", job.request.uuid);
        let old: Value = client.send(Call::get(path)).await?;
        let mut attributes = copy(&old);
        let image = image_of(client, &job, &images).await?;
        attributes["container_image"] = json!(image);
        let new = job_request::commit_numbered(client, attributes, &image).await?;
        // Its number may have changed since it was committed.
        let fresh = jobs::refresh(client, &new).await?;
        for (job, name, uuid) in [
            (&fresh, RETRY_OF_PROPERTY, &job.request.uuid),
            (&job, RETRIED_PROPERTY, &new.request.uuid),
        ] {
            let mut properties = job.properties();
            properties.insert(name.to_owned(), uuid.as_str().into());
            jobs::set_properties(client, job, properties).await?;
        }
        if !out.json {
            let (old, new) = (job.name(), new.name());
            let named = &job.request.container_image;
            let other = match image == job.request.container_image {
                true => String::new(),
                false => format!(", with the image that it had; {named} is another one now"),
            };
            eprint_note(&format!(
                "job {old} is submitted once more as job {new}{other}"
            ));
        }
        job_request::announce(&new, out)?;
        if let Some(capacity) = capacity {
            submit::warn_if_impossible(&new, session, capacity);
        }
    }
    selection.sum_up(left_alone);
    Ok(exit)
}

/// The image of the new request: that of the old job's container, by the old name if this is its
/// name still, or if nothing else is left of it.
async fn image_of(client: &Client, job: &Job, images: &[ListedImage]) -> Result<String, CliError> {
    let named = &job.request.container_image;
    let used = job.container.as_ref().map(|c| c.container_image.as_str());
    let Some(used) = used.filter(|used| !used.is_empty() && used != named) else {
        return Ok(named.clone());
    };
    let has_name = |image: &ListedImage| {
        let name = named.parse::<ImageName>();
        name.is_ok_and(|name| image.has_name(&name))
    };
    let mut those = images.iter().filter(|image| has_name(image));
    if those.any(|image| image.portable_data_hash.as_deref() == Some(used)) {
        return Ok(named.clone());
    }
    match client.collection(used).await {
        Ok(_) => Ok(used.to_owned()),
        Err(error) if error.is_not_found() => {
            let name = job.name();
            eprint_note(&format!(
                "the image of job {name} is not stored any more; what is called {named} now is used"
            ));
            Ok(named.clone())
        }
        Err(error) => Err(error.into()),
    }
}

/// The attributes of a request that does the same.
fn copy(old: &Value) -> Value {
    let mut new = json!({"state": "Committed", "use_existing": false});
    for key in COPIED.split(' ') {
        let value = &old[key];
        // A server refuses null for some of them.
        if !value.is_null() {
            new[key] = value.clone();
        }
    }
    let priority = old["priority"].as_i64().filter(|priority| *priority > 0);
    new["priority"] = json!(priority.unwrap_or(DEFAULT_PRIORITY.into()));
    // A dispatcher raises it after evictions, and lowers it if no other attempt can succeed.
    let attempts = old["container_count_max"].as_u64().unwrap_or(MAX_ATTEMPTS);
    new["container_count_max"] = json!(attempts.clamp(1, MAX_ATTEMPTS));
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_request_does_the_same_and_has_attempts_and_priority_of_its_own() {
        for (priority, attempts, expected) in [(700, 13, (700, 3)), (0, 1, (500, 1))] {
            let old = json!({
                "uuid": "zzzzz-xvhdp-0123456789abcde", "state": "Final", "container_uuid": "x",
                "command": ["true"], "output_ttl": 0, "description": null, "priority": priority,
                "container_count_max": attempts, "properties": {"dispatch_id": 7},
            });
            let new = json!({
                "state": "Committed", "use_existing": false, "command": ["true"], "output_ttl": 0,
                "priority": expected.0, "container_count_max": expected.1,
            });
            assert_eq!(copy(&old), new);
        }
    }
}
