//! Nice values by hand, on queues that move, and for any queue.

use std::sync::Arc;

use dispatch_core::model::owner::Charge;
use proptest::prelude::*;

use super::*;

const TOP: i64 = 4_294_000_111;

fn positions(jobs: &[(i64, i64)]) -> Vec<QueuePosition> {
    jobs.iter()
        .map(|&(priority, nice)| QueuePosition { priority, nice })
        .collect()
}

/// Applies new nice values as Slurm does.
fn apply(jobs: &mut [QueuePosition], nice: &[i64]) -> i64 {
    let mut changed = 0;
    for (job, nice) in jobs.iter_mut().zip(nice) {
        changed += i64::from(job.nice != *nice);
        job.priority += job.nice - nice;
        job.nice = *nice;
    }
    changed
}

#[test]
fn nice_values_keep_the_order_with_few_changes() {
    type Case = (i64, &'static [(i64, i64)], &'static [i64]);
    #[rustfmt::skip]
    let rows: [Case; 12] = [
        (10, &[], &[]),
        (10, &[(TOP, 10000)], &[0]),
        (10, &[(TOP, 10000), (TOP, 10000), (TOP, 10000), (TOP, 10000)], &[0, 2, 4, 6]),
        (40, &[(TOP, 10000), (TOP, 10000), (TOP, 10000), (TOP, 10000)], &[0, 10, 20, 30]),
        // In order, and within the bound of 20.
        (10, &[(TOP + 2, 0), (TOP + 1, 1), (TOP - 18, 20)], &[0, 1, 20]),
        (10, &[(TOP - 10, 10), (TOP - 12, 12), (TOP - 14, 14)], &[10, 12, 14]),
        // In order, and above the bound.
        (10, &[(TOP - 20, 20), (TOP - 22, 22), (TOP - 24, 24)], &[0, 2, 4]),
        // A new one at the end, a raised one before the others.
        (10, &[(TOP, 0), (TOP - 2, 2), (TOP - 10000, 10000)], &[0, 2, 4]),
        (10, &[(TOP - 9, 9), (TOP - 4, 4), (TOP - 6, 6)], &[0, 4, 6]),
        // Different priorities without nice values.
        (10, &[(4000, 0), (3000, 999), (2000, 1998)], &[0, 1, 2]),
        (10, &[(4000, 0), (5000, 0), (6000, 0)], &[0, 1002, 2004]),
        (1, &[(4000, 0), (5000, 0), (6000, 0), (3000, 0)], &[0, 1001, 2002, 0]),
    ];
    for (spread, jobs, expected) in rows {
        let mut jobs = positions(jobs);
        let nice = nice_values(&jobs, spread);
        assert_eq!(nice, expected, "{spread} {jobs:?}");
        apply(&mut jobs, &nice);
        let again = nice_values(&jobs, spread);
        assert_eq!(again, expected, "a second time: {jobs:?}");
    }
    // New jobs at the floor are taken for equal to the others.
    let jobs = positions(&[(4000, 0), (1, 10000), (1, 10000)]);
    assert_eq!(nice_values(&jobs, 10), [0, 2, 4]);
}

/// A queue of `length` from which the first job leaves `departures` times. With `follows`,
/// another one comes each time. Returns the largest nice value, and the number of changes after
/// the first numbering.
fn play(length: i64, departures: usize, follows: bool) -> (i64, i64) {
    let new = QueuePosition {
        priority: 4_294_000_000,
        nice: 10_000,
    };
    let mut jobs = vec![new; length as usize];
    let (mut changed, mut largest) = (-length + 1, 0);
    for _ in 0..=departures {
        let nice = nice_values(&jobs, 10);
        let bound = 10 * (jobs.len() as i64 - 1).max(0);
        assert!(nice.iter().all(|nice| *nice <= bound), "{nice:?}");
        largest = largest.max(nice.iter().max().copied().unwrap_or_default());
        changed += apply(&mut jobs, &nice);
        assert!(
            jobs.windows(2)
                .all(|pair| pair[0].priority > pair[1].priority)
        );
        jobs.remove(0);
        jobs.extend(follows.then_some(new));
    }
    (largest, changed)
}

