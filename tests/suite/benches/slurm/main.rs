//! Performance of dispatch-slurm on a real Slurm: `make bench-slurm` prints these figures, every
//! ratio from the same run.
//!
//! 1. 1,000 equal containers and 1,000 unequal ones: from the dispatcher's start, or from their
//!    release while it is idle, until squeue shows a job of each. Compared with bare `sbatch`, one
//!    after the other and eight at a time. With arrays and without.
//! 2. 20 containers, one by one: from Queued to submitted.
//! 3. 1,000 pending and 100 running: commands, processor time, memory.
//! 4. The priorities of 500 pending ones reversed: listings and `scontrol` processes until the jobs
//!    are in the new order.
//! 5. A job's end: until the dispatcher notices it, by polling and by the epilog's notification.
//! 6. 1,000 pending ones set to priority 0: until their jobs are cancelled and cleaned up.
//!
//! The jobs run `sleep` instead of crunch-run. `BENCH_SLURM=bulk,idle` runs only these of bulk,
//! idle, steady, order, end, cancel.

mod site;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use suite_tests::stack;

use arvados_client::records::ContainerState;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use site::{Made, Site, ghost, script};
use suite_tests::process_usage::{processor_time, resident};

const BULK_CONTAINERS: usize = 1000;
const RUNNING: usize = 100;
const REORDERED_CONTAINERS: usize = 500;
const SINGLES: usize = 20;
const END_ROUNDS: usize = 5;
const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// Time until the dispatcher stops asking for the same changes again: a minute, and a margin.
const SETTLE_TIME: Duration = Duration::from_secs(70);
const WATCH_TIME: Duration = Duration::from_secs(60);
/// Submission rates to measure: the default, and one that sets no limit.
const POLL_INTERVAL: &str = "10s";

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let chosen = std::env::var("BENCH_SLURM").unwrap_or("bulk,idle,steady,order,end,cancel".into());
    let chosen: Vec<&str> = chosen.split(',').collect();
    runtime.block_on(async {
        if chosen.contains(&"bulk") {
            bulk().await;
        }
        if chosen.contains(&"idle") {
            idle().await;
        }
        if chosen.contains(&"steady") || chosen.contains(&"order") {
            steady(&chosen).await;
        }
        if chosen.contains(&"end") {
            end().await;
        }
        if chosen.contains(&"cancel") {
            cancel().await;
        }
    });
}

/// Jobs per second that sbatch accepts without a dispatcher, `concurrent` at a time.
fn bare(site: &Site, concurrent: usize) -> f64 {
    let job = script(&site.stack.dir.path().join("bare"), "exec sleep 1000");
    let began = Instant::now();
    let status = Command::new("sh")
        .args(["-c", "seq \"$1\" | xargs -P\"$2\" -I@ sbatch --quiet --parsable --job-name=bare@ --comment=bare \
                      --partition=ghost --mem=100 --output=/dev/null --nice=10000 --no-requeue --chdir=/ \"$3\" >/dev/null", "sh"])
        .args([&BULK_CONTAINERS.to_string(), &concurrent.to_string(), job.to_str().unwrap()])
        .env("SLURM_CONF", site.lab.variable("SLURM_CONF"))
        .status()
        .unwrap();
    let rate = BULK_CONTAINERS as f64 / began.elapsed().as_secs_f64();
    assert!(status.success());
    site.lab.run("scancel", &["--user", "root"]);
    stack::wait_for("an empty queue", STEP_TIMEOUT, || {
        site.names().is_empty().then_some(())
    });
    rate
}

