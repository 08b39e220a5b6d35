//! Holds back containers that Slurm would reject. They stay queued, without a lock, until `sbatch
//! --test-only` shows that Slurm accepts such jobs again.
//!
//! Input: results of submissions and tests. Output: which containers must wait, and why.
//!
//! If Slurm rejects even the smallest job for the same partitions, the cause is not the container's
//! request. A limit of jobs is reached, an account may not use a partition, or a partition is
//! closed. Then all containers for these partitions wait. Otherwise only containers with exactly
//! the same needs wait. Once Slurm accepts jobs again, submissions start slowly, because there may
//! be room for few.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::scheduler::command::{Command, CommandFailure};
use dispatch_core::scheduler::{SchedulerError, SubmitRequest};

use crate::settings::Settings;
use crate::submit::rejection_backoff::{JobClass, RejectionBackoff, SlowStart};
use crate::submit::sbatch::SbatchJob;

/// Maximum number of rejected classes; containers of further classes are submitted as usual.
const MAX_REJECTED_CLASSES: usize = 1000;
/// Maximum number of concurrent `sbatch --test-only`.
const MAX_CONCURRENT_TESTS: usize = 8;
/// Timeout of `sbatch --test-only`; short, because it delays a submission or the listing.
const TEST_ONLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Job classes that Slurm rejects now.
#[derive(Debug, Default)]
pub struct Rejections(Mutex<RejectionState>);

#[derive(Debug, Default)]
struct RejectionState {
    /// Message of sbatch for an attempt.
    messages: BTreeMap<ContainerUuid, (TokenUuid, String)>,
    backoffs: HashMap<JobClass, RejectionBackoff>,
    /// Partitions that accept jobs again, with their limits.
    slow_starts: BTreeMap<Vec<String>, SlowStart>,
}

/// Result of `sbatch --test-only`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestOnly {
    /// Slurm would accept the job.
    Accepted,
    /// Slurm would reject the job, and this is why.
    Rejected(String),
    /// Slurm did not answer.
    Unknown,
}

impl RejectionState {
    fn is_rejected(&self, needs: &ResourceRequest) -> bool {
        JobClass::classes_of(needs)
            .iter()
            .any(|class| self.backoffs.contains_key(class))
    }

    fn reject_class(&mut self, class: JobClass, reason: String, now: Instant) {
        let full =
            matches!(class, JobClass::Exactly(_)) && self.backoffs.len() >= MAX_REJECTED_CLASSES;
        if !full {
            tracing::warn!(
                reason,
                event = "submissions_held",
                "holding back submissions {class} because sbatch rejects them"
            );
            let new = || RejectionBackoff::new(reason, now);
            self.backoffs.entry(class).or_insert_with(new);
        }
    }

    fn accept_class(&mut self, class: &JobClass) {
        if self.backoffs.remove(class).is_none() {
            return;
        }
        tracing::info!(
            event = "submissions_resumed",
            "resuming submissions {class} because sbatch accepts them again"
        );
        if let JobClass::Partitions(partitions) = class {
            self.slow_starts
                .insert(partitions.clone(), SlowStart::default());
        }
    }

    fn apply_test(&mut self, class: &JobClass, result: TestOnly, now: Instant) {
        match result {
            TestOnly::Accepted => self.accept_class(class),
            TestOnly::Rejected(reason) => {
                if let Some(backoff) = self.backoffs.get_mut(class) {
                    backoff.record_test(Some(reason), now);
                }
            }
            TestOnly::Unknown => {
                if let Some(backoff) = self.backoffs.get_mut(class) {
                    backoff.record_test(None, now);
                }
            }
        }
    }

    fn deferral(
        &mut self,
        container: &ContainerUuid,
        needs: &ResourceRequest,
        now: Instant,
    ) -> Option<String> {
        for class in JobClass::classes_of(needs) {
            if let Some(reason) = self
                .backoffs
                .get_mut(&class)
                .and_then(|backoff| backoff.deferral_reason(now))
            {
                return Some(format!("Slurm rejects such jobs now: {reason}"));
            }
        }
        let slow_start = self.slow_starts.get_mut(&needs.partitions)?;
        let later = "Slurm rejected such jobs a short time ago; a few are submitted at first";
        (!slow_start.try_admit(container, now)).then(|| later.to_owned())
    }