#[test]
fn a_departure_costs_at_most_one_change_in_the_middle() {
    let (largest, changed) = play(30, 29, false);
    assert!(largest <= 290 && changed <= 29, "{largest} {changed}");
    let (_, changed) = play(1000, 999, false);
    assert!(changed <= 999, "{changed}");
    // Each new job costs one change of its own.
    for length in [5, 30, 100] {
        let (largest, changed) = play(length, 2000, true);
        let per_departure = changed as f64 / 2000.0;
        assert!(largest <= 10 * (length - 1), "{length}: {largest}");
        assert!(per_departure <= 2.0, "{length}: {per_departure}");
    }
}

/// Priorities end at 1: larger nice values do not lower them further.
#[test]
fn at_the_bottom_of_slurms_priorities_values_do_not_grow() {
    let mut base = 9;
    let mut jobs = positions(&[(1, 10_000); 8]);
    let mut nice = Vec::new();
    for pass in 0..5 {
        nice = nice_values(&jobs, 10);
        for (job, nice) in jobs.iter_mut().zip(&nice) {
            job.nice = *nice;
            job.priority = (base - nice).max(1);
        }
        // Their age counts.
        base += i64::from(pass == 3);
    }
    assert_eq!(nice[..5], [0, 2, 4, 6, 8]);
    assert!(nice.iter().all(|nice| *nice <= 70), "{nice:?}");
    assert_eq!(nice_values(&jobs, 10), nice, "{jobs:?}");
}

fn row(n: u32, phase: JobPhase, priority: i64) -> Row {
    Row {
        id: n.to_string(),
        phase,
        container: ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap(),
        attempt: None,
        node: None,
        position: QueuePosition {
            priority,
            nice: 10_000,
        },
        start: None,
        state: "PENDING".into(),
        reason: "None".into(),
    }
}

/// The jobs in order, each with its account.
fn wanted(jobs: &[(u32, &str)]) -> Vec<DesiredPlace> {
    let charge = |account: &str| Charge::new(None, account.into());
    let place = |(n, account): &(u32, &str)| DesiredPlace {
        container: row(*n, JobPhase::Pending, 0).container,
        charge: (!account.is_empty()).then(|| Arc::new(charge(account))),
    };
    jobs.iter().map(place).collect()
}

fn described(queue: &[Row], jobs: &[(u32, &str)], spread: i64) -> Vec<(String, i64)> {
    let changes = changes(queue, &wanted(jobs), spread);
    changes.into_iter().map(|c| (c.job, c.nice)).collect()
}

#[test]
fn jobs_stand_in_their_order() {
    let waits = |n, priority| row(n, JobPhase::Pending, priority);
    let line = |n: u32, nice| (n.to_string(), nice);
    let two = [waits(1, 4_294_000_777), waits(2, 4_294_000_444)];
    let order = [(2, ""), (1, "")];
    assert_eq!(described(&two[..1], &order, 1), [line(1, 0)]);
    assert_eq!(described(&two, &order, 1), [line(2, 0), line(1, 334)]);
    assert_eq!(described(&two, &order, 100), [line(2, 0), line(1, 358)]);
    // A job whose container is not listed stays where it is.
    let three = [waits(1, TOP), waits(2, TOP), waits(3, TOP)];
    let expected = [line(1, 0), line(2, 1)];
    assert_eq!(described(&three, &[(1, ""), (2, "")], 1), expected);
    // Running and held jobs stay.
    let queue = [row(1, JobPhase::Active, TOP), waits(2, 0), waits(3, TOP)];
    let order = [(1, ""), (2, ""), (3, "")];
    assert_eq!(described(&queue, &order, 10), [line(3, 0)]);
}

