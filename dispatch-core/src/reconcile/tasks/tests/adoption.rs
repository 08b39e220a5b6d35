//! Tests of what a restarted dispatcher takes for its own, with a list of tokens that shows all,
//! some or none of them.

use arvados_client::records::Container;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::model::snapshot::{ApiSnapshot, PendingChanges};

const CONTAINER: &str = "zzzzz-dz642-000000000000001";

fn token(n: u32) -> TokenUuid {
    TokenUuid::parse(&format!("zzzzz-gj3su-{n:015}")).unwrap()
}

fn with_secret(uuid: TokenUuid) -> AttemptToken {
    AttemptToken {
        uuid,
        token: Token::new("secret"),
        expires_at: None,
    }
}

fn container() -> ContainerUuid {
    ContainerUuid::parse(CONTAINER).unwrap()
}

fn after(seconds: u64) -> MonotonicTime {
    MonotonicTime(START.0 + Duration::from_secs(seconds))
}

/// A reconciler after a restart: it has listed these jobs of the container once.
fn restarted(attempts: &[Option<TokenUuid>]) -> Reconciler {
    let mut reconciler = reconciler(500);
    list(&mut reconciler, after(1), attempts);
    reconciler
}

/// Applies a listing with a job of each attempt.
fn list(reconciler: &mut Reconciler, began: MonotonicTime, attempts: &[Option<TokenUuid>]) {
    let jobs = attempts.iter().enumerate().map(|(n, attempt)| Job {
        id: JobId(n.to_string()),
        attempt: attempt.clone(),
        ..job_of(&container())
    });
    reconciler.apply_listing(began, jobs.collect());
}

/// Polls the API, which shows the container in `state`, locked with `holder`.
fn poll(reconciler: &mut Reconciler, now: MonotonicTime, state: &str, holder: Option<&TokenUuid>) {
    reconciler.next_request(now, PendingChanges::default());
    let record = json!({"uuid": CONTAINER, "state": state, "priority": 1, "locked_by_uuid": holder, "lock_count": 1});
    let record: Container = serde_json::from_value(record).unwrap();
    let snapshot = ApiSnapshot {
        containers: [(container(), record.into())].into(),
        ..ApiSnapshot::default()
    };
    reconciler.apply_snapshot(now, snapshot);
}

fn stopped(tasks: &[Task]) -> Vec<usize> {
    let stops = tasks.iter().filter_map(|task| match task {
        Task::Stop(stops, _) => Some(stops.iter().map(|stop| stop.job.0.parse().unwrap())),
        _ => None,
    });
    stops.flatten().collect()
}

/// The attempts of up to four jobs: unknown, the holder of the lock, or another one.
fn attempts() -> impl Strategy<Value = Vec<Option<TokenUuid>>> {
    let attempt = prop_oneof![
        Just(None),
        Just(Some(token(1))),
        (2..4_u32).prop_map(|n| Some(token(n)))
    ];
    prop::collection::vec(attempt, 0..4)
}

proptest! {
    /// Whatever part of the tokens the server lists or shows, no job is stopped that may hold the
    /// lock.
    #[test]
    fn a_job_is_stopped_only_if_another_attempt_certainly_holds_the_lock(
        attempts in attempts(),
        state in prop_oneof![Just("Locked"), Just("Running")],
        listed in prop::collection::vec(1..4_u32, 0..4),
        is_complete: bool,
        shown in prop::collection::vec(any::<bool>(), 4),
    ) {
        let mut reconciler = restarted(&attempts);
        let ours = listed.into_iter().map(|n| (container(), token(n))).collect();
        reconciler.apply_token_list(ours, is_complete);
        poll(&mut reconciler, after(2), state, Some(&token(1)));
        for seconds in [3, 70] {
            for (container, uuid) in reconciler.tokens_to_read(after(seconds), 10) {
                let is_shown = shown[uuid.as_str().as_bytes()[26] as usize % 4];
                let read = is_shown.then(|| with_secret(uuid.clone()));
                reconciler.apply_read_token(after(seconds), container, uuid, read, is_shown);
            }
        }
        poll(&mut reconciler, after(71), state, Some(&token(1)));
        let stopped = stopped(&decide(&mut reconciler, after(72)));
        // Of several jobs that may be the holder's, one is kept: if possible, one that names it.
        let kept = |attempt: &Option<TokenUuid>| {
            let alike = (0..attempts.len()).filter(|n| attempts[*n] == *attempt);
            alike.filter(|n| !stopped.contains(n)).count()
        };
        let names_holder = attempts.contains(&Some(token(1)));
        if names_holder {
            prop_assert!(kept(&Some(token(1))) > 0);
        } else if attempts.contains(&None) {
            prop_assert!(kept(&None) > 0);
        }
    }
}

