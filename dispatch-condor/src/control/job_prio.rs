//! Computes the values of JobPrio that put the waiting jobs of each account in their order. Pure.
//!
//! Of two jobs of one user, HTCondor starts the one with the higher JobPrio first, and of equals
//! the one submitted first. Jobs are submitted in their order, so mostly nothing changes.
//! Otherwise the longest part of the queue that is in order keeps its values, and only the other
//! jobs get new ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::model::scheduling::by_account;
use dispatch_core::scheduler::DesiredPlace;
use dispatch_core::scheduler::in_order::longest_in_order;

use crate::query::condor_q::{JobAd, QueuePosition};

/// Difference between values of neighbours, so that later jobs fit in between.
const PRIO_STEP: i64 = 1 << 10;
/// Largest value: HTCondor stores 32 bits.
const MAX_PRIO: i64 = i32::MAX as i64;

/// The jobs that get a new value, as `cluster.process`, by value.
pub type PrioChanges = BTreeMap<Reverse<i64>, Vec<String>>;

/// The changes that put the waiting jobs of each account in `queue` in order, highest value first.
pub fn prio_changes(queue: &[JobAd], wanted: &[DesiredPlace]) -> PrioChanges {
    let waiting = queue.iter().filter(|ad| ad.is_idle_or_held());
    let waiting: BTreeMap<&str, QueuePosition> = waiting
        .map(|ad| (ad.container(), ad.queue_position()))
        .collect();
    let mut changes = PrioChanges::new();
    for containers in by_account(wanted).into_values() {
        let position = |container: &ContainerUuid| waiting.get(container.as_str()).copied();
        let jobs: Vec<QueuePosition> = containers.into_iter().filter_map(position).collect();
        for (job, prio) in jobs.iter().zip(assign_values(&jobs)) {
            if job.prio != prio {
                let (cluster, process) = job.number;
                let job = format!("{cluster}.{process}");
                changes.entry(Reverse(prio)).or_default().push(job);
            }
        }
    }
    changes
}

/// The values that put jobs in the order of this slice.
fn assign_values(jobs: &[QueuePosition]) -> Vec<i64> {
    let keys: Vec<_> = jobs.iter().map(|job| job.sort_key()).collect();
    let kept = longest_in_order(&keys);
    let placed =
        assign_around(jobs, &kept).filter(|values| values.iter().all(|v| v.abs() <= MAX_PRIO));
    placed.unwrap_or_else(|| renumber(jobs))
}

/// Values that place all other jobs between those that keep theirs; none if there are not enough
/// values in between.
fn assign_around(jobs: &[QueuePosition], kept: &[usize]) -> Option<Vec<i64>> {
    let mut values = Vec::with_capacity(jobs.len());
    for next in kept.iter().copied().chain([jobs.len()]) {
        let (above, below) = (values.last().copied(), jobs.get(next).map(|job| job.prio));
        values.extend(values_between(&jobs[values.len()..next], above, below)?);
        values.extend(below);
    }
    Some(values)
}

/// Values for neighbours out of order, between the values above and below them. Jobs that were
/// submitted in this order share a value.
fn values_between(
    jobs: &[QueuePosition],
    above: Option<i64>,
    below: Option<i64>,
) -> Option<Vec<i64>> {
    let falls = jobs
        .windows(2)
        .filter(|pair| pair[0].number > pair[1].number);
    let levels = falls.count() as i64 + 1;
    let (mut prio, step) = match (above, below) {
        (Some(above), Some(below)) => {
            let step = (above - below) / (levels + 1);
            (above - step, step)
        }
        (Some(above), None) => (above - PRIO_STEP, PRIO_STEP),
        (None, Some(below)) => (below + levels * PRIO_STEP, PRIO_STEP),
        (None, None) => (levels * PRIO_STEP, PRIO_STEP),
    };
    if step == 0 && !jobs.is_empty() {
        return None;
    }
    let mut last = None;
    let value = |job: &QueuePosition| {
        if last
            .replace(job.number)
            .is_some_and(|last| last > job.number)
        {
            prio -= step;
        }
        prio
    };
    Some(jobs.iter().map(value).collect())
}

/// New values above all old ones, except for first jobs that are in place already. So each subset
/// of the changes, highest first, brings the queue closer to its order.
fn renumber(jobs: &[QueuePosition]) -> Vec<i64> {
    let keeping = |first: usize| {
        let (first, rest) = jobs.split_at(first);
        let above = first.last().map(|job| job.prio);
        let highest = rest.iter().map(|job| job.prio).max();
        let values = values_between(rest, above, highest)?;
        let all = first.iter().map(|job| job.prio).chain(values);
        let all: Vec<i64> = all.collect();
        all.first()
            .is_none_or(|first| *first <= MAX_PRIO)
            .then_some(all)
    };
    (0..=count_in_place(jobs))
        .rev()
        .find_map(keeping)
        .or_else(|| values_between(jobs, None, None))
        .unwrap_or_default()
}

