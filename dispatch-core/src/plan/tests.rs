//! The table row by row, and what holds for every world.

use std::time::Duration;

use super::*;
use crate::needs::Needs;
use crate::world::{Attempt, Job, Listing, Moment, Waits};

mod ends;
mod properties;
mod starts;

pub(crate) use properties::any_world;

const POLICY: Policy = Policy {
    max_pending: 10,
    max_supervisors: 5,
    start_timeout: Some(Duration::from_secs(3)),
    may_start: true,
};

fn uuid(n: usize) -> ContainerUuid {
    ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
}

fn token(n: usize) -> TokenUuid {
    TokenUuid::parse(&format!("zzzzz-gj3su-{n:015}")).unwrap()
}

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn job(n: usize, attempt: usize) -> Job {
    Job {
        id: JobId(format!("{n}.{attempt}")),
        container: uuid(n),
        attempt: Some(token(attempt)),
        ended: false,
        node: None,
    }
}

/// One container, two empty listings that began at 8 and 9 seconds, now 10.
fn world(state: ContainerState, holder: Holder, priority: i64) -> World {
    let mut world = World {
        now: at(10),
        ..World::default()
    };
    world.containers.insert(
        uuid(1),
        Known {
            state,
            priority,
            etag: "e".into(),
            holder,
            needs: Needs::default(),
            fit: Fit::Now,
            seen: at(9),
            end: None,
        },
    );
    world.previous = Some(Listing::new(at(8), vec![]));
    world.listing = Some(Listing::new(at(9), vec![]));
    world
}

fn with_attempt(mut world: World, phase: Phase) -> World {
    world.attempts.insert(
        uuid(1),
        Attempt {
            token: token(1),
            phase,
        },
    );
    world
}

fn with_left_over(mut world: World, since: u64) -> World {
    world.left_over.insert(uuid(1), at(since));
    world
}

fn with_job(mut world: World, job: Job) -> World {
    let listing = world.listing.take().unwrap();
    let jobs = listing.jobs().cloned().chain([job]).collect();
    world.listing = Some(Listing::new(listing.began, jobs));
    world
}

fn waits_in_vain(mut world: World, since: u64) -> World {
    let waits = Waits {
        words: "somebody holds it".into(),
        in_vain_since: Some(at(since)),
    };
    world.waiting.insert(uuid(1), waits);
    world
}

fn long_after(mut world: World) -> World {
    world.now = at(9 + LOST_ANSWER.as_secs());
    world
}

fn read_at(mut world: World, seconds: u64) -> World {
    for known in world.containers.values_mut() {
        known.seen = at(seconds);
    }
    world
}

fn ours() -> Holder {
    Holder::Ours(token(1))
}

fn planned(world: &World) -> Vec<Action> {
    plan(world, &POLICY).collect()
}

fn words(world: &World) -> Vec<String> {
    plan(world, &POLICY)
        .map(|action| match action {
            Action::Start { .. } => "start".into(),
            Action::EndLeftOver { .. } => "end left-over token".into(),
            Action::Submit { .. } => "submit".into(),
            Action::StopJob { job, reason, .. } => format!("stop {} {reason:?}", job.0),
            Action::Unlock { reason, .. } => format!("unlock {reason:?}"),
            Action::Cancel { reason, .. } => format!("cancel {reason:?}"),
            Action::EndAttempt { .. } => "end attempt".into(),
        })
        .collect()
}