#[test]
fn an_attempt_without_its_token_waits_for_it_or_for_the_answer_that_it_cannot_be_seen() {
    for (read, unlocks_with) in [(Some(()), Some(token(1))), (None, None)] {
        let mut reconciler = restarted(&[Some(token(1))]);
        poll(&mut reconciler, after(2), "Locked", Some(&token(1)));
        list(&mut reconciler, after(3), &[]);
        list(&mut reconciler, after(4), &[]);
        poll(&mut reconciler, after(5), "Locked", Some(&token(1)));
        assert!(decide(&mut reconciler, after(6)).is_empty());
        let read = |reconciler: &mut Reconciler, seconds| {
            let unread = reconciler.tokens_to_read(after(seconds), 10);
            assert_eq!(unread, [(container(), token(1))]);
            let (read, is_shown) = (read.map(|()| with_secret(token(1))), read.is_some());
            reconciler.apply_read_token(after(seconds), container(), token(1), read, is_shown)
        };
        assert!(!read(&mut reconciler, 7));
        if unlocks_with.is_none() {
            // The server may refuse it for a while.
            assert!(decide(&mut reconciler, after(8)).is_empty());
            assert!(read(&mut reconciler, 7 + 60));
        }
        assert!(reconciler.tokens_to_read(after(100), 10).is_empty());
        let tasks = decide(&mut reconciler, after(101));
        let [Task::Unlock(unlock)] = tasks.as_slice() else {
            panic!("{tasks:?}");
        };
        assert_eq!(unlock.attempt, token(1));
        let by = unlock.token.as_ref().map(|token| token.uuid.clone());
        assert_eq!(by, unlocks_with);
    }
}

/// Two listings lack its job, and the job directory says that none was submitted.
#[test]
fn an_attempt_that_was_never_submitted_is_submitted_with_the_lock_that_it_has() {
    let mut reconciler = restarted(&[]);
    reconciler.apply_left_over(vec![(container(), token(1))]);
    poll(&mut reconciler, after(2), "Locked", Some(&token(1)));
    reconciler.tokens_to_read(after(2), 10);
    let read = Some(with_secret(token(1)));
    reconciler.apply_read_token(after(2), container(), token(1), read, true);
    list(&mut reconciler, after(3), &[]);
    assert!(decide(&mut reconciler, after(3)).is_empty());
    list(&mut reconciler, after(4), &[]);
    poll(&mut reconciler, after(5), "Locked", Some(&token(1)));
    let tasks = decide(&mut reconciler, after(6));
    assert!(matches!(tasks.as_slice(), [Task::Unlock(_)]), "{tasks:?}");
    let never = Outcome::NeverSubmitted(with_secret(token(1)));
    reconciler.apply_outcome(after(6), container(), never, Feedback::default());
    let tasks = decide(&mut reconciler, after(7));
    let [Task::Submit(submissions)] = tasks.as_slice() else {
        panic!("{tasks:?}");
    };
    assert_eq!(submissions[0].token.uuid, token(1));
}

/// Its token is only in a file here, as the server does not show that of another user.
#[test]
fn what_another_users_dispatch_token_locked_starts_again_soon() {
    let adopted = || {
        let mut reconciler = restarted(&[]);
        reconciler.apply_left_over(vec![(container(), token(1))]);
        poll(&mut reconciler, after(2), "Locked", Some(&token(1)));
        reconciler.tokens_to_read(after(2), 10);
        reconciler.apply_token_list(Vec::new(), true);
        assert!(reconciler.world.unread_tokens.contains(&container()));
        reconciler
    };
    let mut reconciler = adopted();
    let read = Some(with_secret(token(1)));
    reconciler.apply_read_token(after(2), container(), token(1), read, false);
    assert!(reconciler.world.unread_tokens.is_empty());
    for ended in [
        Outcome::Released(ContainerState::Queued, true),
        Outcome::AttemptEnded,
    ] {
        let mut reconciler = adopted();
        reconciler.apply_outcome(after(6), container(), ended, Feedback::default());
        let unread = &reconciler.world.unread_tokens;
        assert!(unread.is_empty(), "nothing needs the token");
    }
}

