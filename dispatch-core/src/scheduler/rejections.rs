//! Holds back containers that the scheduler would reject. They stay queued, without a lock, until a
//! test shows that the scheduler accepts such jobs again.
//!
//! Input: results of submissions and of tests ([`TestSubmission`]). Output: which containers must
//! wait, and why.
//!
//! If the scheduler rejects even the smallest job for the same partitions and the same account, the
//! cause is not the container's request. A limit of jobs is reached, an account may not use a
//! partition, or a partition is closed. Then all containers that are charged alike wait. Otherwise
//! only containers with exactly the same needs wait. Once the scheduler accepts jobs again,
//! submissions start slowly, because there may be room for few.
//!
//! A restarted dispatcher knows no rejections, and each submission costs one of the few locks that
//! the server allows. So a container that was locked before is tested first, unless such jobs were
//! accepted since the start.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::charge_class::ChargeClass;
use crate::model::resources::ResourceRequest;
use crate::model::scheduling::Candidate;
use crate::scheduler::SubmitRequest;
use crate::scheduler::rejection_backoff::{JobClass, RejectionBackoff, SlowStart};
use crate::scheduler::test_submission::{TestResult, TestSubmission};

/// Maximum number of rejected classes; containers of further classes are submitted as usual.
const MAX_REJECTED_CLASSES: usize = 1000;
/// Maximum number of accepted kinds of jobs that are remembered.
const MAX_ACCEPTED: usize = 10_000;
/// Maximum number of concurrent tests.
const MAX_CONCURRENT_TESTS: usize = 8;
/// Job classes that the scheduler rejects now.
#[derive(Debug)]
pub struct Rejections {
    /// Name of the scheduler in messages.
    scheduler: &'static str,
    state: Mutex<RejectionState>,
}

#[derive(Debug, Default)]
struct RejectionState {
    /// Message of the rejection of an attempt.
    messages: BTreeMap<ContainerUuid, (TokenUuid, String)>,
    backoffs: HashMap<JobClass, RejectionBackoff>,
    /// Needs of jobs that the scheduler accepted, or would, since the start.
    accepted: HashSet<ResourceRequest>,
    /// Classes whose jobs are accepted again, with their limits.
    slow_starts: BTreeMap<ChargeClass, SlowStart>,
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
            warn_of_rejection(&class, &reason);
            let new = || RejectionBackoff::new(reason, now);
            self.backoffs.entry(class).or_insert_with(new);
        }
    }

    /// Holds jobs like this one back until a test, unless their state is known.
    fn hold_until_tested(&mut self, needs: &ResourceRequest, now: Instant) {
        let is_known = self.accepted.contains(needs)
            || self.is_rejected(needs)
            || self.backoffs.len() >= MAX_REJECTED_CLASSES;
        if !is_known {
            let class = JobClass::Exactly(needs.clone());
            self.backoffs.insert(class, RejectionBackoff::untested(now));
        }
    }

    fn remember_accepted(&mut self, needs: &ResourceRequest) {
        if self.accepted.len() >= MAX_ACCEPTED {
            self.accepted.clear();
        }
        self.accepted.insert(needs.clone());
    }

    fn accept_class(&mut self, class: &JobClass) {
        let before = self.backoffs.remove(class);
        if !before.is_some_and(|backoff| backoff.is_rejected()) {
            return;
        }
        tracing::info!(
            event = "submissions_resumed",
            "resuming submissions {class} because the scheduler accepts them again"
        );
        if let JobClass::Charged(class) = class {
            self.slow_starts.insert(class.clone(), SlowStart::default());
        }
    }

    /// Applies the result of a test. An accepted class is free after `settle_time`.
    fn apply_test(
        &mut self,
        class: &JobClass,
        result: TestResult,
        settle_time: Duration,
        now: Instant,
    ) {
        match result {
            TestResult::Accepted => {
                if let Some(backoff) = self.backoffs.get_mut(class) {
                    backoff.record_acceptance(now + settle_time);
                }
                self.accept_settled(now);
            }
            TestResult::Rejected(reason) => {
                if let Some(backoff) = self.backoffs.get_mut(class) {
                    if !backoff.is_rejected() {
                        warn_of_rejection(class, &reason);
                    }
                    backoff.record_test(Some(reason), now);
                }
            }
            TestResult::Unknown => {
                if let Some(backoff) = self.backoffs.get_mut(class) {
                    backoff.record_test(None, now);
                }
            }
        }
    }

    /// Frees the classes whose accepted test was long enough ago.
    fn accept_settled(&mut self, now: Instant) {
        let settled = self.backoffs.iter().filter(|(_, b)| b.is_settled(now));
        let settled: Vec<JobClass> = settled.map(|(class, _)| class.clone()).collect();
        for class in settled {
            self.accept_class(&class);
            if let JobClass::Exactly(needs) = &class {
                self.remember_accepted(needs);
            }
        }
    }

    fn deferral(&mut self, scheduler: &str, candidate: &Candidate, now: Instant) -> Option<String> {
        let Candidate {
            container, needs, ..
        } = candidate;
        if candidate.was_locked {
            self.hold_until_tested(needs, now);
        }
        for class in JobClass::classes_of(needs) {
            let backoff = self.backoffs.get_mut(&class);
            let reason = backoff.and_then(|backoff| backoff.deferral_reason(scheduler, now));
            if reason.is_some() {
                return reason;
            }
        }
        let slow_start = self.slow_starts.get_mut(&ChargeClass::of(needs))?;
        let later = || {
            format!("{scheduler} rejected such jobs a short time ago; a few are submitted at first")
        };
        (!slow_start.try_admit(container, now)).then(later)
    }

    fn accepted(&mut self, container: &ContainerUuid, needs: &ResourceRequest) {
        for class in JobClass::classes_of(needs) {
            self.accept_class(&class);
        }
        self.remember_accepted(needs);
        let class = ChargeClass::of(needs);
        if let Some(slow_start) = self.slow_starts.get_mut(&class)
            && slow_start.accepted(container)
        {
            self.slow_starts.remove(&class);
        }
    }
}