async fn bulk() {
    for arrays in ["auto", "off"] {
        let unhindered = [
            "--scheduler-rate",
            "none",
            "--poll-interval",
            POLL_INTERVAL,
            "--arrays",
            arrays,
        ];
        let mut site = Site::up(&unhindered).await;
        let (sequential, concurrent) = (bare(&site, 1), bare(&site, 8));
        println!(
            "{BULK_CONTAINERS} bare jobs: sbatch one after the other {sequential:.0}/s, eight at a time {concurrent:.0}/s"
        );
        for (kind, spread) in [("equal", 0), ("unequal", 1)] {
            assert!(site.stack.dispatcher.terminate(STEP_TIMEOUT).success());
            let made = site.make(BULK_CONTAINERS, |n| ghost(n * spread)).await;
            let began = Instant::now();
            site.stack.dispatcher.start();
            let started = site.present(&made, began);
            site.clear(&made).await;
            let held = site.make(BULK_CONTAINERS, |n| {
                let mut held = ghost(n * spread);
                held["priority"] = 0.into();
                held
            });
            let held = held.await;
            let began = Instant::now();
            let released = held.iter().map(|(request, _)| {
                let user = &site.stack.user;
                async move {
                    user.update_container_request(request, json!({"priority": 500}))
                        .await
                }
            });
            let released: Vec<_> = released.collect();
            let mut releasing = stream::iter(released).buffer_unordered(16);
            while let Some(done) = releasing.next().await {
                done.expect("a priority");
            }
            let releasing = began.elapsed();
            let idle = site.present(&held, began);
            site.clear(&held).await;
            let rate = BULK_CONTAINERS as f64 / started.as_secs_f64();
            let (than, bare) = match kind {
                "equal" => ("sequential sbatch", sequential),
                _ => ("xargs -P8 sbatch", concurrent),
            };
            println!(
                "{BULK_CONTAINERS} {kind}, arrays {arrays}: all in squeue {:.2} s after the dispatcher's start, {rate:.0}/s, \
                 vs {than}: {:.2}; released in {:.2} s while it was idle: {:.2} s",
                started.as_secs_f64(),
                rate / bare,
                releasing.as_secs_f64(),
                idle.as_secs_f64()
            );
        }
    }
}

