//! Holds back containers that the scheduler would reject. They stay queued, without a lock, until a
//! test shows that the scheduler accepts such jobs again.
//!
//! Input: results of submissions and of tests ([`TestSubmission`]). Output: which containers must
//! wait, and why.
//!
//! If the scheduler rejects even the smallest job for the same partitions and the same account, the
//! cause is not the container's request. A limit of jobs is reached, an account may not use a
//! partition, or a partition is closed. Then all containers that are charged alike wait. If it
//! accepts that job as another user's ([`testers`]), those of this user wait. Otherwise only
//! containers with exactly the same needs wait.
//!
//! When a job of such a class ends, the next test is due. A test is for as many jobs as may have
//! room, and an accepted one allows these (`SlowStart` of `rejection_backoff`). So a limit that
//! stays is kept full, and costs no further lock.
//!
//! A restarted dispatcher knows no rejections, and each submission costs one of the few locks that
//! the server allows. So a container that was locked before is tested first, unless such jobs were
//! accepted since the start. While there are jobs of the process before, jobs of each class are
//! submitted only as far as a test was accepted for them.

mod state;
mod testers;

use std::collections::HashSet;
use std::time::Instant;

use arvados_client::{ContainerUuid, TokenUuid};
use parking_lot::Mutex;

use crate::model::charge_class::{ChargeClass, UserClass};
use crate::model::resources::ResourceRequest;
use crate::model::scheduling::Candidate;
use crate::model::world::Job;
use crate::scheduler::SubmitRequest;
use crate::scheduler::rejection_backoff::{Grant, JobClass};
use crate::scheduler::test_submission::{TEST_TIMEOUT, TestResult, TestSubmission};

use self::state::RejectionState;

/// Job classes that the scheduler rejects now.
#[derive(Debug)]
pub struct Rejections {
    /// Name of the scheduler in messages.
    scheduler: &'static str,
    state: Mutex<RejectionState>,
}

impl Rejections {
    /// No rejections yet. `scheduler` is the name of the scheduler in messages.
    pub fn new(scheduler: &'static str) -> Self {
        Self {
            scheduler,
            state: Mutex::default(),
        }
    }

    /// Records a submission that failed with this message, and holds back the class of jobs that
    /// the scheduler rejects.
    pub async fn record_failure<T: TestSubmission>(
        &self,
        tester: &T,
        order: &SubmitRequest,
        message: String,
    ) {
        let message = (order.attempt.clone(), message);
        let needs = &order.needs;
        {
            let mut state = self.state.lock();
            state.messages.insert(order.container.clone(), message);
            state.submission_rejected(&order.container, needs);
            // One test is enough for many concurrent submissions.
            if state.is_rejected(needs) {
                return;
            }
        }
        let mut was_as_other = false;
        for class in JobClass::classes_of(needs) {
            let test_needs = self.state.lock().first_test_of(&class, needs);
            match class {
                JobClass::Charged(_) => {
                    was_as_other = UserClass::of(&test_needs).user != UserClass::of(needs).user;
                }
                // The same test was just accepted.
                JobClass::OfUser(_) if !was_as_other => continue,
                // The job of that test still counts for a limit.
                JobClass::OfUser(_) => tokio::time::sleep(T::SETTLE_TIME).await,
                JobClass::Exactly(_) => {}
            }
            match tester.test_submission(&test_needs, 1).await {
                TestResult::Rejected(reason) => {
                    return self
                        .state
                        .lock()
                        .reject_class(class, needs, reason, Instant::now());
                }
                TestResult::Accepted => {}
                TestResult::Unknown => return,
            }
        }
    }

    /// Tests the classes whose back-off has expired. What the scheduler does not take at once is
    /// tried in smaller numbers, down to one job, within `TEST_TIMEOUT` for all of them together,
    /// and `MAX_TESTS` between two listings.
    pub async fn retest<T: TestSubmission>(&self, tester: &T) {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        // A test that was refused may make one as another user due.
        while self.test_due(tester, deadline).await && tokio::time::Instant::now() < deadline {}
    }

