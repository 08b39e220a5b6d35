//! Ending jobs: one, or many that wait.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dispatch_core::command::Failure;
use dispatch_core::scheduler::{SchedulerError, Urgency};
use dispatch_core::world::JobId;

use super::{Slurm, locked, no_answer};
use crate::squeue::{Meaning, meaning};

/// How many jobs one command ends: scancel asks the controller for each, and what it says of them is heard whole.
pub(super) const STOPS: usize = 25;
/// How long it is known whose cancel it was.
const REMEMBERED: Duration = Duration::from_secs(3600);

type Answer = Result<(), SchedulerError>;

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
    /// what the first one began: so those that wait are cancelled, and squeue tells what became of each. One that started
    /// meanwhile is not ended by this; asked for again it is sent its signal by itself.
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
        let said = cancelled.err().map(|error| error.to_string());
        let said = said.as_deref().unwrap_or("scancel left it in the queue");
        let state = |job: &JobId| states.get(&job.0).map(String::as_str);
        let ours = jobs.iter().filter(|job| state(job) == Some("CANCELLED"));
        let now = Instant::now();
        let mut all = locked(&self.cancelled);
        all.retain(|_, at| now.duration_since(*at) < REMEMBERED);
        all.extend(ours.map(|job| (job.0.clone(), now)));
        drop(all);
        jobs.iter().map(|job| became(state(job), said)).collect()
    }

    /// Of those that Slurm shows.
    async fn states(&self, jobs: &[JobId]) -> Result<BTreeMap<String, String>, SchedulerError> {
        let numbers: Vec<&str> = jobs.iter().map(|job| job.0.as_str()).collect();
        let which = format!("--jobs={}", numbers.join(","));
        let query = ["--array", "--states=all", "--format=%i|%T", &which];
        let listing = self.squeue(&query).await?;
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
            // Of several it tells only what is true of some.
            Err(Failure::Said(said)) if is_gone(&said) => Ok(()),
            Err(failure) => Err(no_answer(failure.to_string())),
        }
    }
}

/// A job after those that wait were cancelled, by its state; none: Slurm does not show it. `said` is why it may still wait.
fn became(state: Option<&str>, said: &str) -> Answer {
    match (state, state.map(meaning)) {
        (_, Some(Meaning::Ended)) | (Some("COMPLETING"), _) => Ok(()),
        // No signal reaches it: it is forced when its time is over.
        (Some("SUSPENDED" | "STOPPED"), _) => Ok(()),
        (_, Some(Meaning::Pending)) => Err(no_answer(said.to_owned())),
        (Some(state), _) => Err(no_answer(format!(
            "it was to be cancelled while it waited, and is {state} now: it is asked to end next"
        ))),
        (None, _) => Err(no_answer(
            "squeue does not tell what became of it".to_owned(),
        )),
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
    fn only_what_has_ended_or_cannot_be_asked_is_done() {
        for (state, done, words) in [
            (Some("CANCELLED"), true, ""),
            (Some("COMPLETING"), true, ""),
            (Some("SUSPENDED"), true, ""),
            (Some("PENDING"), false, "denied"),
            (Some("REQUEUE_HOLD"), false, "denied"),
            (Some("RUNNING"), false, "is RUNNING now"),
            (Some("CONFIGURING"), false, "asked to end next"),
            (Some("RUNN"), false, "is RUNN now"),
            (None, false, "does not tell"),
        ] {
            let answer = became(state, "denied");
            assert_eq!(answer.is_ok(), done, "{state:?}");
            let said = answer.err().map(|error| error.to_string());
            assert!(said.unwrap_or_default().contains(words), "{state:?}");
        }
    }
}
