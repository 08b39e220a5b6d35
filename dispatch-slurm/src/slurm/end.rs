//! How a job ended, from Slurm's own memory and its accounts.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::command::Failure;
use dispatch_core::scheduler::{Doubt, Ending, SchedulerError};

use super::{Slurm, locked};
use crate::accounting::user_name;
use crate::ending::{self, Ended, IN_SQUEUE};

/// Of a job that nothing is known of.
const FORGOTTEN: &str =
    "Slurm does not know its job any more (it forgets ended jobs after MinJobAge)";

impl Slurm {
    /// In words, with what its job left behind.
    pub(super) async fn how_it_ended(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> Ending {
        let detail = self.dir(container).last_words_in_time().await;
        let (reason, ended) = match self.ended(container, attempt).await {
            Ok(Some(ended)) => {
                let user = match ended.cancelled_by {
                    Some(uid) => Some(user_name(uid).await),
                    None => None,
                };
                (ended.sentence(user.as_deref()), ended)
            }
            Ok(None) => {
                let said = self.refusals.said(container, attempt);
                let reason = said.unwrap_or_else(|| FORGOTTEN.to_owned());
                (reason, Ended::default())
            }
            Err(error) => return Ending::doubtful(Doubt::MayBeAlive(error.to_string())),
        };
        let is_alive = !ended.state.is_empty() && ended.is_alive();
        let unasked = ended.unasked.clone().map(Doubt::MayHaveResults);
        Ending {
            reason,
            detail,
            doubt: is_alive.then_some(Doubt::Alive).or(unasked),
            undelivered: ended.is_undelivered(),
            node: ended.node,
        }
    }

    /// What Slurm's own memory and its accounts know of the end of an attempt's job.
    async fn ended(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> Result<Option<Ended>, SchedulerError> {
        let noted = self.job_of(container, attempt);
        // By its number one job is asked for, by its name all of the user.
        let which = match &noted {
            Some(job) => format!("--jobs={job}"),
            None => format!("--name={container}"),
        };
        let query = ["--states=all", "--sort=i", &which, "--format", IN_SQUEUE];
        let listing = match self.squeue(&query).await {
            Err(SchedulerError::NoAnswer { detail, .. }) if is_unknown(&detail) => {
                Ok(String::new())
            }
            listing => listing,
        };
        let known = listing.as_deref().ok();
        let known = known.and_then(|listing| ending::in_squeue(listing, attempt, noted.as_deref()));
        if known.as_ref().is_some_and(Ended::is_alive) {
            return Ok(known);
        }
        let booked = self.accounts(container, attempt, known.as_ref()).await;
        let Some(mut ended) = known.or(booked.clone()) else {
            return listing.map(|_| None);
        };
        if let Some(booked) = booked {
            ended.status = booked.status;
            ended.cancelled_by = booked.cancelled_by;
        }
        if ended.asks_for_status() && ended.status.is_none() {
            match self.exit_status(&ended.job).await {
                Ok(status) => ended.status = status,
                Err(failure) => ended.unasked = Some(failure.to_string()),
            }
        }
        Ok(Some(ended))
    }

    fn job_of(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Option<String> {
        let jobs = locked(&self.jobs);
        let (of, job) = jobs.get(container)?;
        (of == attempt).then(|| job.clone())
    }

    /// Accounts may lag behind: what they show as running says nothing.
    async fn accounts(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
        known: Option<&Ended>,
    ) -> Option<Ended> {
        let sacct = self.settings.client("sacct");
        let job = known.map(|known| known.job.clone());
        let job = job.or_else(|| self.job_of(container, attempt));
        let answer = self.accounting.ask(sacct, container, job.as_deref());
        let answer = answer.await?;
        let booked = ending::in_sacct(&answer, attempt, job.as_deref())?;
        (!booked.is_alive()).then_some(booked)
    }

    /// The exit status of a job that failed, if Slurm still remembers it.
    async fn exit_status(&self, job: &str) -> Result<Option<i64>, Failure> {
        let command = self.client("scontrol");
        let arguments = ["--oneliner", "show", "job", job];
        match command.args(arguments).succeed().await {
            Ok(answer) => Ok(ending::exit_status(&answer.output)),
            Err(Failure::Said(said)) if is_unknown(&said) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

/// Slurm has forgotten the job.
fn is_unknown(said: &str) -> bool {
    said.contains("Invalid job id")
}
