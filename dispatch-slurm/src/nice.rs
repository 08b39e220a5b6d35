//! Which nice values put waiting jobs in the order of their containers' priorities. Pure.
//!
//! A user can only lower his jobs: Slurm's own priority of a job (age, fair share) less its nice value is what counts.
//! So jobs begin with a nice value that leaves room to raise them; the first gets 0, the others just so much that they
//! stand behind each other. Values that do already, without too large gaps, are left as they are: every change is work
//! for the controller.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::scheduler::Wanted;

use crate::squeue::{Meaning, Row};

/// Slurm takes no larger one (`NICE_OFFSET - 3`).
const LARGEST: i64 = 2_147_483_645;
/// A gap may be so many times the spread before it is closed.
const MODEST: i64 = 10;
/// No priority that a job loses by itself from one look to the next.
const LEAST_LOST: i64 = 100;

/// Where a job stands, in Slurm's numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Its priority, with its nice value taken off.
    pub priority: i64,
    /// Its nice value.
    pub nice: i64,
}

/// A new nice value for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The job's number, `12` or `12_3`.
    pub job: String,
    /// Its nice value.
    pub nice: i64,
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The job's number.
    pub job: String,
    /// Where it stood when this was decided.
    pub before: Standing,
    /// Its new nice value.
    pub nice: i64,
}

/// The changes that put the waiting jobs of `queue` in order. Running jobs are left alone, and so are held ones: a new
/// nice value would give them back a priority without releasing them.
pub fn changes(queue: &[Row], wanted: &[Wanted], spread: i64) -> Vec<Change> {
    let wanted: BTreeMap<&ContainerUuid, i64> = wanted
        .iter()
        .map(|wanted| (&wanted.container, wanted.priority))
        .collect();
    let mut jobs: Vec<(i64, &Row)> = queue
        .iter()
        .filter(|row| row.meaning == Meaning::Pending && row.standing.priority > 0)
        .filter_map(|row| Some((*wanted.get(&row.container)?, row)))
        .filter(|(priority, _)| *priority > 0)
        .collect();
    // Equal ones by uuid, always the same way: no change without a reason.
    jobs.sort_by_key(|(priority, row)| Reverse((*priority, &row.container)));
    let standings: Vec<Standing> = jobs.iter().map(|(_, row)| row.standing).collect();
    let nice = values(&standings, spread);
    jobs.iter()
        .zip(nice)
        .filter(|((_, row), nice)| row.standing.nice != *nice)
        .map(|((_, row), nice)| Change {
            job: row.id.clone(),
            nice,
        })
        .collect()
}

/// The nice values of jobs, first to last, so that each stands behind the one before.
fn values(jobs: &[Standing], spread: i64) -> Vec<i64> {
    let gap = spread.max(1) - 1;
    let mut target = None;
    jobs.iter()
        .map(|job| {
            // What it would have without any nice value.
            let base = job.priority.saturating_add(job.nice);
            let (nice, reached) = match target {
                None => (0, base),
                Some(target) if is_well_placed(job, target, gap) => (job.nice, job.priority),
                Some(target) => match target - gap {
                    lower if lower > base => (0, base),
                    // Slurm has no priorities below 1: the rest stands where it stands.
                    lower if lower < 1 && job.priority <= 1 => (job.nice, lower),
                    lower => ((base - lower).min(LARGEST), lower),
                },
            };
            target = Some(reached - 1);
            nice
        })
        .collect()
}

/// Which jobs lost a hold by the changes `made`, and the changes that `queue` does not show yet.
///
/// A held job has priority 0. When its nice value is changed, Slurm adds the difference to that, and makes it 2 at
/// least (`_update_job` in slurmctld): the job may start, though nobody released it. Nothing can keep an administrator
/// from holding a job between a listing and the change that follows from it; but a priority that is exactly this
/// difference, far below what the job would have otherwise, tells that it happened.
pub fn unheld(made: Vec<Made>, queue: &[Row]) -> (Vec<String>, Vec<Made>) {
    let waits = |row: &&Row| row.meaning == Meaning::Pending;
    let now: BTreeMap<&str, Standing> = queue
        .iter()
        .filter(waits)
        .map(|row| (row.id.as_str(), row.standing))
        .collect();
    let (mut unheld, mut open) = (Vec::new(), Vec::new());
    for made in made {
        match now.get(made.job.as_str()) {
            Some(now) if now.nice != made.nice => {
                if now.nice == made.before.nice {
                    open.push(made);
                }
            }
            Some(now) if made.undid_a_hold(now.priority) => unheld.push(made.job),
            Some(_) | None => {}
        }
    }
    (unheld, open)
}

