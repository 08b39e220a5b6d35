//! `dispatch hold` and `dispatch release`: keep jobs that have not started from starting, and let
//! them start.

use arvados_client::Client;
use arvados_client::records::{ContainerState, RequestState};
use serde_json::json;

use crate::error::CliError;
use crate::exit::Exit;
use crate::job::{HELD_PRIORITY_PROPERTY, Job, JobState};
use crate::job_flags::DEFAULT_PRIORITY;
use crate::jobs;
use crate::printer::Output;
use crate::selection::{Scope, Selection};
use crate::session::Session;
use crate::text::plural;

pub async fn hold(selection: Selection, session: &Session, out: Output) -> Result<Exit, CliError> {
    let client = &session.client;
    let mut exit = Exit::Ok;
    let mut held = 0;
    let jobs = selection.find(client, Scope::Open).await?;
    let found = jobs.len() as u64;
    for job in jobs {
        // Some time has passed since, if the jobs are many.
        let job = jobs::refresh(client, &job).await?;
        // One that is being started would be cancelled for good.
        if job.state() == JobState::Queued && hold_pending(client, &job).await? {
            held += 1;
        } else {
            let now = jobs::refresh(client, &job).await?;
            let left_alone = selection.leave_alone(&now);
            if now.state() != JobState::Held {
                exit = exit.or(left_alone);
            }
        }
    }
    report(out, "held", held, found - held)?;
    Ok(exit)
}

/// Sets the priority of a job that waits to 0; false if it has started or ended meanwhile.
async fn hold_pending(client: &Client, job: &Job) -> Result<bool, CliError> {
    let before = job.request.priority;
    let mut properties = job.properties();
    properties.insert(HELD_PRIORITY_PROPERTY.to_owned(), before.into());
    jobs::set_properties(client, job, properties).await?;
    if !jobs::set_priority(client, job, 0).await? {
        return Ok(false);
    }
    let now = jobs::refresh(client, job).await?;
    let container = now.container.as_ref().map(|container| &container.state);
    match container {
        // What was started meanwhile goes on, unless its dispatcher has already heard of the 0.
        Some(ContainerState::Locked | ContainerState::Running) => {
            jobs::set_priority(client, job, before).await?;
            Ok(false)
        }
        _ => Ok(true),
    }
}

pub async fn release(
    selection: Selection,
    session: &Session,
    out: Output,
) -> Result<Exit, CliError> {
    let client = &session.client;
    let mut exit = Exit::Ok;
    let mut released = 0;
    let jobs = selection.find(client, Scope::Open).await?;
    let found = jobs.len() as u64;
    for job in jobs {
        let is_open = job.request.state == RequestState::Committed && job.request.priority == 0;
        if job.state() != JobState::Held || !is_open {
            let left_alone = selection.leave_alone(&job);
            if !job.state().is_active() {
                exit = exit.or(left_alone);
            }
            continue;
        }
        let mut properties = job.properties();
        let before = properties
            .remove(HELD_PRIORITY_PROPERTY)
            .and_then(|before| before.as_i64());
        let priority = before.filter(|priority| (1..=1000).contains(priority));
        let priority = priority.unwrap_or(DEFAULT_PRIORITY.into());
        if !jobs::set_priority(client, &job, priority).await? {
            exit = exit.or(selection.leave_alone(&job));
            continue;
        }
        jobs::set_properties(client, &job, properties).await?;
        released += 1;
    }
    report(out, "released", released, found - released)?;
    Ok(exit)
}

fn report(out: Output, what: &str, count: u64, left_alone: u64) -> Result<(), CliError> {
    let others = match left_alone {
        0 => String::new(),
        count => format!("; {count} left alone, which are in other states"),
    };
    let note = format!("{what} {}{others}", plural(count, "job"));
    out.json_or_note(&json!({what: count, "left_alone": left_alone}), &note)
}
