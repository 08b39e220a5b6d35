//! What a container costs: `make bench` prints these figures. Needs root, busybox-static and runc;
//! idle machine.
//!
//! 1. One `/bin/true` by crunch-run, whole process, against `runc run` of the same root file
//!    system, pair by pair.
//! 2. From submit to Complete through the whole stack.
//! 3. Two hundred `/bin/true`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use suite_tests::program;

use arvados_client::api::NewToken;
use arvados_client::{ContainerUuid, scopes};
use serde_json::json;
use suite_tests::stack::{self, Stack};

const PAIRS: usize = 50;
const SUBMITS: usize = 100;
const THROUGHPUT_CONTAINERS: usize = 200;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|a| a == "--measure") {
        measure(&arguments[at + 1..]);
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        executor().await;
        let stack = Stack::up().await;
        latency(&stack).await;
        throughput(&stack).await;
    });
}

/// Runs one command as the only child of this process and prints what it took: seconds, KiB at
/// most.
fn measure(command: &[String]) {
    let begin = Instant::now();
    let status = Command::new(&command[0])
        .args(&command[1..])
        .stdout(std::process::Stdio::null())
        .status()
        .expect("the command to be measured");
    let seconds = begin.elapsed().as_secs_f64();
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN)
        .expect("the children's usage");
    println!("{seconds} {}", usage.max_rss());
    assert!(status.success(), "{command:?}: {status}");
}

/// Milliseconds and KiB of one command, in a process of its own.
fn measured(command: &[&str], environment: &[(&str, String)]) -> (f64, f64) {
    let output = Command::new(std::env::current_exe().unwrap())
        .arg("--measure")
        .args(command)
        .envs(environment.iter().map(|(k, v)| (k, v)))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (seconds, rss) = text.trim().split_once(' ').unwrap();
    (
        seconds.parse::<f64>().unwrap() * 1e3,
        rss.parse::<f64>().unwrap(),
    )
}

/// Middle and 95th percentile.
fn percentiles(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() * 95 / 100])
}

async fn executor() {
    let mut stack = Stack::up().await;
    // Loads the image into the cache; then runs crunch-run without a dispatcher.
    let (_, first) = stack.submit("first", "true", json!({})).await;
    stack.end(&first, Duration::from_secs(60)).await;
    assert!(
        stack
            .dispatcher
            .terminate(Duration::from_secs(10))
            .success()
    );
    let cache = stack.dispatcher_state_dir().join("cache");
    let bundle = bundle(stack.dir.path());
    let crunch_run = program::binary("crunch-run");
    let environment: Vec<(&str, String)> = stack::environment(&stack.ready)
        .into_iter()
        .filter(|(name, _)| *name != "ARVADOS_API_TOKEN")
        .collect();
    let (mut ours, mut theirs, mut rss) = (vec![], vec![], vec![]);
    for round in 0..PAIRS {
        let (_, container) = stack
            .submit(&format!("n{round}"), "", json!({"command": ["/bin/true"]}))
            .await;
        let token = lock(&stack, &container).await;
        let command = [
            crunch_run.to_str().unwrap(),
            "--token-file",
            token.to_str().unwrap(),
            "--cache-dir",
            cache.to_str().unwrap(),
            container.as_str(),
        ];
        let (time, peak) = measured(&command, &environment);
        ours.push(time);
        rss.push(peak);
        let name = format!("bench-{}-{round}", std::process::id());
        let runc = ["runc", "run", "--bundle", bundle.to_str().unwrap(), &name];
        theirs.push(measured(&runc, &[]).0);
    }
    let ((ours, ours95), (theirs, theirs95)) = (percentiles(ours), percentiles(theirs));
    println!("one /bin/true, {PAIRS} pairs, whole process    p50        p95");
    println!("  crunch-run, built-in engine       {ours:8.1} ms {ours95:8.1} ms");
    println!("  runc run, same root file system   {theirs:8.1} ms {theirs95:8.1} ms");
    println!(
        "  difference {:+.1} ms, ratio {:.2}; crunch-run's peak RSS {:.1} MiB",
        ours - theirs,
        ours / theirs,
        percentiles(rss).0 / 1024.0
    );
}

/// Locks the container as a dispatcher does before it submits. Returns the token's file.
async fn lock(stack: &Stack, container: &ContainerUuid) -> PathBuf {
    let dispatch = stack::client(&stack.ready, "dispatch");
    let new = NewToken {
        scopes: scopes::attempt(container, "bench"),
        expires_at: jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1),
    };
    let token = dispatch.create_token(&new).await.unwrap().token().unwrap();
    let record = stack.container(container).await;
    let attempt = dispatch.with_token(token.clone());
    attempt
        .lock_container(container, &record.etag)
        .await
        .unwrap();
    let file = stack.dir.path().join("bench-token");
    std::fs::write(&file, token.expose()).unwrap();
    file
}

/// runc's own description of the same root file system.
fn bundle(dir: &Path) -> PathBuf {
    let bundle = dir.join("bundle");
    std::fs::create_dir(&bundle).unwrap();
    let made = Command::new("runc")
        .args(["spec", "--bundle"])
        .arg(&bundle)
        .status();
    assert!(made.expect("runc").success());
    let config = bundle.join("config.json");
    let mut spec: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = json!(["/bin/true"]);
    spec["root"]["path"] = dir.join("rootfs").to_str().unwrap().into();
    std::fs::write(&config, spec.to_string()).unwrap();
    bundle
}

async fn latency(stack: &Stack) {
    let mut times = Vec::new();
    for n in 0..SUBMITS {
        let begin = Instant::now();
        let (_, container) = stack
            .submit(&format!("l{n}"), "", json!({"command": ["/bin/true"]}))
            .await;
        while !stack.container(&container).await.state.is_final() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e3);
    }
    let (p50, p95) = percentiles(times.split_off(1));
    println!("submit to Complete of /bin/true, {SUBMITS} times: p50 {p50:.0} ms, p95 {p95:.0} ms");
}

async fn throughput(stack: &Stack) {
    let begin = Instant::now();
    let mut containers = Vec::new();
    for n in 0..THROUGHPUT_CONTAINERS {
        let command = json!({"command": ["/bin/true"], "mounts": {"/out": {"kind": "tmp", "capacity": 1 << 20}}});
        containers.push(stack.submit(&format!("t{n}"), "", command).await.1);
    }
    let submitted = begin.elapsed();
    for container in &containers {
        stack.end(container, Duration::from_secs(300)).await;
    }
    let all = begin.elapsed();
    println!(
        "{THROUGHPUT_CONTAINERS} times /bin/true on {} CPUs: {:.1} containers/s ({:.2} s to submit, {:.2} s in all)",
        std::thread::available_parallelism().map_or(0, usize::from),
        THROUGHPUT_CONTAINERS as f64 / all.as_secs_f64(),
        submitted.as_secs_f64(),
        all.as_secs_f64()
    );
}
