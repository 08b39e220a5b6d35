//! How a job ended, from Slurm's own memory and its accounts.

use std::sync::atomic::Ordering;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::command::Failure;
use dispatch_core::exit_status;
use dispatch_core::scheduler::{Doubt, Ending, SchedulerError};

use super::{Slurm, locked};
use crate::accounting::{Accounts, user_name};
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
        let (ended, unasked) = match self.ended(container, attempt).await {
            Ok(found) => found,
            Err(error) => return Ending::doubtful(Doubt::MayBeAlive(error.to_string())),
        };
        let reason = match &ended {
            Some(ended) => {
                let user = match ended.cancelled_by {
                    Some(uid) => Some(user_name(uid).await),
                    None if self.took_it_back(ended) => Some("this dispatcher".to_owned()),
                    None => None,
                };
                ended.sentence(user.as_deref())
            }
            None => {
                let said = self.refusals.said(container, attempt);
                said.unwrap_or_else(|| FORGOTTEN.to_owned())
            }
        };
        let words = self.dir(container).last_words_in_time().await;
        // While the API server was away Slurm may have forgotten what the job itself still says.
        let forgotten = ended
            .as_ref()
            .is_none_or(|ended| ended.status.is_none() && ended.asks_for_status());
        let unread = words.as_ref().err().filter(|_| forgotten);
        let unasked = unasked.or(unread.map(ToString::to_string));
        let detail = words.unwrap_or_default();
        let said = forgotten && exit_status::says_undelivered(&detail);
        let is_alive = ended.as_ref().is_some_and(Ended::is_alive);
        let unasked = unasked.filter(|_| !said).map(Doubt::MayHaveResults);
        Ending {
            reason,
            detail,
            doubt: is_alive.then_some(Doubt::Alive).or(unasked),
            undelivered: said || ended.as_ref().is_some_and(Ended::is_undelivered),
            never_began: ended.as_ref().is_some_and(Ended::never_began),
            node: ended.and_then(|ended| ended.node),
        }
    }

    /// What Slurm's own memory and its accounts know of the end of an attempt's job, and why its exit status could not be
    /// asked for, where that matters.
    async fn ended(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> Result<(Option<Ended>, Option<String>), SchedulerError> {
        let noted = self.job_of(container, attempt);
        // By its number one job is asked for, by its name all of the user.
        let listing = match &noted {
            Some(job) => {
                let ask = |jobs| self.shown("--jobs", jobs);
                self.numbers.ask(job, ask).await
            }
            None => {
                let ask = |names| self.shown("--name", names);
                self.names.ask(container.as_str(), ask).await
            }
        };
        let known = listing.as_deref().ok();
        let known = known.and_then(|listing| ending::in_squeue(listing, attempt, noted.as_deref()));
        let is_enough = |known: &Ended| known.is_alive() || self.took_it_back(known);
        if known.as_ref().is_some_and(is_enough) {
            return Ok((known, None));
        }
        let (booked, silent) = self.accounts(container, attempt, known.as_ref()).await;
        let Some(mut ended) = known.or(booked.clone()) else {
            return listing.map(|_| (None, silent));
        };
        if let Some(booked) = booked {
            ended.status = booked.status;
            ended.cancelled_by = booked.cancelled_by;
        }
        let mut unasked = None;
        if ended.asks_for_status() && ended.status.is_none() {
            match self.exit_status(&ended.job).await {
                Ok(Some(status)) => ended.status = Some(status),
                Ok(None) => unasked = silent,
                Err(failure) => unasked = Some(failure.to_string()),
            }
        }
        Ok((Some(ended), unasked))
    }

    /// What Slurm remembers of these jobs.
    async fn shown(&self, by: &str, which: Vec<String>) -> Result<String, SchedulerError> {
        match self.remembered(by, &which.join(",")).await {
            Err(SchedulerError::NoAnswer { detail, .. }) if is_unknown(&detail) => {}
            listing => return listing,
        }
        // It may be one of several that Slurm does not know, and then it says nothing of the others.
        let mut all = String::new();
        for one in which.iter().filter(|_| which.len() > 1) {
            match self.remembered(by, one).await {
                Err(SchedulerError::NoAnswer { detail, .. }) if is_unknown(&detail) => {}
                listing => all.push_str(&listing?),
            }
        }
        Ok(all)
    }

    async fn remembered(&self, by: &str, which: &str) -> Result<String, SchedulerError> {
        self.unpaced.fetch_add(1, Ordering::Relaxed);
        let which = format!("{by}={which}");
        let query = ["--array", "--states=all", "--sort=i", &which, "--format"];
        self.squeue(&[&query, &[IN_SQUEUE][..]].concat()).await
    }

    /// It never began, and it was us who cancelled it: accounts would tell no more.
    fn took_it_back(&self, known: &Ended) -> bool {
        let ours = locked(&self.cancelled).contains_key(&known.job);
        ours && known.state == "CANCELLED" && known.node.is_none()
    }

    fn job_of(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Option<String> {
        let jobs = locked(&self.jobs);
        let (of, job) = jobs.get(container)?;
        (of == attempt).then(|| job.clone())
    }

    /// Accounts may lag behind: what they show as running says nothing. And why they tell nothing, if there are any.
    async fn accounts(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
        known: Option<&Ended>,
    ) -> (Option<Ended>, Option<String>) {
        let sacct = self.settings.client("sacct");
        let job = known.map(|known| known.job.clone());
        let job = job.or_else(|| self.job_of(container, attempt));
        let asking = self.accounting.ask(sacct, container, job.as_deref());
        let (accounts, asked) = asking.await;
        self.unpaced.fetch_add(u32::from(asked), Ordering::Relaxed);
        match accounts {
            Accounts::Told(lines) => match ending::in_sacct(&lines, attempt, job.as_deref()) {
                Some(late) if late.is_alive() => (
                    None,
                    Some(format!("sacct still shows it as {}", late.state)),
                ),
                booked => (booked, None),
            },
            Accounts::Absent => (None, None),
            Accounts::Silent(why) => (None, Some(why)),
        }
    }

    /// The exit status of a job that failed, if Slurm still remembers it.
    async fn exit_status(&self, job: &str) -> Result<Option<i64>, Failure> {
        self.unpaced.fetch_add(1, Ordering::Relaxed);
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
