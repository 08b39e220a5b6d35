//! Computes the values of JobPrio that put waiting jobs in the order of their containers'
//! priorities. Pure.
//!
//! Of two jobs of one user, HTCondor starts the one with the higher JobPrio first, and of equals
//! the one submitted first. Jobs are submitted highest priority first, so mostly nothing changes.
//! Otherwise the longest part of the queue that is in order keeps its values, and only the other
//! jobs get new ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::scheduler::DesiredPriority;

use crate::query::condor_q::{JobAd, QueuePosition};

/// Difference between values of neighbours, so that later jobs fit in between.
const PRIO_STEP: i64 = 1 << 10;
/// Largest value: HTCondor stores 32 bits.
const MAX_PRIO: i64 = i32::MAX as i64;

/// The jobs that get a new value, as `cluster.process`, by value.
pub type PrioChanges = BTreeMap<Reverse<i64>, Vec<String>>;

/// The changes that put the waiting jobs of `queue` in order, highest value first.
pub fn prio_changes(queue: &[JobAd], wanted: &[DesiredPriority]) -> PrioChanges {
    let wanted: BTreeMap<&str, i64> = wanted
        .iter()
        .filter(|wanted| wanted.priority > 0)
        .map(|wanted| (ContainerUuid::as_str(&wanted.container), wanted.priority))
        .collect();
    let mut jobs: Vec<(i64, QueuePosition)> = queue
        .iter()
        .filter(|ad| ad.is_idle_or_held())
        .filter_map(|ad| Some((*wanted.get(ad.container())?, ad.queue_position())))
        .collect();
    // Containers of equal priority keep HTCondor's own order, so nothing changes without a reason.
    jobs.sort_by_key(|(priority, queue_position)| (Reverse(*priority), queue_position.sort_key()));
    let standings: Vec<QueuePosition> = jobs
        .iter()
        .map(|(_, queue_position)| *queue_position)
        .collect();
    let mut changes = PrioChanges::new();
    for (queue_position, prio) in standings.iter().zip(assign_values(&standings)) {
        if queue_position.prio != prio {
            let (cluster, process) = queue_position.number;
            let job = format!("{cluster}.{process}");
            changes.entry(Reverse(prio)).or_default().push(job);
        }
    }
    changes
}

/// The values that put jobs in the order of this slice.
fn assign_values(jobs: &[QueuePosition]) -> Vec<i64> {
    let kept = longest_in_order(jobs);
    let placed =
        assign_around(jobs, &kept).filter(|values| values.iter().all(|v| v.abs() <= MAX_PRIO));
    placed.unwrap_or_else(|| renumber(jobs))
}

/// The indices of the longest part that is in order already.
fn longest_in_order(jobs: &[QueuePosition]) -> Vec<usize> {
    // For each length, the part whose last job is earliest; and the predecessor of each job in its
    // part.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(jobs.len());
    for (n, job) in jobs.iter().enumerate() {
        let length = ends.partition_point(|end| jobs[*end].sort_key() < job.sort_key());
        before.push(length.checked_sub(1).map(|last| ends[last]));
        match ends.get_mut(length) {
            Some(end) => *end = n,
            None => ends.push(n),
        }
    }
    let mut part: Vec<usize> =
        std::iter::successors(ends.last().copied(), |n| before[*n]).collect();
    part.reverse();
    part
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

    fn want(number: i64, priority: i64) -> DesiredPriority {
        DesiredPriority {
            container: ContainerUuid::parse(&format!("zzzzz-dz642-{number:015}")).unwrap(),
            priority,
        }
    }

    #[test]
    fn jobs_that_wait_stand_in_the_order_of_their_containers() {
        let queue = [ad(1, 0, 1), ad(2, 0, 1), ad(3, 0, 5), ad(4, 0, 2)];
        let changes_for = |wanted: &[DesiredPriority]| -> Vec<(i64, Vec<String>)> {
            let changes = prio_changes(&queue, wanted);
            changes
                .into_iter()
                .map(|(Reverse(p), jobs)| (p, jobs))
                .collect()
        };
        let high = 1_125_899_906_842_624_000;
        assert_eq!(
            changes_for(&[want(1, high + 1), want(2, high), want(3, high)]),
            []
        );
        let expected = [(2048, vec!["7.3".into()]), (1024, vec!["7.2".into()])];
        assert_eq!(
            changes_for(&[
                want(1, high),
                want(2, high + 1),
                want(3, high + 2),
                want(4, 9)
            ]),
            expected
        );
        // A container without a desired priority gets no change.
        assert_eq!(changes_for(&[want(1, 1), want(2, 0)]), []);
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
