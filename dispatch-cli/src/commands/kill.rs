//! `dispatch kill`: nobody wants the job any more.

use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::job::{Job, JobState};
use crate::job_id::JobId;
use crate::jobs;
use crate::output::{Output, note};
use crate::session::Session;

/// Stop jobs, wherever they are: queued, being started, or running
///
/// Sets the priority to 0. A running job is asked to end first (SIGTERM) and killed when it does not.
#[derive(Debug, Args)]
pub struct Kill {
    /// Jobs
    #[arg(required = true, value_name = "ID")]
    pub jobs: Vec<JobId>,
}

pub async fn run(args: Kill, session: &Session, out: Output) -> Result<(), Failure> {
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
        let said = sentence(&job, before);
        match out.json {
            true => out.json(&json!({
                "id": job.number, "uuid": job.request.uuid, "before": before.word(), "state": job.state().word(),
            }))?,
            false => note(&said),
        }
    }
    Ok(())
}

fn sentence(job: &Job, before: JobState) -> String {
    let name = job.name();
    match (before, job.state()) {
        (JobState::Complete | JobState::Cancelled, state) => {
            format!("job {name} was over already ({})", state.word())
        }
        (_, JobState::Held | JobState::Draft) => format!("job {name} will not start"),
        (_, JobState::Complete | JobState::Cancelled) => format!("job {name} is over"),
        (_, JobState::Running | JobState::Locked | JobState::Queued) => {
            format!("job {name} is not wanted any more, but another job still uses its container")
        }
        (_, JobState::Stopping) => format!("job {name} is being stopped"),
    }
}
