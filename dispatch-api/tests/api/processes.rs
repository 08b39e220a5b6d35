//! The program: restarts, kills, and a second process on the same state directory.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, request};

pub struct Process {
    child: Child,
    pub ready: Value,
}

impl Process {
    fn start(state: &Path) -> Process {
        Process::run(Command::new(env!("CARGO_BIN_EXE_dispatch-api")), state)
    }

    /// With fail points in this directory.
    pub fn start_with(state: &Path, fail_points: &Path) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dispatch-api"));
        command.env(fail_points::VARIABLE, fail_points);
        Process::run(command, state)
    }

    fn run(mut command: Command, state: &Path) -> Process {
        let mut child = command
            .arg("--state-dir")
            .arg(state)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let ready = serde_json::from_str(&line).unwrap();
        Process { child, ready }
    }

    /// Until a fail point has killed it.
    pub fn wait_until_killed(mut self) {
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{status}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_everything_and_the_address() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    fixture.admin.lock(&uuid).await.ok();
    let before = fixture.admin.container(&uuid).await;
    let host = fixture.admin.host.clone();
    let old = fixture.admin.clone();
    let fixture = fixture.restarted().await;
    assert_eq!(fixture.admin.host, host);
    assert_eq!(old.container(&uuid).await, before);
    fixture.admin.unlock(&uuid).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let process = Process::start(&state);
    let api = Api::of(&process.ready, "user");
    let written = Arc::new(AtomicUsize::new(0));
    let writers = (0..4).map(|writer| {
        let (api, written) = (api.clone(), written.clone());
        tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for number in 0.. {
                let body = json!({"collection": {"name": format!("{writer}-{number}")}});
                let post = api
                    .raw(reqwest::Method::POST, "/arvados/v1/collections")
                    .json(&body);
                match post.send().await {
                    Ok(answer) if answer.status() == 200 => match answer.json::<Value>().await {
                        Ok(made) => {
                            acknowledged.push(made["uuid"].as_str().unwrap().to_owned());
                            written.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => break,
                    },
                    _ => break,
                }
            }
            acknowledged
        })
    });
    let writers: Vec<_> = writers.collect();
    let deadline = Instant::now() + crate::fixture::STEP_TIMEOUT;
    while written.load(Ordering::Relaxed) <= 50 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    process.kill();
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    assert!(
        acknowledged.len() > 10,
        "only {} writes",
        acknowledged.len()
    );
    let process = Process::start(&state);
    let api = Api::of(&process.ready, "user");
    for uuid in acknowledged {
        api.get(&format!("collections/{uuid}")).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_on_the_same_state_says_so_and_exits_78() {
    let directory = tempfile::tempdir().unwrap();
    let _first = Process::start(directory.path());
    let second = Command::new(env!("CARGO_BIN_EXE_dispatch-api"))
        .arg("--state-dir")
        .arg(directory.path())
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(78));
    let text = String::from_utf8(second.stderr).unwrap();
    assert!(
        text.contains("another dispatch-api is already running"),
        "{text}"
    );
    assert_eq!(text.trim().lines().count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_and_a_bad_certificate_are_configuration_errors() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let missing = directory.path().join("missing.pem");
    let missing = missing.to_str().unwrap();
    for (arguments, word) in [
        (vec!["--listen", &address], address.as_str()),
        (
            vec!["--tls-cert", missing, "--tls-key", missing],
            "missing.pem",
        ),
        (vec!["--cluster-id", "toolong"], "toolong"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_dispatch-api"))
            .arg("--state-dir")
            .arg(directory.path().join("state"))
            .args(&arguments)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(text.contains(word), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_finishes_what_runs_and_exits_0() {
    let directory = tempfile::tempdir().unwrap();
    let mut process = Process::start(directory.path());
    let api = Api::of(&process.ready, "user");
    let draft = request(json!({"state": "Uncommitted"}));
    api.post("container_requests", draft).await.ok();
    let pid = rustix::process::Pid::from_child(&process.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = process.child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
}

/// Whatever the server does, its administrator can stop it.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_does_not_end_delays_the_stop_by_seconds() {
    if !fail_points::ENABLED {
        panic!("build with --features fail-points/enabled");
    }
    let directory = tempfile::tempdir().unwrap();
    let points = directory.path().join("points");
    std::fs::create_dir(&points).unwrap();
    std::fs::write(points.join("api.lock.accepted.hold"), "").unwrap();
    let mut process = Process::start_with(&directory.path().join("state"), &points);
    let api = Api::of(&process.ready, "user");
    let held = tokio::spawn(async move {
        let items = json!({"items": [{"uuid": "local-dz642-000000000000000"}]});
        api.post("containers/bulk_lock", items).await
    });
    let is_held = || std::fs::read_to_string(points.join("passed")).unwrap_or_default();
    while !is_held().contains("api.lock.accepted") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let stopped = Instant::now();
    let pid = process.child.id().to_string();
    Command::new("kill").arg(pid).status().unwrap();
    while process.child.try_wait().unwrap().is_none() {
        let waited = stopped.elapsed();
        assert!(
            waited < Duration::from_secs(10),
            "not stopped after {waited:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    held.abort();
}

/// A tree of 180,000 values takes 60 MiB, and an answer has it once more.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_large_json_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    let process = Process::start(&directory.path().join("state"));
    let api = Api::of(&process.ready, "user");
    let resident_mib = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id()));
        let status = status.unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib: u64 = line
            .unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        kib / 1024
    };
    let values = vec![r#"{"a":1}"#; 90_000].join(",");
    let content = format!(r#"{{"kind":"json","content":[{values}]}}"#);
    let body = format!(
        r#"{{"container_request":{{"container_image":"x","command":["x"],"output_path":"/o",
        "mounts":{{"/o":{{"kind":"tmp","capacity":1}},"/x":{content}}}}}}}"#
    );
    api.get("container_requests").await.ok();
    let before = resident_mib();
    for _ in 0..2 {
        let request = api.raw(reqwest::Method::POST, "/arvados/v1/container_requests");
        let request = request.header("content-type", "application/json");
        api.send(request.body(body.clone())).await.ok();
        let kept = resident_mib().saturating_sub(before);
        assert!(kept < 40, "after a request: {kept} MiB more than {before}");
    }
    api.get("container_requests").await.ok();
    let kept = resident_mib().saturating_sub(before);
    assert!(kept < 40, "after a list: {kept} MiB more than {before}");
}