impl Rejections {
    /// No rejections yet. `scheduler` is the name of the scheduler in messages.
    pub fn new(scheduler: &'static str) -> Self {
        Self {
            scheduler,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, RejectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a submission that failed with this message, and holds back the class of jobs that
    /// the scheduler rejects.
    pub async fn record_failure(
        &self,
        tester: &impl TestSubmission,
        order: &SubmitRequest,
        message: String,
    ) {
        let message = (order.attempt.clone(), message);
        let needs = &order.needs;
        {
            let mut state = self.state();
            state.messages.insert(order.container.clone(), message);
            if let Some(slow_start) = state.slow_starts.get_mut(&ChargeClass::of(needs)) {
                slow_start.rejected(&order.container);
            }
            // One test is enough for many concurrent submissions.
            if state.is_rejected(needs) {
                return;
            }
        }
        for class in JobClass::classes_of(needs) {
            match tester.test_submission(&class.test_needs()).await {
                TestResult::Rejected(reason) => {
                    return self.state().reject_class(class, reason, Instant::now());
                }
                TestResult::Accepted => {}
                TestResult::Unknown => return,
            }
        }
    }

    /// Tests the classes whose back-off has expired.
    pub async fn retest<T: TestSubmission>(&self, tester: &T) {
        let now = Instant::now();
        let due: Vec<JobClass> = {
            let mut state = self.state();
            state.accept_settled(now);
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
            .map(|test_needs| tester.test_submission(test_needs));
        let answers = futures_util::future::join_all(tests_running).await;
        for (class, answer) in due.iter().zip(answers) {
            self.state().apply_test(class, answer, T::SETTLE_TIME, now);
        }
    }

    /// Records that the scheduler accepted a job.
    pub fn accepted(&self, container: &ContainerUuid, needs: &ResourceRequest) {
        self.state().accepted(container, needs);
    }

    /// Why this container must wait; none if it may be submitted.
    pub fn deferral(&self, candidate: &Candidate) -> Option<String> {
        self.state()
            .deferral(self.scheduler, candidate, Instant::now())
    }

    /// Number of kinds of jobs that the scheduler rejects now.
    pub fn rejected_kinds(&self) -> usize {
        let state = self.state();
        let rejected = state.backoffs.values().filter(|b| b.is_rejected());
        rejected.count()
    }

    /// Message with which the scheduler rejected this attempt.
    pub fn message_for(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Option<String> {
        let state = self.state();
        let (of, message) = state.messages.get(container)?;
        (of == attempt).then(|| format!("{} rejected its job: {message}", self.scheduler))
    }

    /// Removes what is recorded of the container.
    pub fn forget(&self, container: &ContainerUuid) {
        self.state().messages.remove(container);
    }
}

fn warn_of_rejection(class: &JobClass, reason: &str) {
    tracing::warn!(
        reason,
        event = "submissions_held",
        "holding back submissions {class} because the scheduler rejects them"
    );
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::owner::Charge;

    fn gpus(gpus: u32) -> ResourceRequest {
        ResourceRequest {
            gpus,
            ..ResourceRequest::default()
        }
    }

    fn candidate(container: &ContainerUuid, needs: ResourceRequest) -> Candidate {
        Candidate {
            container: container.clone(),
            needs,
            was_locked: false,
            runners: Vec::new(),
        }
    }

    /// As after a restart of the dispatcher.
    #[test]
    fn a_container_that_was_locked_before_is_tested_before_it_is_locked_again() {
        let now = Instant::now();
        let container = ContainerUuid::generate("zzzzz");
        let new = candidate(&container, gpus(1));
        let again = Candidate {
            was_locked: true,
            ..new.clone()
        };
        for (result, waits) in [
            (TestResult::Accepted, None),
            (
                TestResult::Rejected("no".into()),
                Some("it rejects such jobs now: no"),
            ),
            (TestResult::Unknown, Some("asked first")),
        ] {
            let mut state = RejectionState::default();
            assert_eq!(state.deferral("it", &new, now), None);
            let first = state.deferral("it", &again, now);
            assert!(first.is_some_and(|why| why.contains("asked first")));
            let class = JobClass::Exactly(gpus(1));
            assert!(state.backoffs[&class].is_test_due(now));
            state.apply_test(&class, result.clone(), Duration::ZERO, now);
            let then = state.deferral("it", &again, now);
            let is_as_expected = match (&then, waits) {
                (Some(then), Some(words)) => then.contains(words),
                (None, None) => true,
                _ => false,
            };
            assert!(is_as_expected, "{result:?}: {then:?}");
        }
        let mut state = RejectionState::default();
        state.accepted(&container, &gpus(1));
        assert_eq!(
            state.deferral("it", &again, now),
            None,
            "known since the start"
        );
    }

    #[test]
    fn a_rejected_class_is_held_back() {
        let now = Instant::now();
        let container = ContainerUuid::generate("zzzzz");
        let held = |state: &mut RejectionState, gpus_of: u32| {
            let backoff = state.deferral("it", &candidate(&container, gpus(gpus_of)), now);
            backoff.is_some_and(|backoff| backoff.contains("no GPUs"))
        };
        let mut state = RejectionState::default();
        state.reject_class(JobClass::Exactly(gpus(2)), "no GPUs".into(), now);
        assert_eq!([0, 1, 2].map(|n| held(&mut state, n)), [false, false, true]);
        let class = JobClass::Exactly(gpus(2));
        state.apply_test(&class, TestResult::Accepted, Duration::ZERO, now);
        assert!(!held(&mut state, 2) && state.slow_starts.is_empty());
        state.reject_class(
            JobClass::Charged(ChargeClass::default()),
            "no GPUs".into(),
            now,
        );
        assert_eq!([0, 1, 2].map(|n| held(&mut state, n)), [true, true, true]);
        let elsewhere = ResourceRequest {
            partitions: vec!["other".into()],
            ..gpus(2)
        };
        let elsewhere = candidate(&container, elsewhere);
        assert_eq!(state.deferral("it", &elsewhere, now), None);
        let of_ada = ResourceRequest {
            charged_to: Some(Arc::new(Charge::new(None, "--account=bio".into()))),
            ..gpus(2)
        };
        let hers = candidate(&container, of_ada.clone());
        assert_eq!(state.deferral("it", &hers, now), None);
        let class = JobClass::classes_of(&of_ada)[0].clone();
        assert_eq!(
            class.to_string(),
            "without a partition, charged by --account=bio"
        );
        assert_eq!(class.test_needs().charged_to, of_ada.charged_to);
        state.reject_class(class, "her limit".into(), now);
        assert!(state.deferral("it", &hers, now).is_some());
    }

    #[test]
    fn submissions_start_slowly_after_a_rejection() {
        let now = Instant::now();
        let all: Vec<ContainerUuid> = (0..50).map(|_| ContainerUuid::generate("zzzzz")).collect();
        let mut state = RejectionState::default();
        let class = JobClass::Charged(ChargeClass::default());
        state.reject_class(class.clone(), "too many".into(), now);
        let settle_time = Duration::from_secs(5);
        state.apply_test(&class, TestResult::Accepted, settle_time, now);
        let first = candidate(&all[0], gpus(0));
        assert!(state.deferral("it", &first, now).is_some());
        assert!(!state.backoffs[&class].is_test_due(now + settle_time));
        state.accept_settled(now + settle_time);
        let admitted = |state: &mut RejectionState| -> Vec<ContainerUuid> {
            let free = all
                .iter()
                .filter(|c| state.deferral("it", &candidate(c, gpus(0)), now).is_none());
            free.cloned().collect()
        };
        assert_eq!(admitted(&mut state), all[..1]);
        state.accepted(&all[0], &gpus(0));
        // Accepted containers are not in flight any more, and each makes room for more.
        assert_eq!(admitted(&mut state), all[..2]);
        state.accepted(&all[1], &gpus(0));
        assert_eq!(admitted(&mut state).len(), 4);
        if let Some(slow_start) = state.slow_starts.get_mut(&ChargeClass::default()) {
            slow_start.rejected(&all[2]);
        }
        assert!(admitted(&mut state).len() <= 4);
    }
}
