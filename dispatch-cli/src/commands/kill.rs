//! `dispatch kill`: stops jobs by setting their priority to 0.

use clap::Args;
use serde_json::json;

use crate::error::CliError;
use crate::job::{Job, JobState};
use crate::job_id::JobId;
use crate::jobs;
use crate::printer::{Output, eprint_note};
use crate::session::Session;

/// Stop jobs, wherever they are: queued, being started, or running
///
/// Sets the priority to 0. A running job gets SIGTERM first, and SIGKILL if it does not end.
#[derive(Debug, Args)]
pub struct Kill {
    /// Numbers or uuids of the jobs
    #[arg(required = true, value_name = "ID")]
    pub jobs: Vec<JobId>,
}

pub async fn run(args: Kill, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    for id in &args.jobs {
        let mut job = jobs::find(client, id).await?;
        let before = job.state();
        if !matches!(before, JobState::Complete | JobState::Cancelled) {
            client
                .update_container_request(&job.request.uuid, json!({"priority": 0}))
                .await?;
            job = jobs::refresh(client, &job).await?;
        }
        let message = sentence(&job, before);
        match out.json {
            true => out.json(&json!({
                "id": job.number, "uuid": job.request.uuid, "before": before.as_str(), "state": job.state().as_str(),
            }))?,
            false => eprint_note(&message),
        }
    }
    Ok(())
}

fn sentence(job: &Job, before: JobState) -> String {
    let name = job.name();
    match (before, job.state()) {
        (JobState::Complete | JobState::Cancelled, state) => {
            format!("job {name} had already ended ({})", state.as_str())
        }
        (_, JobState::Held | JobState::Draft) => format!("job {name} will not start"),
        (_, JobState::Complete | JobState::Cancelled) => format!("job {name} has ended"),
        (_, JobState::Running | JobState::Locked | JobState::Queued) => {
            format!("job {name} is cancelled, but another job still uses its container")
        }
        (_, JobState::Stopping) => format!("job {name} is being stopped"),
    }
}