    /// Does the tests that are due. False if there was none.
    async fn test_due<T: TestSubmission>(
        &self,
        tester: &T,
        deadline: tokio::time::Instant,
    ) -> bool {
        let now = Instant::now();
        let due: Vec<(JobClass, ResourceRequest, Vec<usize>)> = {
            let mut state = self.state.lock();
            let due = state.take_due(now);
            // The jobs of a test take places, where that is not settled at once.
            let max_jobs = match T::SETTLE_TIME.is_zero() {
                true => tester.max_test_jobs(),
                false => tester.max_test_jobs() / due.len().max(1),
            };
            due.into_iter()
                .map(|class| {
                    let needs = state.next_test_of(&class);
                    let sizes = state.test_sizes(&class, max_jobs);
                    (class, needs, sizes)
                })
                .collect()
        };
        let tests = due.iter().map(async |(class, needs, sizes)| {
            let mut sizes = sizes.iter().copied();
            let (mut jobs, mut is_cut) = (sizes.next().unwrap_or(1), false);
            loop {
                let test = tester.test_submission(needs, jobs);
                let answer = tokio::time::timeout_at(deadline, test).await;
                let answer = answer.unwrap_or(TestResult::Unknown);
                match sizes.next() {
                    Some(smaller)
                        if matches!(answer, TestResult::Rejected(_))
                            && self.state.lock().take_test() =>
                    {
                        (jobs, is_cut) = (smaller, true);
                    }
                    _ => {
                        let jobs = match tester.max_test_jobs() {
                            0 | 1 => self.state.lock().untested_jobs(class),
                            _ => jobs,
                        };
                        return (answer, Grant { jobs, is_cut });
                    }
                }
            }
        });
        let answers = futures_util::future::join_all(tests).await;
        for ((class, ..), (answer, grant)) in due.iter().zip(answers) {
            tracing::debug!(jobs = grant.jobs, ?answer, "tested submissions {class}");
            let mut state = self.state.lock();
            state.apply_test(class, answer, grant, T::SETTLE_TIME, now);
        }
        !due.is_empty()
    }

    /// Records that the scheduler accepted a job. If that was the last of a grant, a test tells
    /// whether there is room for more: later, other jobs may have ended.
    pub async fn accepted<T: TestSubmission>(&self, tester: &T, order: &SubmitRequest) {
        let now = Instant::now();
        let is_used_up = {
            let mut state = self.state.lock();
            state.accepted(&order.container, &order.needs, now);
            let slow_start = state.slow_starts.get_mut(&ChargeClass::of(&order.needs));
            slow_start.is_some_and(|slow_start| slow_start.is_used_up(now))
        };
        if is_used_up {
            self.retest(tester).await;
        }
    }

    /// Records that the submit command reached no scheduler, as it says. True for the first time:
    /// a rule of the site may say so each time, which is asked about then.
    pub fn is_first_unreached(&self, container: &ContainerUuid) -> bool {
        self.state.lock().unreached.insert(container.clone())
    }

    /// Whether jobs like this one are held back.
    pub fn holds(&self, needs: &ResourceRequest) -> bool {
        self.state.lock().is_rejected(needs)
    }

    /// Whether a job that is charged like this one exists.
    pub fn has_jobs_like(&self, needs: &ResourceRequest) -> bool {
        self.state.lock().has_jobs(&ChargeClass::of(needs))
    }

    /// Records a complete listing that began at this time: which jobs exist. A container may be
    /// Complete before the scheduler stops counting its job, and long after.
    pub fn listed(&self, began: Instant, jobs: &[Job]) {
        let live: HashSet<&ContainerUuid> = jobs
            .iter()
            .filter(|job| !job.ended)
            .map(|job| &job.container)
            .collect();
        self.state.lock().listed(began, &live);
    }

    /// Forgets the jobs that were there before. They are those of the service, for a command that
    /// submits nothing.
    pub fn forget_earlier_jobs(&self) {
        self.state.lock().uncounted.clear();
    }

    /// Why this container must wait; none if it may be submitted.
    pub fn deferral(&self, candidate: &Candidate) -> Option<String> {
        self.state
            .lock()
            .deferral(self.scheduler, candidate, Instant::now())
    }

