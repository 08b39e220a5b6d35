//! Submits containers with equal `sbatch` arguments as a job array; see
//! [`crate::submit::job_array`] for the protocol.
//!
//! Input: a batch of orders. Output: one result per order; an order that no array can take is
//! returned as [`SchedulerError::RefusedInBatch`], so that it is submitted alone.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::command::CommandFailure;
use dispatch_core::scheduler::submit_command;
use dispatch_core::scheduler::{SchedulerError, SubmitRequest};
use dispatch_core::service::subcommands::dry_run::Source;
use futures_util::{StreamExt, stream};

use crate::error::{NAME, refused};
use crate::job_comment;
use crate::slurm::Slurm;
use crate::submit::job_array::{
    self, ArrayLimit, ArraySnapshot, ArrayTemplate, Element, MIN_ELEMENTS,
};
use crate::submit::sbatch::{Argument, ROOM_TO_RAISE, SbatchJob};
use crate::submit::test_only::is_like_outage;

/// Maximum number of attempt directories that are created concurrently.
const MAX_CONCURRENT_PREPARATIONS: usize = 8;
/// Maximum number of consecutive failures to name elements; then arrays are disabled.
const MAX_NAMING_FAILURES: u32 = 2;

type SubmitResult = Result<JobId, SchedulerError>;

/// Adds to the failure what it is about. A policy plugin can forbid changes of jobs, and scontrol
/// does not show its message.
fn explain_naming_failure(job: &str, failure: CommandFailure) -> CommandFailure {
    match failure {
        CommandFailure::Failed(error) => CommandFailure::Failed(format!(
            "scontrol could not name the elements of job array {job}: {error}; if a plugin of the site (JobSubmitPlugins) forbids changes of jobs, its log says so, and --arrays=off avoids them"
        )),
        other => other,
    }
}

impl Slurm {
    /// Groups orders by their `sbatch` arguments and submits each group as an array.
    pub(crate) async fn submit_as_arrays(&self, orders: Vec<SubmitRequest>) -> Vec<SubmitResult> {
        let mut results: Vec<Option<SubmitResult>> = Vec::with_capacity(orders.len());
        let mut groups: BTreeMap<ArrayTemplate, Vec<usize>> = BTreeMap::new();
        for (n, order) in orders.iter().enumerate() {
            results.push(match self.array_template(order) {
                Err(detail) => Some(Err(refused(order, detail))),
                Ok(None) => Some(Err(retry_alone(
                    order,
                    "its sbatch arguments do not fit a job array",
                ))),
                Ok(Some(template)) => {
                    groups.entry(template).or_default().push(n);
                    None
                }
            });
        }
        for (template, numbers) in groups {
            let members: Vec<&SubmitRequest> = numbers.iter().map(|n| &orders[*n]).collect();
            let group_results = match members.len() < MIN_ELEMENTS {
                true => retry_all_alone(&members, "too few have the same sbatch arguments"),
                false => self.prepare_and_submit(&template, &members).await,
            };
            for (n, result) in numbers.into_iter().zip(group_results) {
                results[n] = Some(result);
            }
        }
        let results = orders.iter().zip(results);
        results
            .map(|(order, result)| result.unwrap_or_else(|| not_submitted(order)))
            .collect()
    }

    /// What the order shares with others of its array; none if it cannot be an element.
    fn array_template(&self, order: &SubmitRequest) -> Result<Option<ArrayTemplate>, String> {
        let job = SbatchJob {
            container: &order.container,
            needs: &order.needs,
            comment: &job_comment::write(&order.attempt, &self.instance_id, None),
            output: &self.attempt_dir(&order.container).output_file(),
            avoid: &order.avoid,
            nice: ROOM_TO_RAISE,
            times: self.times(order),
        };
        let arguments = self
            .settings
            .sbatch_arguments(job)
            .map_err(|e| e.to_string())?;
        Ok(ArrayTemplate::from_arguments(&arguments))
    }

    /// Writes the token files and submits the orders whose token file was written.
    async fn prepare_and_submit(
        &self,
        template: &ArrayTemplate,
        orders: &[&SubmitRequest],
    ) -> Vec<SubmitResult> {
        let preparations = orders.iter().map(|order| async {
            let dir = self.attempt_dir(&order.container);
            submit_command::write_token(order, &dir).await
        });
        let preparations: Vec<_> = preparations.collect();
        let prepared: Vec<_> = stream::iter(preparations)
            .buffered(MAX_CONCURRENT_PREPARATIONS)
            .collect()
            .await;
        let ready: Vec<&SubmitRequest> = orders
            .iter()
            .zip(&prepared)
            .filter(|(_, prepared)| prepared.is_ok())
            .map(|(order, _)| *order)
            .collect();
        let mut submitted = match ready.is_empty() {
            true => Vec::new(),
            false => self.submit_array(template, &ready).await,
        }
        .into_iter();
        let results = orders.iter().zip(prepared).map(|(order, prepared)| {
            prepared?;
            submitted.next().unwrap_or_else(|| not_submitted(order))
        });
        results.collect()
    }

