//! HTCondor as a scheduler: condor_submit, condor_q, condor_rm, condor_history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::AttemptDir;
use dispatch_core::command::{Command, Failure};
use dispatch_core::handover;
use dispatch_core::home::Home;
use dispatch_core::instance_types::fit;
use dispatch_core::needs::Fit;
use dispatch_core::scheduler::{
    Candidate, Ending, Order, Scheduler, SchedulerError, StillInUse, Urgency,
};
use dispatch_core::world::{Job, JobId};

use crate::lines::Asks;
use crate::listing::{self, Ad, COLUMNS};
use crate::submission::{ATTEMPT, CONTAINER, Common, DISPATCHER, DescriptionError, Item, Settings};

const NAME: &str = "condor";
/// Jobs of one submission, at most.
const BATCH: usize = 500;
const MOST_SUSPECTS: usize = 10 * BATCH;

/// The scheduler.
#[derive(Debug)]
pub struct Condor {
    settings: Settings,
    jobs: Home,
    /// Tells our jobs from those of another dispatcher of the same user.
    label: String,
    /// How long a command may take.
    patience: Duration,
    /// Containers of a submission that failed: one of them may be what HTCondor does not take, so each goes alone.
    suspects: Mutex<BTreeSet<ContainerUuid>>,
}

fn no_answer(detail: String) -> SchedulerError {
    SchedulerError::NoAnswer {
        scheduler: NAME,
        detail,
    }
}

impl Condor {
    /// HTCondor as the commands in PATH know it; `jobs` holds a directory for each job.
    pub fn new(settings: Settings, jobs: Home, label: String, patience: Duration) -> Self {
        Self {
            patience,
            settings,
            jobs,
            label,
            suspects: Mutex::default(),
        }
    }

    fn suspects(&self) -> MutexGuard<'_, BTreeSet<ContainerUuid>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether condor_q answers; the error is for the admin, at the start.
    pub async fn check(&self) -> Result<(), SchedulerError> {
        self.list().await.map(drop)
    }

    fn dir(&self, container: &ContainerUuid) -> AttemptDir {
        AttemptDir::of(self.jobs.path(), container)
    }

    /// The ads that `program` knows for `constraint`.
    async fn ads(
        &self,
        program: &str,
        constraint: &str,
        more: &[&str],
    ) -> Result<Vec<Ad>, SchedulerError> {
        let command = Command::new(program)
            .patience(self.patience)
            .args(["-json", "-attributes", COLUMNS, "-constraint", constraint])
            .args(more);
        let answer = command
            .succeed()
            .await
            .map_err(|e| no_answer(e.to_string()))?;
        // Without a job it writes nothing at all: then only what it complains of tells that from a failure.
        let failed = ["Failed", "Error", "ERROR"]
            .iter()
            .any(|word| answer.complaint.contains(word));
        if answer.output.trim().is_empty() && failed {
            return Err(no_answer(answer.complaint));
        }
        listing::parse(&answer.output).map_err(|error| {
            no_answer(format!(
                "{program} wrote something that cannot be read: {error}"
            ))
        })
    }

    fn describe(&self, orders: &[&Order]) -> Result<String, DescriptionError> {
        let first = orders.first();
        let common = Common {
            label: &self.label,
            avoid: first.map_or(&[], |order| &order.avoid),
            asks: first.map_or_else(Asks::default, |order| Asks::of(&order.needs)),
        };
        let dirs: Vec<AttemptDir> = orders.iter().map(|o| self.dir(&o.container)).collect();
        let jobs: Vec<Item<'_>> = orders
            .iter()
            .zip(&dirs)
            .map(|(order, dir)| item(order, dir))
            .collect();
        self.settings.describe(&common, &jobs)
    }

    /// Hands over, by one command, orders that one description can hold, with their tokens in place.
    async fn submit_alike(&self, orders: &[&Order]) -> Vec<Result<JobId, SchedulerError>> {
        let description = match self.describe(orders) {
            Ok(description) => description,
            Err(error) => {
                let refused = |order: &&Order| Err(refused(order, error.to_string()));
                return orders.iter().map(refused).collect();
            }
        };
        let command = Command::new("condor_submit")
            .patience(self.patience)
            .args(["-terse", "-"])
            .input(description);
        match handover::submit(command).await {
            Ok(output) => {
                // "7.0 - 7.4": one cluster, its processes in the order of the items.
                let first = handover::job_number(&output, " - ");
                let cluster = first.split('.').next().unwrap_or_default();
                let id = |n: usize| Ok(JobId(format!("{cluster}.{n}")));
                (0..orders.len()).map(id).collect()
            }
            Err(failure) => {
                if orders.len() > 1 {
                    let containers = orders.iter().map(|order| order.container.clone());
                    let mut suspects = self.suspects();
                    // Some of them may never come again.
                    if suspects.len() > MOST_SUSPECTS {
                        suspects.clear();
                    }
                    suspects.extend(containers);
                }
                let failed = |order: &&Order| Err(handover::failed(NAME, order, &failure));
                orders.iter().map(failed).collect()
            }
        }
    }
}

/// What orders must have in common to go together.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind<'a> {
    avoid: &'a [String],
    asks: Asks,
    /// A suspect goes with nobody.
    alone: Option<ContainerUuid>,
}

