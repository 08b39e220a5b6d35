//! Properties of the plan in every world.

use proptest::prelude::*;

use super::*;

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
    fn any_listing(began: u64)(jobs in prop::collection::vec((0usize..4, 0usize..3, any::<bool>()), 0..5)) -> JobListing {
        let jobs = jobs.into_iter().enumerate().map(|(i, (n, a, ended))| Job { id: JobId(i.to_string()), ended, ..job(n, a) }).collect();
        JobListing::new(at(began), jobs)
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
        left_over in prop::collection::btree_map(0usize..4, 5u64..200, 0..3),
    ) -> World {
        World {
            now: at(10),
            containers: containers.into_iter().map(|(n, (state, priority, holder))| {
                let holder = match holder { 3 => LockHolder::Other, 2 => LockHolder::Nobody, n => LockHolder::Ours(token(n)) };
                (uuid(n), ObservedContainer { state, priority, etag: String::new(), holder, owner: None, requested_by: None, created_at: None, locks: 0, needs: ResourceRequest::default(), fit: Admission::Now, seen: at(100), end: None })
            }).collect(),
            attempts: attempts.into_iter().map(|(n, (t, phase))| (uuid(n), Attempt { token: token(t), phase })).collect(),
            listing,
            previous,
            in_flight: in_flight.into_iter().map(uuid).collect(),
            orphan_since: left_over.into_iter().map(|(n, s)| (uuid(n), at(s))).collect(),
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
            if world.containers.get(action.container()).is_some_and(|k| k.holder == LockHolder::Other) {
                prop_assert!(!matches!(action, Action::Unlock { .. } | Action::Cancel { .. } | Action::Submit { .. } | Action::Start { .. }), "{action:?}");
            }
        }
    }

    #[test]
    fn nothing_is_started_beside_a_left_over_token(world in any_world()) {
        for action in planned(&world) {
            if let Action::Start { container, .. } = &action {
                prop_assert!(!world.orphan_since.contains_key(container), "{action:?}");
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
