//! Runs seeds, and checks that the simulator notices each seeded bug. `SIM_SEEDS` is their number.

use std::collections::BTreeMap;

use simulator::{Options, SeededBug, run};

/// Number of seeds that `make test` runs.
const SEEDS: u64 = 20;

/// Options of a small seed.
fn small(seeded_bug: Option<SeededBug>) -> Options {
    Options {
        containers: Some(40),
        seeded_bug,
        trace: false,
        without_faults: false,
    }
}

#[test]
fn nothing_is_lost_or_doubled() {
    let seeds = std::env::var("SIM_SEEDS").map_or(SEEDS, |seeds| seeds.parse().expect("SIM_SEEDS"));
    for seed in 1..=seeds {
        let outcome = run(seed, &small(None));
        assert!(
            outcome.violations.is_empty(),
            "seed {seed} (again: make sim SEEDS=1 FROM={seed} SIM_FLAGS='--containers 40 --trace'): {:#?}",
            outcome.violations
        );
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 1..3 {
        let digests = [(); 2].map(|()| run(seed, &small(None)).digest);
        assert_eq!(digests[0], digests[1], "seed {seed}");
    }
    assert_ne!(run(1, &small(None)).digest, run(2, &small(None)).digest);
}

/// On a server without bulk calls. The sum of many seeds counts: how often two dispatchers try to
/// lock the same container is chance in one of them.
#[test]
fn a_container_costs_few_calls() {
    let options = Options {
        containers: Some(200),
        without_faults: true,
        ..Options::default()
    };
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for seed in 1..8 {
        let outcome = run(seed, &options);
        assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
        let calls = |what| outcome.tally.calls.get(what).copied().unwrap_or(0);
        let (lives, polls) = (outcome.dispatchers as u64, {
            let polls = outcome.elapsed.as_secs_f64() / outcome.poll_interval.as_secs_f64();
            polls as u64
        });
        let limits = [
            // The queue is listed once in each poll interval, sometimes a little early.
            ("queue", polls * lives * 12 / 10 + 40),
            // A container's resources and its project are read once by each dispatcher.
            ("whole records", 200 * lives),
            ("projects", 200 * lives),
            // With two dispatchers, both may try to lock the same container.
            ("mint", 200 + 75 * (lives - 1)),
            ("lock", 200 + 75 * (lives - 1)),
            // The poll that shows the end also shows how it ended.
            ("record", 40),
        ];
        for (what, most) in limits {
            let sum = sums.entry(what).or_default();
            sum.0 += calls(what);
            sum.1 += most;
        }
    }
    for (what, (calls, most)) in sums {
        assert!(calls <= most, "{calls} calls of {what}, more than {most}");
    }
}

/// Each seeded bug causes its violation within the first few seeds.
#[test]
fn broken_rules_are_noticed() {
    for (seeded_bug, told) in [
        (SeededBug::Listing, "although its job is healthy"),
        (SeededBug::Resubmit, "was submitted 2 times"),
        (SeededBug::Unlock, "could go back to the queue"),
        (SeededBug::Stop, "was cancelled twice"),
        (SeededBug::Holder, "although its attempt holds the lock"),
        (
            SeededBug::OrphanToken,
            "of an earlier attempt was still valid",
        ),
    ] {
        let noticed = (1..30).any(|seed| {
            let violations = run(seed, &small(Some(seeded_bug))).violations;
            violations.iter().any(|what| what.contains(told))
        });
        assert!(noticed, "{seeded_bug:?}");
    }
}
