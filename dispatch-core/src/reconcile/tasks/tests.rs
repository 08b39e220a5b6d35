//! Tests of the order, batching and rate limits of tasks.

use std::sync::Arc;

use arvados_client::Token;
use arvados_client::records::ContainerState;

use super::*;
use crate::config::settings::CommandRate;
use crate::model::attempt_token::AttemptToken;
use crate::model::outcome::{Feedback, Outcome};
use crate::model::owner::Charge;
use crate::model::resources::{Admission, ResourceRequest};
use crate::model::scheduling::Capabilities;
use crate::model::world::{Attempt, Job, JobId, JobListing, LockHolder, ObservedContainer, Phase};
use crate::reconcile::rate_limit::TokenBucket;
use crate::reconcile::task_limits::{COMMAND_BURST, MAX_CONCURRENT_TASKS, RESERVED_API_SLOTS};

mod adoption;
mod outage;
mod polls;
mod stops;

const START: MonotonicTime = MonotonicTime(Duration::from_secs(100));

/// A reconciler with two empty listings and a limit of one scheduler command a second.
fn reconciler(max_batch: usize) -> Reconciler {
    let settings = Settings {
        command_rate: CommandRate::PerSecond(1.0),
        max_pending: 1000,
        ..Settings::default()
    };
    let capabilities = Capabilities {
        max_submit_batch: max_batch,
        max_cancel_batch: 3,
        ..Capabilities::default()
    };
    let mut reconciler = Reconciler::new(settings, capabilities);
    reconciler.world.listing = Some(JobListing::new(START, Vec::new()));
    reconciler.world.previous = Some(JobListing::new(START, Vec::new()));
    reconciler
}

fn known(state: ContainerState, holder: LockHolder, priority: i64) -> ObservedContainer {
    ObservedContainer {
        owner: None,
        requested_by: None,
        created_at: None,
        locks: 0,
        state,
        priority,
        etag: String::new(),
        holder,
        needs: ResourceRequest::default(),
        fit: Admission::Now,
        seen: START,
        end: None,
    }
}

/// Adds a container that waits for its lock.
fn queued(reconciler: &mut Reconciler) -> ContainerUuid {
    let container = ContainerUuid::generate("zzzzz");
    let known = known(ContainerState::Queued, LockHolder::Nobody, 1);
    reconciler.world.containers.insert(container.clone(), known);
    container
}

/// Adds a container that is locked and not submitted.
fn locked(reconciler: &mut Reconciler, priority: i64) -> ContainerUuid {
    let container = ContainerUuid::generate("zzzzz");
    let token = AttemptToken {
        uuid: TokenUuid::generate("zzzzz"),
        token: Token::new("secret"),
        expires_at: None,
    };
    let holder = LockHolder::Ours(token.uuid.clone());
    let attempt = Attempt {
        token: token.uuid.clone(),
        phase: Phase::Locked,
    };
    reconciler.world.attempts.insert(container.clone(), attempt);
    reconciler.tokens.insert(container.clone(), token);
    let known = known(ContainerState::Locked, holder, priority);
    reconciler.world.containers.insert(container.clone(), known);
    container
}

fn decide(reconciler: &mut Reconciler, now: MonotonicTime) -> Vec<Task> {
    reconciler.next_tasks(now, |_| false)
}

fn submitted(tasks: &[Task]) -> Vec<Vec<ContainerUuid>> {
    let submitted = |task: &Task| match task {
        Task::Submit(all) => Some(all.iter().map(|one| one.container.clone()).collect()),
        _ => None,
    };
    tasks.iter().filter_map(submitted).collect()
}

#[test]
fn commands_that_the_scheduler_ran_on_its_own_are_charged() {
    let mut reconciler = reconciler(500);
    locked(&mut reconciler, 1);
    reconciler.charge_commands(START, 1000);
    assert!(submitted(&decide(&mut reconciler, START)).is_empty());
    let after_burst = Duration::from_secs(u64::from(COMMAND_BURST) + 1);
    let later = MonotonicTime(START.0 + after_burst);
    assert_eq!(submitted(&decide(&mut reconciler, later)).len(), 1);
}