async fn idle() {
    let site = Site::up(&["--poll-interval", POLL_INTERVAL]).await;
    let mut times = Vec::new();
    for n in 0..SINGLES {
        let began = Instant::now();
        let made = [site.stack.submit(&n.to_string(), "true", ghost(n)).await];
        let name = format!("--name={}", made[0].1);
        stack::wait_for("the container's job", STEP_TIMEOUT, || {
            let jobs = site
                .lab
                .run("squeue", &["--noheader", &name, "--format=%i"]);
            (!jobs.is_empty()).then_some(())
        });
        times.push(began.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{SINGLES} single containers, the request's making included: p50 {:.0} ms, largest {:.0} ms",
        times[SINGLES / 2],
        times[SINGLES - 1]
    );
}

async fn steady(chosen: &[&str]) {
    let site = Site::up(&[
        "--poll-interval",
        POLL_INTERVAL,
        "--max-supervisors",
        "5000",
    ])
    .await;
    let running = site.make(RUNNING, |_| json!({})).await;
    let pending = site.make(BULK_CONTAINERS, ghost_of_one_kind).await;
    let all: Vec<Made> = running.iter().chain(&pending).cloned().collect();
    let took = site.present(&all, Instant::now());
    println!(
        "{BULK_CONTAINERS} to wait and {RUNNING} to run, at the usual rate of commands: {:.1} s",
        took.as_secs_f64()
    );
    if chosen.contains(&"steady") {
        tokio::time::sleep(SETTLE_TIME).await;
        watch(&site).await;
    }
    if chosen.contains(&"order") {
        let some = &pending[..REORDERED_CONTAINERS];
        for reversed in [false, true] {
            order(&site, some, reversed).await;
        }
    }
    site.clear(&all).await;
}

fn ghost_of_one_kind(_: usize) -> Value {
    ghost(0)
}

/// Prints the dispatcher's processor time and commands while nothing changes.
async fn watch(site: &Site) {
    let pid = site.stack.dispatcher.pid().expect("it runs");
    let (listings, all) = (site.count("squeue"), site.all_calls());
    let (own, commands) = processor_time(pid);
    let began = Instant::now();
    let mut memory = 0.0_f64;
    while began.elapsed() < WATCH_TIME {
        tokio::time::sleep(Duration::from_millis(500)).await;
        memory = memory.max(resident(pid));
    }
    let seconds = began.elapsed().as_secs_f64();
    let (own_then, commands_then) = processor_time(pid);
    let listings = site.count("squeue") - listings;
    println!(
        "nothing changes for {seconds:.0} s, a look each {POLL_INTERVAL}: {listings} squeue, {} other commands; {:.2} % of a \
         processor, {:.2} % for its commands; {memory:.1} MiB",
        site.all_calls() - all - listings,
        100.0 * (own_then - own) / seconds,
        100.0 * (commands_then - commands) / seconds
    );
}

/// Sets priorities, and prints the time and the commands until Slurm has that order.
async fn order(site: &Site, some: &[Made], reversed: bool) {
    let (looks, changes) = (site.count("squeue"), site.count("scontrol"));
    let began = Instant::now();
    let set = some.iter().enumerate().map(|(n, (request, _))| {
        let priority = 1 + if reversed {
            REORDERED_CONTAINERS - n
        } else {
            n
        };
        let change = json!({"priority": priority});
        async move {
            site.stack
                .user
                .update_container_request(request, change)
                .await
        }
    });
    let set: Vec<_> = set.collect();
    let mut setting = stream::iter(set).buffer_unordered(16);
    while let Some(done) = setting.next().await {
        done.expect("a priority");
    }
    let given = began.elapsed();
    stack::wait_for("the order", STEP_TIMEOUT, || {
        std::thread::sleep(Duration::from_millis(100));
        let query = [
            "--noheader",
            "--array",
            "--partition=ghost",
            "--format=%Q %j",
        ];
        let listing = site.lab.run("squeue", &query);
        let of = |line: &str| {
            let (priority, name) = line.trim().split_once(' ')?;
            Some((name.to_owned(), priority.parse::<i64>().ok()?))
        };
        let known: std::collections::BTreeMap<String, i64> =
            listing.lines().filter_map(of).collect();
        let ranks: Option<Vec<i64>> = some
            .iter()
            .map(|(_, c)| known.get(c.as_str()).copied())
            .collect();
        let rises = |pair: &[i64]| {
            if reversed {
                pair[0] > pair[1]
            } else {
                pair[0] < pair[1]
            }
        };
        ranks?.windows(2).all(rises).then_some(())
    });
    println!(
        "the priorities of {REORDERED_CONTAINERS} {}, in {:.2} s: in order after {:.2} s, {} looks, {} scontrol",
        if reversed { "reversed" } else { "set" },
        given.as_secs_f64(),
        began.elapsed().as_secs_f64(),
        site.count("squeue") - looks,
        site.count("scontrol") - changes
    );
}

async fn end() {
    for bell in [false, true] {
        let site = Site::up(&[
            "--poll-interval",
            POLL_INTERVAL,
            "--min-retry-period",
            "600s",
        ])
        .await;
        let made = site.make(END_ROUNDS, |_| json!({})).await;
        let mut times = Vec::new();
        for (_, container) in made {
            let running = || {
                let name = format!("--name={container}");
                let query = ["--noheader", "--states=RUNNING", &name, "--format=%i"];
                (!site.lab.run("squeue", &query).is_empty()).then_some(())
            };
            stack::wait_for("a running job", STEP_TIMEOUT, running);
            // All submissions are confirmed after this time.
            tokio::time::sleep(Duration::from_secs(7)).await;
            fs::write(site.stack.dir.path().join(format!("end-{container}")), "").unwrap();
            stack::wait_for("the end of the job", STEP_TIMEOUT, || {
                running().is_none().then_some(())
            });
            let began = Instant::now();
            if bell {
                fs::write(site.stack.dir.path().join("shared/ended"), "").unwrap();
            }
            // The job never recorded Running, so its container goes back to the queue.
            let given_back =
                |c: &arvados_client::records::Container| c.state == ContainerState::Queued;
            site.stack
                .wait_until(&container, STEP_TIMEOUT, given_back)
                .await;
            times.push(began.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        println!(
            "a job that ends without a word, {}: its container given back {:.1} s later, at most {:.1} s",
            if bell {
                "the bell rung"
            } else {
                "a look each 10 s"
            },
            times[END_ROUNDS / 2],
            times[END_ROUNDS - 1]
        );
    }
}

/// At the default command rate.
async fn cancel() {
    let site = Site::up(&[
        "--poll-interval",
        POLL_INTERVAL,
        "--max-supervisors",
        "5000",
    ])
    .await;
    let made = site.make(BULK_CONTAINERS, ghost_of_one_kind).await;
    site.present(&made, Instant::now());
    tokio::time::sleep(SETTLE_TIME).await;
    let names = ["scancel", "squeue", "scontrol", "sacct"];
    let before = names.map(|name| site.count(name));
    let began = Instant::now();
    site.unwanted(&made).await;
    let requested = began.elapsed();
    stack::wait_for("an empty queue", STEP_TIMEOUT, || {
        std::thread::sleep(Duration::from_millis(200));
        site.names().is_empty().then_some(())
    });
    let cancelled = began.elapsed();
    site.put_away(&made).await;
    let counts: Vec<String> = names
        .iter()
        .zip(before)
        .map(|(name, before)| format!("{} {name}", site.count(name) - before))
        .collect();
    println!(
        "{BULK_CONTAINERS} that wait, given up within {:.1} s: no job left after {:.1} s, all put away after {:.1} s, by {}",
        requested.as_secs_f64(),
        cancelled.as_secs_f64(),
        began.elapsed().as_secs_f64(),
        counts.join(", ")
    );
}
