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

/// Each broken rule is noticed within the first few seeds.
#[test]
fn broken_rules_are_noticed() {
    for (broken, told) in [
        (Broken::Listing, "though its job is well"),
        (Broken::Resubmit, "was submitted 2 times"),
        (Broken::Unlock, "could go back to the queue"),
        (Broken::Stop, "was asked to end twice"),
    ] {
        let noticed = (1..30).any(|seed| {
            let violations = run(seed, &small(Some(broken))).violations;
            violations.iter().any(|what| what.contains(told))
        });
        assert!(noticed, "{broken:?}");
    }
}
