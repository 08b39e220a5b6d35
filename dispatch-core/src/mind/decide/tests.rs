//! What goes when, and what waits.

use arvados_client::Token;
use arvados_client::records::{Container, ContainerState};
use serde_json::json;

use super::*;
use crate::act::{Hints, Outcome};
use crate::mind::{API_HANDS, BURST, HANDS};
use crate::needs::{Fit, Needs};
use crate::news::Named;
use crate::observe::Look;
use crate::scheduler::Batching;
use crate::settings::Settings;
use crate::world::{Attempt, Holder, Job, JobId, Known, Listing, Phase, Waits};

const START: Moment = Moment(Duration::from_secs(100));

/// A dispatcher that has looked, and is to ask its scheduler not more than once a second.
fn mind(most: usize) -> Mind {
    let settings = Settings {
        commands_per_second: 1.0,
        max_pending: 1000,
        ..Settings::default()
    };
    let batching = Batching {
        most,
        alike: None,
        stops: 3,
        counts_endings: false,
    };
    let mut mind = Mind::new(settings, batching);
    mind.world.listing = Some(Listing::new(START, Vec::new()));
    mind.world.previous = Some(Listing::new(START, Vec::new()));
    mind
}

fn known(state: ContainerState, holder: Holder, priority: i64) -> Known {
    Known {
        state,
        priority,
        etag: String::new(),
        holder,
        needs: Needs::default(),
        fit: Fit::Now,
        seen: START,
        end: None,
    }
}

/// A container that waits for its lock.
fn queued(mind: &mut Mind) {
    let container = ContainerUuid::generate("zzzzz");
    let known = known(ContainerState::Queued, Holder::Nobody, 1);
    mind.world.containers.insert(container, known);
}

/// A container that is locked and not submitted.
fn locked(mind: &mut Mind, priority: i64) -> ContainerUuid {
    let container = ContainerUuid::generate("zzzzz");
    let token = AttemptToken {
        uuid: TokenUuid::generate("zzzzz"),
        token: Token::new("secret"),
        expires_at: None,
    };
    let holder = Holder::Ours(token.uuid.clone());
    let attempt = Attempt {
        token: token.uuid.clone(),
        phase: Phase::Locked,
    };
    mind.world.attempts.insert(container.clone(), attempt);
    mind.tokens.insert(container.clone(), token);
    let known = known(ContainerState::Locked, holder, priority);
    mind.world.containers.insert(container.clone(), known);
    container
}

fn decide(mind: &mut Mind, now: Moment) -> Vec<Task> {
    mind.decide(now, |_| false)
}

fn submitted(tasks: &[Task]) -> Vec<Vec<ContainerUuid>> {
    let submitted = |task: &Task| match task {
        Task::Submit(all) => Some(all.iter().map(|one| one.container.clone()).collect()),
        _ => None,
    };
    tasks.iter().filter_map(submitted).collect()
}

