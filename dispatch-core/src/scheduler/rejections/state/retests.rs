//! Which classes of jobs to test, as whom, and what follows from the answers.
//!
//! Input: the state, answers of the scheduler, the time. Output: the jobs to test, and the changed
//! state.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::{MAX_CONCURRENT_TESTS, MAX_REJECTED_CLASSES, MAX_TESTS, RejectionState};
use crate::model::charge_class::{ChargeClass, UserClass};
use crate::model::owner::KnownCharge;
use crate::model::resources::ResourceRequest;
use crate::scheduler::rejection_backoff::{Grant, JobClass, RejectionBackoff};
use crate::scheduler::rejections::testers::Testers;
use crate::scheduler::test_submission::TestResult;

impl RejectionState {
    /// The needs of the job by which it is found whether the whole class is refused, after that of
    /// a job with these `needs`.
    pub(in crate::scheduler::rejections) fn first_test_of(
        &self,
        class: &JobClass,
        needs: &ResourceRequest,
    ) -> ResourceRequest {
        let testers = class.charged().and_then(|charge| self.testers.get(charge));
        let other = testers.and_then(|testers| testers.accepted_beside(needs));
        with_charge(class.test_needs(), other)
    }

    /// The needs of the next test of a class that is held back.
    pub(in crate::scheduler::rejections) fn next_test_of(
        &mut self,
        class: &JobClass,
    ) -> ResourceRequest {
        let testers = (class.charged()).and_then(|charge| self.testers.get_mut(charge));
        with_charge(class.test_needs(), testers.and_then(Testers::next))
    }

    /// Numbers of jobs of the next test of a class, each for the case that the one before is
    /// rejected: at most `max`, and at last one.
    pub(in crate::scheduler::rejections) fn test_sizes(
        &self,
        class: &JobClass,
        max: usize,
    ) -> Vec<usize> {
        let slow_start = class
            .charged()
            .and_then(|charge| self.slow_starts.get(charge));
        slow_start.map_or_else(|| vec![1], |slow_start| slow_start.test_sizes(max))
    }

    /// Makes a test due for the classes that have used up what the last one allowed.
    pub(in crate::scheduler::rejections) fn test_used_up(&mut self, now: Instant) {
        let idle = self
            .slow_starts
            .extract_if(.., |_, slow_start| slow_start.is_idle(now));
        let idle: Vec<_> = idle.map(|(charge, _)| JobClass::Charged(charge)).collect();
        idle.iter().for_each(|class| self.log_resumed(class));
        for (charge, slow_start) in &mut self.slow_starts {
            let class = JobClass::Charged(charge.clone());
            if !self.backoffs.contains_key(&class) && slow_start.is_used_up(now) {
                self.backoffs.insert(class, RejectionBackoff::untested(now));
            }
        }
    }

    /// Applies the result of a test: `grant` if it was accepted, and then after `settle_time`.
    pub(in crate::scheduler::rejections) fn apply_test(
        &mut self,
        class: &JobClass,
        result: TestResult,
        grant: Grant,
        settle_time: Duration,
        now: Instant,
    ) {
        match result {
            TestResult::Accepted => {
                if let JobClass::Charged(charge) = class {
                    let testers = self.testers_of(charge);
                    let first_refused = testers.take_first_refused();
                    let refused = testers.test_accepted();
                    for (user, is_accepted) in first_refused {
                        let user = JobClass::OfUser(user);
                        if is_accepted {
                            self.backoffs.remove(&user);
                        } else if let Some(backoff) = self.backoffs.get_mut(&user) {
                            backoff.test_soon(now + settle_time);
                        }
                    }
                    if refused.is_some() {
                        self.test_refused_user(charge, refused, now + settle_time);
                    }
                }
                if let Some(backoff) = self.backoffs.get_mut(class) {
                    backoff.record_acceptance(now + settle_time, grant);
                }
                self.accept_settled(now);
            }
            TestResult::Rejected(reason) => {
                match class {
                    JobClass::OfUser(of_user) => self.testers_of(&of_user.charged).leave(of_user),
                    JobClass::Exactly(_) => {}
                    JobClass::Charged(charge) => {
                        let of_class = class.test_needs().charged_to;
                        let testers = self.testers_of(charge);
                        testers.test_refused(of_class);
                        if let Some(user) = testers.refused_before_others(charge) {
                            return self.hold_first_user(class, user, reason, now);
                        }
                        for (user, _) in testers.take_first_refused() {
                            self.backoffs.remove(&JobClass::OfUser(user));
                        }
                        if let Some(slow_start) = self.slow_starts.get_mut(charge) {
                            slow_start.limit_met();
                            slow_start.is_told = true;
                        }
                    }
                }
                if self.backoffs.contains_key(class) {
                    self.log_held(class, &reason);
                }
                if let Some(backoff) = self.backoffs.get_mut(class) {
                    backoff.record_test(Some(reason), now);
                }
                self.forget_explained();
                self.accept_settled(now);
            }
            TestResult::Unknown => {
                if let Some(backoff) = self.backoffs.get_mut(class) {
                    backoff.record_test(None, now);
                }
            }
        }
    }

    /// Holds back the one user whose test was refused, and asks as another one next.
    fn hold_first_user(&mut self, class: &JobClass, user: UserClass, reason: String, now: Instant) {
        if let Some(backoff) = self.backoffs.get_mut(class) {
            backoff.test_soon(now);
        }
        let user = JobClass::OfUser(user);
        self.log_held(&user, &reason);
        let held = RejectionBackoff::new(reason, now);
        self.backoffs.insert(user, held);
        self.forget_explained();
    }

