//! `dispatch hold` and `dispatch release`: keep jobs that have not started from starting, and let
//! them start.

use arvados_client::records::RequestState;
use clap::Args;
use serde_json::json;

use crate::error::CliError;
use crate::job::{HELD_PRIORITY_PROPERTY, JobState, KILLED_PROPERTY};
use crate::job_request::DEFAULT_PRIORITY;
use crate::jobs;
use crate::printer::{Output, eprint_note};
use crate::selection::{Scope, Selection, leave_alone};
use crate::session::Session;
use crate::text::plural;

/// Keep jobs from starting, until 'dispatch release'
///
/// Sets their priority to 0. Jobs that run already are left alone; one that starts just now is
/// stopped.
#[derive(Debug, Args)]
pub struct Hold {
    #[command(flatten)]
    pub selection: Selection,
}

/// Let held or killed jobs start, with the priority that they had
#[derive(Debug, Args)]
pub struct Release {
    #[command(flatten)]
    pub selection: Selection,
}

pub async fn hold(args: Hold, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let mut held = 0;
    for job in args.selection.find(client, Scope::Open).await? {
        if !matches!(job.state(), JobState::Queued | JobState::Locked) {
            leave_alone(&job);
            continue;
        }
        let mut properties = job.properties();
        properties.insert(
            HELD_PRIORITY_PROPERTY.to_owned(),
            job.request.priority.into(),
        );
        jobs::set_properties(client, &job, properties).await?;
        let change = json!({"priority": 0});
        client
            .update_container_request(&job.request.uuid, change)
            .await?;
        held += 1;
    }
    report(out, "held", held)
}

pub async fn release(args: Release, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let mut released = 0;
    for job in args.selection.find(client, Scope::Open).await? {
        let is_open = job.request.state == RequestState::Committed
            && job.request.priority == 0
            && matches!(job.state(), JobState::Held | JobState::Cancelled);
        if !is_open {
            leave_alone(&job);
            continue;
        }
        let mut properties = job.properties();
        properties.remove(KILLED_PROPERTY);
        let before = properties
            .remove(HELD_PRIORITY_PROPERTY)
            .and_then(|before| before.as_i64());
        let priority = before.filter(|priority| (1..=1000).contains(priority));
        let priority = priority.unwrap_or(DEFAULT_PRIORITY.into());
        let change = json!({"priority": priority});
        client
            .update_container_request(&job.request.uuid, change)
            .await?;
        jobs::set_properties(client, &job, properties).await?;
        released += 1;
    }
    report(out, "released", released)
}

fn report(out: Output, what: &str, count: u64) -> Result<(), CliError> {
    match out.json {
        true => out.json(&json!({what: count})),
        false => {
            eprint_note(&format!("{what} {}", plural(count, "job")));
            Ok(())
        }
    }
}