/// The number of first jobs that are in order and before all others.
fn count_in_place(jobs: &[QueuePosition]) -> usize {
    let mut earliest: Vec<_> = jobs.iter().map(|job| job.sort_key()).collect();
    for n in (1..earliest.len()).rev() {
        earliest[n - 1] = earliest[n - 1].min(earliest[n]);
    }
    let is_right = |(n, job): &(usize, &QueuePosition)| earliest[*n] == job.sort_key();
    jobs.iter().enumerate().take_while(is_right).count()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dispatch_core::model::owner::Charge;
    use proptest::prelude::*;

    use super::*;

    fn standings(prios: &[i64], numbers: &[i64]) -> Vec<QueuePosition> {
        let pairs = prios.iter().zip(numbers);
        pairs
            .map(|(&prio, &number)| QueuePosition {
                prio,
                number: (1, number),
            })
            .collect()
    }

    #[test]
    fn what_stands_in_order_is_left_alone() {
        type Case = (&'static [i64], &'static [i64], &'static [i64]);
        #[rustfmt::skip]
        let rows: [Case; 9] = [
            // JobPrio, number (order of submission), new JobPrio
            (&[], &[], &[]),
            (&[0, 0, 0], &[1, 2, 3], &[0, 0, 0]),
            // The last submitted job has the highest priority.
            (&[0, 0, 0], &[3, 1, 2], &[1024, 0, 0]),
            // The first submitted job has the lowest priority.
            (&[0, 0, 0], &[2, 3, 1], &[0, 0, -1024]),
            // In reverse order: one job keeps its value.
            (&[0, 0, 0], &[3, 2, 1], &[2048, 1024, 0]),
            // Into the middle, where there is room, and where there is none.
            (&[2048, 0, 0], &[3, 4, 1], &[2048, 1024, 0]),
            (&[0, 0, 0, 0], &[1, 4, 2, 3], &[2048, 2048, 1024, 1024]),
            // Two that were submitted in this order share a value.
            (&[5, 0, 0, 1, 1, 1], &[9, 7, 8, 1, 2, 3], &[5, 3, 3, 1, 1, 1]),
            // At the maximum value all are renumbered.
            (&[0, MAX_PRIO], &[1, 2], &[1024, 1024]),
        ];
        for (prios, numbers, expected) in rows {
            let jobs = standings(prios, numbers);
            assert_eq!(assign_values(&jobs), expected, "{prios:?} {numbers:?}");
        }
    }

    fn ad(number: i64, prio: i64, status: i64) -> JobAd {
        let text = format!(
            r#"[{{"ClusterId": 7, "ProcId": {number}, "JobStatus": {status}, "JobPrio": {prio}, "ContainerUUID": "zzzzz-dz642-{number:015}"}}]"#
        );
        crate::query::condor_q::parse(&text).unwrap().remove(0)
    }

    fn in_order(numbers: &[i64]) -> Vec<DesiredPlace> {
        let container = |number| ContainerUuid::parse(&format!("zzzzz-dz642-{number:015}"));
        let place = |number: &i64| DesiredPlace {
            container: container(*number).unwrap(),
            charge: None,
        };
        numbers.iter().map(place).collect()
    }

    #[test]
    fn jobs_that_wait_stand_in_their_order() {
        let queue = [ad(1, 0, 1), ad(2, 0, 1), ad(3, 0, 5), ad(4, 0, 2)];
        let changes_for = |wanted: &[DesiredPlace]| -> Vec<(i64, Vec<String>)> {
            let changes = prio_changes(&queue, wanted).into_iter();
            changes.map(|(Reverse(prio), jobs)| (prio, jobs)).collect()
        };
        assert_eq!(changes_for(&in_order(&[1, 2, 3])), []);
        // The fourth one runs.
        let expected = [(2048, vec!["7.3".into()]), (1024, vec!["7.2".into()])];
        assert_eq!(changes_for(&in_order(&[3, 2, 4, 1])), expected);
        // A container without a desired place gets no change.
        assert_eq!(changes_for(&in_order(&[2])), []);
        // HTCondor itself shares between accounts.
        let mut wanted = in_order(&[3, 2, 1]);
        let account = |account: &str| Charge::new(None, account.into());
        for (place, of) in wanted.iter_mut().zip(["lab", "bio", "lab"]) {
            place.charge = Some(Arc::new(account(of)));
        }
        assert_eq!(changes_for(&wanted), [(1024, vec!["7.3".into()])]);
    }

    proptest! {
        #[test]
        fn every_job_stands_where_it_should_and_stays_there(
            prios in prop::collection::vec(-3000_i64..3000, 0..60),
            seed in any::<u64>(),
        ) {
            let mut numbers: Vec<i64> = (0..prios.len() as i64).collect();
            let mut state = seed;
            for i in (1..numbers.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                numbers.swap(i, (state >> 33) as usize % (i + 1));
            }
            let mut jobs = standings(&prios, &numbers);
            let new = assign_values(&jobs);
            prop_assert!(new.iter().all(|value| value.abs() <= MAX_PRIO));
            for (job, prio) in jobs.iter_mut().zip(&new) {
                job.prio = *prio;
            }
            prop_assert!(jobs.windows(2).all(|pair| pair[0].sort_key() < pair[1].sort_key()));
            prop_assert_eq!(assign_values(&jobs), new);
        }

        /// Any number of the changes, highest first, is a valid intermediate state.
        #[test]
        fn half_of_the_changes_lead_to_the_same_order(
            prios in prop::collection::vec(-3_i64..3, 2..40),
            count in 1_usize..5,
        ) {
            let numbers: Vec<i64> = (0..prios.len() as i64).rev().collect();
            let mut jobs = standings(&prios, &numbers);
            for _ in 0..200 {
                let new = assign_values(&jobs);
                let mut levels: Vec<i64> = new.iter().zip(&jobs).filter(|(v, j)| j.prio != **v).map(|(v, _)| *v).collect();
                levels.sort_unstable();
                levels.dedup();
                levels.reverse();
                levels.truncate(count);
                for (job, prio) in jobs.iter_mut().zip(&new) {
                    if levels.contains(prio) {
                        job.prio = *prio;
                    }
                }
            }
            prop_assert!(jobs.windows(2).all(|pair| pair[0].sort_key() < pair[1].sort_key()));
        }
    }
}