/// The list was begun before: the server would not find the token, and a token that is not found
/// is waited for.
#[test]
fn a_list_that_shows_tokens_that_have_ended_holds_up_nothing() {
    let listed = || vec![(container(), token(1))];
    let mut released = restarted(&[]);
    released.apply_left_over(listed());
    poll(&mut released, after(2), "Locked", Some(&token(1)));
    released.token_list_begins();
    let never = Outcome::Released(ContainerState::Queued, true);
    released.apply_outcome(after(3), container(), never, Feedback::default());
    let mut orphaned = restarted(&[]);
    orphaned.add_orphan(container(), with_secret(token(1)), after(2));
    orphaned.token_list_begins();
    let revoked = Outcome::OrphanRevoked(token(1));
    orphaned.apply_outcome(after(3), container(), revoked, Feedback::default());
    for mut reconciler in [released, orphaned] {
        reconciler.apply_token_list(listed(), true);
        assert!(reconciler.world.unread_tokens.is_empty());
        assert!(reconciler.tokens_to_read(after(4), 10).is_empty());
        // A list that was begun later does not show them, unless they are valid.
        reconciler.token_list_begins();
        reconciler.apply_token_list(listed(), true);
        assert_eq!(reconciler.tokens_to_read(after(5), 10), listed());
    }
}

/// The job ended while no dispatcher ran, and the server shows no token.
#[test]
fn a_job_directory_names_the_attempt_of_a_job_that_is_gone() {
    for (in_directory, is_ours) in [(token(1), true), (token(2), false)] {
        let mut reconciler = restarted(&[]);
        reconciler.apply_left_over(vec![(container(), in_directory)]);
        let request = reconciler.next_request(after(2), PendingChanges::default());
        assert!(request.named.contains(&container()));
        poll(&mut reconciler, after(3), "Running", Some(&token(1)));
        assert_eq!(
            reconciler.world.attempts.contains_key(&container()),
            is_ours
        );
        let again = reconciler.next_request(after(4), PendingChanges::default());
        assert_eq!(again.named.contains(&container()), is_ours);
    }
}

#[test]
fn a_container_that_was_locked_before_starts_after_its_tokens_of_earlier_runs_are_known() {
    let mut reconciler = reconciler(500);
    poll(&mut reconciler, after(1), "Queued", None);
    let starts = |reconciler: &mut Reconciler| {
        for known in reconciler.world.containers.values_mut() {
            known.fit = Admission::Now;
        }
        let tasks = decide(reconciler, after(2));
        tasks.iter().any(|task| matches!(task, Task::Start(_)))
    };
    assert!(!starts(&mut reconciler));
    // The server's list may lack a token.
    reconciler.apply_token_list(Vec::new(), false);
    assert!(!starts(&mut reconciler));
    // It does not wait for the tokens of others.
    let other = ContainerUuid::generate("zzzzz");
    let ours = vec![(other, token(2)), (container(), token(1))];
    reconciler.apply_token_list(ours, true);
    assert!(!starts(&mut reconciler), "a token is listed and not read");
    reconciler.apply_admission(&[], vec![]);
    let waits = Admission::Later("the tokens of its earlier attempts are being read".to_owned());
    assert_eq!(reconciler.world.containers[&container()].fit, waits);
    reconciler.apply_read_token(after(2), container(), token(1), None, false);
    assert!(!starts(&mut reconciler), "it may be refused for a while");
    reconciler.apply_read_token(after(62), container(), token(1), None, false);
    assert!(starts(&mut reconciler));
}

/// With `--token-mode=shared` one token is that of all attempts.
#[test]
fn one_token_of_many_containers_is_read_for_each() {
    let mut reconciler = reconciler(500);
    let containers = [(); 3].map(|()| ContainerUuid::generate("zzzzz"));
    let ours = containers
        .iter()
        .map(|one| (one.clone(), token(1)))
        .collect();
    reconciler.apply_token_list(ours, true);
    let unread = reconciler.tokens_to_read(START, 10);
    assert_eq!(unread.len(), 3);
    for (container, uuid) in unread {
        assert!(reconciler.world.unread_tokens.contains(&container));
        let read = Some(with_secret(uuid.clone()));
        reconciler.apply_read_token(START, container, uuid, read, true);
    }
    assert!(reconciler.world.unread_tokens.is_empty());
    assert_eq!(reconciler.world.orphan_since.len(), 3);
}

#[test]
fn a_token_that_is_known_or_being_minted_is_not_read() {
    let mut reconciler = reconciler(500);
    let held = locked(&mut reconciler, 1);
    let attempt = reconciler.world.attempts[&held].token.clone();
    let minting = ContainerUuid::generate("zzzzz");
    reconciler.world.in_flight.insert(minting.clone());
    let ours = vec![(held, attempt), (minting.clone(), token(1))];
    reconciler.apply_token_list(ours, true);
    assert!(reconciler.tokens_to_read(START, 10).is_empty());
    reconciler.world.in_flight.clear();
    assert_eq!(reconciler.tokens_to_read(START, 10), [(minting, token(1))]);
}
