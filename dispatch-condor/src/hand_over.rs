//! Handing attempts to condor_submit: all that one description can hold by one command.

use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::attempt_dir::AttemptDir;
use dispatch_core::command::Command;
use dispatch_core::handover;
use dispatch_core::needs::Needs;
use dispatch_core::scheduler::{Order, SchedulerError};
use dispatch_core::world::JobId;

use crate::condor::{BATCH, Condor, NAME, locked};
use crate::lines::Asks;
use crate::policy::Starts;
use crate::submission::{Common, DescriptionError, Item};

const MOST_SUSPECTS: usize = 10 * BATCH;
/// Starts of a job that find out on their machine that they cannot run the container there.
const STARTS: u32 = 3;

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

impl Condor {
    /// Hands over one attempt.
    pub(crate) async fn hand_over_one(&self, order: Order) -> Result<JobId, SchedulerError> {
        let mut answers = self.hand_over(std::slice::from_ref(&order)).await;
        let unasked = || Err(refused(&order, "it was not asked".into()));
        answers.pop().unwrap_or_else(unasked)
    }

    /// Hands over several; one answer each, in their order.
    pub(crate) async fn hand_over(&self, orders: &[Order]) -> Vec<Result<JobId, SchedulerError>> {
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
                    alone: locked(&self.suspects).take(&order.container),
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

    /// What jobs of such needs share, on other machines than those to `avoid`.
    pub(crate) fn common<'a>(&'a self, needs: &Needs, avoid: &'a [String]) -> Common<'a> {
        // Where there is but one machine the container is given back at once.
        let starts = match self.pool.has_others() {
            true => STARTS,
            false => 1,
        };
        Common {
            label: &self.label,
            avoid,
            asks: Asks::of(needs),
            starts: Starts(starts),
            log: self.events.path(),
        }
    }

    fn describe(&self, orders: &[&Order]) -> Result<String, DescriptionError> {
        let Some(first) = orders.first() else {
            return Ok(String::new());
        };
        let common = self.common(&first.needs, &first.avoid);
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
                    let mut suspects = locked(&self.suspects);
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
