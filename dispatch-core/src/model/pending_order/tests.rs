//! Queues of a few owners that move, as tables.

use std::sync::Arc;

use super::*;
use crate::model::owner::{Charge, Weight};

/// The jobs of a test: number, owner, account with its weight, priority.
type Row = (u32, char, (&'static str, u16), i64);

fn container(n: u32) -> ContainerUuid {
    ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap()
}

fn job((n, user, (account, weight), priority): Row) -> PendingJob {
    let charge = Charge {
        owner: None,
        account: account.to_owned(),
        weight: Weight::new(weight).unwrap(),
    };
    PendingJob {
        container: container(n),
        user: UserUuid::parse(&format!("zzzzz-tpzed-{user:0>15}")).ok(),
        charge: Some(Arc::new(charge)),
        priority,
        is_blocked: false,
    }
}

fn arrange(order: &mut PendingOrder, jobs: &[Row]) -> Vec<u32> {
    let placed = order.arrange(jobs.iter().copied().map(job).collect());
    let number = |place: DesiredPlace| place.container.as_str()[12..].parse().unwrap();
    placed.into_iter().map(number).collect()
}

const SITE: (&str, u16) = ("site", 1);

#[test]
fn owners_take_turns_and_priorities_count_within_an_owner() {
    let bob = |n, priority| (n, 'b', SITE, priority);
    let eve = |n, priority| (n, 'e', SITE, priority);
    #[rustfmt::skip]
    let rows: [(&[Row], &[u32]); 5] = [
        (&[], &[]),
        (&[bob(1, 5), bob(2, 9), bob(3, 7)], &[2, 3, 1]),
        (&[bob(1, 900), bob(2, 900), bob(3, 900), eve(4, 1), eve(5, 2)], &[1, 5, 2, 4, 3]),
        // Three turns of one for each turn of the other.
        (&[(1, 'a', ("x", 3), 5), (2, 'a', ("x", 3), 5), (3, 'a', ("x", 3), 5), (4, 'a', ("x", 3), 5),
           (5, 'b', ("x", 1), 5), (6, 'b', ("x", 1), 5)], &[1, 5, 2, 3, 4, 6]),
        // Accounts are not compared: each has its own order.
        (&[(1, 'b', ("bio", 1), 5), (2, 'b', ("bio", 1), 9), (3, 'e', ("lab", 1), 1)], &[2, 1, 3]),
    ];
    for (jobs, expected) in rows {
        assert_eq!(
            arrange(&mut PendingOrder::default(), jobs),
            expected,
            "{jobs:?}"
        );
    }
}

#[test]
fn a_newcomer_stands_behind_the_first_job_and_takes_turns_from_there() {
    let mut order = PendingOrder::default();
    let bobs: Vec<Row> = (1..=100).map(|n| (n, 'b', SITE, 5)).collect();
    arrange(&mut order, &bobs);
    // Thirty have started.
    let mut left = bobs[30..].to_vec();
    arrange(&mut order, &left);
    left.extend((201..=203).map(|n| (n, 'e', SITE, 1)));
    let placed = arrange(&mut order, &left);
    assert_eq!(placed[..7], [31, 201, 32, 202, 33, 203, 34]);
    // A job that leaves moves no other.
    left.retain(|(n, ..)| ![31, 201, 50].contains(n));
    let before: Vec<u32> = placed
        .into_iter()
        .filter(|n| ![31, 201, 50].contains(n))
        .collect();
    assert_eq!(arrange(&mut order, &left), before);
    // Her next one waits for her turn, although none of hers waits.
    left.retain(|(n, ..)| *n < 200);
    arrange(&mut order, &left);
    left.push((204, 'e', SITE, 1));
    assert_eq!(arrange(&mut order, &left)[..4], [32, 33, 204, 34]);
}

#[test]
fn a_cancelled_job_gives_its_turn_back() {
    let mut order = PendingOrder::default();
    let mut jobs: Vec<Row> = (1..=100).map(|n| (n, 'b', SITE, 5)).collect();
    jobs.push((200, 'e', SITE, 5));
    arrange(&mut order, &jobs);
    // He cancels all but the first, and submits two others.
    jobs.retain(|(n, ..)| [1, 200].contains(n));
    arrange(&mut order, &jobs);
    jobs.extend([
        (300, 'b', SITE, 5),
        (301, 'b', SITE, 5),
        (302, 'e', SITE, 5),
    ]);
    assert_eq!(arrange(&mut order, &jobs), [1, 200, 300, 302, 301]);
}

#[test]
fn a_job_that_waits_for_an_administrator_lets_nobody_pass() {
    let mut order = PendingOrder::default();
    let mut jobs: Vec<PendingJob> = (1..=9).map(|n| job((n, 'b', SITE, 5))).collect();
    jobs[0].is_blocked = true;
    order.arrange(jobs.clone());
    jobs.drain(1..6);
    jobs.extend([10, 11].map(|n| job((n, 'e', SITE, 5))));
    let placed = order.arrange(jobs);
    let expected = [1, 7, 10, 8, 11, 9].map(container);
    let placed: Vec<ContainerUuid> = placed.into_iter().map(|place| place.container).collect();
    assert_eq!(placed, expected);
}
