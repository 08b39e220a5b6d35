//! Cancels jobs by `condor_rm`.

use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::command::{Command, CommandFailure};
use dispatch_core::scheduler::{SchedulerError, StopMode};

use crate::condor::Condor;
use crate::error::no_answer;

/// Maximum number of jobs in one `condor_rm`, so that its whole answer is read.
pub const MAX_CANCEL_BATCH: usize = 40;

impl Condor {
    /// Cancels these jobs; with force they leave the queue even if their nodes do not respond.
    ///
    /// `-forcex` only works on a job that a plain `condor_rm` removed before.
    pub(crate) async fn cancel_jobs(
        &self,
        jobs: &[JobId],
        urgency: StopMode,
    ) -> Result<(), SchedulerError> {
        self.condor_rm(&[], jobs).await?;
        match urgency {
            StopMode::Graceful => Ok(()),
            StopMode::Force => self.condor_rm(&["-forcex"], jobs).await,
        }
    }

    async fn condor_rm(&self, options: &[&str], jobs: &[JobId]) -> Result<(), SchedulerError> {
        let ids = jobs.iter().map(|job| job.0.as_str());
        let command = Command::new("condor_rm").timeout(self.command_timeout);
        let command = command.args(options.iter().copied()).args(ids);
        match command.run_checked().await {
            // If it removed some jobs, it succeeds and reports the others on stderr.
            Ok(answer) => match first_refusal(&answer.stderr, jobs) {
                None => Ok(()),
                Some(line) => Err(no_answer(line.to_owned())),
            },
            Err(CommandFailure::Failed(stderr))
                if jobs.len() == 1 && is_gone_or_removed(&stderr) =>
            {
                Ok(())
            }
            Err(failure) => Err(no_answer(failure.to_string())),
        }
    }
}

/// The first line of `stderr` about one of these jobs that is still in the queue and was not
/// removed.
fn first_refusal<'a>(stderr: &'a str, jobs: &[JobId]) -> Option<&'a str> {
    let names_a_job = |line: &&str| jobs.iter().any(|job| line.contains(&job.0));
    stderr
        .lines()
        .filter(names_a_job)
        .find(|line| !is_gone_or_removed(line))
}

/// Whether a message says that the job is not in the queue any more, or is already being removed.
fn is_gone_or_removed(message: &str) -> bool {
    let phrases = ["not found", "Couldn't find", "already marked for removal"];
    phrases.iter().any(|phrase| message.contains(phrase))
}
