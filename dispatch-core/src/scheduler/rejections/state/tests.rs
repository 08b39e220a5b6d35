//! Tests of the classes of jobs that are held back, with a scheduler that has a limit.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::owner::Charge;
use crate::scheduler::test_submission::TestResult;

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

const MAX_TEST_JOBS: usize = 32;
const ONE: Grant = Grant {
    jobs: 1,
    is_cut: false,
};

/// A test of these `sizes`, each after a rejection, where there are so many `places`.
pub(super) fn test(sizes: &[usize], places: usize) -> (TestResult, Grant) {
    let jobs = sizes.iter().find(|size| **size <= places).copied();
    let jobs = jobs.unwrap_or(1);
    let is_cut = jobs < sizes[0];
    let answer = match places {
        0 => TestResult::Rejected("too many".into()),
        _ => TestResult::Accepted,
    };
    (answer, Grant { jobs, is_cut })
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
        for class in state.due(now) {
            state.apply_test(&class, result.clone(), ONE, Duration::ZERO, now);
        }
        let then = state.deferral("it", &again, now);
        let is_as_expected = match (&then, waits) {
            (Some(then), Some(words)) => then.contains(words),
            (None, None) => true,
            _ => false,
        };
        assert!(is_as_expected, "{result:?}: {then:?}");
    }
    let mut state = RejectionState::default();
    state.accepted(&container, &gpus(1), now);
    assert_eq!(
        state.deferral("it", &again, now),
        None,
        "known since the start"
    );
}