/// Slurm names many refusals in words that leave open whether there is a job.
#[test]
fn rejections_that_are_tested_open_no_breaker() {
    for is_held in [true, false] {
        let mut reconciler = reconciler(1);
        for _ in 0..6 {
            let container = locked(&mut reconciler, 1);
            let released = Outcome::Released(ContainerState::Queued, true);
            for outcome in [Outcome::SubmitUnknown { is_held }, released] {
                reconciler.apply_outcome(START, container.clone(), outcome, Feedback::default());
            }
        }
        queued(&mut reconciler);
        assert_eq!(reconciler.is_breaker_open(START), !is_held);
    }
}

/// The account of one user is at its limit of jobs.
#[test]
fn rejections_of_one_owner_delay_no_other() {
    let mut reconciler = reconciler(500);
    let of = |reconciler: &mut Reconciler, name: &str| {
        let container = queued(reconciler);
        let known = reconciler.world.containers.get_mut(&container).unwrap();
        known.needs.charged_to = Some(Arc::new(Charge::new(None, name.to_owned())));
        container
    };
    for _ in 0..60 {
        let container = of(&mut reconciler, "limited");
        let rejected = Outcome::NotSubmitted(ContainerState::Queued, true);
        reconciler.apply_outcome(START, container, rejected, Feedback::default());
    }
    let limited = of(&mut reconciler, "limited");
    let started = |reconciler: &mut Reconciler, now| {
        let tasks = decide(reconciler, now);
        let starts = tasks.iter().filter(|task| matches!(task, Task::Start(_)));
        starts
            .flat_map(|task| task.containers().into_iter().cloned())
            .collect::<Vec<_>>()
    };
    assert!(started(&mut reconciler, START).is_empty());
    assert!(reconciler.is_breaker_open(START), "all that waits is held");
    let other = of(&mut reconciler, "other");
    assert!(!reconciler.is_breaker_open(START));
    assert_eq!(started(&mut reconciler, START), [other]);
    let later = MonotonicTime(START.0 + Duration::from_secs(30));
    assert_eq!(started(&mut reconciler, later), [limited]);
}

/// A careful administrator's rate is below that of the listings.
#[test]
fn listings_take_no_command_from_submissions_and_submissions_none_from_cancellations() {
    let at = |seconds| MonotonicTime(START.0 + Duration::from_secs(seconds));
    for (submissions, submitted_now) in [(0, 1), (1000, 0)] {
        let mut reconciler = reconciler(500);
        let slow = CommandRate::PerSecond(0.1);
        reconciler.limits.command_rate = TokenBucket::new(slow, COMMAND_BURST);
        reconciler.limits.cancel_rate = TokenBucket::new(slow, COMMAND_BURST);
        let held = locked(&mut reconciler, 0);
        let attempt = reconciler.world.attempts.get_mut(&held).unwrap();
        attempt.phase = Phase::Submitted(START);
        for seconds in 1..=1000 {
            reconciler.apply_listing(at(seconds), vec![job_of(&held)]);
        }
        locked(&mut reconciler, 1);
        reconciler.charge_commands(at(1001), submissions);
        let tasks = decide(&mut reconciler, at(1001));
        assert_eq!(submitted(&tasks).len(), submitted_now);
        assert!(tasks.iter().any(|task| matches!(task, Task::Stop(..))));
    }
}

fn job_of(container: &ContainerUuid) -> Job {
    Job {
        id: JobId("3".into()),
        container: container.clone(),
        attempt: None,
        ended: false,
        node: None,
    }
}

/// Adds a container whose job was submitted and is absent. Its record was read at `seen`.
fn with_absent_job(reconciler: &mut Reconciler, seen: MonotonicTime) {
    let container = locked(reconciler, 1);
    reconciler
        .world
        .containers
        .get_mut(&container)
        .unwrap()
        .seen = seen;
    let attempt = reconciler.world.attempts.get_mut(&container).unwrap();
    attempt.phase = Phase::Submitted(START);
}

/// If it does not answer, users are told as soon as a listing has had no answer for long enough.
#[test]
fn a_scheduler_that_is_asked_to_run_a_job_is_listed_soon() {
    let mut reconciler = reconciler(1);
    reconciler.apply_listing(START, Vec::new());
    reconciler.apply_listing(START, Vec::new());
    assert!(!reconciler.awaiting_confirmation());
    let container = locked(&mut reconciler, 1);
    assert!(!reconciler.awaiting_confirmation(), "it is only locked");
    assert_eq!(submitted(&decide(&mut reconciler, START)), [[container]]);
    assert!(reconciler.awaiting_confirmation());
}

