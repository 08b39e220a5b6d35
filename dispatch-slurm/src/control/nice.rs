//! Computes the nice values that put pending jobs in the order of their containers' priorities.
//! Pure.
//!
//! Input: rows of `squeue` and desired priorities. Output: changes of nice values, and jobs that a
//! change released from a hold.
//!
//! A user can only lower jobs: Slurm orders by its own priority (age, fair share) minus the nice
//! value. So jobs start with a nice value that leaves room to raise them. The first job gets 0,
//! each other one just enough to stand behind the one before. A value that is good enough stays,
//! because every change costs slurmctld work.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::scheduler::DesiredPriority;

use crate::query::ended_job::has_ended;
use crate::query::squeue::{JobPhase, QueuePosition, Row};

/// Maximum nice value of Slurm (`NICE_OFFSET - 3`).
const MAX_NICE: i64 = 2_147_483_645;
/// Maximum gap between two jobs, in units of the spread, before it is closed.
const MAX_GAP_FACTOR: i64 = 10;
/// Minimum loss of priority that cannot happen by itself between two listings.
const MIN_PRIORITY_LOSS: i64 = 100;

/// A new nice value for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Job id, `12` or `12_3`.
    pub job: String,
    pub nice: i64,
}

/// A change that was sent to Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentChange {
    /// Job id.
    pub job: String,
    /// Position of the job when the change was planned.
    pub before: QueuePosition,
    /// New nice value.
    pub nice: i64,
}

/// Nice values that the next listing must confirm.
#[derive(Debug, Default)]
pub struct PendingNice {
    /// Changes that no listing has shown yet.
    pub unconfirmed: Vec<SentChange>,
    /// Changes that released their job from a hold.
    pub lost_holds: Vec<SentChange>,
}

impl PendingNice {
    /// Compares the sent changes with the rows of a listing.
    pub fn confirm(&mut self, rows: &[Row]) {
        let (lost, unconfirmed) = lost_holds(std::mem::take(&mut self.unconfirmed), rows);
        self.unconfirmed = unconfirmed;
        self.lost_holds.extend(lost);
    }
}

/// The changes that put the pending jobs of `queue` in order. Running jobs are left alone. So are
/// held jobs: a new nice value would give them a priority and so release them.
pub fn changes(queue: &[Row], wanted: &[DesiredPriority], spread: i64) -> Vec<Change> {
    let wanted: BTreeMap<&ContainerUuid, i64> = wanted
        .iter()
        .map(|wanted| (&wanted.container, wanted.priority))
        .collect();
    let mut jobs: Vec<(i64, &Row)> = queue
        .iter()
        .filter(|row| row.phase == JobPhase::Pending && row.position.priority > 0)
        .filter_map(|row| Some((*wanted.get(&row.container)?, row)))
        .filter(|(priority, _)| *priority > 0)
        .collect();
    // The uuid breaks ties, so that equal jobs keep their order.
    jobs.sort_by_key(|(priority, row)| Reverse((*priority, &row.container)));
    let positions: Vec<QueuePosition> = jobs.iter().map(|(_, row)| row.position).collect();
    let nice = nice_values(&positions, spread);
    jobs.iter()
        .zip(nice)
        .filter(|((_, row), nice)| row.position.nice != *nice)
        .map(|((_, row), nice)| Change {
            job: row.id.clone(),
            nice,
        })
        .collect()
}

/// Nice values in queue order, so that each job stands behind the one before.
fn nice_values(jobs: &[QueuePosition], spread: i64) -> Vec<i64> {
    let gap = spread.max(1) - 1;
    let mut target = None;
    jobs.iter()
        .map(|job| {
            // The priority of the job without a nice value.
            let base = job.priority.saturating_add(job.nice);
            let (nice, reached) = match target {
                None => (0, base),
                Some(target) if is_well_placed(job, target, gap) => (job.nice, job.priority),
                Some(target) => match target - gap {
                    lower if lower > base => (0, base),
                    // Slurm has no priority below 1: the remaining jobs keep their values.
                    lower if lower < 1 && job.priority <= 1 => (job.nice, lower),
                    lower => ((base - lower).min(MAX_NICE), lower),
                },
            };
            target = Some(reached - 1);
            nice
        })
        .collect()
}

/// Returns the changes in `sent` that released their job from a hold, and those that `queue` does
/// not show yet.
///
/// A held job has priority 0. If its nice value changes, Slurm adds the difference and raises the
/// priority to at least 2 (`_update_job` in slurmctld). Then the job may start although nobody
/// released it. An administrator may hold a job between a listing and the change. A priority that
/// equals this difference, far below the expected one, shows that this happened.
pub fn lost_holds(sent: Vec<SentChange>, queue: &[Row]) -> (Vec<SentChange>, Vec<SentChange>) {
    let waits = |row: &&Row| row.phase == JobPhase::Pending;
    let now: BTreeMap<&str, QueuePosition> = queue
        .iter()
        .filter(waits)
        .map(|row| (row.id.as_str(), row.position))
        .collect();
    let (mut lost_holds, mut open) = (Vec::new(), Vec::new());
    for sent in sent {
        match now.get(sent.job.as_str()) {
            Some(now) if now.nice != sent.nice => {
                if now.nice == sent.before.nice {
                    open.push(sent);
                }
            }
            Some(now) if sent.undid_hold(now.priority) => lost_holds.push(sent),
            Some(_) | None => {}
        }
    }
    (lost_holds, open)
}

impl SentChange {
    fn undid_hold(&self, priority: i64) -> bool {
        let difference = self.before.nice - self.nice;
        // Age and fair share move priorities a little, so the loss of a small priority proves
        // nothing.
        let lost = self.before.priority + difference - priority;
        priority == difference.max(2) && lost >= (self.before.priority / 2).max(MIN_PRIORITY_LOSS)
    }
}