/// By this, Slurm gets the first job of an account without a nice value.
#[test]
fn a_class_has_jobs_from_the_first_submission_to_the_last_end() {
    let now = Instant::now();
    let (container, needs) = (ContainerUuid::generate("zzzzz"), gpus(1));
    let other = ResourceRequest {
        preemptible: true,
        ..gpus(1)
    };
    let mut state = RejectionState::default();
    let has_jobs = |state: &RejectionState| {
        [&needs, &other].map(|needs| state.has_jobs(&ChargeClass::of(needs)))
    };
    assert_eq!(has_jobs(&state), [false, false]);
    state.accepted(&container, &needs, now);
    assert_eq!(has_jobs(&state), [true, false]);
    let later = now + Duration::from_secs(1);
    state.listed(later, &HashSet::from([&container]));
    assert_eq!(has_jobs(&state), [true, false]);
    state.listed(later, &HashSet::new());
    assert_eq!(has_jobs(&state), [false, false]);
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
    state.reject_class(JobClass::Exactly(gpus(2)), &gpus(2), "no GPUs".into(), now);
    assert_eq!([0, 1, 2].map(|n| held(&mut state, n)), [false, false, true]);
    let tried = ResourceRequest {
        tried_before: true,
        ..gpus(2)
    };
    let again = candidate(&container, tried);
    assert!(state.deferral("it", &again, now).is_some(), "tried before");
    let class = JobClass::Exactly(gpus(2));
    state.apply_test(&class, TestResult::Accepted, ONE, Duration::ZERO, now);
    assert!(!held(&mut state, 2) && state.slow_starts.is_empty());
    state.reject_class(
        JobClass::Charged(ChargeClass::default()),
        &gpus(2),
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
    state.reject_class(class, &of_ada, "her limit".into(), now);
    assert!(state.deferral("it", &hers, now).is_some());
}

#[test]
fn submissions_start_slowly_after_a_rejection() {
    let now = Instant::now();
    let all: Vec<ContainerUuid> = (0..50).map(|_| ContainerUuid::generate("zzzzz")).collect();
    let mut state = RejectionState::default();
    let class = JobClass::Charged(ChargeClass::default());
    state.listed(now, &HashSet::new());
    state.reject_class(class.clone(), &gpus(0), "too many".into(), now);
    let settle_time = Duration::from_secs(5);
    state.apply_test(&class, TestResult::Accepted, ONE, settle_time, now);
    let first = candidate(&all[0], gpus(0));
    assert!(state.deferral("it", &first, now).is_some());
    assert!(!state.backoffs[&class].is_test_due(now + settle_time));
    state.accept_settled(now + settle_time);
    for grant in [1, 5, 21] {
        let admitted: Vec<_> = all
            .iter()
            .filter(|c| state.deferral("it", &candidate(c, gpus(0)), now).is_none())
            .collect();
        assert_eq!(admitted.len(), grant);
        assert!(!state.backoffs.contains_key(&class));
        for container in admitted {
            state.accepted(container, &gpus(0), now);
        }
        assert_eq!(state.due(now), std::slice::from_ref(&class));
        let jobs = state.jobs.clone();
        state.listed(now, &jobs.keys().collect());
        let (_, grant) = test(&state.test_sizes(&class, MAX_TEST_JOBS), usize::MAX);
        state.apply_test(&class, TestResult::Accepted, grant, Duration::ZERO, now);
    }
}

/// A scheduler that takes some jobs at once, and a queue that is never empty.
struct Limited {
    state: RejectionState,
    limit: usize,
    jobs: Vec<ContainerUuid>,
    rejections: usize,
    /// Whether the containers of the queue were locked before.
    was_locked: bool,
}

impl Limited {
    /// With no jobs, and a queue of new containers.
    fn new(limit: usize) -> Self {
        Self {
            state: RejectionState::default(),
            limit,
            jobs: Vec::new(),
            rejections: 0,
            was_locked: false,
        }
    }

    fn test(&mut self, now: Instant) {
        for class in self.state.due(now) {
            let places = self.limit.saturating_sub(self.jobs.len());
            let sizes = self.state.test_sizes(&class, MAX_TEST_JOBS);
            let (answer, grant) = test(&sizes, places);
            let state = &mut self.state;
            state.apply_test(&class, answer, grant, Duration::ZERO, now);
        }
        log_tests::assert_log_is_true(&self.state);
    }

    /// One look of the dispatcher. What was admitted is submitted.
    fn poll(&mut self, now: Instant) {
        self.poll_late(now, 0);
    }

    /// The same, when jobs end after the listing and before the test.
    fn poll_late(&mut self, now: Instant, late: usize) {
        self.state.listed(now, &self.jobs.iter().collect());
        self.jobs.drain(..late.min(self.jobs.len()));
        self.test(now);
        self.submit(now);
    }

    fn submit(&mut self, now: Instant) {
        for _ in 0..40 {
            let container = ContainerUuid::generate("zzzzz");
            let candidate = Candidate {
                was_locked: self.was_locked,
                ..candidate(&container, gpus(0))
            };
            if self.state.deferral("it", &candidate, now).is_some() {
                continue;
            }
            if self.jobs.len() < self.limit {
                self.state.accepted(&container, &gpus(0), now);
                self.jobs.push(container);
                self.test(now);
            } else {
                self.rejections += 1;
                self.state.submission_rejected(&container, &gpus(0));
                if !self.state.is_rejected(&gpus(0)) {
                    let class = JobClass::Charged(ChargeClass::default());
                    self.state
                        .reject_class(class, &gpus(0), "too many".into(), now);
                }
            }
        }
    }
}

/// Jobs of the process before that run for days stop nobody.
#[test]
fn a_cautious_start_ends_where_there_is_no_limit() {
    let mut now = Instant::now();
    let mut it = Limited {
        jobs: vec![ContainerUuid::generate("zzzzz")],
        ..Limited::new(usize::MAX)
    };
    let mut submitted = Vec::new();
    for _ in 0..8 {
        let before = it.jobs.len();
        it.poll(now);
        submitted.push(it.jobs.len() - before);
        now += Duration::from_secs(2);
    }
    // Each poll of the test offers 40 containers. The first are held for the test.
    assert_eq!(submitted, [0, 40, 40, 40, 40, 40, 40, 40]);
    assert!(it.state.slow_starts.is_empty());
}

/// Containers that were locked before a restart, and others beside them, do not start one by one.
#[test]
fn a_hundred_containers_start_within_few_looks_after_a_restart() {
    let mut now = Instant::now();
    let mut state = RejectionState::default();
    let adopted = ContainerUuid::generate("zzzzz");
    let mut waiting: Vec<ContainerUuid> =
        (0..100).map(|_| ContainerUuid::generate("zzzzz")).collect();
    let mut started = Vec::new();
    for _ in 0..7 {
        state.listed(now, &started.iter().chain([&adopted]).collect());
        let all_accepted = |state: &mut RejectionState| {
            for due in state.due(now) {
                let (_, grant) = test(&state.test_sizes(&due, MAX_TEST_JOBS), usize::MAX);
                state.apply_test(&due, TestResult::Accepted, grant, Duration::ZERO, now);
            }
        };
        all_accepted(&mut state);
        let (admitted, held): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|container| {
            let candidate = Candidate {
                was_locked: true,
                ..candidate(container, gpus(0))
            };
            state.deferral("it", &candidate, now).is_none()
        });
        waiting = held;
        for container in admitted {
            state.accepted(&container, &gpus(0), now);
            all_accepted(&mut state);
            started.push(container);
        }
        assert!(waiting.is_empty() || state.awaits_poll(now));
        now += Duration::from_secs(2);
    }
    assert_eq!(started.len(), 100);
}