fn item<'a>(order: &'a Order, dir: &'a AttemptDir) -> Item<'a> {
    Item {
        container: &order.container,
        attempt: &order.attempt,
        needs: &order.needs,
        dir: dir.path(),
    }
}

fn refused(order: &Order, detail: String) -> SchedulerError {
    SchedulerError::Refused {
        scheduler: NAME,
        container: order.container.clone(),
        detail,
    }
}

impl Scheduler for Condor {
    fn name(&self) -> &'static str {
        NAME
    }

    /// HTCondor queues what does not fit now; how much it is given at once is `max_pending`'s matter.
    fn admit(&self, candidates: &[Candidate], _started: &[Candidate]) -> Vec<Fit> {
        let candidates = candidates.iter();
        candidates
            .map(|candidate| fit(&self.settings.types, &candidate.needs))
            .collect()
    }

    async fn list(&self) -> Result<Vec<Job>, SchedulerError> {
        let constraint = format!("{DISPATCHER} == \"{}\"", self.label);
        let ads = self.ads("condor_q", &constraint, &[]).await?;
        for ad in &ads {
            if let (Some(reason), Some(job)) = (ad.hold(), ad.job()) {
                tracing::warn!(container = %job.container, job = job.id.0, reason, "the job is held");
            }
        }
        Ok(ads.iter().filter_map(Ad::job).collect())
    }

    async fn submit(&self, order: Order) -> Result<JobId, SchedulerError> {
        let refusal = refused(&order, "it was not asked".into());
        let mut answers = self.submit_all(vec![order]).await;
        answers.pop().unwrap_or(Err(refusal))
    }

    /// One command takes a thousand jobs in the time of two.
    fn batch(&self) -> usize {
        BATCH
    }

    async fn submit_all(&self, orders: Vec<Order>) -> Vec<Result<JobId, SchedulerError>> {
        let mut answers: Vec<Option<Result<JobId, SchedulerError>>> = Vec::new();
        let mut alike: BTreeMap<Kind<'_>, Vec<usize>> = BTreeMap::new();
        for (n, order) in orders.iter().enumerate() {
            let dir = self.dir(&order.container);
            let ready = match self.settings.item(&item(order, &dir)) {
                Ok(_) => handover::prepare(NAME, order, &dir).await,
                Err(error) => Err(refused(order, error.to_string())),
            };
            answers.push(ready.err().map(Err));
            if answers[n].is_none() {
                let kind = Kind {
                    avoid: &order.avoid,
                    asks: Asks::of(&order.needs),
                    alone: self.suspects().take(&order.container),
                };
                alike.entry(kind).or_default().push(n);
            }
        }
        for numbers in alike.into_values() {
            let those: Vec<&Order> = numbers.iter().map(|n| &orders[*n]).collect();
            for (n, answer) in numbers.iter().zip(self.submit_alike(&those).await) {
                answers[*n] = Some(answer);
            }
        }
        let unasked = |order: &Order| Err(refused(order, "it was not asked".into()));
        let answers = orders.iter().zip(answers);
        answers
            .map(|(order, answer)| answer.unwrap_or_else(|| unasked(order)))
            .collect()
    }

    /// HTCondor itself asks first (TERM) and kills after the vacate time of the submit description. By force a job
    /// leaves the queue also where its node does not answer.
    async fn stop(&self, job: &JobId, urgency: Urgency) -> Result<(), SchedulerError> {
        let force = match urgency {
            Urgency::Ask => None,
            Urgency::Force => Some("-forcex"),
        };
        let arguments = force.into_iter().chain([job.0.as_str()]);
        let command = Command::new("condor_rm").patience(self.patience);
        match command.args(arguments).succeed().await {
            Ok(_) => Ok(()),
            // There is no such job any more.
            Err(Failure::Said(said))
                if said.contains("not found") || said.contains("Couldn't find") =>
            {
                Ok(())
            }
            Err(failure) => Err(no_answer(failure.to_string())),
        }
    }

    async fn ending(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Ending {
        let constraint = format!("{CONTAINER} == \"{container}\" && {ATTEMPT} == \"{attempt}\"");
        let queued = self.ads("condor_q", &constraint, &[]).await;
        if queued.is_ok_and(|ads| ads.iter().filter_map(Ad::job).any(|job| !job.ended)) {
            return Ending {
                alive: true,
                ..Ending::default()
            };
        }
        let (mut node, mut undelivered) = (None, false);
        let reason = match self
            .ads("condor_history", &constraint, &["-limit", "1"])
            .await
        {
            Ok(ads) => {
                node = ads.first().and_then(Ad::node);
                undelivered = ads.first().is_some_and(Ad::is_undelivered);
                ads.first()
                    .map_or_else(|| "HTCondor does not know its job".into(), Ad::verdict)
            }
            Err(error) => format!("it cannot be told how its job ended: {error}"),
        };
        Ending {
            reason,
            detail: self.dir(container).last_words_in_time().await,
            node,
            alive: false,
            undelivered,
        }
    }

    async fn forget(&self, container: &ContainerUuid) -> Result<(), StillInUse> {
        self.dir(container).forget().await;
        Ok(())
    }

    /// Only condor_q tells.
    async fn wake(&self) {
        std::future::pending().await
    }
}
