//! Finds the collection with the output of a job.

use std::path::Path;

use arvados_client::Client;

use crate::error::CliError;
use crate::input_spec::{self, CollectionSpec, InputSpecError, Source};
use crate::job::{Job, JobState};
use crate::job_id::JobId;
use crate::jobs;
use crate::printer::eprint_note;

/// The source that is meant: `JOB` and `JOB:PATH` are the output of a job, unless a file of this
/// machine has that name.
pub async fn resolve(client: &Client, source: &Source) -> Result<Source, CliError> {
    let Source::Local(local) = source else {
        return Ok(source.clone());
    };
    let Some((id, path)) = job_and_path(local) else {
        return Ok(source.clone());
    };
    let path = input_spec::clean(path).ok_or_else(|| InputSpecError::BadPath(path.to_owned()))?;
    match jobs::find(client, &id).await {
        Ok(job) => {
            let collection = collection(&job)?;
            if job.has_failed() {
                let name = job.name();
                eprint_note(&format!(
                    "dispatch: job {name} has failed; what it wrote is used all the same"
                ));
            }
            Ok(Source::Collection(CollectionSpec { collection, path }))
        }
        Err(CliError::NoJob(_)) => Ok(source.clone()),
        Err(error) => Err(error),
    }
}

fn job_and_path(local: &Path) -> Option<(JobId, &str)> {
    let text = local
        .to_str()
        .filter(|_| local.symlink_metadata().is_err())?;
    let (job, path) = text.split_once(':').unwrap_or((text, ""));
    Some((job.parse().ok()?, path))
}

/// The collection with the output of a job: its uuid, or else its portable data hash.
pub fn collection(job: &Job) -> Result<String, CliError> {
    let content = job.container.as_ref().and_then(|c| c.output.as_ref());
    let own = job.request.output_uuid.as_ref().map(ToString::to_string);
    if let Some(output) = own.or_else(|| content.map(ToString::to_string)) {
        return Ok(output);
    }
    let name = job.name();
    let why = match (job.state(), job.error()) {
        (JobState::Cancelled, Some(error)) => format!("it was cancelled: {error}"),
        (JobState::Cancelled, None) => "it was cancelled".to_owned(),
        (JobState::Complete, _) => "none was saved".to_owned(),
        (JobState::Held, _) => "it is on hold (priority 0) and never ran".to_owned(),
        (state, _) => format!(
            "it is {}; wait for it with: dispatch wait {name}",
            state.as_str()
        ),
    };
    Err(CliError::NoOutput { job: name, why })
}
