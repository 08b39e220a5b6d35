//! Tests of the batching of stops.

use super::*;
use crate::model::world::PendingSince;

/// Pending jobs are stopped by as few commands as possible, within the rate limit, each once. A
/// running job is asked by a command of its own.
#[test]
fn many_pending_jobs_are_cancelled_by_one_command() {
    let mut reconciler = reconciler(1);
    let jobs = (0..5).map(|number| Job {
        id: JobId(number.to_string()),
        container: locked(&mut reconciler, 0),
        attempt: None,
        ended: false,
        node: None,
    });
    let jobs: Vec<Job> = jobs.collect();
    for job in &jobs {
        let attempt = reconciler.world.attempts.get_mut(&job.container).unwrap();
        attempt.phase = Phase::Submitted(START);
    }
    reconciler.world.listing = Some(JobListing::new(START, jobs.clone()));
    reconciler.world.previous = reconciler.world.listing.clone();
    let waiting = jobs[1..].iter().map(|job| {
        let waits = PendingSince {
            text: "for room".into(),
            blocked_since: None,
        };
        (job.container.clone(), waits)
    });
    reconciler.world.pending = waiting.collect();
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
    let later = |seconds| MonotonicTime(START.0 + Duration::from_secs(seconds));
    let apply = |reconciler: &mut Reconciler, now, failed: &str| {
        for job in &jobs {
            let outcome = match job.id.0 == failed {
                true => Outcome::NotStopped(job.id.clone()),
                false => Outcome::Stopping(job.id.clone()),
            };
            reconciler.apply_outcome(now, job.container.clone(), outcome, Feedback::default());
        }
    };
    (0..COMMAND_BURST).for_each(|_| reconciler.limits.cancel_rate.charge(START));
    // The tasks before these write the pending reasons.
    for task in decide(&mut reconciler, START) {
        assert!(matches!(task, Task::ReportPendingReason(_)), "{task:?}");
        for container in task.containers() {
            let outcome = Outcome::Reported("for room".into());
            reconciler.apply_outcome(START, container.clone(), outcome, Feedback::default());
        }
    }
    let mut asked: Vec<Vec<u32>> = Vec::new();
    for second in 1..=3 {
        let one = stopped(&decide(&mut reconciler, later(second)));
        assert_eq!(one.len(), 1, "one command a second: {one:?}");
        asked.extend(one);
    }
    asked.sort_by_key(|batch| (batch.len(), batch.contains(&0)));
    assert_eq!(asked.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 3]);
    assert_eq!(asked[1], [0], "the running one by itself");
    apply(&mut reconciler, later(4), "4");
    assert!(
        stopped(&decide(&mut reconciler, later(4))).is_empty(),
        "in its cooldown"
    );
    assert_eq!(stopped(&decide(&mut reconciler, later(9))), [[4]]);
    apply(&mut reconciler, later(9), "");
    // With one free slot as well.
    let busy: Vec<_> = (1..MAX_CONCURRENT_TASKS)
        .map(|_| ContainerUuid::generate("zzzzz"))
        .collect();
    reconciler.world.in_flight.extend(busy.iter().cloned());
    let grace = reconciler.settings.stop_grace.as_secs();
    let forced = stopped(&decide(&mut reconciler, later(grace + 100)));
    assert_eq!(forced.iter().map(Vec::len).collect::<Vec<_>>(), [3]);
    for number in &forced[0] {
        let job = &jobs[*number as usize];
        let outcome = Outcome::NotStopped(job.id.clone());
        reconciler.apply_outcome(
            later(grace + 101),
            job.container.clone(),
            outcome,
            Feedback::default(),
        );
    }
    for container in busy {
        reconciler.world.in_flight.remove(&container);
    }
    // An overloaded API server holds up no cancellation.
    (0..5).for_each(|_| reconciler.limits.concurrency.record(true));
    let forced = stopped(&decide(&mut reconciler, later(grace + 110)));
    assert_eq!(forced.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3]);
}

/// A task that hangs is still under way when the dispatcher stops.
#[test]
fn a_stop_unlocks_nothing_that_a_task_works_on() {
    let mut reconciler = reconciler(1);
    let container = locked(&mut reconciler, 0);
    let drained = |reconciler: &Reconciler| reconciler.drain_tasks().len();
    assert_eq!(drained(&reconciler), 1);
    let tasks = decide(&mut reconciler, START);
    assert!(matches!(&tasks[..], [Task::Unlock(unlock)] if unlock.container == container));
    assert_eq!(drained(&reconciler), 0);
}