#[test]
fn exit_queries_that_the_scheduler_charges_are_not_charged_again() {
    let later = MonotonicTime(START.0 + Duration::from_secs(100));
    let all_but_four = COMMAND_BURST - 4;
    for (charges_exit_queries, spent, expected) in [
        (false, all_but_four, 4),
        (true, all_but_four, 8),
        (true, 200, 0),
    ] {
        let mut reconciler = reconciler(1);
        reconciler.set_capabilities(Capabilities {
            charges_exit_queries,
            ..Capabilities::default()
        });
        (0..20).for_each(|_| with_absent_job(&mut reconciler, later));
        for seconds in [98, 99] {
            let began = MonotonicTime(START.0 + Duration::from_secs(seconds));
            reconciler.apply_listing(began, Vec::new());
        }
        reconciler.charge_commands(later, spent);
        let tasks = decide(&mut reconciler, later);
        let unlocks = tasks.iter().filter(|task| matches!(task, Task::Unlock(_)));
        assert_eq!(unlocks.count(), expected, "{charges_exit_queries} {spent}");
    }
}

#[test]
fn an_unknown_exit_is_queried_again_and_unknown_results_are_given_up_in_the_end() {
    let at = |seconds| MonotonicTime(START.0 + Duration::from_secs(seconds));
    let mut reconciler = reconciler(1);
    reconciler.settings.undelivered_wait = Duration::from_secs(100);
    with_absent_job(&mut reconciler, at(10_000));
    let container = reconciler.world.containers.keys().next().unwrap().clone();
    reconciler.apply_listing(at(10), Vec::new());
    reconciler.apply_listing(at(11), Vec::new());
    reconciler
        .world
        .containers
        .get_mut(&container)
        .unwrap()
        .state = ContainerState::Running;
    let ignores_results = |reconciler: &mut Reconciler, seconds| {
        let tasks = decide(reconciler, at(seconds));
        tasks.into_iter().find_map(|task| match task {
            Task::Cancel(cancellation) => Some(cancellation.ignores_results),
            _ => None,
        })
    };
    let apply = |reconciler: &mut Reconciler, seconds, results| {
        let outcome = Outcome::ExitUnknown { results };
        reconciler.apply_outcome(at(seconds), container.clone(), outcome, Feedback::default());
    };
    assert!(reconciler.awaiting_confirmation());
    for (seconds, results, expected) in [
        (20, false, Some(false)),
        (21, false, None),
        // From here on the job is known to have ended, and only its results are unknown.
        (1000, true, Some(false)),
        (1099, true, Some(false)),
        (1200, true, Some(true)),
    ] {
        assert_eq!(
            ignores_results(&mut reconciler, seconds),
            expected,
            "after {seconds} s"
        );
        if expected.is_some() {
            apply(&mut reconciler, seconds, results);
        }
    }
    assert!(
        !reconciler.awaiting_confirmation(),
        "its listing need not come sooner"
    );
    // The job turns out to be present.
    let job = job_of(&container);
    reconciler.apply_listing(at(1201), vec![job]);
    assert!(
        !reconciler.unresolved_exits.contains(&container) && reconciler.cooldown_until.is_empty()
    );
}

#[test]
fn the_highest_priority_is_submitted_first() {
    let mut reconciler = reconciler(3);
    let mut all: Vec<_> = [5, 1, 4, 2, 8, 7, 3]
        .into_iter()
        .map(|priority| (Reverse(priority), locked(&mut reconciler, priority)))
        .collect();
    all.sort();
    let expected: Vec<_> = all.into_iter().map(|(_, container)| container).collect();
    let batches = submitted(&decide(&mut reconciler, START));
    let sizes: Vec<_> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 3, 1]);
    assert_eq!(batches.concat(), expected);
}

#[test]
fn locks_leave_slots_for_locked_containers() {
    let mut reconciler = reconciler(500);
    for _ in 0..100 {
        queued(&mut reconciler);
    }
    let locks = decide(&mut reconciler, START);
    assert_eq!(locks.len(), 7, "of 10 slots");
    locked(&mut reconciler, 1);
    let later = |ms| MonotonicTime(START.0 + Duration::from_millis(ms));
    assert!(
        decide(&mut reconciler, later(1)).is_empty(),
        "more may come"
    );
    assert_eq!(submitted(&decide(&mut reconciler, later(301))).len(), 1);
    // An overloaded server gets one task at a time, and that one still starts.
    let mut narrow = self::reconciler(1);
    for _ in 0..10 {
        queued(&mut narrow);
    }
    (0..5).for_each(|_| narrow.limits.concurrency.record(true));
    assert_eq!(decide(&mut narrow, START).len(), 1);
}

