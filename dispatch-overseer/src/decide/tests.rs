//! Tables of decisions, and properties that hold for any input.

use proptest::prelude::*;
use worker_demand::{Status, Worker};

use super::*;

const NOW: u64 = 1_000_000;

fn demand(needed: u32) -> Demand {
    Demand {
        status: Status::InProgress,
        written_at: NOW - 100,
        member_id: "m".into(),
        update_interval: 300,
        needed,
        worker: Worker {
            program: "/w".into(),
            libraries: vec![],
            arguments: vec!["--mw-slave".into()],
        },
    }
}

fn limits() -> Limits {
    Limits {
        min: 0,
        max: 10,
        cool_down: 60,
        worker_startup_time: 60,
        finish_wait: 300,
    }
}

/// One letter per job: i idle, e idle with an earlier command, l leaving. Busy ones: c connected
/// when the file was written, s possibly, n not yet, u with an unknown start.
fn jobs(letters: &str) -> Vec<Job> {
    let command_hash = demand(0).command().command_hash();
    let job = |(n, letter): (usize, char)| Job {
        id: format!("{letter}{n}"),
        state: match letter {
            'i' | 'e' => State::Idle,
            'l' => State::Leaving,
            _ => State::Busy,
        },
        started_at: match letter {
            'c' => Some(NOW - 160),
            's' => Some(NOW - 159),
            'n' => Some(NOW - 99),
            _ => None,
        },
        command_hash: if letter == 'e' {
            "other".into()
        } else {
            command_hash.clone()
        },
        held: None,
    };
    letters.chars().enumerate().map(job).collect()
}

fn input<'a>(status: DemandStatus<'a>, jobs: &'a [Job]) -> DecideInput<'a> {
    DecideInput {
        now: NOW,
        status,
        jobs: Some(jobs),
        starts: Starts::default(),
    }
}

fn starts(last_start: Option<u64>, uncertain_until: Option<u64>) -> Starts {
    Starts {
        last_start,
        uncertain_until,
    }
}

fn fresh(needed: u32, letters: &str, limits: &Limits) -> Plan {
    decide(
        &input(DemandStatus::Fresh(&demand(needed)), &jobs(letters)),
        limits,
    )
}

#[test]
fn a_fresh_demand_minus_what_is_pending() {
    // needed, jobs, started, stopped
    let rows = [
        (5, "", 5, ""),
        (5, "iii", 2, ""),
        (5, "iiiii", 0, ""),
        (5, "ccc", 5, ""),
        (5, "cccii", 3, ""),
        // Jobs started after the file was written count as pending.
        (5, "nnnnn", 0, ""),
        (5, "nniii", 0, ""),
        // Possibly connected: neither more nor fewer.
        (2, "sssii", 0, ""),
        (5, "sssii", 0, ""),
        (1, "sssii", 0, "i4"),
        (2, "uuuii", 0, ""),
        // Only idle jobs are stopped, the newest first.
        (2, "iiiii", 0, "i4 i3 i2"),
        (1, "cccii", 0, "i4"),
        (0, "cccii", 0, "i4 i3"),
        (0, "ccccc", 0, ""),
        (0, "nnn", 0, ""),
        // Idle jobs of an earlier command are stopped, but count until they have ended.
        (3, "eei", 2, "e0 e1"),
        (10, "eeee", 6, "e0 e1 e2 e3"),
        (9, "llllii", 4, ""),
        // Never more than --max-workers.
        (1000, "", 10, ""),
        (1000, "ccccc", 5, ""),
        (1000, "cccccccccccc", 0, ""),
        (1000, "iiiiiiiiiiii", 0, "i11 i10"),
        (u32::MAX, "c", 9, ""),
    ];
    for (needed, letters, start, stop) in rows {
        let plan = fresh(needed, letters, &limits());
        assert_eq!(plan.start, start, "{needed} {letters:?}: {plan:?}");
        assert_eq!(plan.stop.join(" "), stop, "{needed} {letters:?}");
        assert!(!plan.is_done);
    }
    assert_eq!(
        fresh(1000, "iiiiiiiiii", &limits()).deferral,
        Some(Deferral::AtMax)
    );
}

#[test]
fn a_thousand_and_then_none() {
    let wide = Limits {
        max: 2000,
        ..limits()
    };
    assert_eq!(fresh(1000, "", &wide).start, 500, "by two commands");
    assert_eq!(fresh(1000, &"i".repeat(500), &wide).start, 500);
    let full = "i".repeat(1000);
    assert_eq!(fresh(1000, &full, &wide), Plan::default());
    assert_eq!(fresh(0, &full, &wide).stop.len(), 1000);
}