#[test]
fn what_the_scheduler_ran_by_itself_counts() {
    let mut mind = mind(500);
    locked(&mut mind, 1);
    mind.spend(START, 1000);
    assert!(submitted(&decide(&mut mind, START)).is_empty());
    let later = Moment(START.0 + Duration::from_secs(1001));
    assert_eq!(submitted(&decide(&mut mind, later)).len(), 1);
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

/// A container whose job was submitted, and that was looked at after the listings.
fn gone(mind: &mut Mind, seen: Moment) {
    let container = locked(mind, 1);
    mind.world.containers.get_mut(&container).unwrap().seen = seen;
    let attempt = mind.world.attempts.get_mut(&container).unwrap();
    attempt.phase = Phase::Submitted(START);
}

#[test]
fn what_tells_of_many_jobs_at_once_is_not_paid_for_by_each() {
    let later = Moment(START.0 + Duration::from_secs(100));
    let all_but_four = BURST - 4;
    for (counts_endings, spent, most) in [
        (false, all_but_four, 4),
        (true, all_but_four, 8),
        (true, 200, 0),
    ] {
        let mut mind = mind(1);
        mind.hands_over(Batching {
            counts_endings,
            ..Batching::SINGLE
        });
        (0..20).for_each(|_| gone(&mut mind, later));
        for seconds in [98, 99] {
            let began = Moment(START.0 + Duration::from_secs(seconds));
            mind.listed(began, Vec::new());
        }
        mind.spend(later, spent);
        let tasks = decide(&mut mind, later);
        let unlocks = tasks.iter().filter(|task| {
            let Task::Act { action, .. } = task else {
                return false;
            };
            matches!(action, Action::Unlock { .. })
        });
        assert_eq!(unlocks.count(), most, "{counts_endings} {spent}");
    }
}

#[test]
fn what_is_in_doubt_is_left_alone_for_a_while_and_insisted_upon_in_the_end() {
    let at = |seconds| Moment(START.0 + Duration::from_secs(seconds));
    let mut mind = mind(1);
    mind.settings.undelivered_wait = Duration::from_secs(100);
    gone(&mut mind, at(10_000));
    let container = mind.world.containers.keys().next().unwrap().clone();
    mind.listed(at(10), Vec::new());
    mind.listed(at(11), Vec::new());
    let insists = |mind: &mut Mind, seconds| {
        let tasks = decide(mind, at(seconds));
        tasks.into_iter().find_map(|task| match task {
            Task::Act { insists, .. } => Some(insists),
            _ => None,
        })
    };
    let learn = |mind: &mut Mind, seconds, results| {
        let outcome = Outcome::Doubtful { results };
        mind.learn(at(seconds), container.clone(), outcome, Hints::default());
    };
    assert!(mind.is_unsettled());
    for (seconds, results, expected) in [
        (20, false, Some(false)),
        (21, false, None),
        // Only now it is certain that it has ended.
        (1000, true, Some(false)),
        (1099, true, Some(false)),
        (1200, true, Some(true)),
    ] {
        assert_eq!(insists(&mut mind, seconds), expected, "after {seconds} s");
        if expected.is_some() {
            learn(&mut mind, seconds, results);
        }
    }
    assert!(!mind.is_unsettled(), "its listing need not come sooner");
    // It was there all the time.
    let job = job_of(&container);
    mind.listed(at(1201), vec![job]);
    assert!(!mind.doubts.has(&container) && mind.resting.is_empty());
}

#[test]
fn the_highest_priority_is_submitted_first() {
    let mut mind = mind(3);
    let mut all: Vec<_> = [5, 1, 4, 2, 8, 7, 3]
        .into_iter()
        .map(|priority| (Reverse(priority), locked(&mut mind, priority)))
        .collect();
    all.sort();
    let expected: Vec<_> = all.into_iter().map(|(_, container)| container).collect();
    let batches = submitted(&decide(&mut mind, START));
    let sizes: Vec<_> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 3, 1]);
    assert_eq!(batches.concat(), expected);
}

#[test]
fn locks_leave_hands_for_what_is_locked() {
    let mut mind = mind(500);
    (0..100).for_each(|_| queued(&mut mind));
    let locks = decide(&mut mind, START);
    assert_eq!(locks.len(), 7, "of 10 hands");
    locked(&mut mind, 1);
    let later = |ms| Moment(START.0 + Duration::from_millis(ms));
    assert!(decide(&mut mind, later(1)).is_empty(), "more may come");
    assert_eq!(submitted(&decide(&mut mind, later(301))).len(), 1);
    // The one hand of an overloaded server goes on, too.
    let mut narrow = self::mind(1);
    (0..10).for_each(|_| queued(&mut narrow));
    (0..5).for_each(|_| narrow.width.learn(true));
    assert_eq!(decide(&mut narrow, START).len(), 1);
}

#[test]
fn what_is_behind_a_queue_that_was_taken_whole_is_looked_for_once() {
    let mut mind = mind(500);
    queued(&mut mind);
    let container = mind.world.containers.keys().next().unwrap().clone();
    mind.more_queued = true;
    assert!(!mind.has_used_up_the_queue(), "there is one");
    let token = AttemptToken {
        uuid: TokenUuid::generate("zzzzz"),
        token: Token::new("secret"),
        expires_at: None,
    };
    mind.learn(START, container, Outcome::Locked(token), Hints::default());
    assert!(mind.has_used_up_the_queue());
    mind.interest(START, Named::default());
    assert!(!mind.has_used_up_the_queue(), "a look is under way");
    // One that waits for room is still there to take.
    mind.locked = true;
    queued(&mut mind);
    for known in mind.world.containers.values_mut() {
        known.fit = Fit::Later("room".into());
    }
    assert!(!mind.has_used_up_the_queue(), "one waits for room");
}