/// One user chooses partitions at will while jobs of the process before run.
#[test]
fn classes_without_number_hold_up_no_other() {
    let now = Instant::now();
    let mut state = RejectionState::default();
    let adopted = ContainerUuid::generate("zzzzz");
    state.listed(now, &HashSet::from([&adopted]));
    for n in 0..20_000 {
        let needs = ResourceRequest {
            partitions: vec![n.to_string()],
            ..gpus(0)
        };
        let container = ContainerUuid::generate("zzzzz");
        state.deferral("it", &candidate(&container, needs.clone()), now);
        state.accepted(&container, &needs, now);
    }
    assert!(state.slow_starts.len() <= MAX_CAUTIOUS_CLASSES);
    assert!(state.known.len() <= MAX_REMEMBERED && state.accepted.len() <= MAX_REMEMBERED);
}

proptest! {
    /// Whenever jobs end, their places are taken at the next look, and a limit that is raised is
    /// found, whether jobs end or not. Jobs are rejected only where a limit is met the first time.
    #[test]
    fn a_limit_is_kept_full_and_costs_one_rejection(
        limit in 1_usize..15,
        raised in 0_usize..20,
        ends in prop::collection::vec(0_usize..4, 60),
    ) {
        let mut now = Instant::now();
        let mut it = Limited::new(limit);
        it.poll(now);
        for (n, ended) in ends.into_iter().enumerate() {
            prop_assert!(it.jobs.len() == limit || n > 30, "{} of {limit}", it.jobs.len());
            prop_assert_eq!(it.rejections, 1);
            if n == 30 {
                it.limit += raised;
            }
            // The next listing shows it.
            drop(it.jobs.drain(..ended.min(limit)));
            now += Duration::from_secs(5);
            it.poll(now);
        }
        prop_assert_eq!(it.jobs.len(), it.limit);
        prop_assert_eq!(it.rejections, 1);
    }

    /// A restarted dispatcher knows no limit and did not submit the jobs that there are.
    #[test]
    fn a_restart_beside_a_limit_costs_no_lock(
        limit in 1_usize..15,
        ends in prop::collection::vec(0_usize..4, 30),
        was_locked in any::<bool>(),
    ) {
        let mut now = Instant::now();
        let mut it = Limited {
            jobs: (0..limit).map(|_| ContainerUuid::generate("zzzzz")).collect(),
            was_locked,
            ..Limited::new(limit)
        };
        it.poll(now);
        for ended in ends {
            drop(it.jobs.drain(..ended.min(it.jobs.len())));
            for _ in 0..3 {
                now += Duration::from_secs(2);
                it.poll(now);
            }
            prop_assert_eq!(it.rejections, 0);
            prop_assert_eq!(it.jobs.len(), limit);
        }
    }

    /// The dispatcher hears of an end later than the scheduler counts it.
    #[test]
    fn an_end_that_is_not_seen_yet_costs_no_further_rejection(
        limit in 1_usize..15,
        ends in prop::collection::vec((0_usize..4, 0_usize..4), 60),
    ) {
        let mut now = Instant::now();
        let mut it = Limited::new(limit);
        it.poll(now);
        for (ended, late) in ends {
            drop(it.jobs.drain(..ended.min(it.jobs.len())));
            now += Duration::from_secs(5);
            it.poll_late(now, late);
            prop_assert_eq!(it.rejections, 1);
        }
    }
}
