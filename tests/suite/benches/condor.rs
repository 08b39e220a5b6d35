//! Performance of dispatch-condor on a real HTCondor pool: `make bench-condor` prints these
//! figures.
//!
//! 1. 1,000 differing containers Queued: until all are in condor_q, compared with condor_submit
//!    alone, in bulk and one by one.
//! 2. The same, 8 of them running: number of condor_q calls.
//! 3. On an idle pool: from a request to Running, from the job's submission to Running, and from
//!    condor_rm to the record's final state.

#[path = "../../../dispatch-api/benches/queue/mod.rs"]
mod queue;

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use jiff::{Timestamp, Unit};
use serde_json::json;
use suite_tests::condor_lab::Pool;
use suite_tests::stack::{self, Stack};

const QUEUED: u32 = 1000;
const ONE_BY_ONE: u32 = 40;
const ROUNDS: usize = 5;
const STEP_TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Duration of the measurement of the steady state.
const WATCH_TIME: Duration = Duration::from_secs(60);

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(measure());
}

async fn measure() {
    let pool = Pool::up(&["--slots", "8"]);
    let alone = submit_alone(&pool);
    let one_by_one = submit_one_by_one(&pool);
    pool.lab.run("condor_rm", &["-all"]);
    pool.is_empty_soon();
    many(&pool, alone, one_by_one).await;
    pool.lab.run("condor_rm", &["-all"]);
    pool.is_empty_soon();
    latency(&pool).await;
}

/// A description of jobs that start nowhere, as many as there are numbers.
fn description(pool: &Pool, name: &str, count: u32) -> std::path::PathBuf {
    let mut text = "executable = /bin/true\ntransfer_executable = false\nrequest_cpus = 1\nrequest_memory = 64\n\
                    request_disk = 1\nrequirements = TARGET.NoSuchThing =?= true\n+Number = \"$(Number)\"\n\
                    queue Number from (\n"
        .to_owned();
    for number in 0..count {
        writeln!(text, "{number}").expect("a line");
    }
    text.push_str(")\n");
    let path = pool.notes().with_file_name(name);
    fs::write(&path, text).expect("a description");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("readable");
    path
}

/// Jobs a second of one condor_submit of all.
fn submit_alone(pool: &Pool) -> f64 {
    let path = description(pool, "bulk", QUEUED);
    let began = Instant::now();
    pool.lab
        .run("condor_submit", &["-terse", path.to_str().expect("text")]);
    let rate = f64::from(QUEUED) / began.elapsed().as_secs_f64();
    println!("{QUEUED} jobs by one condor_submit: {rate:.0} jobs/s");
    rate
}

/// Jobs a second of a condor_submit for each.
fn submit_one_by_one(pool: &Pool) -> f64 {
    let path = description(pool, "single", 1);
    let began = Instant::now();
    for _ in 0..ONE_BY_ONE {
        pool.lab
            .run("condor_submit", &["-terse", path.to_str().expect("text")]);
    }
    let rate = f64::from(ONE_BY_ONE) / began.elapsed().as_secs_f64();
    println!("{ONE_BY_ONE} jobs by one condor_submit each: {rate:.0} jobs/s");
    rate
}