/// By as few commands as can be, and by none while the scheduler may not be asked; each is asked once. A running one is
/// asked by a command of its own.
#[test]
fn many_jobs_that_wait_are_ended_by_one_command() {
    let mut mind = mind(1);
    let jobs = (0..5).map(|number| Job {
        id: JobId(number.to_string()),
        container: locked(&mut mind, 0),
        attempt: None,
        ended: false,
        node: None,
    });
    let jobs: Vec<Job> = jobs.collect();
    for job in &jobs {
        let attempt = mind.world.attempts.get_mut(&job.container).unwrap();
        attempt.phase = Phase::Submitted(START);
    }
    mind.world.listing = Some(Listing::new(START, jobs.clone()));
    mind.world.previous = mind.world.listing.clone();
    let waiting = jobs[1..].iter().map(|job| {
        let waits = Waits {
            words: "for room".into(),
            in_vain_since: None,
        };
        (job.container.clone(), waits)
    });
    mind.world.waiting = waiting.collect();
    let stopped = |tasks: &[Task]| -> Vec<Vec<u32>> {
        let stopped = tasks.iter().filter_map(|task| match task {
            Task::Stop(batch, _) => Some(batch),
            _ => None,
        });
        let numbers = stopped.map(|batch| {
            let mut numbers: Vec<u32> = batch.iter().map(|s| s.job.0.parse().unwrap()).collect();
            numbers.sort();
            numbers
        });
        let mut all: Vec<_> = numbers.collect();
        all.sort_by_key(|batch| (batch.len(), batch.contains(&0)));
        all
    };
    let later = |seconds| Moment(START.0 + Duration::from_secs(seconds));
    let learn = |mind: &mut Mind, now, failed: &str| {
        for job in &jobs {
            let outcome = match job.id.0 == failed {
                true => Outcome::NotStopped(job.id.clone()),
                false => Outcome::Stopping(job.id.clone()),
            };
            mind.learn(now, job.container.clone(), outcome, Hints::default());
        }
    };
    mind.spend(START, BURST);
    // Their records are told what they wait for first.
    for task in decide(&mut mind, START) {
        assert!(matches!(task, Task::Tell { .. }), "{task:?}");
        for container in task.containers() {
            let told = Outcome::Told("for room".into());
            mind.learn(START, container.clone(), told, Hints::default());
        }
    }
    let mut asked: Vec<Vec<u32>> = Vec::new();
    for second in 1..=3 {
        let one = stopped(&decide(&mut mind, later(second)));
        assert_eq!(one.len(), 1, "one command a second: {one:?}");
        asked.extend(one);
    }
    asked.sort_by_key(|batch| (batch.len(), batch.contains(&0)));
    assert_eq!(asked.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 3]);
    assert_eq!(asked[1], [0], "the running one by itself");
    learn(&mut mind, later(4), "4");
    assert!(stopped(&decide(&mut mind, later(4))).is_empty(), "it rests");
    assert_eq!(stopped(&decide(&mut mind, later(9))), [[4]]);
    learn(&mut mind, later(9), "");
    // With one hand, too.
    (0..5).for_each(|_| mind.width.learn(true));
    let grace = mind.settings.stop_grace.as_secs();
    let forced = stopped(&decide(&mut mind, later(grace + 100)));
    assert_eq!(forced.iter().map(Vec::len).collect::<Vec<_>>(), [3]);
    for number in &forced[0] {
        let job = &jobs[*number as usize];
        let outcome = Outcome::NotStopped(job.id.clone());
        mind.learn(
            later(grace + 101),
            job.container.clone(),
            outcome,
            Hints::default(),
        );
    }
    (0..1000).for_each(|_| mind.width.learn(false));
    let forced = stopped(&decide(&mut mind, later(grace + 110)));
    assert_eq!(forced.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3]);
}