/// A container that is locked needs nothing of the server any more.
#[test]
fn an_overloaded_server_holds_up_no_submission() {
    let mut reconciler = reconciler(1);
    (0..5).for_each(|_| reconciler.limits.concurrency.record(true));
    queued(&mut reconciler);
    queued(&mut reconciler);
    let locks = decide(&mut reconciler, START);
    assert!(matches!(locks.as_slice(), [Task::Start(_)]), "{locks:?}");
    for _ in 0..3 {
        locked(&mut reconciler, 1);
    }
    let tasks = decide(&mut reconciler, START);
    assert_eq!(submitted(&tasks).len(), 3, "{tasks:?}");
    let Task::Start(batch) = &locks[0] else {
        unreachable!()
    };
    let refused = Outcome::NotLocked;
    let container = batch[0].container.clone();
    reconciler.apply_outcome(START, container, refused, Feedback::default());
    let tasks = decide(&mut reconciler, START);
    assert!(matches!(tasks.as_slice(), [Task::Start(_)]), "{tasks:?}");
}

/// The next attempt is announced only if there is one.
#[test]
fn the_next_attempt_is_announced_where_there_is_one() {
    use ContainerState::{Cancelled, Queued};
    for (priority, state, expected) in
        [(1, Queued, true), (1, Cancelled, false), (0, Queued, false)]
    {
        for outcome in [Outcome::Released, Outcome::NotSubmitted] {
            let mut reconciler = reconciler(1);
            let container = locked(&mut reconciler, priority);
            let next = reconciler.apply_outcome(
                START,
                container.clone(),
                outcome(state.clone(), true),
                Feedback::default(),
            );
            let text = next.map(|event| event.text());
            let words = "not run now: the next attempt begins in 2 s, or later";
            assert_eq!(
                text.as_deref(),
                expected.then_some(words),
                "{priority} {state}"
            );
            assert_eq!(
                reconciler.world.retry_at.contains_key(&container),
                state == Queued
            );
        }
    }
}

/// What is locked waits, and nothing else is locked.
#[test]
fn a_fault_of_this_host_costs_no_lock() {
    let at = |seconds| MonotonicTime(START.0 + Duration::from_secs(seconds));
    let mut reconciler = reconciler(1);
    let first = locked(&mut reconciler, 2);
    assert_eq!(submitted(&decide(&mut reconciler, START)).len(), 1);
    let not_tried = Outcome::NotTried;
    reconciler.apply_outcome(START, first.clone(), not_tried, Feedback::default());
    assert!(decide(&mut reconciler, START).is_empty(), "it fails again");
    reconciler.set_obstacles(Some("the disk is full".to_owned()), None);
    let second = queued(&mut reconciler);
    assert!(decide(&mut reconciler, at(100)).is_empty());
    reconciler.apply_admission(&[], vec![]);
    let waits = Admission::Later("the disk is full".to_owned());
    assert_eq!(reconciler.world.containers[&second].fit, waits);
    reconciler.world.containers.get_mut(&second).unwrap().fit = Admission::Now;
    reconciler.set_obstacles(None, None);
    let tasks = decide(&mut reconciler, at(101));
    assert_eq!(submitted(&tasks), [vec![first]]);
    let starts = |task: &Task| matches!(task, Task::Start(batch) if batch[0].container == second);
    assert!(tasks.iter().any(starts), "{tasks:?}");
}

/// A hanging scheduler does not delay tasks that need only the API.
#[test]
fn slots_are_left_for_the_api_while_the_scheduler_is_asked() {
    let mut reconciler = reconciler(1);
    let ask = |reconciler: &mut Reconciler| {
        for _ in 0..20 {
            locked(reconciler, 1);
        }
        decide(reconciler, START)
    };
    let asking = ask(&mut reconciler);
    assert_eq!(asking.len(), MAX_CONCURRENT_TASKS - RESERVED_API_SLOTS);
    assert!(asking.iter().all(Task::asks_scheduler));
    let ended = locked(&mut reconciler, 1);
    reconciler.world.attempts.get_mut(&ended).unwrap().phase = Phase::Revoking;
    let record = reconciler.world.containers.get_mut(&ended).unwrap();
    record.state = ContainerState::Complete;
    let tasks = decide(&mut reconciler, START);
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0].containers(), [&ended]);
}
