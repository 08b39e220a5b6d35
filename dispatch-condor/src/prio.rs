//! Which values of JobPrio put waiting jobs in the order of their containers' priorities. Pure.
//!
//! Of two jobs of a user HTCondor starts the one with the higher JobPrio first, and of equals the one that was submitted
//! first. Jobs are submitted highest priority first, so mostly there is nothing to do. Otherwise the longest part of the
//! queue that stands in order already keeps its values, and only what stands wrong gets new ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::scheduler::Wanted;

use crate::listing::Ad;

/// Between the values of neighbours that are put apart: later ones find room in between.
const STEP: i64 = 1 << 10;
/// HTCondor takes 32 bits.
const LARGEST: i64 = i32::MAX as i64;

/// Where a job stands: JobPrio, and its number, which is the order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// JobPrio.
    pub prio: i64,
    /// Cluster and process.
    pub number: (i64, i64),
}

impl Standing {
    /// Less is earlier.
    fn place(self) -> (Reverse<i64>, (i64, i64)) {
        (Reverse(self.prio), self.number)
    }
}

/// The jobs that get a new value, as `cluster.process`, by value.
pub type Changes = BTreeMap<Reverse<i64>, Vec<String>>;

/// The changes that put the waiting jobs of `queue` in order, highest value first.
pub fn changes(queue: &[Ad], wanted: &[Wanted]) -> Changes {
    let wanted: BTreeMap<&str, i64> = wanted
        .iter()
        .filter(|wanted| wanted.priority > 0)
        .map(|wanted| (ContainerUuid::as_str(&wanted.container), wanted.priority))
        .collect();
    let mut jobs: Vec<(i64, Standing)> = queue
        .iter()
        .filter(|ad| ad.rests())
        .filter_map(|ad| Some((*wanted.get(ad.container())?, ad.standing())))
        .collect();
    // Among containers of equal priority the order is HTCondor's own: no change without a reason.
    jobs.sort_by_key(|(priority, standing)| (Reverse(*priority), standing.place()));
    let standings: Vec<Standing> = jobs.iter().map(|(_, standing)| *standing).collect();
    let mut changes = Changes::new();
    for (standing, prio) in standings.iter().zip(values(&standings)) {
        if standing.prio != prio {
            let (cluster, process) = standing.number;
            let job = format!("{cluster}.{process}");
            changes.entry(Reverse(prio)).or_default().push(job);
        }
    }
    changes
}

/// The values of jobs, first to last, with which they stand in this order.
fn values(jobs: &[Standing]) -> Vec<i64> {
    let kept = longest_in_order(jobs);
    let placed = place(jobs, &kept).filter(|values| values.iter().all(|v| v.abs() <= LARGEST));
    placed.unwrap_or_else(|| afresh(jobs))
}

