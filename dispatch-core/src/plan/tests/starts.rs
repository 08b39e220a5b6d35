//! Which containers start, and how many.

use super::*;

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
            end: None,
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

/// A left-over token is ended in the place of its container's start, and holds up no other container.
#[test]
fn a_left_over_token_takes_the_place_of_its_container() {
    let mut world = world(ContainerState::Queued, Holder::Nobody, 1);
    let queued = world.containers.remove(&uuid(1)).unwrap();
    for (n, priority) in [(1, 1), (2, 9), (3, 5)] {
        let known = Known {
            priority,
            ..queued.clone()
        };
        world.containers.insert(uuid(n), known);
    }
    world.left_over = [(uuid(1), at(8)), (uuid(2), at(8))].into();
    let policy = Policy {
        max_pending: 2,
        ..POLICY
    };
    let begun: Vec<_> = plan(&world, &policy).collect();
    let expected = [
        Action::EndLeftOver { container: uuid(2) },
        Action::Start {
            container: uuid(3),
            etag: "e".into(),
        },
    ];
    assert_eq!(begun, expected);
}
