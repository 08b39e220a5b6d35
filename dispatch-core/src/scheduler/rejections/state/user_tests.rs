//! Tests with a site that refuses the jobs of some users, and has a limit for all.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::UserUuid;
use proptest::prelude::*;

use super::tests::test;
use super::*;
use crate::model::charge_class::UserClass;
use crate::model::owner::{Charge, Owner};
use crate::scheduler::test_submission::TestResult;

/// Containers that each user offers at a look.
const OFFERED: usize = 5;

fn of(user: usize) -> ResourceRequest {
    let owner = Owner {
        user: UserUuid::parse(&format!("zzzzz-tpzed-{user:015}")).ok(),
        ..Owner::default()
    };
    let charge = Charge::new(Some(Arc::new(owner)), String::new());
    ResourceRequest {
        charged_to: Some(Arc::new(charge)),
        ..ResourceRequest::default()
    }
}

/// The scheduler, which sees the user of each job.
struct Site {
    state: RejectionState,
    is_barred: Vec<bool>,
    limit: usize,
    /// Whether containers of barred users were locked before a restart.
    was_locked: bool,
    jobs: Vec<ContainerUuid>,
    /// Refused submissions of each user.
    refused: Vec<usize>,
    /// Accepted ones.
    accepted: Vec<usize>,
    /// What the user of a container that waits was told.
    told: Vec<(usize, String)>,
}

impl Site {
    fn new(is_barred: &[bool], limit: usize) -> Self {
        Self {
            state: RejectionState::default(),
            is_barred: is_barred.to_vec(),
            limit,
            was_locked: false,
            jobs: Vec::new(),
            refused: vec![0; is_barred.len()],
            accepted: vec![0; is_barred.len()],
            told: Vec::new(),
        }
    }

    /// A job without a known user would be refused, too: the site lists who may.
    fn answer(&self, needs: &ResourceRequest) -> TestResult {
        let may =
            |n: &usize| needs.charged_owner() == of(*n).charged_owner() && !self.is_barred[*n];
        if !(0..self.is_barred.len()).any(|n| may(&n)) {
            return TestResult::Rejected("no grant".into());
        }
        match self.jobs.len() < self.limit {
            true => TestResult::Accepted,
            false => TestResult::Rejected("too many".into()),
        }
    }

    fn test(&mut self, now: Instant) {
        let due = self.state.due(now);
        let is_last = due.is_empty();
        for class in due {
            let needs = self.state.next_test_of(&class);
            let answer = self.answer(&needs);
            let places = self.limit.saturating_sub(self.jobs.len());
            let (_, grant) = test(&self.state.test_sizes(&class, 8), places);
            let state = &mut self.state;
            state.apply_test(&class, answer, grant, Duration::ZERO, now);
        }
        if !is_last {
            return self.test(now);
        }
        log_tests::assert_log_is_true(&self.state);
    }

    /// One look of the dispatcher. What was admitted is submitted.
    fn poll(&mut self, now: Instant) {
        self.state.listed(now, &self.jobs.iter().collect());
        self.test(now);
        for n in 0..OFFERED * self.is_barred.len() {
            self.offer(n % self.is_barred.len(), now);
        }
    }

    fn offer(&mut self, user: usize, now: Instant) {
        let (container, needs) = (ContainerUuid::generate("zzzzz"), of(user));
        let candidate = Candidate {
            container: container.clone(),
            needs: needs.clone(),
            was_locked: self.was_locked && self.is_barred[user],
            runners: Vec::new(),
        };
        if let Some(why) = self.state.deferral("it", &candidate, now) {
            return self.told.push((user, why));
        }
        if self.answer(&needs) == TestResult::Accepted {
            self.state.accepted(&container, &needs, now);
            self.jobs.push(container);
            self.accepted[user] += 1;
            return self.test(now);
        }
        self.refused[user] += 1;
        self.state.submission_rejected(&container, &needs);
        if self.state.is_rejected(&needs) {
            return;
        }
        let mut was_as_other = false;
        for class in JobClass::classes_of(&needs) {
            let test_needs = self.state.first_test_of(&class, &needs);
            match class {
                JobClass::Charged(_) => {
                    was_as_other = UserClass::of(&test_needs).user != UserClass::of(&needs).user;
                }
                JobClass::OfUser(_) if !was_as_other => continue,
                JobClass::OfUser(_) | JobClass::Exactly(_) => {}
            }
            if let TestResult::Rejected(reason) = self.answer(&test_needs) {
                return self.state.reject_class(class, &needs, reason, now);
            }
        }
    }
}