#[test]
fn every_row_of_the_table() {
    use ContainerState::{Cancelled, Complete, Locked, Queued, Running};
    let submitted = Phase::Submitted(at(7));
    let fresh = Phase::Submitted(at(8));
    let cases: Vec<(&str, World, &[&str])> = vec![
        ("queued", world(Queued, Holder::Nobody, 1), &["start"]),
        ("queued on hold", world(Queued, Holder::Nobody, 0), &[]),
        (
            "queued, with a left-over token",
            with_left_over(world(Queued, Holder::Nobody, 1), 8),
            &["end left-over token"],
        ),
        (
            "queued, with a left-over token that is known since its record was read",
            with_left_over(world(Queued, Holder::Nobody, 1), 10),
            &[],
        ),
        (
            "queued on hold, with a left-over token: there is no hurry",
            with_left_over(world(Queued, Holder::Nobody, 0), 8),
            &[],
        ),
        (
            "queued, the answer to lock was lost, with another left-over token",
            with_left_over(
                with_attempt(world(Queued, Holder::Nobody, 1), Phase::Unclear(at(7))),
                8,
            ),
            &["end left-over token"],
        ),
        (
            "running, with a left-over token of an earlier attempt",
            with_left_over(
                with_job(
                    with_attempt(world(Running, ours(), 1), submitted),
                    job(1, 1),
                ),
                8,
            ),
            &[],
        ),
        (
            "queued with a left-over job",
            with_job(world(Queued, Holder::Nobody, 1), job(1, 1)),
            &["stop 1.1 LockLost"],
        ),
        (
            "queued with an old attempt",
            with_attempt(world(Queued, Holder::Nobody, 1), submitted),
            &["end attempt"],
        ),
        (
            "queued, the answer to lock was lost: not before two listings",
            with_attempt(world(Queued, Holder::Nobody, 1), Phase::Unclear(at(9))),
            &[],
        ),
        (
            "queued, the answer to lock was lost: again with the same token",
            with_attempt(world(Queued, Holder::Nobody, 1), Phase::Unclear(at(7))),
            &["start"],
        ),
        (
            "queued, the answer to lock was lost, with a left-over job",
            with_job(
                with_attempt(world(Queued, Holder::Nobody, 1), Phase::Unclear(at(7))),
                job(1, 2),
            ),
            &["stop 1.2 LockLost"],
        ),
        (
            "queued on hold, the answer to lock was lost",
            with_attempt(world(Queued, Holder::Nobody, 0), Phase::Unclear(at(7))),
            &[],
        ),
        (
            "queued on hold, the answer to lock was lost two minutes ago",
            World {
                now: at(127),
                ..with_attempt(world(Queued, Holder::Nobody, 0), Phase::Unclear(at(7)))
            },
            &["end attempt"],
        ),
        (
            "locked, the answer to lock was lost: it was had after all",
            with_attempt(world(Locked, ours(), 1), Phase::Unclear(at(9))),
            &["submit"],
        ),
        (
            "locked by another, the answer to lock was lost",
            with_attempt(world(Locked, Holder::Other, 1), Phase::Unclear(at(9))),
            &[],
        ),
        (
            "locked by another, the answer to lock was lost long ago",
            long_after(with_attempt(
                world(Locked, Holder::Other, 1),
                Phase::Unclear(at(9)),
            )),
            &["end attempt"],
        ),
        (
            "queued, the old token may not be ended yet: it must not be used again",
            with_attempt(world(Queued, Holder::Nobody, 1), Phase::Ending),
            &["end attempt"],
        ),
        (
            "running, its job is gone, but the record is older than the listing",
            with_attempt(read_at(world(Running, ours(), 1), 8), submitted),
            &[],
        ),
        (
            "locked, not submitted",
            with_attempt(world(Locked, ours(), 1), Phase::Locked),
            &["submit"],
        ),
        (
            "locked, not submitted, on hold",
            with_attempt(world(Locked, ours(), 0), Phase::Locked),
            &["unlock PriorityZero"],
        ),
        (
            "locked, being submitted",
            with_attempt(world(Locked, ours(), 0), Phase::Submitting),
            &[],
        ),
        (
            "locked, job there",
            with_job(with_attempt(world(Locked, ours(), 1), submitted), job(1, 1)),
            &[],
        ),
        (
            "locked, job there, in vain",
            waits_in_vain(
                with_job(with_attempt(world(Locked, ours(), 1), submitted), job(1, 1)),
                8,
            ),
            &[],
        ),
        (
            "locked, job there, in vain for too long",
            waits_in_vain(
                with_job(with_attempt(world(Locked, ours(), 1), submitted), job(1, 1)),
                7,
            ),
            &["stop 1.1 InVain"],
        ),
        (
            "running by now, though the listing still shows it waiting",
            waits_in_vain(
                with_job(
                    with_attempt(world(Running, ours(), 1), submitted),
                    job(1, 1),
                ),
                7,
            ),
            &[],
        ),
        (
            "locked, job there, on hold",
            with_job(with_attempt(world(Locked, ours(), 0), submitted), job(1, 1)),
            &["stop 1.1 PriorityZero"],
        ),
        (
            "locked, job gone",
            with_attempt(world(Locked, ours(), 1), submitted),
            &["unlock JobGone"],
        ),
        (
            "locked, only one listing since the submission",
            with_attempt(world(Locked, ours(), 1), fresh),
            &[],
        ),
        (
            "locked, found after a restart, job gone",
            with_attempt(world(Locked, ours(), 1), Phase::Adopted(at(7))),
            &["unlock JobGone"],
        ),
        (
            "running, job there",
            with_job(
                with_attempt(world(Running, ours(), 1), submitted),
                job(1, 1),
            ),
            &[],
        ),
        (
            "running, job there, on hold",
            with_job(
                with_attempt(world(Running, ours(), 0), submitted),
                job(1, 1),
            ),
            &["stop 1.1 PriorityZero"],
        ),
        (
            "running, job gone",
            with_attempt(world(Running, ours(), 1), submitted),
            &["cancel JobGone"],
        ),
        (
            "running, job gone, on hold",
            with_attempt(world(Running, ours(), 0), submitted),
            &["cancel PriorityZero"],
        ),
        (
            "running, job gone, its results may still be delivered",
            with_attempt(world(Running, ours(), 1), Phase::Undelivered(at(11))),
            &[],
        ),
        (
            "running, job gone, the time for its results is over",
            with_attempt(world(Running, ours(), 1), Phase::Undelivered(at(10))),
            &["cancel Undelivered"],
        ),
        (
            "running, job gone, its results may still be delivered, but nobody wants them",
            with_attempt(world(Running, ours(), 0), Phase::Undelivered(at(11))),
            &["cancel Undelivered"],
        ),
        (
            "complete, its results were delivered later",
            with_attempt(world(Complete, ours(), 1), Phase::Undelivered(at(11))),
            &["end attempt"],
        ),
        (
            "running, only one listing since the submission",
            with_attempt(world(Running, ours(), 1), fresh),
            &[],
        ),
        (
            "running, two jobs",
            with_job(
                with_job(
                    with_attempt(world(Running, ours(), 1), submitted),
                    job(1, 1),
                ),
                Job {
                    id: JobId("x".into()),
                    ..job(1, 1)
                },
            ),
            &["stop x SecondJob"],
        ),
        (
            "running, job of an older attempt beside ours",
            with_job(
                with_job(
                    with_attempt(world(Running, ours(), 1), submitted),
                    job(1, 0),
                ),
                job(1, 1),
            ),
            &["stop 1.0 LockLost"],
        ),
        ("another dispatcher's", world(Locked, Holder::Other, 0), &[]),
        (
            "another dispatcher's, with a job of ours",
            with_job(world(Running, Holder::Other, 1), job(1, 1)),
            &["stop 1.1 LockLost"],
        ),
        (
            "complete, job there",
            with_job(
                with_attempt(world(Complete, Holder::Nobody, 1), submitted),
                job(1, 1),
            ),
            &["stop 1.1 ContainerFinal"],
        ),
        (
            "complete, job ended",
            with_job(
                with_attempt(world(Complete, Holder::Nobody, 1), submitted),
                Job {
                    ended: true,
                    ..job(1, 1)
                },
            ),
            &["end attempt"],
        ),
        (
            "cancelled, nothing left",
            world(Cancelled, Holder::Nobody, 0),
            &[],
        ),
        (
            "a state of the future",
            with_job(
                world(ContainerState::Unknown("Paused".into()), ours(), 0),
                job(1, 1),
            ),
            &[],
        ),
    ];
    for (name, world, want) in cases {
        assert_eq!(words(&world), want, "{name}");
    }
}

#[test]
fn a_deleted_container_keeps_no_job() {
    let mut world = with_job(world(ContainerState::Running, ours(), 1), job(1, 1));
    world.containers.clear();
    world.deleted.insert(uuid(1));
    assert_eq!(words(&world), ["stop 1.1 ContainerDeleted"]);
}