    fn accepted(&mut self, container: &ContainerUuid, needs: &ResourceRequest) {
        for class in JobClass::classes_of(needs) {
            self.accept_class(&class);
        }
        if let Some(slow_start) = self.slow_starts.get_mut(&needs.partitions)
            && slow_start.accepted(container)
        {
            self.slow_starts.remove(&needs.partitions);
        }
    }
}

impl Rejections {
    fn state(&self) -> MutexGuard<'_, RejectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failed submission, and holds back the class of jobs that Slurm rejects.
    pub async fn record_failure(
        &self,
        settings: &Settings,
        order: &SubmitRequest,
        error: &SchedulerError,
    ) {
        let (SchedulerError::Ambiguous { detail, .. } | SchedulerError::Refused { detail, .. }) =
            error
        else {
            return;
        };
        let message = (order.attempt.clone(), one_line(detail));
        let needs = &order.needs;
        {
            let mut state = self.state();
            state.messages.insert(order.container.clone(), message);
            if let Some(slow_start) = state.slow_starts.get_mut(&needs.partitions) {
                slow_start.rejected(&order.container);
            }
            // One test is enough for many concurrent submissions.
            if state.is_rejected(needs) {
                return;
            }
        }
        for class in JobClass::classes_of(needs) {
            match test_submission(settings, &class.test_needs()).await {
                TestOnly::Rejected(reason) => {
                    return self.state().reject_class(class, reason, Instant::now());
                }
                TestOnly::Accepted => {}
                TestOnly::Unknown => return,
            }
        }
    }

    /// Tests the classes whose back-off has expired.
    pub async fn retest(&self, settings: &Settings) {
        let now = Instant::now();
        let due: Vec<JobClass> = {
            let state = self.state();
            let due = state
                .backoffs
                .iter()
                .filter(|(_, backoff)| backoff.is_test_due(now));
            due.map(|(class, _)| class.clone())
                .take(MAX_CONCURRENT_TESTS)
                .collect()
        };
        let tests: Vec<ResourceRequest> = due.iter().map(JobClass::test_needs).collect();
        let tests_running = tests
            .iter()
            .map(|test_needs| test_submission(settings, test_needs));
        let answers = futures_util::future::join_all(tests_running).await;
        for (class, answer) in due.iter().zip(answers) {
            self.state().apply_test(class, answer, now);
        }
    }

    /// Records that Slurm accepted a job.
    pub fn accepted(&self, container: &ContainerUuid, needs: &ResourceRequest) {
        self.state().accepted(container, needs);
    }

    /// Why this container must wait; none if it may be submitted.
    pub fn deferral(&self, container: &ContainerUuid, needs: &ResourceRequest) -> Option<String> {
        self.state().deferral(container, needs, Instant::now())
    }

