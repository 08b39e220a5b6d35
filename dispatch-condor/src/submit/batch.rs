//! Submits attempts by condor_submit, one command for all that one description can hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use arvados_client::UserUuid;
use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::attempt_dir::AttemptDir;
use dispatch_core::scheduler::command::Command;
use dispatch_core::scheduler::submit_command;
use dispatch_core::scheduler::{SchedulerError, SubmitRequest};
use futures_util::{StreamExt, stream};

use crate::condor::Condor;
use crate::error::{NAME, SubmitFault, classify, is_unreached, summarize};
use crate::submit::admin_lines::RequestedKinds;
use crate::submit::bisect::Bisect;
use crate::submit::description::{DescriptionError, DescriptionParams, Item};
use crate::submit::macros;
use crate::submit::restart_and_hold_policy::MaxStarts;

/// Maximum number of job directories prepared concurrently; each waits for the disk.
const MAX_CONCURRENT_PREPARES: usize = 16;
/// Maximum number of starts of a job. A start that fails before the container runs may be followed
/// by another node's.
const MAX_JOB_STARTS: u32 = 3;

/// What requests must have in common to share a description.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UniformKey<'a> {
    avoid: &'a [String],
    requested: RequestedKinds,
    /// Templates of the owner map.
    owner_lines: Arc<[String]>,
    /// Containers of a failed submission are only submitted with those of the same group.
    suspect_group: Option<u64>,
}

fn item<'a>(order: &'a SubmitRequest, dir: &'a AttemptDir) -> Item<'a> {
    Item {
        container: &order.container,
        attempt: &order.attempt,
        needs: &order.needs,
        owner: order.owner.as_deref(),
        dir: dir.path(),
    }
}

fn user_of(order: &SubmitRequest) -> Option<&UserUuid> {
    order.owner.as_ref()?.user.as_ref()
}

fn refused(order: &SubmitRequest, detail: String) -> SchedulerError {
    SchedulerError::Refused {
        scheduler: NAME,
        container: order.container.clone(),
        detail,
    }
}

impl Condor {
    /// Submits attempts; returns one answer each, in their order.
    pub(crate) async fn submit_requests(
        &self,
        orders: &[SubmitRequest],
    ) -> Vec<Result<JobId, SchedulerError>> {
        let ready: Vec<_> = orders.iter().map(|order| self.prepare_dir(order)).collect();
        let ready: Vec<_> = stream::iter(ready)
            .buffered(MAX_CONCURRENT_PREPARES)
            .collect()
            .await;
        let mut answers: Vec<Option<Result<JobId, SchedulerError>>> = ready
            .into_iter()
            .map(|ready| ready.err().map(Err))
            .collect();
        let mut uniform: BTreeMap<UniformKey<'_>, Vec<usize>> = BTreeMap::new();
        for (n, order) in orders.iter().enumerate() {
            if answers[n].is_none() {
                let kind = UniformKey {
                    avoid: &order.avoid,
                    requested: RequestedKinds::of(&order.needs, order.owner.as_deref()),
                    owner_lines: self.settings.owner_lines(order.owner.as_deref()),
                    suspect_group: self.suspect_groups.lock().take_group(&order.container),
                };
                uniform.entry(kind).or_default().push(n);
            }
        }
        let mut commands = 0;
        for (key, mut numbers) in uniform {
            numbers.sort_by_key(|n| user_of(&orders[*n]));
            let those: Vec<&SubmitRequest> = numbers.iter().map(|n| &orders[*n]).collect();
            let submitted = self
                .submit_uniform(&those, &key.owner_lines, &mut commands)
                .await;
            for (n, answer) in numbers.iter().zip(submitted) {
                answers[*n] = Some(answer);
            }
        }
        // The controller charges the first command itself.
        self.charge_commands(commands.saturating_sub(1));
        let untried = |order: &SubmitRequest| {
            let container = order.container.clone();
            Err(SchedulerError::NotTried { container })
        };
        let answers = orders.iter().zip(answers);
        answers
            .map(|(order, answer)| answer.unwrap_or_else(|| untried(order)))
            .collect()
    }

    /// Checks that the job can be described, and writes the token into its directory.
    async fn prepare_dir(&self, order: &SubmitRequest) -> Result<(), SchedulerError> {
        let dir = self.attempt_dir(&order.container);
        self.settings
            .item_line(&item(order, &dir))
            .map_err(|error| refused(order, error.to_string()))?;
        submit_command::write_token(order, &dir).await
    }

