//! Tests of the containers that a plan starts, and of their number.

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
        let known = ObservedContainer {
            owner: None,
            requested_by: None,
            created_at: None,
            locks: 0,
            state: ContainerState::Queued,
            priority,
            etag: String::new(),
            holder: LockHolder::Nobody,
            needs: ResourceRequest::default(),
            fit: Admission::Now,
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
    // A container whose lock is being requested takes a place.
    world.in_flight.insert(uuid(3));
    let policy = Policy {
        max_pending: 4,
        ..POLICY
    };
    let rest = plan(&world, &policy).map(|action| action.container().clone());
    assert_eq!(rest.collect::<Vec<_>>(), [uuid(4), uuid(2)]);
}

/// Jobs that wait for an administrator do not take the places of jobs that could run. Beyond
/// `max_pending` of them they do, so that they do not fill the scheduler.
#[test]
fn what_blocked_since_takes_no_place_up_to_a_number() {
    for (in_vain, expected) in [(0, 4), (4, 4), (6, 2), (8, 0), (9, 0)] {
        let mut world = world(ContainerState::Queued, LockHolder::Nobody, 1);
        let queued = world.containers.remove(&uuid(1)).unwrap();
        for n in 100..120 {
            world.containers.insert(uuid(n), queued.clone());
        }
        for n in 0..in_vain {
            let known = ObservedContainer {
                owner: None,
                requested_by: None,
                created_at: None,
                locks: 0,
                state: ContainerState::Locked,
                holder: ours(),
                ..queued.clone()
            };
            world.containers.insert(uuid(n), known);
            let waits = PendingSince {
                text: "somebody holds it".into(),
                blocked_since: Some(at(1)),
            };
            world.pending.insert(uuid(n), waits);
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
    for fit in [
        Admission::Later("busy".into()),
        Admission::Never("too large".into()),
    ] {
        let mut world = world(ContainerState::Queued, LockHolder::Nobody, 1);
        world.containers.get_mut(&uuid(1)).unwrap().fit = fit;
        assert_eq!(words(&world), [""; 0]);
    }
}

#[test]
fn a_container_that_just_failed_waits_for_its_retry_time() {
    let mut world = world(ContainerState::Queued, LockHolder::Nobody, 1);
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
        queued.holder = LockHolder::Nobody;
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
    let held = |world: &World, policy: &Policy| start_order::held_supervisors(world, policy);
    assert_eq!(held(&world, &policy), [4, 5].map(uuid));

    // One that a workflow asked for is never held, and takes no place of another.
    for n in [2, 5] {
        let known = world.containers.get_mut(&uuid(n)).unwrap();
        known.requested_by = Some(uuid(1));
    }
    let started: Vec<ContainerUuid> = plan(&world, &policy)
        .map(|action| action.container().clone())
        .collect();
    assert_eq!(started, [2, 3, 4, 5, 6, 7].map(uuid));
    assert_eq!(held(&world, &policy), []);
}

/// A workflow would wait for ever. A user reads why a job of their own does not start.
#[test]
fn a_step_that_can_never_start_is_cancelled_where_nobody_else_could_start_it() {
    let impossible = Admission::Impossible("too large".into());
    let never = Admission::Never("too large".into());
    for (fit, asked, expected) in [
        (&impossible, true, true),
        (&impossible, false, false),
        (&never, true, false),
        (&Admission::Later("busy".into()), true, false),
    ] {
        let mut world = world(ContainerState::Queued, LockHolder::Nobody, 1);
        let known = world.containers.get_mut(&uuid(1)).unwrap();
        known.fit = fit.clone();
        known.requested_by = asked.then(|| uuid(2));
        let found: Vec<Action> = plan(&world, &POLICY).collect();
        let cancelled = Action::CancelQueued {
            container: uuid(1),
            reason: "too large".into(),
        };
        let expected: Vec<Action> = expected.then_some(cancelled).into_iter().collect();
        assert_eq!(found, expected, "{fit:?} {asked}");
        // A record that is about to change is left alone.
        world.in_flight.insert(uuid(1));
        assert_eq!(plan(&world, &POLICY).count(), 0);
    }
}

/// Where one machine's memory is for all, runners leave room for their steps.
#[test]
fn supervisors_leave_memory_to_their_steps() {
    let runner = |priority: i64, ram| {
        let mut world = world(ContainerState::Queued, LockHolder::Nobody, priority);
        let mut known = world.containers.remove(&uuid(1)).unwrap();
        known.needs.supervisor = true;
        known.needs.ram = ram;
        known
    };
    let base = world(ContainerState::Running, ours(), 1);
    let started = |containers: &[(usize, &ObservedContainer)], max| {
        let mut world = base.clone();
        let all = containers
            .iter()
            .map(|(n, known)| (uuid(*n), (*known).clone()));
        world.containers.extend(all);
        let policy = Policy {
            max_supervisor_ram: max,
            ..POLICY
        };
        let held = start_order::held_supervisors(&world, &policy).len();
        let found: Vec<ContainerUuid> = plan(&world, &policy)
            .filter(|action| matches!(action, Action::Start { .. }))
            .map(|action| action.container().clone())
            .collect();
        let impossible = |(_, known): &&(usize, &ObservedContainer)| known.fit != Admission::Now;
        let impossible = containers.iter().filter(impossible).count();
        assert_eq!(found.len() + held + impossible, containers.len());
        found
    };
    let (first, second, third) = (runner(9, 6), runner(8, 3), runner(7, 1));
    let of_users = [(2, &first), (3, &second), (4, &third)];
    for (max, expected) in [
        (None, vec![2, 3, 4]),
        (Some(10), vec![2, 3, 4]),
        (Some(9), vec![2, 3]),
        (Some(8), vec![2, 4]),
        // One starts, whatever it needs.
        (Some(5), vec![2]),
    ] {
        let expected: Vec<ContainerUuid> = expected.into_iter().map(uuid).collect();
        assert_eq!(started(&of_users, max), expected, "{max:?}");
    }
    // One that can never start takes no place.
    let mut large = first.clone();
    large.fit = Admission::Never("too large".into());
    let found = started(&[(2, &large), (3, &second), (4, &third)], Some(5));
    assert_eq!(found, [3, 4].map(uuid));

    // Those that one workflow asks for share half as much, and one of them always starts.
    let nested = |ram| ObservedContainer {
        requested_by: Some(uuid(1)),
        ..runner(5, ram)
    };
    let (small, large) = (nested(2), nested(9));
    let many = [(5, &small), (6, &small), (7, &small)];
    assert_eq!(started(&many, Some(9)), [5, 6].map(uuid));
    assert_eq!(started(&many, None), [5, 6, 7].map(uuid));
    assert_eq!(started(&[(5, &large), (6, &small)], Some(9)), [uuid(5)]);
    // A depth is not held up by another one.
    let found = started(&[(2, &first), (5, &small)], Some(5));
    assert_eq!(found, [2, 5].map(uuid));
}

/// The revocation of an orphaned token takes the place of its container's start. It does not delay
/// other containers.
#[test]
fn a_left_over_token_takes_the_place_of_its_container() {
    let mut world = world(ContainerState::Queued, LockHolder::Nobody, 1);
    let queued = world.containers.remove(&uuid(1)).unwrap();
    for (n, priority) in [(1, 1), (2, 9), (3, 5)] {
        let known = ObservedContainer {
            owner: None,
            requested_by: None,
            created_at: None,
            locks: 0,
            priority,
            ..queued.clone()
        };
        world.containers.insert(uuid(n), known);
    }
    world.orphan_since = [(uuid(1), at(8)), (uuid(2), at(8))].into();
    let policy = Policy {
        max_pending: 2,
        ..POLICY
    };
    let begun: Vec<_> = plan(&world, &policy).collect();
    let expected = [
        Action::RevokeOrphan { container: uuid(2) },
        Action::Start {
            container: uuid(3),
            etag: "e".into(),
        },
    ];
    assert_eq!(begun, expected);
}