#[test]
fn the_fewest_are_kept() {
    let some = Limits { min: 3, ..limits() };
    assert_eq!(fresh(0, "", &some).start, 3);
    assert_eq!(fresh(0, "iiiii", &some).stop, ["i4", "i3"]);
    assert_eq!(fresh(0, "ccii", &some).stop, ["i3"]);
    let contrary = Limits {
        min: 30,
        ..limits()
    };
    assert_eq!(
        fresh(0, "", &contrary).start,
        10,
        "--max-workers goes first"
    );
}

#[test]
fn what_is_not_known_changes_nothing() {
    let all = jobs("iiiecccl");
    let of = |status| decide(&input(status, &all), &limits());
    let held = |deferral| Plan {
        deferral: Some(deferral),
        ..Plan::default()
    };
    assert_eq!(of(DemandStatus::Unread), held(Deferral::Unread));
    assert_eq!(of(DemandStatus::Stale), held(Deferral::Stale));
    for demand in [demand(0), demand(9)] {
        let unlisted = DecideInput {
            jobs: None,
            ..input(DemandStatus::Fresh(&demand), &[])
        };
        assert_eq!(decide(&unlisted, &limits()), held(Deferral::Unlisted));
    }
    let unlisted = DecideInput {
        jobs: None,
        ..input(DemandStatus::Finished(0), &[])
    };
    assert_eq!(decide(&unlisted, &limits()), held(Deferral::Unlisted));
}

#[test]
fn a_start_waits_for_the_one_before() {
    let five = demand(5);
    let at = |last_start, uncertain_until| {
        let input = DecideInput {
            starts: starts(last_start, uncertain_until),
            ..input(DemandStatus::Fresh(&five), &[])
        };
        let plan = decide(&input, &limits());
        (plan.start, plan.deferral)
    };
    assert_eq!(at(Some(NOW - 59), None), (0, Some(Deferral::CoolDown)));
    assert_eq!(at(Some(NOW - 60), None), (5, None));
    assert_eq!(at(Some(NOW + 5), None), (5, None), "the clock was set back");
    assert_eq!(at(None, Some(NOW + 1)), (0, Some(Deferral::UncertainStart)));
    assert_eq!(at(None, Some(NOW)), (5, None));
    // A stop does not wait.
    let some = jobs("iii");
    let none = demand(0);
    let doubtful = DecideInput {
        starts: starts(None, Some(NOW + 9)),
        ..input(DemandStatus::Fresh(&none), &some)
    };
    assert_eq!(decide(&doubtful, &limits()).stop.len(), 3);
}

#[test]
fn finished_stops_the_idle_and_ends_when_the_others_have() {
    let of = |letters: &str, since: u64| {
        let plan = decide(
            &input(DemandStatus::Finished(since), &jobs(letters)),
            &limits(),
        );
        assert_eq!(plan.start, 0);
        (plan.stop.join(" "), plan.is_done, plan.deferral)
    };
    assert_eq!(of("", NOW), (String::new(), true, None));
    assert_eq!(of("iec", NOW), ("i0 e1".into(), false, None));
    assert_eq!(
        of("iec", 0),
        ("i0 e1".into(), false, None),
        "not before they are gone"
    );
    assert_eq!(
        of("cl", NOW - 299),
        (String::new(), false, Some(Deferral::Busy))
    );
    assert_eq!(of("cl", NOW - 300), (String::new(), true, None));
    let doubtful = DecideInput {
        starts: starts(None, Some(NOW + 1)),
        ..input(DemandStatus::Finished(0), &[])
    };
    assert!(!decide(&doubtful, &limits()).is_done, "jobs may still come");
}

fn any_job() -> impl Strategy<Value = char> {
    prop::sample::select("iielcsnu".chars().collect::<Vec<_>>())
}

