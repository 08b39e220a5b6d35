//! Collects what `explain` tells: the record of a container, its lock, its job and its log entries.
//!
//! Input: a reference to a container. Output: an [`ExplainInput`], from the API server and the
//! scheduler.

use std::error::Error;

use arvados_client::records::ContainerState;
use arvados_client::{Client, scopes};
use tokio::join;

use crate::api::Api;
use crate::model::resources::Admission;
use crate::model::world::Job;
use crate::observe::owners::owner_of;
use crate::scheduler::{JobExit, Scheduler, Uncertainty};
use crate::service::TokenModeName;
use crate::service::state_dir::StateDir;
use crate::service::subcommands::container_ref::ContainerRef;
use crate::service::subcommands::explain::ExplainInput;
use crate::service::subcommands::queries::{host_fault, list_jobs, no_reply_text, with_timeout};
use crate::service::subcommands::{DispatcherCommands, client, fetch, fit};

/// Maximum number of notes shown. A refusal, its consequence and the time of the next attempt are
/// separate notes.
const MAX_NOTES: u64 = 4;

/// What is known of a container now.
pub(super) async fn explain_input<P: DispatcherCommands>(
    program: &P,
    asked: &ContainerRef,
) -> Result<ExplainInput, Box<dyn Error>> {
    let common = program.common();
    let client = client(program)?;
    let home = StateDir::open_shared(program.state_dir())?;
    let label = home.instance_id_or_placeholder();
    let scheduler = program.scheduler(home, label.clone());
    let record = fetch(program, &client, &scheduler, asked).await?;
    let uuid = &record.uuid;
    let (jobs, host_fault, notes, user, owner) = join!(
        list_jobs(&scheduler),
        host_fault(&scheduler),
        client.last_notes(uuid, MAX_NOTES),
        client.current_user(),
        owner_of(&client, &record)
    );
    let owner = owner?;
    let jobs = match jobs {
        Some(jobs) => jobs.map_err(|error| error.to_string()),
        None => Err(no_reply_text(P::TERMS.scheduler)),
    };
    let jobs = jobs.map(|mut jobs| {
        jobs.retain(|job| job.container == *uuid);
        jobs
    });
    // The record is read after the listing, as the service does.
    let container = client.container(uuid).await?;
    let holder = container.locked_by_uuid.clone();
    let own = match common.token_mode {
        TokenModeName::Shared => Some(client.own_token().await?.uuid),
        TokenModeName::PerAttempt => None,
    };
    let minter = format!("{}-{label}", scheduler.name());
    let is_ours = match &holder {
        None => false,
        Some(holder) if own.as_ref() == Some(holder) => true,
        Some(holder)
            if jobs
                .iter()
                .flatten()
                .any(|job| job.attempt.as_ref() == Some(holder)) =>
        {
            true
        }
        Some(holder) => {
            let token = Client::token(&client, holder).await?;
            token.is_some_and(|token| scopes::is_labelled(&token.scopes, &minter))
        }
    };
    let ours = holder.filter(|_| is_ours);
    let ended = async {
        match (&ours, &jobs) {
            (Some(attempt), Ok(jobs)) if jobs.is_empty() => {
                let ending = with_timeout(scheduler.job_exit(uuid, attempt)).await;
                ending.map_or_else(|| Some(no_reply_text(P::TERMS.scheduler)), how_it_ended)
            }
            _ => None,
        }
    };
    let job = jobs.iter().flatten().find(|job: &&Job| !job.ended);
    let analysis = async {
        match job {
            // For a running job, the analysis would only show why it fits nowhere else.
            Some(job) if container.state != ContainerState::Running => {
                let analysis = with_timeout(program.analysis(&job.id)).await;
                analysis.unwrap_or_else(|| Some(no_reply_text(P::TERMS.scheduler)))
            }
            _ => None,
        }
    };
    let fit = async {
        match container.state {
            // A scheduler that has just failed to answer is not asked again.
            ContainerState::Queued if jobs.is_ok() => {
                fit(program, &scheduler, &container, owner.clone()).await
            }
            _ => Admission::Now,
        }
    };
    let fault = async {
        match host_fault {
            Some(fault) => Some(format!("this host can submit jobs: {fault}")),
            None if container.state == ContainerState::Queued => storage_fault(&client).await,
            None => None,
        }
    };
    let (ended, analysis, fit, host_fault) = join!(ended, analysis, fit, fault);
    let waiting = scheduler.pending_reasons().remove(uuid);
    Ok(ExplainInput {
        notes: notes.map_err(|error| format!("not known: {error}")),
        own_user: user.ok().map(|user| user.uuid),
        names: P::TERMS,
        container,
        held_by_us: ours.is_some(),
        jobs,
        waiting,
        ended,
        fit,
        host_fault,
        analysis,
        owner,
    })
}

/// How the job ended; none if it was not submitted yet, or after the jobs were listed.
fn how_it_ended(exit: JobExit) -> Option<String> {
    let is_there = matches!(exit.uncertainty, Some(Uncertainty::StillRunning));
    let has_ended = !exit.without_trace && !is_there && !exit.reason.is_empty();
    has_ended.then_some(exit.reason)
}

/// What must pass before a start, if this host can store no block. The service tries the same.
async fn storage_fault(client: &Client) -> Option<String> {
    let reason = match with_timeout(client.store_trial_block()).await {
        Some(tried) => tried.err()?.reason,
        None => no_reply_text("it"),
    };
    Some(format!(
        "the file storage (Keep) takes data from this host: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_the_list_lacked_has_not_ended_for_that() {
        let exit = |uncertainty, without_trace, reason: &str| JobExit {
            uncertainty,
            without_trace,
            reason: reason.to_owned(),
            ..JobExit::default()
        };
        let pending = "Slurm shows job 521 as PENDING (None)";
        let unknown = Some(Uncertainty::ResultsUnknown("no answer".to_owned()));
        for (exit, expected) in [
            (exit(Some(Uncertainty::StillRunning), false, pending), None),
            (exit(None, true, "Slurm has no record of it"), None),
            (exit(None, false, ""), None),
            (exit(None, false, "it failed"), Some("it failed")),
            (exit(unknown, false, "it failed"), Some("it failed")),
        ] {
            assert_eq!(how_it_ended(exit).as_deref(), expected);
        }
    }
}