    /// Tests the jobs of this user before others are submitted: the test of the class, as another
    /// user, was accepted.
    fn test_refused_user(&mut self, charge: &ChargeClass, refused: KnownCharge, at: Instant) {
        let needs = with_charge(JobClass::Charged(charge.clone()).test_needs(), refused);
        let of_user = UserClass::of(&needs);
        if of_user.user.is_some() && self.backoffs.len() < MAX_REJECTED_CLASSES {
            let untested = || RejectionBackoff::untested(at);
            let class = JobClass::OfUser(of_user);
            self.backoffs.entry(class).or_insert_with(untested);
        }
    }

    /// Forgets what was rejected only because its account is at its limit, or its user is refused.
    pub(in crate::scheduler::rejections) fn forget_explained(&mut self) {
        let is_rejected = |class: &JobClass| {
            let backoff = self.backoffs.get(class);
            !matches!(class, JobClass::Exactly(_)) && backoff.is_some_and(|one| one.is_rejected())
        };
        let is_explained = |class: &&JobClass| match class {
            JobClass::Charged(_) | JobClass::OfUser(_) => false,
            JobClass::Exactly(needs) => JobClass::classes_of(needs).iter().any(is_rejected),
        };
        let explained: Vec<_> = self.backoffs.keys().filter(is_explained).cloned().collect();
        for class in explained {
            self.backoffs.remove(&class);
        }
    }

    /// Frees the classes whose accepted test was long enough ago, once the tests of their users are
    /// done. Others might take the only place first, and a user would seem to be refused for ever.
    pub(in crate::scheduler::rejections) fn accept_settled(&mut self, now: Instant) {
        let is_due = |(class, backoff): (&JobClass, &RejectionBackoff)| match class {
            JobClass::OfUser(of_user) if backoff.is_test_due(now) => Some(of_user.charged.clone()),
            _ => None,
        };
        let due: HashSet<ChargeClass> = self.backoffs.iter().filter_map(is_due).collect();
        let is_free = |class: &JobClass| class.charged().is_none_or(|charge| !due.contains(charge));
        let settled = self.backoffs.iter().filter(|(class, _)| is_free(class));
        let settled: Vec<(JobClass, Grant)> = settled
            .filter_map(|(class, backoff)| Some((class.clone(), backoff.settled(now)?)))
            .collect();
        for (class, grant) in settled {
            self.accept_class(&class, grant, now);
            self.remember_accepted(&class);
        }
    }

    /// Whether one more test may be done before the next listing. If so, it counts.
    pub(in crate::scheduler::rejections) fn take_test(&mut self) -> bool {
        let may = self.tests < MAX_TESTS;
        self.tests += usize::from(may);
        may
    }

    /// Classes to test now; their first tests count.
    pub(in crate::scheduler::rejections) fn take_due(&mut self, now: Instant) -> Vec<JobClass> {
        let mut due = self.due(now);
        due.retain(|_| self.take_test());
        due
    }

    /// Classes whose test is due, the last use of a grant included. Users take turns: each may have
    /// many classes.
    pub(in crate::scheduler::rejections) fn due(&mut self, now: Instant) -> Vec<JobClass> {
        self.accept_settled(now);
        self.test_used_up(now);
        // While the class of a user is refused, a test as this user would be, too. While a user is,
        // a test of this user's jobs would be.
        let waits_for = |class: JobClass| {
            let backoff = self.backoffs.get(&class);
            backoff.is_some_and(|backoff| !backoff.is_accepted())
        };
        let is_due = |(class, backoff): &(&JobClass, &RejectionBackoff)| {
            let waits = match class {
                JobClass::Charged(_) => false,
                JobClass::OfUser(of_user) => waits_for(JobClass::Charged(of_user.charged.clone())),
                JobClass::Exactly(needs) => waits_for(JobClass::OfUser(UserClass::of(needs))),
            };
            backoff.is_test_due(now) && !waits
        };
        let mut due: Vec<_> = self.backoffs.iter().filter(is_due).collect();
        due.sort_by_key(|(_, backoff)| backoff.test_at());
        let mut classes_of: HashMap<UserClass, usize> = HashMap::new();
        due.sort_by_cached_key(|(class, _)| {
            let before = classes_of.entry(who_waits(class)).or_default();
            *before += 1;
            *before
        });
        due.truncate(MAX_CONCURRENT_TESTS);
        due.into_iter().map(|(class, _)| class.clone()).collect()
    }
}

/// Who waits for the test of a class, whatever partitions they chose.
fn who_waits(class: &JobClass) -> UserClass {
    let who = match class {
        JobClass::Charged(charged) => UserClass {
            charged: charged.clone(),
            user: None,
        },
        JobClass::OfUser(of_user) => of_user.clone(),
        JobClass::Exactly(needs) => UserClass::of(needs),
    };
    UserClass {
        charged: ChargeClass {
            charge: who.charged.charge,
            ..ChargeClass::default()
        },
        user: who.user,
    }
}

/// The needs of a test, as those of this user if there is one.
fn with_charge(needs: ResourceRequest, charge: KnownCharge) -> ResourceRequest {
    ResourceRequest {
        charged_to: charge.or(needs.charged_to),
        ..needs
    }
}
