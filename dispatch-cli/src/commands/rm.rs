//! `dispatch rm`: removes ended jobs. Their outputs and logs go to the trash.

use arvados_client::Client;
use arvados_client::records::User;
use serde_json::json;

use super::gc::FREE_SPACE;
use crate::collection;
use crate::delete::delete;
use crate::error::CliError;
use crate::exit::Exit;
use crate::job::{Job, REMOVED_PROPERTY};
use crate::job_numbers;
use crate::jobs;
use crate::printer::{Output, eprint_note};
use crate::selection::{Scope, Selection};
use crate::session::Session;
use crate::text::plural;

pub async fn run(selection: Selection, session: &Session, out: Output) -> Result<Exit, CliError> {
    let client = &session.client;
    let jobs = selection.find(client, Scope::Any).await?;
    let open = jobs::open(client).await?;
    let user = client.current_user().await?;
    let last_number = match job_numbers::are_given(client).await? {
        true => None,
        false => Some(job_numbers::next_number(client, user.uuid.as_str()).await? - 1),
    };
    let mut exit = Exit::Ok;
    let mut left_alone = 0;
    let mut removed = 0;
    for job in jobs {
        if !job.state().has_ended() {
            exit = exit.or(selection.leave_alone(&job));
            left_alone += 1;
            continue;
        }
        if let Some(user) = user_of_output(client, &job, &open).await? {
            let name = job.name();
            eprint_note(&format!(
                "job {name} is left alone: job {user} needs its output"
            ));
            if !selection.jobs.is_empty() {
                exit = Exit::Failure;
            }
            continue;
        }
        remove(client, &job, last_number).await?;
        removed += 1;
        if out.json {
            out.json(&json!({"id": job.number, "uuid": job.request.uuid}))?;
        }
    }
    if !out.json {
        let jobs = plural(removed, "job");
        let hint = match removed {
            0 => String::new(),
            _ if can_free(session, &user) => {
                format!("; free the space of what all users removed with: {FREE_SPACE}")
            }
            _ => "; outputs and logs stay in the trash for two weeks".to_owned(),
        };
        selection.sum_up(left_alone);
        eprint_note(&format!("{jobs} removed{hint}"));
    }
    Ok(exit)
}

/// Whether the caller may use `gc`: an administrator, or the account of 'dispatch up'.
pub fn can_free(session: &Session, user: &User) -> bool {
    session.local.is_some() || user.is_admin
}

/// The name of an open job that has the output of `job` as an input.
async fn user_of_output(
    client: &Client,
    job: &Job,
    open: &[Job],
) -> Result<Option<String>, CliError> {
    match &job.request.output_uuid {
        Some(uuid) => user_of(client, uuid.as_str(), open).await,
        None => Ok(None),
    }
}

/// The name of an open job that has the collection as an input.
pub async fn user_of(
    client: &Client,
    uuid: &str,
    open: &[Job],
) -> Result<Option<String>, CliError> {
    if open.is_empty() {
        return Ok(None);
    }
    let pdh = collection::portable_data_hash(client, uuid).await?;
    let names = |text: &str| text == uuid || Some(text) == pdh.as_deref();
    let user = open.iter().find(|job| {
        let mut mounts = job.request.mounts.values();
        mounts.any(|mount| names(&mount.uuid) || names(&mount.portable_data_hash))
    });
    Ok(user.map(Job::name))
}

/// The request last: if this is interrupted, the job is still there to be removed again. The
/// `last_number` would be chosen again.
async fn remove(client: &Client, job: &Job, last_number: Option<u64>) -> Result<(), CliError> {
    let collections = [&job.request.output_uuid, &job.request.log_uuid];
    for uuid in collections.into_iter().flatten() {
        delete(client, &format!("collections/{uuid}")).await?;
    }
    if last_number.is_some() && job.number == last_number {
        keep_number(client, job).await?;
    }
    delete(client, &format!("container_requests/{}", job.request.uuid)).await
}

/// Leaves a hidden draft with the number of the job, so that no other job gets it.
async fn keep_number(client: &Client, job: &Job) -> Result<(), CliError> {
    let mut properties = job.properties();
    properties.insert(REMOVED_PROPERTY.to_owned(), true.into());
    let draft = json!({
        "name": format!("removed job {}", job.name()), "state": "Uncommitted", "priority": 0,
        "properties": properties, "command": ["true"], "cwd": ".", "output_path": "/out",
        "container_image": job.request.container_image,
    });
    client.create_container_request(draft).await?;
    Ok(())
}
