//! The table row by row, and what holds for every world.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::needs::Needs;
use crate::world::{Attempt, Job, Listing, Moment, Waits};

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

#[test]
fn the_highest_priority_starts_first_and_only_as_many_as_may_wait() {
    let mut world = world(ContainerState::Locked, ours(), 1);
    world.attempts.insert(
        uuid(1),
        Attempt {
            token: token(1),
            phase: Phase::Submitting,
        },
    );
    for (n, priority) in [
        (2, 5),
        (3, 562_948_158_193_364_795),
        (4, 562_948_158_193_364_794),
        (5, 5),
    ] {
        let known = Known {
            state: ContainerState::Queued,
            priority,
            etag: String::new(),
            holder: Holder::Nobody,
            needs: Needs::default(),
            fit: Fit::Now,
            seen: at(9),
        };
        world.containers.insert(uuid(n), known);
    }
    let started = |policy: Policy| {
        plan(&world, &policy)
            .map(|a| a.container().clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        started(Policy {
            max_pending: 4,
            ..POLICY
        }),
        [uuid(3), uuid(4), uuid(2)]
    );
    assert_eq!(
        started(Policy {
            may_start: false,
            ..POLICY
        }),
        []
    );
    // Whoever is on his way to a place takes it.
    world.in_flight.insert(uuid(3));
    let policy = Policy {
        max_pending: 4,
        ..POLICY
    };
    let rest = plan(&world, &policy).map(|action| action.container().clone());
    assert_eq!(rest.collect::<Vec<_>>(), [uuid(4), uuid(2)]);
}

/// Jobs that wait for an administrator do not keep the place of those that could run; but the scheduler is not filled
/// with them either.
#[test]
fn what_waits_in_vain_takes_no_place_up_to_a_number() {
    for (in_vain, expected) in [(0, 4), (4, 4), (6, 2), (8, 0), (9, 0)] {
        let mut world = world(ContainerState::Queued, Holder::Nobody, 1);
        let queued = world.containers.remove(&uuid(1)).unwrap();
        for n in 100..120 {
            world.containers.insert(uuid(n), queued.clone());
        }
        for n in 0..in_vain {
            let known = Known {
                state: ContainerState::Locked,
                holder: ours(),
                ..queued.clone()
            };
            world.containers.insert(uuid(n), known);
            let waits = Waits {
                words: "somebody holds it".into(),
                in_vain_since: Some(at(1)),
            };
            world.waiting.insert(uuid(n), waits);
            let job = Job {
                container: uuid(n),
                ..job(1, 1)
            };
            world = with_job(world, job);
        }
        let policy = Policy {
            max_pending: 4,
            ..POLICY
        };
        let started = plan(&world, &policy).filter(|a| matches!(a, Action::Start { .. }));
        assert_eq!(started.count(), expected, "{in_vain} in vain");
    }
}

#[test]
fn what_does_not_fit_now_or_ever_stays_queued() {
    for fit in [Fit::Later("busy".into()), Fit::Never("too large".into())] {
        let mut world = world(ContainerState::Queued, Holder::Nobody, 1);
        world.containers.get_mut(&uuid(1)).unwrap().fit = fit;
        assert_eq!(words(&world), [""; 0]);
    }
}

#[test]
fn a_container_that_just_failed_waits_for_its_retry_time() {
    let mut world = world(ContainerState::Queued, Holder::Nobody, 1);
    world.retry_at.insert(uuid(1), at(11));
    assert_eq!(words(&world), [""; 0]);
    world.now = at(11);
    assert_eq!(words(&world), ["start"]);
}

fn any_state() -> impl Strategy<Value = ContainerState> {
    prop_oneof![
        Just(ContainerState::Queued),
        Just(ContainerState::Locked),
        Just(ContainerState::Running),
        Just(ContainerState::Complete),
        Just(ContainerState::Cancelled),
        Just(ContainerState::Unknown("New".into())),
    ]
}

fn any_phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Locked),
        Just(Phase::Submitting),
        (0u64..12).prop_map(|s| Phase::Submitted(at(s))),
        (0u64..12).prop_map(|s| Phase::Adopted(at(s))),
        (0u64..12).prop_map(|s| Phase::Undelivered(at(s))),
    ]
}

prop_compose! {
    fn any_listing(began: u64)(jobs in prop::collection::vec((0usize..4, 0usize..3, any::<bool>()), 0..5)) -> Listing {
        let jobs = jobs.into_iter().enumerate().map(|(i, (n, a, ended))| Job { id: JobId(i.to_string()), ended, ..job(n, a) }).collect();
        Listing::new(at(began), jobs)
    }
}

