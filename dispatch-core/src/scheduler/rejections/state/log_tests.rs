//! The last word of the log about each class is true.

use std::time::Duration;

use super::*;
use crate::scheduler::test_submission::TestResult;

/// What the log says is held back is, alone or with a larger class, and all that is held back is
/// in the log with its reason.
pub(super) fn assert_log_is_true(state: &RejectionState) {
    let is_held = |class: &JobClass| {
        let slow_start = class
            .charged()
            .and_then(|charge| state.slow_starts.get(charge));
        let backoff = state.backoffs.get(class);
        backoff.is_some_and(RejectionBackoff::is_rejected)
            || slow_start.is_some_and(|slow_start| slow_start.is_told)
    };
    let larger = |class: &JobClass| match class {
        JobClass::Charged(_) => Vec::new(),
        JobClass::OfUser(of_user) => vec![JobClass::Charged(of_user.charged.clone())],
        JobClass::Exactly(needs) => JobClass::classes_of(needs),
    };
    for class in state.logged.keys() {
        assert!(
            is_held(class) || larger(class).iter().any(is_held),
            "the log says that jobs {class} are held back"
        );
    }
    let held = state
        .backoffs
        .iter()
        .filter(|(_, backoff)| backoff.is_rejected());
    for (class, _) in held {
        assert!(state.logged.contains_key(class), "not in the log: {class}");
    }
}

#[test]
fn each_new_reason_and_each_end_is_logged() {
    let now = Instant::now();
    let mut state = RejectionState::default();
    let (needs, container) = (ResourceRequest::default(), ContainerUuid::generate("zzzzz"));
    let charged = || JobClass::Charged(ChargeClass::default());
    let exactly = || JobClass::Exactly(needs.clone());
    let last = |state: &RejectionState| {
        assert_log_is_true(state);
        let last = state.logged.get(&charged());
        last.map_or("free", |reason| reason.as_str()).to_owned()
    };
    let tested = |state: &mut RejectionState, answer| {
        let grant = Grant {
            jobs: 1,
            is_cut: false,
        };
        state.due(now);
        state.apply_test(&charged(), answer, grant, Duration::ZERO, now);
    };
    let refused = |reason: &str| TestResult::Rejected(reason.to_owned());
    state.reject_class(exactly(), &needs, "no such node".into(), now);
    state.reject_class(charged(), &needs, "no node".into(), now);
    state.forget_explained();
    assert_eq!(last(&state), "no node");
    tested(&mut state, refused("limit of 7"));
    assert_eq!(last(&state), "limit of 7");
    tested(&mut state, refused("limit of 8"));
    tested(&mut state, TestResult::Accepted);
    // Something still waits.
    let candidate = Candidate {
        container: container.clone(),
        needs: needs.clone(),
        was_locked: false,
        runners: Vec::new(),
    };
    assert_eq!(state.deferral("it", &candidate, now), None);
    let other = Candidate {
        container: ContainerUuid::generate("zzzzz"),
        ..candidate
    };
    assert!(state.deferral("it", &other, now).is_some());
    state.accepted(&container, &needs, now);
    let jobs = HashSet::from([&container]);
    state.listed(now, &jobs);
    assert_eq!(last(&state), "limit of 8");
    // Now nothing does, and there is room.
    tested(&mut state, TestResult::Accepted);
    state.listed(now, &jobs);
    assert_eq!(last(&state), "free");
    assert!(state.logged.is_empty(), "what was held back with it too");
    state.reject_class(charged(), &needs, "no node".into(), now);
    assert_eq!(last(&state), "no node");
}
