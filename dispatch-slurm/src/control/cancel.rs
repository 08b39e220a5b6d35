//! Cancels jobs with `scancel`: one job, or many pending ones.
//!
//! Input: job ids. Output: one result per job; an error means that the cancellation must be
//! repeated.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::command::CommandFailure;
use dispatch_core::scheduler::{SchedulerError, StopMode};

use crate::error::no_answer;
use crate::query::ended_job::has_ended;
use crate::query::squeue::{JobPhase, job_phase};
use crate::slurm::Slurm;

/// Maximum number of jobs of one `scancel`: it queries slurmctld for each, and its whole output is
/// kept.
pub const MAX_JOBS_PER_CANCEL: usize = 25;
/// Time for which a cancellation is attributed to this dispatcher.
const CANCELLED_RETENTION: Duration = Duration::from_secs(3600);

type CancelResult = Result<(), SchedulerError>;

impl Slurm {
    /// Cancels a pending job, sends SIGTERM to a running one, or kills it by force.
    pub(crate) async fn cancel_job(&self, job: &JobId, urgency: StopMode) -> CancelResult {
        match urgency {
            StopMode::Force => self.scancel(&[&job.0]).await,
            // A suspended job receives no signal, and scancel would try for 90 seconds. It is
            // killed after its grace time.
            StopMode::Graceful if self.is_suspended(job) => Ok(()),
            StopMode::Graceful => {
                // A pending job has no process. If the job starts between the two commands, the
                // signal reaches it.
                self.scancel(&["--state=PENDING", &job.0]).await?;
                self.scancel(&["--batch", "--signal=TERM", &job.0]).await
            }
        }
    }

    /// Cancels the pending jobs among `jobs`, or kills all by force. One result each.
    ///
    /// The output of `scancel` for many jobs does not show which of them failed. A second SIGTERM
    /// would cut short what the first one began. So only pending jobs are cancelled, and `squeue`
    /// shows what became of each. A job that has started meanwhile gets an error; the repeated call
    /// signals it alone.
    pub(crate) async fn cancel_jobs(&self, jobs: &[JobId], urgency: StopMode) -> Vec<CancelResult> {
        let ids = jobs.iter().map(|job| job.0.as_str());
        if urgency == StopMode::Force {
            let forced = self.scancel(&ids.collect::<Vec<_>>()).await;
            return vec![forced; jobs.len()];
        }
        let arguments: Vec<&str> = ["--state=PENDING"].into_iter().chain(ids).collect();
        let cancelled = self.scancel(&arguments).await;
        self.charge_commands(1);
        let states = match self.query_states(jobs).await {
            Ok(states) => states,
            Err(error) => return vec![Err(error); jobs.len()],
        };
        let error = cancelled.err().map(|error| error.to_string());
        let error = error.as_deref().unwrap_or("scancel left it pending");
        let state = |job: &JobId| states.get(&job.0).map(String::as_str);
        let ours = jobs.iter().filter(|job| state(job) == Some("CANCELLED"));
        let now = Instant::now();
        let mut all = self.cancelled.lock();
        all.retain(|_, at| now.duration_since(*at) < CANCELLED_RETENTION);
        all.extend(ours.map(|job| (job.0.clone(), now)));
        drop(all);
        jobs.iter()
            .map(|job| result_from_state(state(job), error))
            .collect()
    }

    /// Queries the states of the jobs that Slurm still shows, by job id.
    async fn query_states(
        &self,
        jobs: &[JobId],
    ) -> Result<BTreeMap<String, String>, SchedulerError> {
        let ids: Vec<&str> = jobs.iter().map(|job| job.0.as_str()).collect();
        let jobs = format!("--jobs={}", ids.join(","));
        let query = ["--array", "--states=all", "--format=%i|%T", &jobs];
        let listing = self.squeue(&query).await?;
        let rows = listing
            .lines()
            .filter_map(|line| line.trim().split_once('|'));
        Ok(rows
            .map(|(id, state)| (id.to_owned(), state.to_owned()))
            .collect())
    }

    /// Runs `scancel`. A job that has ended already is a success.
    pub(crate) async fn scancel(&self, arguments: &[&str]) -> CancelResult {
        let arguments = arguments.iter().copied();
        match self.client("scancel").args(arguments).run_checked().await {
            Ok(_) => Ok(()),
            // With several jobs, the message may be true of some only.
            Err(CommandFailure::Failed(message)) if has_ended(&message) => Ok(()),
            Err(failure) => Err(no_answer(failure.to_string())),
        }
    }

    fn is_suspended(&self, job: &JobId) -> bool {
        let queue = self.queue.lock();
        let row = queue.iter().find(|row| row.id == job.0);
        row.is_some_and(|row| matches!(row.state.as_str(), "SUSPENDED" | "STOPPED"))
    }
}

/// The result for a job after the cancellation of pending jobs, by its state; none if `squeue` does
/// not show it. `message` is the reason why a job may still be pending.
fn result_from_state(state: Option<&str>, message: &str) -> CancelResult {
    match (state, state.map(job_phase)) {
        (_, Some(JobPhase::Ended)) | (Some("COMPLETING"), _) => Ok(()),
        // A suspended job receives no signal. It is killed after its grace time.
        (Some("SUSPENDED" | "STOPPED"), _) => Ok(()),
        (_, Some(JobPhase::Pending)) => Err(no_answer(message.to_owned())),
        (Some(state), _) => Err(no_answer(format!(
            "the job was pending when it was to be cancelled, and is {state} now; SIGTERM follows"
        ))),
        (None, _) => Err(no_answer(
            "squeue does not show whether the job was cancelled".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_ended_or_cannot_be_asked_is_done() {
        for (state, done, words) in [
            (Some("CANCELLED"), true, ""),
            (Some("COMPLETING"), true, ""),
            (Some("SUSPENDED"), true, ""),
            (Some("PENDING"), false, "denied"),
            (Some("REQUEUE_HOLD"), false, "denied"),
            (Some("RUNNING"), false, "is RUNNING now"),
            (Some("CONFIGURING"), false, "SIGTERM follows"),
            (Some("RUNN"), false, "is RUNN now"),
            (None, false, "does not show"),
        ] {
            let answer = result_from_state(state, "denied");
            assert_eq!(answer.is_ok(), done, "{state:?}");
            let message = answer.err().map(|error| error.to_string());
            assert!(message.unwrap_or_default().contains(words), "{state:?}");
        }
    }
}