impl Made {
    fn undid_a_hold(&self, priority: i64) -> bool {
        let difference = self.before.nice - self.nice;
        // Ages and shares move priorities a little: what a small one has lost tells nothing.
        let lost = self.before.priority + difference - priority;
        priority == difference.max(2) && lost >= (self.before.priority / 2).max(LEAST_LOST)
    }
}

/// Whether `scontrol` complained only of jobs that do not wait any more.
pub fn is_only_of_gone_jobs(said: &str) -> bool {
    const GONE: [&str; 4] = [
        "Invalid job id",
        "no longer pending",
        "already complet",
        "already finished",
    ];
    said.lines()
        .filter(|line| !line.trim().is_empty())
        .all(|line| GONE.iter().any(|gone| line.contains(gone)))
}

/// Behind the one before, and not too far.
fn is_well_placed(job: &Standing, target: i64, gap: i64) -> bool {
    let space = target - job.priority;
    0 <= space && space < gap * MODEST
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOP: i64 = 4_294_000_111;

    fn standings(jobs: &[(i64, i64)]) -> Vec<Standing> {
        jobs.iter()
            .map(|&(priority, nice)| Standing { priority, nice })
            .collect()
    }

    /// What Slurm makes of new nice values.
    fn apply(jobs: &mut [Standing], nice: &[i64]) -> i64 {
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
            let mut jobs = standings(jobs);
            let nice = values(&jobs, spread);
            assert_eq!(nice, expected, "{spread} {jobs:?}");
            apply(&mut jobs, &nice);
            assert_eq!(values(&jobs, spread), expected, "a second time: {jobs:?}");
        }
    }

    #[test]
    fn a_queue_that_moves_up_is_seldom_changed() {
        let mut jobs: Vec<Standing> = (0..1000)
            .map(|i| Standing {
                priority: 4_294_000_000 - i,
                nice: 10_000,
            })
            .collect();
        let mut changed = 0;
        while !jobs.is_empty() {
            let nice = values(&jobs, 10);
            changed += apply(&mut jobs, &nice);
            jobs.remove(0);
        }
        assert!(changed < 100_000, "{changed}");
        assert_eq!(changed, 56_944);
    }

    /// Where Slurm's priorities are so low that they end at 1, nothing is gained by ever larger nice values.
    #[test]
    fn at_the_bottom_of_slurms_priorities_values_do_not_grow() {
        let base = 25;
        let mut jobs = standings(&[(base, 0); 6]);
        let mut before = Vec::new();
        for _ in 0..5 {
            before = values(&jobs, 10);
            for (job, nice) in jobs.iter_mut().zip(&before) {
                job.nice = *nice;
                job.priority = (base - nice).max(1);
            }
        }
        assert_eq!(values(&jobs, 10), before, "{jobs:?}");
        assert!(before.iter().all(|nice| *nice < 100), "{before:?}");
        assert_eq!(&before[..3], [0, 10, 20]);
    }

    fn row(n: u32, meaning: Meaning, priority: i64) -> Row {
        Row {
            id: n.to_string(),
            meaning,
            container: ContainerUuid::parse(&format!("zzzzz-dz642-{n:015}")).unwrap(),
            attempt: None,
            node: None,
            standing: Standing {
                priority,
                nice: 10_000,
            },
            start: None,
            state: "PENDING".into(),
            reason: "None".into(),
        }
    }

    fn want(n: u32, priority: i64) -> Wanted {
        Wanted {
            container: row(n, Meaning::Pending, 0).container,
            priority,
        }
    }

    fn told(queue: &[Row], wanted: &[Wanted], spread: i64) -> Vec<(String, i64)> {
        let changes = changes(queue, wanted, spread);
        changes.into_iter().map(|c| (c.job, c.nice)).collect()
    }

    #[test]
    fn jobs_stand_in_the_order_of_their_containers() {
        let waits = |n, priority| row(n, Meaning::Pending, priority);
        let line = |n: u32, nice| (n.to_string(), nice);
        let two = [waits(1, 4_294_000_777), waits(2, 4_294_000_444)];
        let wanted = [want(1, 1), want(2, 999)];
        assert_eq!(told(&two[..1], &wanted, 1), [line(1, 0)]);
        assert_eq!(told(&two, &wanted, 1), [line(2, 0), line(1, 334)]);
        assert_eq!(told(&two, &wanted, 100), [line(2, 0), line(1, 433)]);
        // A job whose container is not wanted is nobody's business.
        let three = [
            waits(1, 4_294_000_000),
            waits(2, 4_294_000_111),
            waits(3, 4_294_000_222),
        ];
        let wanted = [want(1, 999), want(2, 1), want(3, 0)];
        assert_eq!(told(&three, &wanted, 1), [line(1, 0), line(2, 112)]);
        // Running and held ones stay.
        let queue = [row(1, Meaning::Active, TOP), waits(2, 0), waits(3, TOP)];
        let wanted = [want(1, 9), want(2, 8), want(3, 7)];
        assert_eq!(told(&queue, &wanted, 10), [line(3, 0)]);
    }

    #[test]
    fn sixty_bits_are_told_apart_and_equal_ones_stay_in_order() {
        let queue = [
            row(1, Meaning::Pending, TOP),
            row(2, Meaning::Pending, TOP),
            row(3, Meaning::Pending, TOP),
        ];
        let high = 1_125_899_906_842_624_000;
        let wanted = [want(1, high), want(2, high + 1), want(3, high)];
        let line = |n: u32, nice| (n.to_string(), nice);
        let expected = [line(2, 0), line(3, 10), line(1, 20)];
        assert_eq!(told(&queue, &wanted, 10), expected);
    }

    #[test]
    fn a_hold_that_a_change_undid_is_told_from_what_priorities_do_by_themselves() {
        let standing = |priority, nice| Standing { priority, nice };
        type Case = (Standing, i64, Meaning, Standing, &'static str);
        #[rustfmt::skip]
        let rows: [Case; 10] = [
            // Seen on Slurm 22.05.
            (standing(TOP, 10_000), 0, Meaning::Pending, standing(10_000, 0), "unheld"),
            (standing(TOP, 0), 10_000, Meaning::Pending, standing(2, 10_000), "unheld"),
            (standing(9_000, 10_000), 9_990, Meaning::Pending, standing(10, 9_990), "unheld"),
            // As it should be.
            (standing(TOP, 10_000), 0, Meaning::Pending, standing(TOP + 10_000, 0), ""),
            (standing(TOP, 10_000), 0, Meaning::Pending, standing(TOP + 9_700, 0), ""),
            // Held after the change, or begun before it could be held again.
            (standing(TOP, 10_000), 0, Meaning::Pending, standing(0, 0), ""),
            (standing(TOP, 10_000), 0, Meaning::Active, standing(10_000, 0), ""),
            // Priorities so low that this is what it has anyway.
            (standing(1, 10_000), 0, Meaning::Pending, standing(10_000, 0), ""),
            // The listing is older than the change; somebody else's value.
            (standing(TOP, 10_000), 0, Meaning::Pending, standing(TOP, 10_000), "open"),
            (standing(TOP, 10_000), 0, Meaning::Pending, standing(500, 500), ""),
        ];
        for (before, nice, meaning, after, expected) in rows {
            let job = "7".to_owned();
            let made = Made { job, before, nice };
            let mut seen = row(7, meaning, after.priority);
            seen.standing = after;
            let (unheld, open) = unheld(vec![made.clone()], &[seen]);
            let told = match (unheld.as_slice(), open.as_slice()) {
                ([job], []) if job == "7" => "unheld",
                ([], [kept]) if *kept == made => "open",
                ([], []) => "",
                _ => "both",
            };
            assert_eq!(told, expected, "{before:?} {nice} {after:?}");
        }
    }

    #[test]
    fn a_job_that_started_meanwhile_is_no_complaint() {
        let gone = "Invalid job id specified for job 999\nJob is no longer pending execution for job 7\n\
             Job has already finished for job 8";
        assert!(is_only_of_gone_jobs(gone));
        assert!(!is_only_of_gone_jobs(
            "Invalid job id specified for job 9\nUnable to contact slurm controller"
        ));
    }

    proptest! {
        #[test]
        fn every_job_ends_up_behind_the_one_before_at_once(
            jobs in prop::collection::vec((4_000_000_000_i64..4_294_900_000, 0_i64..20_000), 0..60),
            spread in 1_i64..50,
        ) {
            let mut jobs = standings(&jobs);
            let nice = values(&jobs, spread);
            prop_assert!(nice.iter().all(|nice| (0..=LARGEST).contains(nice)));
            apply(&mut jobs, &nice);
            prop_assert!(jobs.windows(2).all(|pair| pair[0].priority > pair[1].priority));
            prop_assert_eq!(values(&jobs, spread), nice);
        }
    }
}