    /// Message with which sbatch rejected this attempt.
    pub fn message_for(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Option<String> {
        let state = self.state();
        let (of, message) = state.messages.get(container)?;
        (of == attempt).then(|| format!("Slurm rejected its job: {message}"))
    }

    /// Removes what is recorded of the container.
    pub fn forget(&self, container: &ContainerUuid) {
        self.state().messages.remove(container);
    }
}

/// Tests whether Slurm would accept a job with these needs now.
pub async fn test_submission(settings: &Settings, needs: &ResourceRequest) -> TestOnly {
    let Some(command) = test_command(settings, needs) else {
        return TestOnly::Unknown;
    };
    match command.timeout(TEST_ONLY_TIMEOUT).run_checked().await {
        Ok(_) => TestOnly::Accepted,
        Err(failure) => classify_failure(&failure),
    }
}

fn test_command(settings: &Settings, needs: &ResourceRequest) -> Option<Command> {
    // No container has this name.
    let container = ContainerUuid::generate("check");
    let job = SbatchJob {
        container: &container,
        needs,
        comment: "dispatch-slurm test",
        output: Path::new("/dev/null"),
        avoid: &[],
    };
    let arguments = settings.sbatch_arguments(job).ok()?;
    let command = settings.sbatch_command(arguments, "#!/bin/sh\n".to_owned());
    Some(command.args(["--test-only"]))
}

fn classify_failure(failure: &CommandFailure) -> TestOnly {
    let unreachable = ["contact slurm controller", "timed out"];
    match failure {
        CommandFailure::Failed(message)
            if !unreachable.iter().any(|words| message.contains(words)) =>
        {
            TestOnly::Rejected(one_line(message))
        }
        _ => TestOnly::Unknown,
    }
}

/// Joins the lines and removes the prefixes of sbatch.
fn one_line(message: &str) -> String {
    let lines = message.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("sbatch: error: ").unwrap_or(line);
        let line = line
            .strip_prefix("Batch job submission failed: ")
            .unwrap_or(line);
        line.strip_prefix("allocation failure: ").unwrap_or(line)
    });
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slurmctld_that_is_down_rejects_nothing() {
        let message = |text: &str| classify_failure(&CommandFailure::Failed(text.into()));
        let limit = "sbatch: error: AssocMaxSubmitJobLimit\nallocation failure: Job violates accounting/QOS policy";
        let words = "AssocMaxSubmitJobLimit; Job violates accounting/QOS policy";
        assert_eq!(message(limit), TestOnly::Rejected(words.into()));
        for away in [
            "allocation failure: Unable to contact slurm controller (connect failure)",
            "allocation failure: Socket timed out on send/recv operation",
        ] {
            assert_eq!(message(away), TestOnly::Unknown);
        }
    }

    fn gpus(gpus: u32) -> ResourceRequest {
        ResourceRequest {
            gpus,
            ..ResourceRequest::default()
        }
    }

    #[test]
    fn a_rejected_class_is_held_back() {
        let now = Instant::now();
        let container = ContainerUuid::generate("zzzzz");
        let held = |state: &mut RejectionState, gpus_of: u32| {
            let backoff = state.deferral(&container, &gpus(gpus_of), now);
            backoff.is_some_and(|backoff| backoff.contains("no GPUs"))
        };
        let mut state = RejectionState::default();
        state.reject_class(JobClass::Exactly(gpus(2)), "no GPUs".into(), now);
        assert_eq!([0, 1, 2].map(|n| held(&mut state, n)), [false, false, true]);
        state.apply_test(&JobClass::Exactly(gpus(2)), TestOnly::Accepted, now);
        assert!(!held(&mut state, 2) && state.slow_starts.is_empty());
        state.reject_class(JobClass::Partitions(Vec::new()), "no GPUs".into(), now);
        assert_eq!([0, 1, 2].map(|n| held(&mut state, n)), [true, true, true]);
        let elsewhere = ResourceRequest {
            partitions: vec!["other".into()],
            ..gpus(2)
        };
        assert_eq!(state.deferral(&container, &elsewhere, now), None);
    }

    #[test]
    fn submissions_start_slowly_after_a_rejection() {
        let now = Instant::now();
        let all: Vec<ContainerUuid> = (0..50).map(|_| ContainerUuid::generate("zzzzz")).collect();
        let mut state = RejectionState::default();
        let class = JobClass::Partitions(Vec::new());
        state.reject_class(class.clone(), "too many".into(), now);
        state.apply_test(&class, TestOnly::Accepted, now);
        let admitted = |state: &mut RejectionState| -> Vec<ContainerUuid> {
            let free = all
                .iter()
                .filter(|c| state.deferral(c, &gpus(0), now).is_none());
            free.cloned().collect()
        };
        assert_eq!(admitted(&mut state), all[..1]);
        state.accepted(&all[0], &gpus(0));
        // Accepted containers are not in flight any more, and each makes room for more.
        assert_eq!(admitted(&mut state), all[..2]);
        state.accepted(&all[1], &gpus(0));
        assert_eq!(admitted(&mut state).len(), 4);
        if let Some(slow_start) = state.slow_starts.get_mut(&Vec::new()) {
            slow_start.rejected(&all[2]);
        }
        assert!(admitted(&mut state).len() <= 4);
    }
}