/// The fair share of two accounts, as it was on a cluster with multifactor priorities.
#[test]
fn the_order_between_accounts_is_slurms() {
    let mut queue = Vec::new();
    let mut order = Vec::new();
    for n in 0..45 {
        let (account, base) = if n < 30 {
            ("phys", 2000)
        } else {
            ("bio", 4000)
        };
        let mut row = row(n, JobPhase::Pending, 1);
        row.position.nice = base + 6000;
        queue.push(row);
        order.push((n, account));
    }
    let base = |n: usize| if n < 30 { 2000 } else { 4000 };
    for _ in 0..3 {
        let changes: BTreeMap<String, i64> = described(&queue, &order, 10).into_iter().collect();
        for (n, row) in queue.iter_mut().enumerate() {
            let nice = changes.get(&row.id).copied();
            row.position.nice = nice.unwrap_or(row.position.nice);
            row.position.priority = (base(n) - row.position.nice).max(1);
        }
    }
    assert_eq!(described(&queue, &order, 10), [], "nothing is left to do");
    for (n, row) in queue.iter().enumerate() {
        assert!(row.position.nice <= 290, "{n}: {row:?}");
        assert!(row.position.priority >= base(n) - 290, "{n}: {row:?}");
    }
}

#[test]
fn a_lost_hold_is_distinguished_from_other_changes_of_priority() {
    let position = |priority, nice| QueuePosition { priority, nice };
    type Case = (QueuePosition, i64, JobPhase, QueuePosition, &'static str);
    #[rustfmt::skip]
    let rows: [Case; 11] = [
        // Observed with Slurm 22.05.
        (position(TOP, 10_000), 0, JobPhase::Pending, position(10_000, 0), "unheld"),
        (position(TOP, 0), 10_000, JobPhase::Pending, position(2, 10_000), "unheld"),
        (position(9_000, 10_000), 9_990, JobPhase::Pending, position(10, 9_990), "unheld"),
        // Changes without a hold.
        (position(TOP, 10_000), 0, JobPhase::Pending, position(TOP + 10_000, 0), ""),
        (position(TOP, 10_000), 0, JobPhase::Pending, position(TOP + 9_700, 0), ""),
        // Held after the change, released by somebody, or started before that was seen.
        (position(TOP, 10_000), 0, JobPhase::Pending, position(0, 0), ""),
        (position(TOP, 10_000), 9_000, JobPhase::Pending, position(TOP + 10_000, 0), ""),
        (position(TOP, 10_000), 0, JobPhase::Active, position(10_000, 0), ""),
        // Priorities so low that the job has this value anyway.
        (position(1, 10_000), 0, JobPhase::Pending, position(10_000, 0), ""),
        // The listing is older than the change, or shows another user's value.
        (position(TOP, 10_000), 0, JobPhase::Pending, position(TOP, 10_000), "open"),
        (position(TOP, 10_000), 0, JobPhase::Pending, position(500, 500), ""),
    ];
    for (before, nice, phase, after, expected) in rows {
        let job = "7".to_owned();
        let sent = SentChange { job, before, nice };
        let mut listed = row(7, phase, after.priority);
        listed.position = after;
        let (lost_holds, open) = lost_holds(vec![sent.clone()], &[listed]);
        let described = match (lost_holds.as_slice(), open.as_slice()) {
            ([lost], []) if *lost == sent => "unheld",
            ([], [kept]) if *kept == sent => "open",
            ([], []) => "",
            _ => "both",
        };
        assert_eq!(described, expected, "{before:?} {nice} {after:?}");
    }
}

#[test]
fn a_job_that_started_meanwhile_is_no_complaint() {
    let gone = "Invalid job id specified for job 999\nJob is no longer pending execution for job 7\n\
         Job has already finished for job 8";
    assert!(is_only_about_ended_jobs(gone));
    assert!(!is_only_about_ended_jobs(
        "Invalid job id specified for job 9\nUnable to contact slurm controller"
    ));
}

proptest! {
    #[test]
    fn every_job_ends_up_behind_the_one_before_at_once(
        jobs in prop::collection::vec((4_000_000_000_i64..4_294_900_000, 0_i64..20_000), 0..60),
        spread in 1_i64..50,
    ) {
        let mut jobs = positions(&jobs);
        let nice = nice_values(&jobs, spread);
        prop_assert!(nice.iter().all(|nice| (0..=MAX_NICE).contains(nice)));
        apply(&mut jobs, &nice);
        prop_assert!(jobs.windows(2).all(|pair| pair[0].priority > pair[1].priority));
        prop_assert_eq!(nice_values(&jobs, spread), nice);
    }
}