/// Whether `scontrol` rejected only changes of jobs that are not pending any more.
pub fn is_only_about_ended_jobs(message: &str) -> bool {
    message
        .lines()
        .filter(|line| !line.trim().is_empty())
        .all(|line| has_ended(line) || line.contains("no longer pending"))
}

/// Whether the job stands behind the one before, with a small gap.
fn is_well_placed(job: &QueuePosition, target: i64, gap: i64) -> bool {
    let space = target - job.priority;
    0 <= space && space < gap * MAX_GAP_FACTOR
}

#[cfg(test)]
mod tests {
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
        let rows: [Case; 9] = [
            (10, &[], &[]),
            (10, &[(TOP, 10000)], &[0]),
            (10, &[(TOP, 10000), (TOP, 10000), (TOP, 10000), (TOP, 10000)], &[0, 10, 20, 30]),
            (10, &[(TOP + 2, 0), (TOP + 1, 1), (TOP, 99)], &[0, 1, 99]),
            (10, &[(4_294_000_144, 0), (4_294_000_122, 20), (TOP, 30)], &[0, 20, 30]),
            (10, &[(4000, 0), (3000, 999), (2000, 1998)], &[0, 9, 18]),
            (10, &[(4000, 0), (3000, 500), (2000, 2000)], &[0, 0, 510]),
            (10, &[(4000, 0), (5000, 0), (6000, 0)], &[0, 1010, 2020]),
            (1, &[(4000, 0), (5000, 0), (6000, 0), (3000, 0)], &[0, 1001, 2002, 0]),
        ];
        for (spread, jobs, expected) in rows {
            let mut jobs = positions(jobs);
            let nice = nice_values(&jobs, spread);
            assert_eq!(nice, expected, "{spread} {jobs:?}");
            apply(&mut jobs, &nice);
            assert_eq!(
                nice_values(&jobs, spread),
                expected,
                "a second time: {jobs:?}"
            );
        }
    }

    #[test]
    fn a_queue_that_moves_up_is_seldom_changed() {
        let mut jobs: Vec<QueuePosition> = (0..1000)
            .map(|i| QueuePosition {
                priority: 4_294_000_000 - i,
                nice: 10_000,
            })
            .collect();
        let mut changed = 0;
        while !jobs.is_empty() {
            let nice = nice_values(&jobs, 10);
            changed += apply(&mut jobs, &nice);
            jobs.remove(0);
        }
        assert!(changed < 100_000, "{changed}");
        assert_eq!(changed, 56_944);
    }

    /// Priorities end at 1: larger nice values do not lower them further.
    #[test]
    fn at_the_bottom_of_slurms_priorities_values_do_not_grow() {
        let base = 25;
        let mut jobs = positions(&[(base, 0); 6]);
        let mut before = Vec::new();
        for _ in 0..5 {
            before = nice_values(&jobs, 10);
            for (job, nice) in jobs.iter_mut().zip(&before) {
                job.nice = *nice;
                job.priority = (base - nice).max(1);
            }
        }
        assert_eq!(nice_values(&jobs, 10), before, "{jobs:?}");
        assert!(before.iter().all(|nice| *nice < 100), "{before:?}");
        assert_eq!(&before[..3], [0, 10, 20]);
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

    fn want(n: u32, priority: i64) -> DesiredPriority {
        DesiredPriority {
            container: row(n, JobPhase::Pending, 0).container,
            priority,
        }
    }

    fn described(queue: &[Row], wanted: &[DesiredPriority], spread: i64) -> Vec<(String, i64)> {
        let changes = changes(queue, wanted, spread);
        changes.into_iter().map(|c| (c.job, c.nice)).collect()
    }

    #[test]
    fn jobs_stand_in_the_order_of_their_containers() {
        let waits = |n, priority| row(n, JobPhase::Pending, priority);
        let line = |n: u32, nice| (n.to_string(), nice);
        let two = [waits(1, 4_294_000_777), waits(2, 4_294_000_444)];
        let wanted = [want(1, 1), want(2, 999)];
        assert_eq!(described(&two[..1], &wanted, 1), [line(1, 0)]);
        assert_eq!(described(&two, &wanted, 1), [line(2, 0), line(1, 334)]);
        assert_eq!(described(&two, &wanted, 100), [line(2, 0), line(1, 433)]);
        // A job whose container is not listed stays where it is.
        let three = [
            waits(1, 4_294_000_000),
            waits(2, 4_294_000_111),
            waits(3, 4_294_000_222),
        ];
        let wanted = [want(1, 999), want(2, 1), want(3, 0)];
        assert_eq!(described(&three, &wanted, 1), [line(1, 0), line(2, 112)]);
        // Running and held jobs stay.
        let queue = [row(1, JobPhase::Active, TOP), waits(2, 0), waits(3, TOP)];
        let wanted = [want(1, 9), want(2, 8), want(3, 7)];
        assert_eq!(described(&queue, &wanted, 10), [line(3, 0)]);
    }

    #[test]
    fn sixty_bits_are_told_apart_and_equal_ones_stay_in_order() {
        let queue = [
            row(1, JobPhase::Pending, TOP),
            row(2, JobPhase::Pending, TOP),
            row(3, JobPhase::Pending, TOP),
        ];
        let high = 1_125_899_906_842_624_000;
        let wanted = [want(1, high), want(2, high + 1), want(3, high)];
        let line = |n: u32, nice| (n.to_string(), nice);
        let expected = [line(2, 0), line(3, 10), line(1, 20)];
        assert_eq!(described(&queue, &wanted, 10), expected);
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
}
