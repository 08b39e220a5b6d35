//! Owners take turns for the places of pending jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use arvados_client::UserUuid;

use super::*;
use crate::model::owner::{Charge, Owner, Weight};

/// Containers of one owner: its letter and weight, how many are pending, blocked, running, queued.
type Row = (char, u16, usize, usize, usize, usize);

fn with_owners(rows: &[Row]) -> World {
    let mut world = world(ContainerState::Queued, LockHolder::Nobody, 1);
    let queued = world.containers.remove(&uuid(1)).unwrap();
    let mut next = 0;
    for &(user, weight, pending, blocked, running, waiting) in rows {
        let owner = Arc::new(Owner {
            user: UserUuid::parse(&format!("zzzzz-tpzed-{user:0>15}")).ok(),
            ..Owner::default()
        });
        let mut known = queued.clone();
        known.owner = Some(owner.clone());
        known.needs.charged_to = Some(Arc::new(Charge {
            weight: Weight::new(weight).unwrap(),
            ..Charge::new(Some(owner), user.into())
        }));
        let states = [
            (pending, "pending"),
            (blocked, "blocked"),
            (running, "running"),
        ];
        let states = states.into_iter().chain([(waiting, "waiting")]);
        for (count, state) in states {
            for _ in 0..count {
                next += 1;
                let mut known = known.clone();
                // Later ones have a lower priority, and the first owner the highest.
                known.priority = 1_000_000 - next as i64;
                known.etag = user.to_string();
                match state {
                    "running" => known.state = ContainerState::Running,
                    "waiting" => {}
                    _ => known.state = ContainerState::Locked,
                }
                if state != "waiting" {
                    known.holder = ours();
                }
                if state == "blocked" {
                    let pending = PendingSince {
                        text: "a limit".into(),
                        blocked_since: Some(at(1)),
                    };
                    world.pending.insert(uuid(next), pending);
                }
                world.containers.insert(uuid(next), known);
            }
        }
    }
    world
}

fn started(world: &World, policy: &Policy) -> Vec<char> {
    let started = plan(world, policy).filter_map(|action| match action {
        Action::Start { etag, .. } => etag.chars().next(),
        _ => None,
    });
    started.collect()
}

#[test]
fn places_go_round_by_owner() {
    let policy = Policy {
        max_pending: 8,
        ..POLICY
    };
    #[rustfmt::skip]
    let rows: [(&[Row], &str); 12] = [
        (&[('b', 1, 0, 0, 0, 50)], "bbbbbbbb"),
        (&[('b', 1, 0, 0, 0, 50), ('e', 1, 0, 0, 0, 3)], "bebebebb"),
        // Who has fewer pending jobs comes first; then who has fewer running ones.
        (&[('b', 1, 5, 0, 0, 50), ('e', 1, 0, 0, 0, 50)], "eeee"),
        (&[('b', 1, 0, 0, 9, 50), ('e', 1, 0, 0, 1, 1)], "ebbbbbbb"),
        // All places are taken: another owner gets an equal share beyond the limit.
        (&[('b', 1, 8, 0, 0, 50), ('e', 1, 0, 0, 0, 50)], "eeee"),
        (&[('b', 1, 8, 0, 0, 50), ('e', 1, 4, 0, 0, 50)], ""),
        (&[('b', 1, 8, 0, 0, 50), ('e', 1, 1, 0, 0, 50)], "eee"),
        (&[('b', 1, 8, 0, 0, 50), ('e', 3, 0, 0, 0, 50)], "eeeeee"),
        // Twice the limit is not exceeded, but each owner gets one.
        (&[('b', 1, 16, 0, 0, 50), ('d', 1, 1, 0, 0, 9), ('e', 1, 0, 0, 0, 50)], "e"),
        // A limit of one owner blocks no other, nor does he get more places by it.
        (&[('b', 1, 0, 30, 0, 50), ('e', 1, 0, 0, 0, 50)], "eeeeeeee"),
        (&[('b', 1, 0, 8, 0, 50), ('e', 1, 0, 0, 0, 50)], "eeeeeeee"),
        (&[('b', 1, 0, 1, 0, 0), ('e', 1, 0, 0, 0, 50)], "eeeeeeee"),
    ];
    for (owners, expected) in rows {
        let started: String = started(&with_owners(owners), &policy).into_iter().collect();
        assert_eq!(started, expected, "{owners:?}");
    }
}

/// Where the scheduler is one machine, what runs is what an owner has.
#[test]
fn running_containers_count_where_the_scheduler_does_not_queue() {
    let policy = Policy {
        max_pending: 8,
        counts_running: true,
        ..POLICY
    };
    let world = with_owners(&[('b', 1, 0, 0, 9, 50), ('e', 1, 2, 0, 1, 50)]);
    let order: String = started(&world, &policy).into_iter().collect();
    assert_eq!(order, "eeeeeebbbb");
}

#[test]
fn the_places_that_are_told_are_those_of_the_order() {
    let mut world = with_owners(&[('b', 1, 0, 0, 0, 3), ('e', 1, 0, 0, 0, 1)]);
    let places = |world: &World| -> Vec<ContainerUuid> {
        start_order::waiting_in_order(world, &POLICY)
            .cloned()
            .collect()
    };
    assert_eq!(places(&world), [1, 4, 2, 3].map(uuid));
    let known = world.containers.get_mut(&uuid(1)).unwrap();
    known.fit = Admission::Never("too large".into());
    assert_eq!(places(&world), [2, 4, 3].map(uuid));
}

/// One owner's queue of any length delays another's first container by no place.
#[test]
fn a_long_queue_of_one_owner_leaves_the_others_their_first_place() {
    let policy = Policy {
        max_pending: 100,
        ..POLICY
    };
    let world = with_owners(&[('b', 1, 100, 0, 500, 2000), ('e', 1, 0, 0, 0, 3)]);
    let mut counts: BTreeMap<char, usize> = BTreeMap::new();
    for owner in started(&world, &policy) {
        *counts.entry(owner).or_default() += 1;
    }
    assert_eq!(counts, BTreeMap::from([('e', 3)]));
}