async fn many(pool: &Pool, alone: f64, one_by_one: f64) {
    // Wraps condor_q to count its calls.
    let bin = pool.wrappers();
    let calls = pool.notes().with_file_name("asked");
    let most = QUEUED.to_string();
    let mut stack = Stack::with(|servers, dir| {
        count_calls(pool, &bin, &calls);
        let more = [
            "--max-pending",
            &most,
            "--crunch-run",
            "/bin/sh -c 'exec sleep 10000'",
            "--poll-interval",
            "10s",
            "--log-level",
            "info",
        ];
        pool.dispatcher(servers, dir, "dispatch-condor", &more)
    })
    .await;
    stack.dispatcher.kill();
    let (_, pattern) = stack.submit("pattern", "true", json!({})).await;
    assert!(stack.api.terminate(Duration::from_secs(30)).success());
    queue::fill(
        &stack.dir.path().join("state/state.db"),
        pattern.as_str(),
        QUEUED - 1,
    );
    stack.api.start();
    stack::wait_for("dispatch-api to be ready", STEP_TIMEOUT, || {
        let lines = stack.api.stdout_text();
        (lines.lines().count() == 2).then_some(())
    });
    let began = Instant::now();
    stack.dispatcher.start();
    stack::wait_for("all to be in condor_q", STEP_TIMEOUT, || {
        std::thread::sleep(Duration::from_millis(50));
        let ids = pool.lab.run("condor_q", &["-all", "-af", "ProcId"]);
        (ids.lines().count() >= QUEUED as usize).then_some(())
    });
    let took = began.elapsed().as_secs_f64();
    let rate = f64::from(QUEUED) / took;
    println!(
        "{QUEUED} containers from Queued to condor_q: {took:.2} s, {rate:.0}/s, the dispatcher's start included"
    );
    println!("  vs one bulk condor_submit: {:.2}", rate / alone);
    println!("  vs sequential condor_submit: {:.1}", rate / one_by_one);
    stack::wait_for("8 to run", STEP_TIMEOUT, || {
        std::thread::sleep(Duration::from_millis(200));
        let running = pool.lab.run(
            "condor_q",
            &["-all", "-constraint", "JobStatus == 2", "-af", "ProcId"],
        );
        (running.lines().count() >= 8).then_some(())
    });
    tokio::time::sleep(2 * POLL_INTERVAL).await;
    let before = lines(&calls);
    tokio::time::sleep(WATCH_TIME).await;
    let count = lines(&calls) - before;
    let intervals = WATCH_TIME.as_secs_f64() / POLL_INTERVAL.as_secs_f64();
    println!(
        "  8 running, the rest waiting: {:.2} condor_q an interval",
        count as f64 / intervals
    );
    stack.dispatcher.kill();
    fs::remove_dir_all(bin).expect("removed");
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// A condor_q that writes down each call.
fn count_calls(pool: &Pool, bin: &Path, asked: &Path) {
    let path = pool.lab.path();
    let dirs = std::env::split_paths(&path).skip(1);
    let real = dirs
        .map(|dir| dir.join("condor_q"))
        .find(|file| file.is_file());
    let script = format!(
        "#!/bin/sh\necho \"$*\" >>{}\nexec {} \"$@\"\n",
        asked.display(),
        real.expect("condor_q").display()
    );
    fs::create_dir(bin).expect("a directory");
    fs::write(bin.join("condor_q"), script).expect("a script");
    fs::set_permissions(bin.join("condor_q"), Permissions::from_mode(0o755)).expect("executable");
}

/// Time from the end of a condor_submit until HTCondor reports that its job runs.
fn bare_start(pool: &Pool) -> f64 {
    let text = "executable = /bin/sleep\narguments = 1000\ntransfer_executable = false\nrequest_cpus = 1\n\
                request_memory = 64\nrequest_disk = 1\nqueue\n";
    let path = pool.notes().with_file_name("bare");
    fs::write(&path, text).expect("a description");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("readable");
    let path = path.to_str().expect("text");
    let answer = pool.lab.run("condor_submit", &["-terse", path]);
    let job = answer.split(' ').next().expect("a job").to_owned();
    let began = Instant::now();
    stack::wait_for("a bare job to run", STEP_TIMEOUT, || {
        std::thread::sleep(Duration::from_millis(20));
        let status = pool.lab.run("condor_q", &[&job, "-af", "JobStatus"]);
        (status.trim() == "2").then_some(())
    });
    let took = began.elapsed().as_secs_f64();
    pool.lab.run("condor_rm", &[&job]);
    pool.is_empty_soon();
    took
}

/// When the dispatcher logged that HTCondor has the container's job.
fn dispatched(stack: &Stack, container: &str) -> Timestamp {
    let log = fs::read_to_string(stack.dir.path().join("dispatcher.log")).expect("a log");
    let mut lines = log.lines().filter(|line| line.contains(container));
    let line = lines.find(|line| line.contains("dispatched as job"));
    let time = line
        .and_then(|line| line.split(' ').next())
        .expect("a line");
    time.parse().expect("a time")
}

async fn latency(pool: &Pool) {
    let stack = pool
        .stack(&["--poll-interval", "10s", "--log-level", "info"])
        .await;
    let (mut starts, mut waits, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let began = Instant::now();
        let (_, container) = stack.submit("latency", "sleep 1000", json!({})).await;
        let running = |c: &Container| c.state == ContainerState::Running;
        stack.wait_until(&container, STEP_TIMEOUT, running).await;
        let started = began.elapsed().as_secs_f64();
        let waited = Timestamp::now() - dispatched(&stack, container.as_str());
        let ad = pool.find(&container).expect("its job");
        let job = format!("{}.{}", ad["ClusterId"], ad["ProcId"]);
        let began = Instant::now();
        pool.lab.run("condor_rm", &[&job]);
        stack.end(&container, STEP_TIMEOUT).await;
        // The first one fills the cache of images.
        if round > 0 {
            starts.push(started);
            waits.push(waited.total(Unit::Second).expect("a time"));
            ends.push(began.elapsed().as_secs_f64());
        }
    }
    // HTCondor removes a job that has just ended at its next cycle.
    pool.is_empty_soon();
    let bare = (0..ROUNDS).map(|_| bare_start(pool)).collect();
    println!("on an idle pool, median of {ROUNDS} (and the worst):");
    for (what, mut times) in [
        ("request to Running", starts),
        ("of which since HTCondor has the job", waits),
        ("a bare job, from condor_submit to its start", bare),
        ("condor_rm to the final state", ends),
    ] {
        times.sort_by(f64::total_cmp);
        println!(
            "  {what}: {:.2} s ({:.2} s)",
            times[ROUNDS / 2],
            times[ROUNDS - 1]
        );
    }
}