#[test]
fn a_user_who_is_refused_holds_up_no_other() {
    for barred in [[true, false], [false, true]] {
        let mut now = Instant::now();
        let mut site = Site::new(&barred, usize::MAX);
        for _ in 0..4 {
            site.poll(now);
            now += Duration::from_secs(2);
        }
        let (hers, his) = (usize::from(barred[1]), usize::from(barred[0]));
        assert!(
            site.refused[hers] <= OFFERED && site.refused[his] == 0,
            "{:?}",
            site.refused
        );
        assert!(site.accepted[his] >= 2 * OFFERED, "{:?}", site.accepted);
        let candidate = Candidate {
            container: ContainerUuid::generate("zzzzz"),
            needs: of(hers),
            was_locked: false,
            runners: Vec::new(),
        };
        let why = site.state.deferral("it", &candidate, now).unwrap();
        assert!(why.contains("no grant"), "{why}");
        // The rule is taken away.
        site.is_barred = vec![false, false];
        for _ in 0..20 {
            site.poll(now);
            now += Duration::from_secs(5);
        }
        assert!(site.accepted[hers] > OFFERED);
    }
}

proptest! {
    /// Who is refused by a rule waits. All others keep the limit full, and lose no lock but where
    /// it is met the first time.
    #[test]
    fn rules_and_limits_are_told_apart(
        is_barred in prop::collection::vec(any::<bool>(), 1..6),
        limit in 1_usize..15,
        ends in prop::collection::vec(0_usize..4, 20),
    ) {
        let mut now = Instant::now();
        let mut site = Site::new(&is_barred, limit);
        let some_may = is_barred.contains(&false);
        for (n, ended) in ends.into_iter().enumerate() {
            drop(site.jobs.drain(..ended.min(site.jobs.len())));
            for _ in 0..4 {
                now += Duration::from_secs(5);
                site.poll(now);
            }
            let full = if some_may { limit } else { 0 };
            prop_assert!(n < 4 || site.jobs.len() == full, "{} of {full} at {n}", site.jobs.len());
        }
        for (user, refused) in site.refused.iter().enumerate() {
            prop_assert!(*refused <= 2 * OFFERED, "user {user}: {:?}", site.refused);
        }
    }
}

/// A restarted dispatcher finds out whom a rule is against by tests alone.
#[test]
fn a_user_who_was_refused_before_a_restart_holds_up_no_other() {
    for barred in [[true, false], [false, true]] {
        let mut now = Instant::now();
        let mut site = Site::new(&barred, usize::MAX);
        site.was_locked = true;
        let his = usize::from(barred[0]);
        for n in 0..10 {
            site.poll(now);
            let holds_all = |class: &JobClass| class.charged().is_some();
            assert!(!site.state.logged.keys().any(holds_all), "at {n}");
            let foreign = |(user, why): &(usize, String)| *user == his && why.contains("no grant");
            assert!(!site.told.iter().any(foreign), "at {n}");
            assert!(n == 0 || site.accepted[his] >= OFFERED * n, "at {n}");
            now += Duration::from_secs(2);
        }
        assert_eq!(site.refused, [0, 0]);
        assert!(site.accepted[his] >= 2 * OFFERED, "{:?}", site.accepted);
    }
}

/// The test of a class tells enough where no user was refused.
#[test]
fn nobody_is_tested_who_was_not_refused() {
    let now = Instant::now();
    let mut state = RejectionState::default();
    state.start_cautiously(ChargeClass::of(&of(1)));
    let class = JobClass::Charged(ChargeClass::of(&of(1)));
    assert_eq!(state.due(now), std::slice::from_ref(&class));
    let grant = test(&[1], 1).1;
    let settle_time = Duration::from_secs(4);
    state.apply_test(&class, TestResult::Accepted, grant, settle_time, now);
    assert_eq!(state.due(now + settle_time), []);
    assert!(state.backoffs.is_empty(), "{:?}", state.backoffs);
}

/// A user with any number of refused kinds of jobs delays the test of another by one round.
#[test]
fn users_take_turns_in_tests() {
    let now = Instant::now();
    let mut state = RejectionState::default();
    for user in [0, 1] {
        state.remember_accepted(&JobClass::OfUser(UserClass::of(&of(user))));
    }
    for gpus in 1..=100 {
        let needs = ResourceRequest { gpus, ..of(0) };
        state.hold_until_tested(&needs, now);
    }
    state.hold_until_tested(&of(1), now + Duration::from_secs(1));
    let due = state.due(now + Duration::from_secs(1));
    assert_eq!(due.len(), super::MAX_CONCURRENT_TESTS);
    assert!(due.contains(&JobClass::Exactly(of(1))), "{due:?}");
}