/// The texts of the log. Other tests match the names of the variants.
#[test]
fn deferrals_say_what_the_overseer_waits_for() {
    let texts = [
        (Deferral::Unlisted, "the scheduler cannot list the jobs"),
        (Deferral::Unread, "no valid demand file was read yet"),
        (
            Deferral::Stale,
            "the demand file is stale; starting and stopping nothing until it is written again",
        ),
        (
            Deferral::CoolDown,
            "more workers are needed; waiting for the cool-down after the last start",
        ),
        (
            Deferral::UncertainStart,
            "more workers are needed; waiting for jobs of a start with an unknown outcome",
        ),
        (
            Deferral::AtMax,
            "more workers are needed than --max-workers allows",
        ),
        (
            Deferral::Busy,
            "the computation is finished; waiting for busy workers",
        ),
    ];
    for (deferral, text) in texts {
        assert_eq!(deferral.to_string(), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_promises_hold_whatever_there_is(
        letters in prop::collection::vec(any_job(), 0..30),
        needed in prop_oneof![0u32..40, any::<u32>()],
        min in 0u32..20,
        max in 0u32..20,
        case in 0usize..4,
        listed: bool,
        ago in prop::option::of(0u64..200),
        doubt in prop::option::of(NOW - 100..NOW + 100),
    ) {
        let letters: String = letters.into_iter().collect();
        let (jobs, demand) = (jobs(&letters), demand(needed));
        let limits = Limits { min, max, ..limits() };
        let status = [DemandStatus::Unread, DemandStatus::Stale, DemandStatus::Finished(NOW - 200), DemandStatus::Fresh(&demand)][case];
        let input = DecideInput {
            jobs: listed.then_some(&jobs[..]),
            starts: starts(ago.map(|ago| NOW - ago), doubt),
            ..input(status, &[])
        };
        let plan = decide(&input, &limits);
        let is_fresh = matches!(status, DemandStatus::Fresh(_));
        // No start above the maximum, without a fresh demand and a listing, or too early.
        if plan.start > 0 {
            prop_assert!(is_fresh && listed);
            prop_assert!(plan.start as usize + jobs.len() <= max as usize);
            prop_assert!(ago.is_none_or(|ago| ago >= 60) && doubt.is_none_or(|until| until <= NOW));
        }
        // No stop of a busy job, and none twice.
        for id in &plan.stop {
            let job = jobs.iter().find(|job| &job.id == id).unwrap();
            prop_assert_eq!(job.state, State::Idle);
            prop_assert_eq!(plan.stop.iter().filter(|other| *other == id).count(), 1);
            // A job is not stopped and started again with the same command.
            prop_assert!(plan.start == 0 || job.command_hash == "other");
        }
        prop_assert!(plan.stop.is_empty() || (listed && case >= 2));
        prop_assert!(!plan.is_done || (case == 2 && listed && !letters.contains(['i', 'e'])));
    }

    /// A master that wants a number of workers and counts the connected ones. Jobs start and
    /// connect at any pace.
    #[test]
    fn jobs_come_to_the_wanted_number_and_stay_there(
        wanted in 0u32..30,
        max in 1u32..20,
        slots in 0usize..20,
        letters in prop::collection::vec(any_job(), 0..20),
        pace in prop::collection::vec(0usize..4, 40),
    ) {
        let letters: String = letters.into_iter().collect();
        let mut jobs = jobs(&letters);
        for (n, job) in jobs.iter_mut().enumerate() {
            job.id = n.to_string();
            job.started_at = job.started_at.or((job.state == State::Busy).then_some(NOW - 500));
        }
        let limits = Limits { max, ..limits() };
        let (mut now, mut last_start, mut number) = (NOW, None, 1000);
        let settled = |jobs: &[Job]| jobs.iter().map(|job| (job.id.clone(), job.state)).collect::<Vec<_>>();
        let mut before = Vec::new();
        for step in 0..60 {
            now += 70;
            let come = jobs.iter().filter(|job| job.state == State::Busy && job.started_at.is_some_and(|at| at + 30 <= now));
            let mut demand = demand(wanted.saturating_sub(come.count() as u32));
            demand.written_at = now;
            let input = DecideInput { now, starts: starts(last_start, None), ..input(DemandStatus::Fresh(&demand), &jobs) };
            let plan = decide(&input, &limits);
            if step == 59 {
                prop_assert!(plan.stop.is_empty() && plan.start == 0, "{plan:?} {jobs:?}");
            }
            before = settled(&jobs);
            jobs.retain(|job| !plan.stop.contains(&job.id) && job.state != State::Leaving);
            for _ in 0..plan.start {
                last_start = Some(now);
                number += 1;
                jobs.push(Job { id: number.to_string(), state: State::Idle, started_at: None, command_hash: demand.command().command_hash(), held: None });
            }
            prop_assert!(jobs.len() <= (max as usize).max(letters.len()));
            let mut room = slots.saturating_sub(jobs.iter().filter(|job| job.state == State::Busy).count());
            room = room.min(pace.get(step).copied().unwrap_or(0));
            for job in jobs.iter_mut().filter(|job| job.state == State::Idle).take(room) {
                job.state = State::Busy;
                job.started_at = Some(now);
            }
        }
        let busy = jobs.iter().filter(|job| job.state == State::Busy).count();
        prop_assert_eq!(settled(&jobs), before);
        prop_assert_eq!(jobs.len(), busy.max(wanted.min(max) as usize));
    }
}
