//! `simulator --seeds N`: runs N seeds and prints those that failed. `--from M --seeds 1 --trace`
//! prints each step of one.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use simulator::{Options, Outcome, SeededBug, run};

/// Runs dispatchers in a simulated world full of faults; a seed that fails fails again.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Number of seeds
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Number of containers, instead of the seed's own
    #[arg(long)]
    containers: Option<usize>,
    /// Break a rule, to check that the simulator reports a violation
    #[arg(long, value_name = "RULE")]
    seeded_bug: Option<SeededBug>,
    /// Print every event
    #[arg(long)]
    trace: bool,
    /// Also the programs' own log lines
    #[arg(long)]
    log: bool,
    /// Number of seeds run concurrently
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.log {
        tracing_subscriber::fmt()
            .with_target(false)
            .without_time()
            .init();
    }
    let options = Options {
        containers: flags.containers,
        seeded_bug: flags.seeded_bug,
        trace: flags.trace,
        without_faults: false,
    };
    let began = Instant::now();
    let next = AtomicU64::new(flags.from);
    let end = flags.from + flags.seeds;
    let outcomes: Mutex<Vec<(u64, Outcome)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..flags.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let outcome = run(seed, &options);
                    for violation in outcome.violations.iter().take(3) {
                        println!("seed {seed}: {violation}");
                    }
                    let mut all = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                    all.push((seed, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|(seed, _)| *seed);
    summary(&outcomes, began.elapsed())
}

fn summary(outcomes: &[(u64, Outcome)], took: Duration) -> ExitCode {
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(|(_, o)| of(o)).sum::<u64>();
    let simulated: Duration = outcomes.iter().map(|(_, o)| o.elapsed).sum();
    println!(
        "{} containers, {} h simulated in {} s: {} API calls, {} scheduler commands and {} listings, {} locks, {} unlocks, {} dispatchers and {} jobs killed",
        sum(|o| o.containers as u64),
        simulated.as_secs() / 3600,
        took.as_secs(),
        sum(|o| o.tally.api_calls),
        sum(|o| o.tally.commands),
        sum(|o| o.tally.listings),
        sum(|o| o.tally.locks),
        sum(|o| o.tally.unlocks),
        sum(|o| o.tally.restarts),
        sum(|o| o.tally.kills),
    );
    let failed: Vec<u64> = outcomes
        .iter()
        .filter(|(_, o)| !o.violations.is_empty())
        .map(|(seed, _)| *seed)
        .collect();
    println!(
        "{} seeds passed, {} failed",
        outcomes.len() - failed.len(),
        failed.len()
    );
    match failed.first() {
        None => ExitCode::SUCCESS,
        Some(seed) => {
            println!("again: make sim SEEDS=1 FROM={seed} (with SIM_FLAGS=--trace: step by step)");
            ExitCode::FAILURE
        }
    }
}