    /// Submits one array, then names its elements, which lets them begin.
    async fn submit_array(
        &self,
        template: &ArrayTemplate,
        orders: &[&SubmitRequest],
    ) -> Vec<SubmitResult> {
        let elements: Vec<Element<'_>> = orders
            .iter()
            .map(|order| Element {
                container: &order.container,
                attempt: &order.attempt,
                owner: order.owner.as_deref(),
            })
            .collect();
        let script = match template.script(&self.settings, self.state_dir.path(), &elements) {
            Ok(script) => script,
            Err(error) => return retry_all_alone(orders, &error.to_string()),
        };
        let array = self.arrays.begin(&self.instance_id);
        let arguments = template.arguments(elements.len(), &array.placeholder_comment);
        let arguments = arguments.into_iter().map(|text| Argument {
            text,
            from: Source::Always("all elements have it"),
        });
        let command = self.settings.sbatch_command(arguments.collect(), script);
        let command = command.timeout(self.command_timeout);
        let job = match submit_command::run_submit(command, ";", |_| false).await {
            Ok(job) => job,
            // Elements without a name never begin. So no container was submitted, even if the array
            // exists.
            Err(failure) => {
                self.capacity.invalidate();
                let error = failure.to_string();
                let what = match is_like_outage(&error) {
                    true => "no answer to the submission of a job array",
                    false => "sbatch did not accept a job array",
                };
                let containers = orders.len();
                tracing::warn!(
                    containers,
                    error,
                    "{what}; submitting its containers one by one"
                );
                return retry_all_alone(orders, &error);
            }
        };
        self.name_elements(&job, orders, &elements).await
    }

    /// Names the elements of array `job` by one `scontrol` for each part.
    async fn name_elements(
        &self,
        job: &str,
        orders: &[&SubmitRequest],
        elements: &[Element<'_>],
    ) -> Vec<SubmitResult> {
        let mut results = Vec::with_capacity(orders.len());
        for (count, input) in job_array::naming_updates(job, elements, &self.instance_id) {
            let first = results.len();
            let part = orders.iter().skip(first).take(count).enumerate();
            let scontrol = self.client("scontrol");
            match scontrol.input(input).run_checked().await {
                Ok(_) => {
                    self.naming_failures.store(0, Ordering::Relaxed);
                    for (n, order) in part {
                        let id = format!("{job}_{}", first + n);
                        let (container, attempt) = (order.container.clone(), order.attempt.clone());
                        self.record_job_id(container, attempt, id.clone());
                        self.rejections.accepted(self, order).await;
                        results.push(Ok(JobId(id)));
                    }
                }
                // Elements that were named before the failure are found by their names.
                Err(failure) => {
                    let failure = explain_naming_failure(job, failure);
                    self.count_naming_failure(&failure);
                    let failed = |(_, order): (_, &&SubmitRequest)| {
                        Err(submit_command::submit_error(NAME, order, &failure))
                    };
                    results.extend(part.map(failed));
                }
            }
        }
        results
    }

    /// Disables arrays after too many failures: each failure costs every container of the array one
    /// of its few locks.
    fn count_naming_failure(&self, failure: &CommandFailure) {
        if self.naming_failures.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_NAMING_FAILURES {
            *self.array_limit.lock() = ArrayLimit::AtMost(0);
            tracing::warn!(
                error = %failure,
                "scontrol cannot name the elements of job arrays; disabling arrays, as --arrays=off does"
            );
        }
    }

    /// The pending elements in `listing` that were never named because their submission was given
    /// up. `before` is the state of arrays before the listing began.
    pub(crate) fn find_abandoned_elements(
        &self,
        listing: &str,
        before: &ArraySnapshot,
    ) -> Vec<String> {
        match *self.array_limit.lock() {
            ArrayLimit::Unused => Vec::new(),
            _ => self
                .arrays
                .abandoned_elements(listing, &self.instance_id, before),
        }
    }

    /// Cancels the abandoned elements that the newest listing shows. Elements that an administrator
    /// let begin are left alone.
    pub(crate) async fn cancel_abandoned_elements(&self) {
        let elements = std::mem::take(&mut *self.abandoned_elements.lock());
        if elements.is_empty() {
            return;
        }
        tracing::warn!(
            elements = elements.len(),
            "cancelling elements of a job array whose submission was not completed"
        );
        for part in elements.chunks(job_array::MAX_ELEMENTS) {
            // An element that was named since the listing is left alone.
            let name = format!("--name={}", job_array::PLACEHOLDER_NAME);
            let mut arguments = vec!["--state=PENDING", &name];
            arguments.extend(part.iter().map(String::as_str));
            if let Err(error) = self.scancel(&arguments).await {
                tracing::warn!(%error, "scancel could not cancel the elements; the next listing retries");
                return;
            }
        }
    }

    /// Queries `MaxArraySize` unless the limit is known or arrays are not used.
    pub(crate) async fn refresh_array_limit(&self) {
        if *self.array_limit.lock() != ArrayLimit::Unknown {
            return;
        }
        let limit = self.query_array_limit().await;
        *self.array_limit.lock() = limit;
    }

    async fn query_array_limit(&self) -> ArrayLimit {
        if !self.settings.arrays || !job_array::settings_allow_arrays(&self.settings) {
            return ArrayLimit::AtMost(0);
        }
        let command = self.client("scontrol");
        match command.args(["show", "config"]).run_checked().await {
            Ok(answer) => ArrayLimit::AtMost(job_array::parse_max_elements(&answer.stdout)),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "scontrol does not report MaxArraySize; submitting no job arrays until it does"
                );
                ArrayLimit::Unknown
            }
        }
    }
}

fn retry_alone(order: &SubmitRequest, reason: &str) -> SchedulerError {
    SchedulerError::RefusedInBatch {
        scheduler: NAME,
        container: order.container.clone(),
        detail: reason.to_owned(),
    }
}

fn retry_all_alone(orders: &[&SubmitRequest], reason: &str) -> Vec<SubmitResult> {
    let alone = orders.iter().map(|order| Err(retry_alone(order, reason)));
    alone.collect()
}

fn not_submitted(order: &SubmitRequest) -> SubmitResult {
    Err(retry_alone(order, "it was not submitted with its array"))
}
