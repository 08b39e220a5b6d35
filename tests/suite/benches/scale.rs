//! Costs of a long queue and many jobs for dispatch-slurm: `make bench` prints these figures. The
//! API server is the real one. The scheduler is a fake one that only records jobs, because a real
//! one of this size does not fit on one machine.
//!
//! 1. 100,000 containers Queued: from the start of the dispatcher to the first sbatch, and to
//!    10,000 jobs.
//! 2. 10,000 jobs tracked, 90,000 containers Queued: processor time, memory and commands at the
//!    default interval.
//! 3. The same at the minimum interval: whether memory grows. `SCALE_LOOKS=360` is an hour of
//!    polls at the default interval.

#[path = "../../../dispatch-api/benches/queue/mod.rs"]
mod queue;

use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use suite_tests::fake_sched::{FakeSched, Settings};
use suite_tests::process_usage::{processor_time, resident};
use suite_tests::program::{self, Program};
use suite_tests::stack::{self, Stack};

const QUEUED: u32 = 100_000;
const TRACKED: u32 = 10_000;
/// Duration of the measurement of the steady state, at the default poll interval.
const WATCH_TIME: Duration = Duration::from_secs(120);
/// Time until the dispatcher stops asking for the same changes again: a minute, and a margin.
const SETTLE_TIME: Duration = Duration::from_secs(75);
/// Minimum interval between two listings of a scheduler.
const MIN_LISTING_INTERVAL: Duration = Duration::from_secs(2);
const LISTINGS: u32 = 60;
const STEP_TIMEOUT: Duration = Duration::from_secs(900);

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(measure());
}

async fn measure() {
    let mut made = None;
    let max_pending = TRACKED.to_string();
    let mut stack = Stack::with(|servers, dir| {
        let settings = Settings::default();
        let fake = FakeSched::new(&dir.join("fake"), &program::binary("fake-sched"), settings);
        let variables = fake.environment();
        let env: Vec<_> = variables.iter().map(|(k, v)| (*k, v.as_str())).collect();
        let with = |more: &[&str]| {
            let shared = dir.join("shared");
            let mut args = vec!["--state-dir", shared.to_str().unwrap()];
            args.extend([
                "--max-pending",
                &max_pending,
                "--log-level",
                "info",
                "--arrays",
                "off",
            ]);
            args.extend(more);
            servers.dispatcher("dispatch-slurm", &args, &env)
        };
        let usual = with(&["--poll-interval", "10s"]);
        let hurried = with(&["--poll-interval", "2s", "--scheduler-rate", "none"]);
        made = Some((fake, hurried));
        usual
    })
    .await;
    let (fake, mut hurried) = made.expect("made");
    stack.dispatcher.kill();
    fill(&mut stack).await;

    let began = SystemTime::now();
    let clock = Instant::now();
    hurried.start();
    let submitted = || fake.count("sbatch");
    stack::wait_for("the first sbatch", STEP_TIMEOUT, || {
        (submitted() > 0).then_some(())
    });
    let began = began
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let first = fake.calls().into_iter().find(|call| call.name == "sbatch");
    println!(
        "{QUEUED} queued: start to first sbatch {:.2} s",
        first.expect("an sbatch").time - began
    );
    stack::wait_for("all to be submitted", STEP_TIMEOUT, || {
        std::thread::sleep(Duration::from_secs(1));
        (submitted() >= TRACKED as usize).then_some(())
    });
    let took = clock.elapsed().as_secs_f64();
    println!(
        "  {TRACKED} submitted in {took:.0} s, {:.0}/s, one sbatch each",
        f64::from(TRACKED) / took
    );
    hurried.terminate(Duration::from_secs(60));

    stack.dispatcher.start();
    settle(&fake).await;
    tokio::time::sleep(SETTLE_TIME).await;
    println!(
        "{TRACKED} tracked, {} queued, a look each 10 s:",
        QUEUED - TRACKED
    );
    watch(&fake, &stack.dispatcher, WATCH_TIME).await;
    stack.dispatcher.terminate(Duration::from_secs(60));

    hurried.start();
    settle(&fake).await;
    let listings =
        std::env::var("SCALE_LOOKS").map_or(LISTINGS, |text| text.parse().expect("a number"));
    println!("  a look each 2 s, {listings} times:");
    watch(&fake, &hurried, MIN_LISTING_INTERVAL * listings).await;
    hurried.terminate(Duration::from_secs(60));
}

/// Fills the queue behind the server's back: what is measured is the dispatcher.
async fn fill(stack: &mut Stack) {
    let (_, pattern) = stack.submit("pattern", "true", json!({})).await;
    assert!(stack.api.terminate(Duration::from_secs(30)).success());
    let database = stack.dir.path().join("state/state.db");
    queue::fill(&database, pattern.as_str(), QUEUED);
    stack.api.start();
    stack::wait_for("dispatch-api to be ready", STEP_TIMEOUT, || {
        let lines = stack.api.stdout_text();
        (lines.lines().count() == 2).then_some(())
    });
}

/// Waits until the dispatcher has taken over the jobs of its predecessor: two listings and a
/// margin.
async fn settle(fake: &FakeSched) {
    let before = fake.count("squeue");
    stack::wait_for("three listings", STEP_TIMEOUT, || {
        std::thread::sleep(Duration::from_millis(500));
        (fake.count("squeue") >= before + 3).then_some(())
    });
}

/// Prints a dispatcher's processor time, memory and commands over `time`.
async fn watch(fake: &FakeSched, dispatcher: &Program, time: Duration) {
    let pid = dispatcher.pid().expect("it runs");
    let (listings, calls) = (fake.count("squeue"), fake.calls().len());
    let (own, commands) = processor_time(pid);
    let began = Instant::now();
    let (mut memory, mut first_half) = (0.0_f64, 0.0_f64);
    while began.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(500)).await;
        memory = memory.max(resident(pid));
        if began.elapsed() < time / 2 {
            first_half = memory;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let (own_then, commands_then) = processor_time(pid);
    let listings = fake.count("squeue") - listings;
    let others = fake.calls().len() - calls - listings;
    println!(
        "  {listings} listings and {others} other commands in {seconds:.0} s; {:.2} % of a processor, {:.2} % for its \
         commands",
        100.0 * (own_then - own) / seconds,
        100.0 * (commands_then - commands) / seconds
    );
    println!(
        "  memory: {memory:.1} MiB at most, {first_half:.1} MiB in the first half, ratio {:.3}",
        memory / first_half
    );
}