/// The longest part that stands in order already, by the indices of its jobs.
fn longest_in_order(jobs: &[Standing]) -> Vec<usize> {
    // Of the parts of each length, the one whose last job stands earliest; and what comes before each job.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(jobs.len());
    for (n, job) in jobs.iter().enumerate() {
        let length = ends.partition_point(|end| jobs[*end].place() < job.place());
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

/// The others between those that are kept; none where there is no room for them.
fn place(jobs: &[Standing], kept: &[usize]) -> Option<Vec<i64>> {
    let mut values = Vec::with_capacity(jobs.len());
    for next in kept.iter().copied().chain([jobs.len()]) {
        let (above, below) = (values.last().copied(), jobs.get(next).map(|job| job.prio));
        values.extend(between(&jobs[values.len()..next], above, below)?);
        values.extend(below);
    }
    Some(values)
}

/// Values for neighbours that stand wrong, between those of the jobs above and below them. Jobs that were submitted in
/// this order share one.
fn between(jobs: &[Standing], above: Option<i64>, below: Option<i64>) -> Option<Vec<i64>> {
    let falls = jobs
        .windows(2)
        .filter(|pair| pair[0].number > pair[1].number);
    let levels = falls.count() as i64 + 1;
    let (mut prio, step) = match (above, below) {
        (Some(above), Some(below)) => {
            let step = (above - below) / (levels + 1);
            (above - step, step)
        }
        (Some(above), None) => (above - STEP, STEP),
        (None, Some(below)) => (below + levels * STEP, STEP),
        (None, None) => (levels * STEP, STEP),
    };
    if step == 0 && !jobs.is_empty() {
        return None;
    }
    let mut last = None;
    let value = |job: &Standing| {
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

/// New values above every old one of theirs, for all but the first jobs where these stand before the rest already: so
/// making some of the changes, highest first, is a step on the way.
fn afresh(jobs: &[Standing]) -> Vec<i64> {
    let keeping = |first: usize| {
        let (first, rest) = jobs.split_at(first);
        let above = first.last().map(|job| job.prio);
        let highest = rest.iter().map(|job| job.prio).max();
        let values = between(rest, above, highest)?;
        let all = first.iter().map(|job| job.prio).chain(values);
        let all: Vec<i64> = all.collect();
        all.first()
            .is_none_or(|first| *first <= LARGEST)
            .then_some(all)
    };
    (0..=right_already(jobs))
        .rev()
        .find_map(keeping)
        .or_else(|| between(jobs, None, None))
        .unwrap_or_default()
}

/// How many of the first jobs stand in order, and before all the others.
fn right_already(jobs: &[Standing]) -> usize {
    let mut earliest: Vec<_> = jobs.iter().map(|job| job.place()).collect();
    for n in (1..earliest.len()).rev() {
        earliest[n - 1] = earliest[n - 1].min(earliest[n]);
    }
    let is_right = |(n, job): &(usize, &Standing)| earliest[*n] == job.place();
    jobs.iter().enumerate().take_while(is_right).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn standings(prios: &[i64], numbers: &[i64]) -> Vec<Standing> {
        let pairs = prios.iter().zip(numbers);
        pairs
            .map(|(&prio, &number)| Standing {
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
            // The last submitted is wanted first.
            (&[0, 0, 0], &[3, 1, 2], &[1024, 0, 0]),
            // The first is wanted last.
            (&[0, 0, 0], &[2, 3, 1], &[0, 0, -1024]),
            // Turned round: one of them keeps its value.
            (&[0, 0, 0], &[3, 2, 1], &[2048, 1024, 0]),
            // Into the middle, where there is room, and where there is none.
            (&[2048, 0, 0], &[3, 4, 1], &[2048, 1024, 0]),
            (&[0, 0, 0, 0], &[1, 4, 2, 3], &[2048, 2048, 1024, 1024]),
            // Two that were submitted in this order share a value.
            (&[5, 0, 0, 1, 1, 1], &[9, 7, 8, 1, 2, 3], &[5, 3, 3, 1, 1, 1]),
            // At the end of the numbers they begin anew.
            (&[0, LARGEST], &[1, 2], &[1024, 1024]),
        ];
        for (prios, numbers, expected) in rows {
            let jobs = standings(prios, numbers);
            assert_eq!(values(&jobs), expected, "{prios:?} {numbers:?}");
        }
    }

    fn ad(number: i64, prio: i64, status: i64) -> Ad {
        let text = format!(
            r#"[{{"ClusterId": 7, "ProcId": {number}, "JobStatus": {status}, "JobPrio": {prio}, "ContainerUUID": "zzzzz-dz642-{number:015}"}}]"#
        );
        crate::listing::parse(&text).unwrap().remove(0)
    }

    fn want(number: i64, priority: i64) -> Wanted {
        Wanted {
            container: ContainerUuid::parse(&format!("zzzzz-dz642-{number:015}")).unwrap(),
            priority,
        }
    }

    #[test]
    fn jobs_that_wait_stand_in_the_order_of_their_containers() {
        let queue = [ad(1, 0, 1), ad(2, 0, 1), ad(3, 0, 5), ad(4, 0, 2)];
        let told = |wanted: &[Wanted]| -> Vec<(i64, Vec<String>)> {
            let changes = changes(&queue, wanted);
            changes
                .into_iter()
                .map(|(Reverse(p), jobs)| (p, jobs))
                .collect()
        };
        let high = 1_125_899_906_842_624_000;
        assert_eq!(told(&[want(1, high + 1), want(2, high), want(3, high)]), []);
        let expected = [(2048, vec!["7.3".into()]), (1024, vec!["7.2".into()])];
        assert_eq!(
            told(&[
                want(1, high),
                want(2, high + 1),
                want(3, high + 2),
                want(4, 9)
            ]),
            expected
        );
        // What is not wanted is nobody's business.
        assert_eq!(told(&[want(1, 1), want(2, 0)]), []);
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
            let new = values(&jobs);
            prop_assert!(new.iter().all(|value| value.abs() <= LARGEST));
            for (job, prio) in jobs.iter_mut().zip(&new) {
                job.prio = *prio;
            }
            prop_assert!(jobs.windows(2).all(|pair| pair[0].place() < pair[1].place()));
            prop_assert_eq!(values(&jobs), new);
        }

        /// As many changes as were made, highest first, are right for ever.
        #[test]
        fn half_of_the_changes_lead_to_the_same_order(
            prios in prop::collection::vec(-3_i64..3, 2..40),
            count in 1_usize..5,
        ) {
            let numbers: Vec<i64> = (0..prios.len() as i64).rev().collect();
            let mut jobs = standings(&prios, &numbers);
            for _ in 0..200 {
                let new = values(&jobs);
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
            prop_assert!(jobs.windows(2).all(|pair| pair[0].place() < pair[1].place()));
        }
    }
}
