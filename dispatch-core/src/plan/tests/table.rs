//! Tests of the table in `plan`, row by row.

use super::*;

#[test]
fn every_row_of_the_table() {
    use ContainerState::{Cancelled, Complete, Locked, Queued, Running};
    let submitted = Phase::Submitted(at(7));
    let fresh = Phase::Submitted(at(8));
    let cases: Vec<(&str, World, &[&str])> = vec![
        ("queued", world(Queued, LockHolder::Nobody, 1), &["start"]),
        ("queued on hold", world(Queued, LockHolder::Nobody, 0), &[]),
        (
            "queued, with a left-over token",
            with_orphan(world(Queued, LockHolder::Nobody, 1), 8),
            &["end left-over token"],
        ),
        (
            "queued, with a left-over token that is known since its record was read",
            with_orphan(world(Queued, LockHolder::Nobody, 1), 10),
            &[],
        ),
        (
            "queued on hold, with a left-over token: there is no hurry",
            with_orphan(world(Queued, LockHolder::Nobody, 0), 8),
            &[],
        ),
        (
            "queued, the answer to lock was lost, with another left-over token",
            with_orphan(
                with_attempt(
                    world(Queued, LockHolder::Nobody, 1),
                    Phase::LockUnknown(at(7)),
                ),
                8,
            ),
            &["end left-over token"],
        ),
        (
            "running, with a left-over token of an earlier attempt",
            with_orphan(
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
            with_job(world(Queued, LockHolder::Nobody, 1), job(1, 1)),
            &["stop 1.1 LockLost"],
        ),
        (
            "queued with an old attempt",
            with_attempt(world(Queued, LockHolder::Nobody, 1), submitted),
            &["end attempt"],
        ),
        (
            "queued, the answer to lock was lost: not before two listings",
            with_attempt(
                world(Queued, LockHolder::Nobody, 1),
                Phase::LockUnknown(at(9)),
            ),
            &[],
        ),
        (
            "queued, the answer to lock was lost: again with the same token",
            with_attempt(
                world(Queued, LockHolder::Nobody, 1),
                Phase::LockUnknown(at(7)),
            ),
            &["start"],
        ),
        (
            "queued, the answer to lock was lost, with a left-over job",
            with_job(
                with_attempt(
                    world(Queued, LockHolder::Nobody, 1),
                    Phase::LockUnknown(at(7)),
                ),
                job(1, 2),
            ),
            &["stop 1.2 LockLost"],
        ),
        (
            "queued on hold, the answer to lock was lost",
            with_attempt(
                world(Queued, LockHolder::Nobody, 0),
                Phase::LockUnknown(at(7)),
            ),
            &[],
        ),
        (
            "queued on hold, the answer to lock was lost two minutes ago",
            World {
                now: at(127),
                ..with_attempt(
                    world(Queued, LockHolder::Nobody, 0),
                    Phase::LockUnknown(at(7)),
                )
            },
            &["end attempt"],
        ),
        (
            "locked, the answer to lock was lost: it was had after all",
            with_attempt(world(Locked, ours(), 1), Phase::LockUnknown(at(9))),
            &["submit"],
        ),
        (
            "locked by another, the answer to lock was lost",
            with_attempt(
                world(Locked, LockHolder::Other, 1),
                Phase::LockUnknown(at(9)),
            ),
            &[],
        ),
        (
            "locked by another, the answer to lock was lost long ago",
            much_later(with_attempt(
                world(Locked, LockHolder::Other, 1),
                Phase::LockUnknown(at(9)),
            )),
            &["end attempt"],
        ),
        (
            "queued, the old token may not be ended yet: it must not be used again",
            with_attempt(world(Queued, LockHolder::Nobody, 1), Phase::Revoking),
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
            blocked_since(
                with_job(with_attempt(world(Locked, ours(), 1), submitted), job(1, 1)),
                8,
            ),
            &[],
        ),
        (
            "locked, job there, in vain for too long",
            blocked_since(
                with_job(with_attempt(world(Locked, ours(), 1), submitted), job(1, 1)),
                7,
            ),
            &["stop 1.1 StartTimeout"],
        ),
        (
            "running by now, though the listing still shows it waiting",
            blocked_since(
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
            &["stop x DuplicateJob"],
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
        (
            "another dispatcher's",
            world(Locked, LockHolder::Other, 0),
            &[],
        ),
        (
            "another dispatcher's, with a job of ours",
            with_job(world(Running, LockHolder::Other, 1), job(1, 1)),
            &["stop 1.1 LockLost"],
        ),
        (
            "another token holds it, and the job does not show its attempt",
            with_job(
                with_attempt(world(Running, LockHolder::Other, 1), submitted),
                job_of_unknown_attempt(1),
            ),
            &[],
        ),
        (
            "nobody holds it, and the job does not show its attempt",
            with_job(
                world(Queued, LockHolder::Nobody, 1),
                job_of_unknown_attempt(1),
            ),
            &["stop 1.x LockLost"],
        ),
        (
            "complete, job there",
            with_job(
                with_attempt(world(Complete, LockHolder::Nobody, 1), submitted),
                job(1, 1),
            ),
            &["stop 1.1 ContainerFinal"],
        ),
        (
            "complete, job ended",
            with_job(
                with_attempt(world(Complete, LockHolder::Nobody, 1), submitted),
                Job {
                    ended: true,
                    ..job(1, 1)
                },
            ),
            &["end attempt"],
        ),
        (
            "cancelled, nothing left",
            world(Cancelled, LockHolder::Nobody, 0),
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
