//! A fixed set of seeds, as many as a minute allows; and proof that the simulator notices what it should.

use std::time::{Duration, Instant};

use simulator::{Broken, Options, run};

/// However slow the machine is.
const FEWEST: u64 = 20;

/// A seed of so many containers.
fn small(broken: Option<Broken>) -> Options {
    Options {
        containers: Some(40),
        broken,
        trace: false,
        plain: false,
    }
}

#[test]
fn nothing_is_lost_or_doubled() {
    let began = Instant::now();
    let mut seeds = 0;
    while seeds < FEWEST || began.elapsed() < Duration::from_secs(60) {
        seeds += 1;
        let outcome = run(seeds, &small(None));
        assert!(
            outcome.violations.is_empty(),
            "seed {seeds} (again: make sim SEEDS=1 FROM={seeds} SIM_FLAGS='--containers 40 --trace'): {:#?}",
            outcome.violations
        );
    }
    println!("{seeds} seeds passed");
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..4 {
        let digests = [(); 2].map(|()| run(seed, &small(None)).digest);
        assert_eq!(digests[0], digests[1], "seed {seed}");
    }
    assert_ne!(run(1, &small(None)).digest, run(2, &small(None)).digest);
}

/// At a server that takes one thing a call.
#[test]
fn a_container_costs_few_calls() {
    let options = Options {
        containers: Some(200),
        plain: true,
        ..Options::default()
    };
    for seed in 1..6 {
        let outcome = run(seed, &options);
        assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
        let calls = |what| outcome.tally.calls.get(what).copied().unwrap_or(0);
        let (lives, polls) = (outcome.dispatchers as u64, {
            let polls = outcome.elapsed.as_secs_f64() / outcome.poll_interval.as_secs_f64();
            polls as u64
        });
        let limits = [
            // The queue is listed each poll interval, a little early, and seldom besides.
            ("queue", polls * lives * 12 / 10 + 40),
            // What a container needs is read once, and by each dispatcher.
            ("whole records", 200 * lives),
            // Of two dispatchers one may be quicker.
            ("mint", 200 + 100 * (lives - 1)),
            ("lock", 200 + 100 * (lives - 1)),
            // How it ended is known from the look that saw it end.
            ("record", 40),
        ];
        for (what, most) in limits {
            let calls = calls(what);
            assert!(calls <= most, "seed {seed}: {what} {calls}, not {most}");
        }
    }
}

/// Each broken rule is noticed within the first few seeds.
#[test]
fn broken_rules_are_noticed() {
    for (broken, told) in [
        (Broken::Listing, "though its job is well"),
        (Broken::Resubmit, "was submitted 2 times"),
        (Broken::Unlock, "could go back to the queue"),
        (Broken::Stop, "was asked to end twice"),
        (Broken::LeftOver, "of an earlier attempt still worked"),
    ] {
        let noticed = (1..30).any(|seed| {
            let violations = run(seed, &small(Some(broken))).violations;
            violations.iter().any(|what| what.contains(told))
        });
        assert!(noticed, "{broken:?}");
    }
}