/// Its record shows no newer time for that: who only reads what is newer would not see it.
#[test]
fn a_container_that_an_event_named_is_asked_for() {
    let mut mind = mind(500);
    mind.settings.asked_by_name = 0;
    let container = locked(&mut mind, 1);
    let job = job_of(&container);
    mind.world.listing = Some(Listing::new(START, vec![job]));
    let record = json!({"uuid": container, "state": "Locked", "priority": 1, "modified_at": "2026-11-22T04:00:00Z",
                        "locked_by_uuid": mind.tokens[&container].uuid});
    let record: Container = serde_json::from_value(record).unwrap();
    mind.interest(START, Named::default());
    mind.looked(
        START,
        Look {
            containers: [(container.clone(), record.into())].into(),
            ..Look::default()
        },
    );
    let asked = |mind: &mut Mind, named| mind.interest(START, named).asked;
    assert!(asked(&mut mind, Named::default()).is_empty());
    let named = |container: &ContainerUuid| Named {
        containers: [container.clone()].into(),
        everything: false,
    };
    assert_eq!(
        asked(&mut mind, named(&container)),
        [container.clone()].into()
    );
    // It was shown by no look yet: one failed, the other came in the middle of an action.
    mind.look_failed();
    mind.world.in_flight.insert(container.clone());
    assert_eq!(
        asked(&mut mind, Named::default()),
        [container.clone()].into()
    );
    mind.looked(START, Look::default());
    assert!(mind.is_unseen(&container));
    mind.world.in_flight.clear();
    assert_eq!(
        asked(&mut mind, Named::default()),
        [container.clone()].into()
    );
    mind.looked(START, Look::default());
    assert!(!mind.is_unseen(&container));
    let stranger = ContainerUuid::generate("zzzzz");
    assert_eq!(
        asked(&mut mind, named(&stranger)),
        [stranger].into(),
        "it may be new in the queue, which is not listed again so soon"
    );
    let everything = Named {
        everything: true,
        ..Named::default()
    };
    assert_eq!(asked(&mut mind, everything), [container.clone()].into());
    // A server that could not tell everything is asked for less before it is asked for all again.
    mind.look_failed();
    assert!(asked(&mut mind, Named::default()).is_empty());
    mind.looked(START, Look::default());
    assert_eq!(
        asked(&mut mind, Named::default()),
        [container].into(),
        "everything is still to be seen"
    );
}

/// Nothing is announced that will not come.
#[test]
fn the_next_attempt_is_told_where_there_is_one() {
    use ContainerState::{Cancelled, Queued};
    for (priority, state, told) in [(1, Queued, true), (1, Cancelled, false), (0, Queued, false)] {
        for outcome in [Outcome::Released, Outcome::NotSubmitted] {
            let mut mind = mind(1);
            let container = locked(&mut mind, priority);
            let next = mind.learn(
                START,
                container.clone(),
                outcome(state.clone(), true),
                Hints::default(),
            );
            let said = next.map(|event| event.sentence());
            let words = "not run now: the next attempt begins in 2 s, or later";
            assert_eq!(said.as_deref(), told.then_some(words), "{priority} {state}");
            assert_eq!(
                mind.world.retry_at.contains_key(&container),
                state == Queued
            );
        }
    }
}

/// A hanging scheduler holds up nothing that needs only the API.
#[test]
fn hands_are_left_for_the_api_while_the_scheduler_is_asked() {
    let mut mind = mind(1);
    let ask = |mind: &mut Mind| {
        for _ in 0..20 {
            locked(mind, 1);
        }
        decide(mind, START)
    };
    let asking = ask(&mut mind);
    assert_eq!(asking.len(), HANDS - API_HANDS);
    assert!(asking.iter().all(Task::asks_scheduler));
    let ended = locked(&mut mind, 1);
    mind.world.attempts.get_mut(&ended).unwrap().phase = Phase::Ending;
    let record = mind.world.containers.get_mut(&ended).unwrap();
    record.state = ContainerState::Complete;
    let tasks = decide(&mut mind, START);
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0].containers(), [&ended]);
}