prop_compose! {
    pub(crate) fn any_world()(
        containers in prop::collection::btree_map(0usize..4, (any_state(), -1i64..3, 0usize..4), 0..4),
        attempts in prop::collection::btree_map(0usize..4, (0usize..3, any_phase()), 0..4),
        listing in prop::option::of(any_listing(9)),
        previous in prop::option::of(any_listing(8)),
        in_flight in prop::collection::vec(0usize..4, 0..2),
        retry_at in prop::collection::btree_map(0usize..4, 5u64..15, 0..2),
    ) -> World {
        World {
            now: at(10),
            containers: containers.into_iter().map(|(n, (state, priority, holder))| {
                let holder = match holder { 3 => Holder::Other, 2 => Holder::Nobody, n => Holder::Ours(token(n)) };
                (uuid(n), Known { state, priority, etag: String::new(), holder, needs: Needs::default(), fit: Fit::Now, seen: at(100) })
            }).collect(),
            attempts: attempts.into_iter().map(|(n, (t, phase))| (uuid(n), Attempt { token: token(t), phase })).collect(),
            listing,
            previous,
            in_flight: in_flight.into_iter().map(uuid).collect(),
            retry_at: retry_at.into_iter().map(|(n, s)| (uuid(n), at(s))).collect(),
            ..World::default()
        }
    }
}

proptest! {
    #[test]
    fn nothing_is_cancelled_or_started_without_two_listings(mut world in any_world()) {
        world.previous = None;
        for action in planned(&world) {
            let from_missing_knowledge = matches!(
                action,
                Action::Cancel { .. } | Action::Start { .. } | Action::Unlock { reason: Reason::JobGone, .. }
            );
            prop_assert!(!from_missing_knowledge, "{action:?}");
        }
    }

    #[test]
    fn a_container_with_a_live_job_is_never_started_unlocked_or_cancelled(world in any_world()) {
        for action in planned(&world) {
            let alive = world.listing.iter().any(|l| l.live(action.container()).next().is_some());
            let not_submitted = matches!(action, Action::Unlock { reason: Reason::PriorityZero, .. });
            if alive && !not_submitted {
                prop_assert!(!matches!(action, Action::Start { .. } | Action::Unlock { .. } | Action::Cancel { .. }), "{action:?}");
            }
        }
    }

    #[test]
    fn what_another_dispatcher_holds_is_left_alone_but_for_our_own_jobs(world in any_world()) {
        for action in planned(&world) {
            if world.containers.get(action.container()).is_some_and(|k| k.holder == Holder::Other) {
                prop_assert!(!matches!(action, Action::Unlock { .. } | Action::Cancel { .. } | Action::Submit { .. } | Action::Start { .. }), "{action:?}");
            }
        }
    }

    #[test]
    fn one_kind_of_action_a_container_and_none_while_one_is_under_way(world in any_world()) {
        let actions = planned(&world);
        for action in &actions {
            prop_assert!(!world.in_flight.contains(action.container()));
            let stops = matches!(action, Action::StopJob { .. });
            let others = actions.iter().filter(|a| a.container() == action.container() && *a != action);
            for other in others {
                prop_assert!(stops && matches!(other, Action::StopJob { .. }), "{action:?} beside {other:?}");
            }
        }
    }

    #[test]
    fn every_live_job_of_a_final_container_is_stopped(world in any_world()) {
        let actions = planned(&world);
        let Some(listing) = &world.listing else { return Ok(()) };
        for (uuid, known) in &world.containers {
            if known.state.is_final() && !world.in_flight.contains(uuid) {
                for job in listing.live(uuid) {
                    prop_assert!(actions.iter().any(|a| matches!(a, Action::StopJob { job: id, .. } if *id == job.id)), "{job:?} lives on");
                }
            }
        }
    }

    #[test]
    fn the_same_world_gives_the_same_plan(world in any_world()) {
        prop_assert_eq!(planned(&world), planned(&world.clone()));
    }
}

/// Workflow runners leave room for the containers they ask for.
#[test]
fn supervisors_have_their_share() {
    let mut world = world(ContainerState::Running, ours(), 1);
    world.attempts.insert(
        uuid(1),
        Attempt {
            token: token(1),
            phase: Phase::Submitted(at(1)),
        },
    );
    world = with_job(world, job(1, 1));
    let known = world.containers.get_mut(&uuid(1)).unwrap();
    known.needs.supervisor = true;
    for n in 2..8 {
        let mut queued = world.containers[&uuid(1)].clone();
        queued.state = ContainerState::Queued;
        queued.holder = Holder::Nobody;
        queued.priority = 100 - n as i64;
        queued.needs.supervisor = n < 6;
        world.containers.insert(uuid(n), queued);
    }
    let policy = Policy {
        max_supervisors: 3,
        ..POLICY
    };
    let started: Vec<ContainerUuid> = plan(&world, &policy)
        .map(|action| action.container().clone())
        .collect();
    assert_eq!(started, [2, 3, 6, 7].map(uuid));
}
