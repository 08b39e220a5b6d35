//! Ending jobs: one, or many that wait.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use dispatch_core::command::Failure;
use dispatch_core::scheduler::{SchedulerError, Urgency};
use dispatch_core::world::JobId;

use super::{Slurm, no_answer};

/// How many jobs one command ends: scancel asks the controller for each, and what it says of them is heard whole.
pub(super) const STOPS: usize = 25;

type Answer = Result<(), SchedulerError>;

/// What is left to do about a job after those that wait were cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    /// It waits all the same.
    Again,
    /// It started before it was cancelled.
    Ask,
}

impl Slurm {
    pub(super) async fn end(&self, job: &JobId, urgency: Urgency) -> Answer {
        match urgency {
            Urgency::Force => self.scancel(&[&job.0]).await,
            // No signal reaches it, and scancel tries for a minute and a half: it is forced when its time is over.
            Urgency::Ask if self.is_suspended(job) => Ok(()),
            Urgency::Ask => {
                // A pending job has no process to ask. If it starts between the two, the signal finds it.
                self.scancel(&["--state=PENDING", &job.0]).await?;
                self.scancel(&["--batch", "--signal=TERM", &job.0]).await
            }
        }
    }

    /// One answer for each. What scancel says of many does not tell of whom it is true, and a second TERM would cut short
    /// what the first one began: so those that wait are cancelled, squeue tells what became of each, and only one that
    /// started meanwhile is sent a signal, by a command of its own.
    pub(super) async fn end_all(&self, jobs: &[JobId], urgency: Urgency) -> Vec<Answer> {
        let numbers = jobs.iter().map(|job| job.0.as_str());
        if urgency == Urgency::Force {
            let forced = self.scancel(&numbers.collect::<Vec<_>>()).await;
            return vec![forced; jobs.len()];
        }
        let arguments: Vec<&str> = ["--state=PENDING"].into_iter().chain(numbers).collect();
        let cancelled = self.scancel(&arguments).await;
        self.unpaced.fetch_add(1, Ordering::Relaxed);
        let states = match self.states(jobs).await {
            Ok(states) => states,
            Err(error) => return vec![Err(error); jobs.len()],
        };
        let said = match cancelled {
            Err(error) => error.to_string(),
            Ok(()) => "scancel left it in the queue".to_owned(),
        };
        let mut answers = Vec::with_capacity(jobs.len());
        for job in jobs {
            answers.push(match left(states.get(&job.0).map(String::as_str)) {
                Left::Nothing => Ok(()),
                Left::Again => Err(no_answer(said.clone())),
                Left::Ask => {
                    self.unpaced.fetch_add(2, Ordering::Relaxed);
                    self.end(job, Urgency::Ask).await
                }
            });
        }
        answers
    }

    /// Of those that Slurm knows.
    async fn states(&self, jobs: &[JobId]) -> Result<BTreeMap<String, String>, SchedulerError> {
        let numbers: Vec<&str> = jobs.iter().map(|job| job.0.as_str()).collect();
        let which = format!("--jobs={}", numbers.join(","));
        let listing = self
            .squeue(&["--array", "--states=all", "--format=%i|%T", &which])
            .await;
        let listing = match listing {
            Err(SchedulerError::NoAnswer { detail, .. }) if is_gone(&detail) => String::new(),
            listing => listing?,
        };
        let rows = listing
            .lines()
            .filter_map(|line| line.trim().split_once('|'));
        Ok(rows
            .map(|(id, state)| (id.to_owned(), state.to_owned()))
            .collect())
    }

    pub(super) async fn scancel(&self, arguments: &[&str]) -> Answer {
        let arguments = arguments.iter().copied();
        match self.client("scancel").args(arguments).succeed().await {
            Ok(_) => Ok(()),
            Err(Failure::Said(said)) if is_gone(&said) => Ok(()),
            Err(failure) => Err(no_answer(failure.to_string())),
        }
    }
}

/// From a job's state; none: Slurm does not know it any more.
fn left(state: Option<&str>) -> Left {
    match state {
        Some("PENDING") => Left::Again,
        // It gets its signal, unless it is suspended.
        Some("RUNNING" | "CONFIGURING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "STAGE_OUT") => {
            Left::Ask
        }
        _ => Left::Nothing,
    }
}

/// Whether the job is gone already.
fn is_gone(said: &str) -> bool {
    let gone = ["Invalid job id", "already complet", "already finished"];
    gone.iter().any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_started_is_asked() {
        for (state, expected) in [
            (None, Left::Nothing),
            (Some("CANCELLED"), Left::Nothing),
            (Some("COMPLETING"), Left::Nothing),
            (Some("PENDING"), Left::Again),
            (Some("RUNNING"), Left::Ask),
            (Some("SUSPENDED"), Left::Ask),
        ] {
            assert_eq!(left(state), expected, "{state:?}");
        }
    }
}
