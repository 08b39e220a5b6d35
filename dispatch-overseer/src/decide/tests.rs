use demand::{Status, Worker};
use proptest::prelude::*;

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
        settle: 60,
        finish_wait: 300,
    }
}

/// One letter a job: i idle, e idle with an earlier command, l leaving; busy: c counted in the file, s perhaps, n not,
/// u since nobody knows when.
fn jobs(letters: &str) -> Vec<Job> {
    let mark = demand(0).command().mark();
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
        mark: if letter == 'e' {
            "other".into()
        } else {
            mark.clone()
        },
        held: None,
    };
    letters.chars().enumerate().map(job).collect()
}

fn view<'a>(standing: Standing<'a>, jobs: &'a [Job]) -> View<'a> {
    View {
        now: NOW,
        standing,
        jobs: Some(jobs),
        last_start: None,
        doubtful_until: None,
    }
}

fn fresh(needed: u32, letters: &str, limits: &Limits) -> Plan {
    decide(
        &view(Standing::Fresh(&demand(needed)), &jobs(letters)),
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
        // Started since the file was written: as good as pending.
        (5, "nnnnn", 0, ""),
        (5, "nniii", 0, ""),
        // Perhaps counted, perhaps not: neither more nor fewer.
        (2, "sssii", 0, ""),
        (5, "sssii", 0, ""),
        (1, "sssii", 0, "i4"),
        (2, "uuuii", 0, ""),
        // Only idle ones go, the newest first.
        (2, "iiiii", 0, "i4 i3 i2"),
        (1, "cccii", 0, "i4"),
        (0, "cccii", 0, "i4 i3"),
        (0, "ccccc", 0, ""),
        (0, "nnn", 0, ""),
        // Nobody waits for these any more, and they take places until they are gone.
        (3, "eei", 2, "e0 e1"),
        (10, "eeee", 6, "e0 e1 e2 e3"),
        (9, "llllii", 4, ""),
        // Never more than --max.
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
        assert!(!plan.end);
    }
    assert_eq!(fresh(1000, "iiiiiiiiii", &limits()).hold, Some(Hold::Max));
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
    assert_eq!(fresh(0, "", &contrary).start, 10, "--max goes first");
}

#[test]
fn what_is_not_known_changes_nothing() {
    let all = jobs("iiiecccl");
    let of = |standing| decide(&view(standing, &all), &limits());
    let held = |hold| Plan {
        hold: Some(hold),
        ..Plan::default()
    };
    assert_eq!(of(Standing::Unread), held(Hold::Unread));
    assert_eq!(of(Standing::Stale), held(Hold::Stale));
    for demand in [demand(0), demand(9)] {
        let unlisted = View {
            jobs: None,
            ..view(Standing::Fresh(&demand), &[])
        };
        assert_eq!(decide(&unlisted, &limits()), held(Hold::Unlisted));
    }
    let unlisted = View {
        jobs: None,
        ..view(Standing::Finished(0), &[])
    };
    assert_eq!(decide(&unlisted, &limits()), held(Hold::Unlisted));
}

#[test]
fn a_start_waits_for_the_one_before() {
    let five = demand(5);
    let at = |last_start, doubtful_until| {
        let view = View {
            last_start,
            doubtful_until,
            ..view(Standing::Fresh(&five), &[])
        };
        let plan = decide(&view, &limits());
        (plan.start, plan.hold)
    };
    assert_eq!(at(Some(NOW - 59), None), (0, Some(Hold::CoolDown)));
    assert_eq!(at(Some(NOW - 60), None), (5, None));
    assert_eq!(at(Some(NOW + 5), None), (5, None), "the clock was set back");
    assert_eq!(at(None, Some(NOW + 1)), (0, Some(Hold::Doubt)));
    assert_eq!(at(None, Some(NOW)), (5, None));
    // Stopping waits for nothing.
    let some = jobs("iii");
    let none = demand(0);
    let doubtful = View {
        doubtful_until: Some(NOW + 9),
        ..view(Standing::Fresh(&none), &some)
    };
    assert_eq!(decide(&doubtful, &limits()).stop.len(), 3);
}

#[test]
fn finished_stops_the_idle_and_ends_when_the_others_have() {
    let of = |letters: &str, since: u64| {
        let plan = decide(&view(Standing::Finished(since), &jobs(letters)), &limits());
        assert_eq!(plan.start, 0);
        (plan.stop.join(" "), plan.end, plan.hold)
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
        (String::new(), false, Some(Hold::Busy))
    );
    assert_eq!(of("cl", NOW - 300), (String::new(), true, None));
    let doubtful = View {
        doubtful_until: Some(NOW + 1),
        ..view(Standing::Finished(0), &[])
    };
    assert!(!decide(&doubtful, &limits()).end, "jobs may still come");
}

fn any_job() -> impl Strategy<Value = char> {
    prop::sample::select("iielcsnu".chars().collect::<Vec<_>>())
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
        let standing = [Standing::Unread, Standing::Stale, Standing::Finished(NOW - 200), Standing::Fresh(&demand)][case];
        let view = View {
            jobs: listed.then_some(&jobs[..]),
            last_start: ago.map(|ago| NOW - ago),
            doubtful_until: doubt,
            ..view(standing, &[])
        };
        let plan = decide(&view, &limits);
        let is_fresh = matches!(standing, Standing::Fresh(_));
        // Never more than allowed, never without a fresh demand and a listing, never too soon.
        if plan.start > 0 {
            prop_assert!(is_fresh && listed);
            prop_assert!(plan.start as usize + jobs.len() <= max as usize);
            prop_assert!(ago.is_none_or(|ago| ago >= 60) && doubt.is_none_or(|until| until <= NOW));
        }
        // Never a busy one, never one twice.
        for id in &plan.stop {
            let job = jobs.iter().find(|job| &job.id == id).unwrap();
            prop_assert_eq!(job.state, State::Idle);
            prop_assert_eq!(plan.stop.iter().filter(|other| *other == id).count(), 1);
            // What is started in its place is not what was stopped.
            prop_assert!(plan.start == 0 || job.mark == "other");
        }
        prop_assert!(plan.stop.is_empty() || (listed && case >= 2));
        prop_assert!(!plan.end || (case == 2 && listed && !letters.contains(['i', 'e'])));
    }

    /// A master that wants so many workers and counts those that have come; jobs start and come at any pace.
    #[test]
    fn it_comes_to_what_is_wanted_and_stays_there(
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
            let view = View { now, last_start, ..view(Standing::Fresh(&demand), &jobs) };
            let plan = decide(&view, &limits);
            if step == 59 {
                prop_assert!(plan.stop.is_empty() && plan.start == 0, "{plan:?} {jobs:?}");
            }
            before = settled(&jobs);
            jobs.retain(|job| !plan.stop.contains(&job.id) && job.state != State::Leaving);
            for _ in 0..plan.start {
                last_start = Some(now);
                number += 1;
                jobs.push(Job { id: number.to_string(), state: State::Idle, started_at: None, mark: demand.command().mark(), held: None });
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
