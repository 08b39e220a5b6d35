//! Handing attempts to condor_submit: all that one description can hold by one command.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use arvados_client::ContainerUuid;
use dispatch_core::attempt_dir::AttemptDir;
use dispatch_core::command::Command;
use dispatch_core::handover;
use dispatch_core::needs::Needs;
use dispatch_core::scheduler::{Order, SchedulerError};
use dispatch_core::world::JobId;
use futures_util::{StreamExt, stream};

use crate::complaint::{Fault, fault};
use crate::condor::{BATCH, Condor, NAME, locked};
use crate::halves::Halves;
use crate::lines::Asks;
use crate::policy::Starts;
use crate::submission::{Common, DescriptionError, Item};

const MOST_SUSPECTS: usize = 10 * BATCH;
/// Directories that are made at once: each waits for the disk.
const ABREAST: usize = 16;
/// Starts of a job that find out on their machine that they cannot run the container there.
const STARTS: u32 = 3;

/// What orders must have in common to go together.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind<'a> {
    avoid: &'a [String],
    asks: Asks,
    /// Suspects go with those of their half of what failed, and with nobody else.
    half: Option<u64>,
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
        let mut ready = Vec::with_capacity(orders.len());
        for order in orders {
            ready.push(self.prepare(order));
        }
        let ready: Vec<_> = stream::iter(ready).buffered(ABREAST).collect().await;
        let mut answers: Vec<Option<Result<JobId, SchedulerError>>> = ready
            .into_iter()
            .map(|ready| ready.err().map(Err))
            .collect();
        let mut alike: BTreeMap<Kind<'_>, Vec<usize>> = BTreeMap::new();
        for (n, order) in orders.iter().enumerate() {
            if answers[n].is_none() {
                let kind = Kind {
                    avoid: &order.avoid,
                    asks: Asks::of(&order.needs),
                    half: locked(&self.suspects).take(&order.container),
                };
                alike.entry(kind).or_default().push(n);
            }
        }
        let mut commands = 0;
        for numbers in alike.into_values() {
            let those: Vec<&Order> = numbers.iter().map(|n| &orders[*n]).collect();
            let submitted = self.submit_alike(&those, &mut commands).await;
            for (n, answer) in numbers.iter().zip(submitted) {
                answers[*n] = Some(answer);
            }
        }
        // The engine counts one.
        self.unpaced
            .fetch_add(commands.saturating_sub(1), Ordering::Relaxed);
        let unasked = |order: &Order| Err(refused(order, "it was not asked".into()));
        let answers = orders.iter().zip(answers);
        answers
            .map(|(order, answer)| answer.unwrap_or_else(|| unasked(order)))
            .collect()
    }

    /// The token where the job finds it, if the job can be described.
    async fn prepare(&self, order: &Order) -> Result<(), SchedulerError> {
        let dir = self.dir(&order.container);
        self.settings
            .item(&item(order, &dir))
            .map_err(|error| refused(order, error.to_string()))?;
        handover::prepare(NAME, order, &dir).await
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

    /// Hands over, by as few commands as can be, orders that one description can hold, with their tokens in place.
    async fn submit_alike(
        &self,
        orders: &[&Order],
        commands: &mut u32,
    ) -> Vec<Result<JobId, SchedulerError>> {
        let mut answers = Vec::with_capacity(orders.len());
        let mut halves = Halves::of(orders.len());
        while let Some(range) = halves.next() {
            let part = &orders[range.clone()];
            let description = match self.describe(part) {
                Ok(description) => description,
                Err(error) => {
                    let refused = |order: &&Order| Err(refused(order, error.to_string()));
                    answers.extend(part.iter().map(refused));
                    continue;
                }
            };
            let command = Command::new("condor_submit")
                .patience(self.patience)
                .args(["-terse", "-"])
                .input(description);
            *commands += 1;
            let failure = match handover::submit(command).await {
                Ok(output) => {
                    // "7.0 - 7.4": one cluster, its processes in the order of the items.
                    let first = handover::job_number(&output, " - ");
                    let cluster = first.split('.').next().unwrap_or_default();
                    let id = |n: usize| Ok(JobId(format!("{cluster}.{n}")));
                    answers.extend((0..part.len()).map(id));
                    continue;
                }
                Err(failure) => failure,
            };
            match fault(&failure) {
                Fault::OfJobs if halves.refused(range) => continue,
                Fault::OfJobs => {
                    let refused = |order: &&Order| Err(refused(order, failure.to_string()));
                    answers.extend(part.iter().map(refused));
                    continue;
                }
                Fault::Unknown => locked(&self.suspects).add(part),
                Fault::OfSchedd => {}
            }
            let failed = |order: &&Order| Err(handover::failed(NAME, order, &failure));
            answers.extend(part.iter().map(failed));
            // Each more of them might take as long to fail: the rest were not asked.
            break;
        }
        answers
    }
}

/// Containers of submissions that failed for a reason that is not known: one of them may be what HTCondor does not take,
/// so the next time they go in halves.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    halves: BTreeMap<ContainerUuid, u64>,
    last: u64,
}

impl Suspects {
    /// Those of one failed command.
    fn add(&mut self, orders: &[&Order]) {
        if orders.len() < 2 {
            return;
        }
        // Some of them may never come again.
        if self.halves.len() > MOST_SUSPECTS {
            self.halves.clear();
        }
        for half in orders.chunks(orders.len().div_ceil(2)) {
            self.last += 1;
            let containers = half.iter().map(|order| order.container.clone());
            self.halves
                .extend(containers.map(|container| (container, self.last)));
        }
    }

    /// Which half this one goes with.
    fn take(&mut self, container: &ContainerUuid) -> Option<u64> {
        self.halves.remove(container)
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::{Token, TokenUuid};

    use super::*;

    #[test]
    fn what_failed_for_no_known_reason_goes_in_halves_next_time() {
        let order = || Order {
            container: ContainerUuid::generate("zzzzz"),
            attempt: TokenUuid::generate("zzzzz"),
            credentials: Token::new("secret").into(),
            needs: Needs::default(),
            avoid: Vec::new(),
        };
        let orders: Vec<Order> = (0..5).map(|_| order()).collect();
        let all: Vec<&Order> = orders.iter().collect();
        let mut suspects = Suspects::default();
        suspects.add(&all[..1]);
        suspects.add(&all);
        let mut halves = |those: &[&Order]| -> Vec<Option<u64>> {
            let take = |order: &&Order| suspects.take(&order.container);
            those.iter().map(take).collect()
        };
        let (one, other) = (Some(1), Some(2));
        assert_eq!(halves(&all), [one, one, one, other, other]);
        assert_eq!(halves(&all), [None; 5], "only the next time");
    }
}
