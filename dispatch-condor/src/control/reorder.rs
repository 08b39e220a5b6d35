//! Puts waiting jobs in the order of their containers' priorities, by `condor_prio`.

use std::cmp::Reverse;

use dispatch_core::scheduler::command::Command;
use dispatch_core::scheduler::{DesiredPlace, SchedulerError};

use crate::condor::{Condor, MAX_BATCH_JOBS};
use crate::control::job_prio;
use crate::error::no_answer;

/// Maximum number of JobPrio values set in one pass, each by a command. The rest follows after the
/// next listing.
const MAX_PRIO_VALUES: usize = 40;

impl Condor {
    /// Sets the JobPrio of jobs that are out of order, highest value first, so that the next job to
    /// start comes first.
    pub(crate) async fn reorder_jobs(&self, wanted: &[DesiredPlace]) -> Result<(), SchedulerError> {
        let changes = job_prio::prio_changes(&self.queue.lock().ads, wanted);
        for (Reverse(value), jobs) in changes.into_iter().take(MAX_PRIO_VALUES) {
            for batch in jobs.chunks(MAX_BATCH_JOBS) {
                self.set_job_prio(value, batch).await?;
            }
        }
        Ok(())
    }

    /// Sets the JobPrio of these jobs. A missing job is no failure.
    async fn set_job_prio(&self, prio: i64, jobs: &[String]) -> Result<(), SchedulerError> {
        let command = Command::new("condor_prio").timeout(self.command_timeout);
        let value = prio.to_string();
        let arguments = ["-p", &value]
            .into_iter()
            .chain(jobs.iter().map(String::as_str));
        self.charge_commands(1);
        let answer = command.args(arguments).run_checked().await;
        // Assumed to have worked; the next listing shows the real values.
        for ad in &mut self.queue.lock().ads {
            if jobs.contains(&ad.id()) {
                ad.job_prio = prio;
            }
        }
        answer
            .map(drop)
            .map_err(|failure| no_answer(format!("could not set the JobPrio of jobs: {failure}")))
    }
}
