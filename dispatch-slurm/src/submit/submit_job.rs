//! Submits one container as one job with `sbatch`.
//!
//! Input: an order. Output: the id of its job, or an error that tells whether there may be one.

use std::time::Duration;

use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::submit_command::submit_with_token;
use dispatch_core::scheduler::{SchedulerError, SubmitRequest};

use crate::error::{NAME, refused};
use crate::job_comment;
use crate::query::partition_times::PartitionTimes;
use crate::slurm::Slurm;
use crate::submit::sbatch::{ROOM_TO_RAISE, SbatchJob};
use crate::submit::test_only::{answers, one_line};

/// What sbatch says if no slurmctld accepted its connection, so that none was asked.
const UNREACHED: &str = "Unable to contact slurm controller (connect failure)";

/// Timeout of the question whether a rule of the site has these words. Commands wait for a
/// slurmctld that comes back.
const AT_ONCE: Duration = Duration::from_secs(2);

impl Slurm {
    /// Submits one job and records its id. A failure makes the capacity suspect, and is remembered
    /// as a rejection.
    pub(crate) async fn submit_job(&self, order: SubmitRequest) -> Result<JobId, SchedulerError> {
        let submitted = self.run_sbatch(&order).await;
        match &submitted {
            Ok(job) => {
                self.rejections.accepted(self, &order).await;
                self.record_job_id(order.container, order.attempt, job.0.clone());
            }
            Err(error) => {
                self.capacity.invalidate();
                if let Some(detail) = error.submit_detail() {
                    let message = one_line(detail);
                    self.rejections.record_failure(self, &order, message).await;
                }
            }
        }
        submitted
    }

    /// The time limits of the partitions where this container could run. Logs once if a partition
    /// gives jobs less time than the admin's setting says.
    pub(crate) fn times(&self, order: &SubmitRequest) -> PartitionTimes {
        let times = self.capacity.times(&order.needs);
        if let Some(why) = self.settings.cut_time(&order.needs, times)
            && self
                .cut_partitions
                .lock()
                .insert(order.needs.partitions.clone())
        {
            let container = &order.container;
            tracing::warn!(%container, event = "time_limit_cut", "{why}");
        }
        times
    }

    async fn run_sbatch(&self, order: &SubmitRequest) -> Result<JobId, SchedulerError> {
        let container = order.container.clone();
        let dir = self.attempt_dir(&container);
        let comment = job_comment::write(&order.attempt, &self.instance_id, order.owner.as_deref());
        let arguments = self
            .settings
            .sbatch_arguments(SbatchJob {
                container: &container,
                needs: &order.needs,
                comment: &comment,
                output: &dir.output_file(),
                avoid: &order.avoid,
                // The others of its account are put in order after the next listing. This one must
                // not wait for that behind other accounts.
                nice: match self.rejections.has_jobs_like(&order.needs) {
                    true => ROOM_TO_RAISE,
                    false => 0,
                },
                times: self.times(order),
            })
            .map_err(|error| refused(order, error))?;
        let script = self
            .settings
            .job_script(&container, &dir.token_file_of(&order.attempt))
            .map_err(|error| refused(order, error))?;
        let command = self.settings.sbatch_command(arguments, script);
        let command = command.timeout(self.command_timeout);
        match submit_with_token(NAME, order, &dir, command, ";").await {
            Err(SchedulerError::Ambiguous { detail, .. })
                if detail.contains(UNREACHED)
                    && (self.rejections.is_first_unreached(&container)
                        || !answers(&self.settings, AT_ONCE).await) =>
            {
                Err(SchedulerError::NotTried { container })
            }
            submitted => submitted,
        }
    }
}