    /// The shared parameters of jobs of these kinds that must not run on the nodes in `avoid`.
    pub(crate) fn description_params<'a>(
        &'a self,
        requested: RequestedKinds,
        owner_lines: &'a [String],
        avoid: &'a [String],
    ) -> DescriptionParams<'a> {
        // With only one machine, the container is returned to the queue at once.
        let starts = match self.capacity.has_other_machines() {
            true => MAX_JOB_STARTS,
            false => 1,
        };
        DescriptionParams {
            instance_id: &self.instance_id,
            avoid,
            requested,
            owner_lines,
            max_starts: MaxStarts(starts),
            event_log: self.event_log.path(),
        }
    }

    fn describe(
        &self,
        orders: &[&SubmitRequest],
        owner_lines: &[String],
    ) -> Result<String, DescriptionError> {
        let Some(first) = orders.first() else {
            return Ok(String::new());
        };
        let requested = RequestedKinds::of(&first.needs, first.owner.as_deref());
        let common = self.description_params(requested, owner_lines, &first.avoid);
        let dirs: Vec<AttemptDir> = orders
            .iter()
            .map(|o| self.attempt_dir(&o.container))
            .collect();
        let jobs: Vec<Item<'_>> = orders
            .iter()
            .zip(&dirs)
            .map(|(order, dir)| item(order, dir))
            .collect();
        self.settings.describe(&common, &jobs)
    }

    /// Submits requests that one description can hold, whose tokens are in place. Bisects them if
    /// HTCondor rejects one.
    async fn submit_uniform(
        &self,
        orders: &[&SubmitRequest],
        owner_lines: &[String],
        commands: &mut u32,
    ) -> Vec<Result<JobId, SchedulerError>> {
        let mut answers = Vec::with_capacity(orders.len());
        let users = orders.iter().zip(orders.iter().skip(1)).enumerate();
        let borders = users.filter(|(_, (one, next))| user_of(one) != user_of(next));
        let mut bisect = Bisect::new(orders.len(), borders.map(|(n, _)| n + 1).collect());
        while let Some(range) = bisect.next() {
            let part = &orders[range.clone()];
            let description = match self.describe(part, owner_lines) {
                Ok(description) => description,
                Err(error) => {
                    let refused = |order: &&SubmitRequest| Err(refused(order, error.to_string()));
                    answers.extend(part.iter().map(refused));
                    continue;
                }
            };
            let command = Command::new("condor_submit")
                .timeout(self.command_timeout)
                .args(["-terse", "-"])
                .input(description);
            *commands += 1;
            let means_nothing = macros::is_unused_own;
            let failure = match submit_command::run_submit(command, " - ", means_nothing).await {
                Ok(first) => {
                    // "7.0 - 7.4": one cluster, its processes in the order of the items.
                    let cluster = first.split('.').next().unwrap_or_default();
                    let id = |n: usize| Ok(JobId(format!("{cluster}.{n}")));
                    answers.extend((0..part.len()).map(id));
                    for order in part {
                        self.rejections.accepted(self, order).await;
                    }
                    continue;
                }
                Err(failure) => failure,
            };
            match classify(&failure) {
                SubmitFault::Jobs | SubmitFault::Full if bisect.reject(range.clone()) => continue,
                SubmitFault::Jobs | SubmitFault::Full => {
                    let refused = |order: &&SubmitRequest| Err(refused(order, failure.to_string()));
                    answers.extend(part.iter().map(refused));
                    // One test tells about all of them.
                    if let Some(first) = part.first() {
                        let message = summarize(&failure.to_string());
                        self.rejections.record_failure(self, first, message).await;
                    }
                    continue;
                }
                fault @ (SubmitFault::Unknown | SubmitFault::Schedd) => {
                    let is_first = |first: &&SubmitRequest| {
                        self.rejections.is_first_unreached(&first.container)
                    };
                    let is_unreached = is_unreached(&failure);
                    if is_unreached && part.first().is_some_and(is_first) {
                        break;
                    }
                    let rejects = self.rejects(&failure).await;
                    if is_unreached && !rejects {
                        break;
                    }
                    if rejects || fault == SubmitFault::Unknown {
                        self.suspect_groups.lock().record_failed(part);
                    }
                    if rejects && let Some(first) = part.first() {
                        let message = summarize(&failure.to_string());
                        self.rejections.record_failure(self, first, message).await;
                    }
                }
            }
            let failed =
                |order: &&SubmitRequest| Err(submit_command::submit_error(NAME, order, &failure));
            answers.extend(part.iter().map(failed));
            // Further commands might take as long to fail, so the remaining requests are not
            // submitted.
            break;
        }
        answers
    }
}