    /// Number of kinds of jobs that the scheduler rejects now, or takes only a few of.
    pub fn count(&self) -> usize {
        self.state.lock().rejected_kinds()
    }

    /// Whether containers wait for a test that may run now, or may be submitted after one.
    pub fn awaits_poll(&self) -> bool {
        self.state.lock().awaits_poll(Instant::now())
    }

    /// Message with which the scheduler rejected this attempt.
    pub fn message_for(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Option<String> {
        let state = self.state.lock();
        let (of, message) = state.messages.get(container)?;
        (of == attempt).then(|| format!("{} rejected its job: {message}", self.scheduler))
    }

    /// Removes what is recorded of the container. Its job has ended.
    pub fn forget(&self, container: &ContainerUuid) {
        let mut state = self.state.lock();
        state.messages.remove(container);
        state.unreached.remove(container);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::model::owner::Charge;

    /// A scheduler that rejects all tests, and takes its time for each.
    struct Rejecting {
        tests: AtomicUsize,
        took: Duration,
    }

    impl TestSubmission for Rejecting {
        fn max_test_jobs(&self) -> usize {
            32
        }

        async fn test_submission(&self, _: &ResourceRequest, _: usize) -> TestResult {
            self.tests.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(self.took).await;
            TestResult::Rejected("full".into())
        }
    }

    /// Sixty accounts with many ended jobs, so that each test is a series of seven.
    fn full() -> Rejections {
        let rejections = Rejections::new("it");
        let mut state = rejections.state.lock();
        for n in 0..60 {
            let charge = Charge::new(None, format!("account {n}"));
            let needs = ResourceRequest {
                charged_to: Some(std::sync::Arc::new(charge)),
                ..ResourceRequest::default()
            };
            let class = JobClass::Charged(ChargeClass::of(&needs));
            state.reject_class(class, &needs, "full".into(), Instant::now());
            for slow_start in state.slow_starts.values_mut() {
                slow_start.places_freed(64);
            }
            let container = ContainerUuid::generate("zzzzz");
            state.accepted(&container, &needs, Instant::now());
            state.job_ended(&container, Instant::now());
        }
        drop(state);
        rejections
    }

    /// A scheduler that accepts all tests, each of at most so many jobs.
    struct Accepting(usize);

    impl TestSubmission for Accepting {
        fn max_test_jobs(&self) -> usize {
            self.0
        }

        async fn test_submission(&self, _: &ResourceRequest, jobs: usize) -> TestResult {
            assert!(jobs <= self.0.max(1));
            TestResult::Accepted
        }
    }

    /// After a restart: one job for each test would be one every two seconds.
    #[tokio::test]
    async fn some_jobs_are_granted_untested_where_no_test_is_for_several() {
        for max_jobs in [0, 1, 32] {
            let rejections = Rejections::new("it");
            let queue: Vec<Candidate> = (0..20)
                .map(|_| Candidate {
                    container: ContainerUuid::generate("zzzzz"),
                    needs: ResourceRequest::default(),
                    was_locked: true,
                    runners: Vec::new(),
                })
                .collect();
            let admitted = || {
                let admitted = queue
                    .iter()
                    .filter(|one| rejections.deferral(one).is_none());
                admitted.count()
            };
            admitted();
            rejections.retest(&Accepting(max_jobs)).await;
            assert_eq!(admitted(), 8, "{max_jobs}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tests_between_two_listings_are_bounded_in_number_and_time() {
        for (took, most) in [(0, state::MAX_TESTS), (15, 16)] {
            let (rejections, began) = (full(), tokio::time::Instant::now());
            let tester = Rejecting {
                tests: AtomicUsize::new(0),
                took: Duration::from_secs(took),
            };
            let count = || tester.tests.load(Ordering::Relaxed);
            rejections.retest(&tester).await;
            assert_eq!((count(), began.elapsed() > TEST_TIMEOUT), (most, false));
            if took == 0 {
                rejections.retest(&tester).await;
                assert_eq!(count(), most, "before the next listing");
                rejections.listed(Instant::now(), &[]);
                rejections.retest(&tester).await;
                assert_eq!(count(), 2 * most);
            }
        }
    }
}
