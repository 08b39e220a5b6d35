//! Submits one container as one job with `sbatch`.
//!
//! Input: an order. Output: the id of its job, or an error that tells whether there may be one.

use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::submit_command::submit_with_token;
use dispatch_core::scheduler::{SchedulerError, SubmitRequest};

use crate::error::NAME;
use crate::query::squeue;
use crate::slurm::Slurm;
use crate::submit::sbatch::SbatchJob;
use crate::submit::test_only::one_line;

impl Slurm {
    /// Submits one job and records its id. A failure makes the capacity suspect, and is remembered
    /// as a rejection.
    pub(crate) async fn submit_job(&self, order: SubmitRequest) -> Result<JobId, SchedulerError> {
        let submitted = self.run_sbatch(&order).await;
        match &submitted {
            Ok(job) => {
                self.rejections.accepted(&order.container, &order.needs);
                self.record_job_id(order.container, order.attempt, job.0.clone());
            }
            Err(error) => {
                self.capacity.invalidate();
                if let Some(detail) = error.submit_detail() {
                    let (tester, message) = (&self.settings, one_line(detail));
                    self.rejections
                        .record_failure(tester, &order, message)
                        .await;
                }
            }
        }
        submitted
    }

    async fn run_sbatch(&self, order: &SubmitRequest) -> Result<JobId, SchedulerError> {
        let container = order.container.clone();
        let refused = |detail: String| SchedulerError::Refused {
            scheduler: NAME,
            container: container.clone(),
            detail,
        };
        let dir = self.attempt_dir(&container);
        let comment = squeue::comment(&order.attempt, &self.instance_id);
        let arguments = self
            .settings
            .sbatch_arguments(SbatchJob {
                container: &container,
                needs: &order.needs,
                comment: &comment,
                output: &dir.output_file(),
                avoid: &order.avoid,
            })
            .map_err(|error| refused(error.to_string()))?;
        let script = self
            .settings
            .job_script(&container, &dir.token_file_of(&order.attempt))
            .map_err(|error| refused(error.to_string()))?;
        let command = self.settings.sbatch_command(arguments, script);
        let command = command.timeout(self.command_timeout);
        submit_with_token(NAME, order, &dir, command, ";").await
    }
}
