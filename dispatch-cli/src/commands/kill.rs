//! `dispatch kill`: stops jobs by setting their priority to 0.

use serde_json::json;

use super::user::shown_name;
use crate::error::CliError;
use crate::job::{Job, JobState, KILLED_BY_PROPERTY, KILLED_PROPERTY};
use crate::jobs;
use crate::owners::user_uuid;
use crate::printer::{Output, eprint_note};
use crate::selection::{Scope, Selection};
use crate::session::Session;
use crate::text::plural;

/// Maximum number of jobs that get a sentence each.
const MAX_SENTENCES: usize = 20;

pub async fn run(selection: Selection, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let user = client.current_user().await?;
    let mut jobs = selection.find(client, Scope::Open).await?;
    // The end of the queue first, and what has started last: else the dispatcher starts jobs in the
    // place of those that end, only to stop them.
    jobs.reverse();
    jobs.sort_by_key(|job| matches!(job.state(), JobState::Locked | JobState::Running));
    let is_summed_up = jobs.len() > MAX_SENTENCES;
    let before: Vec<JobState> = jobs.iter().map(Job::state).collect();
    let open = jobs.iter().filter(|job| !job.state().has_ended());
    jobs::stop(client, open, |job| {
        let mut properties = job.properties();
        properties.insert(KILLED_PROPERTY.to_owned(), true.into());
        if user_uuid(job).is_some_and(|owner| owner != user.uuid.as_str()) {
            properties.insert(KILLED_BY_PROPERTY.to_owned(), shown_name(&user).into());
        }
        properties
    })
    .await?;
    // If one has ended meanwhile, that is told.
    let jobs = jobs::refresh_all(client, jobs).await?;
    let stopping = jobs.iter().filter(|job| job.state() == JobState::Stopping);
    let (stopping, all) = (stopping.count(), jobs.len());
    for (job, before) in jobs.into_iter().zip(before) {
        match out.json {
            true => out.json(&json!({
                "id": job.number, "uuid": job.request.uuid, "before": before.as_str(), "state": job.state().as_str(),
            }))?,
            false if is_summed_up => {}
            false => eprint_note(&sentence(&job, before)),
        }
    }
    if is_summed_up && !out.json {
        let killed = plural((all - stopping) as u64, "job");
        eprint_note(&format!("{killed} cancelled, {stopping} being stopped"));
    }
    Ok(())
}

fn sentence(job: &Job, before: JobState) -> String {
    let name = job.name();
    match (before, job.state()) {
        (JobState::Complete | JobState::Cancelled, state) => {
            format!("job {name} had already ended ({})", state.as_str())
        }
        (JobState::Queued | JobState::Held, JobState::Cancelled) => {
            format!("job {name} is cancelled, and will not start")
        }
        (_, JobState::Held | JobState::Draft) => format!("job {name} will not start"),
        (_, JobState::Complete | JobState::Cancelled) => format!("job {name} has ended"),
        (_, JobState::Running | JobState::Locked | JobState::Queued) => {
            format!("job {name} is cancelled, but another job still uses its container")
        }
        (_, JobState::Stopping) => format!("job {name} is being stopped"),
    }
}
