//! A queue that gets workers on demand: `dispatch demand` writes the demand file, dispatch-overseer
//! starts a dispatch-local as worker, and the worker ends when the queue is empty.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use suite_tests::STEP_TIMEOUT;
use suite_tests::program::{Program, binary};
use suite_tests::stack::{Stack, complete, environment};

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_gets_the_worker_it_asks_for() {
    let mut script = String::new();
    let mut stack = Stack::with(|servers, dir| {
        let of = |value: &Value| value.as_str().unwrap().to_owned();
        let (host, certificate) = (&servers.ready["host"], &servers.ready["certificate"]);
        let token = &servers.ready["tokens"]["dispatch"];
        script = format!(
            "export ARVADOS_API_HOST={} SSL_CERT_FILE={}; exec {} --state-dir {} --token-file {} --poll-interval 1s",
            of(host),
            of(certificate),
            binary("dispatch-local").display(),
            dir.join("run").display(),
            of(token)
        );
        let text = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let (file, home) = (text("demand"), text("overseer"));
        let mut args = vec!["--scheduler", "local", "--file", &file, "--state-dir", &home];
        args.extend("--max-workers 1 --poll-interval 200ms --finish-wait 1s".split(' '));
        Program::new("dispatch-overseer", &dir.join("dispatcher"), &args, &[])
    })
    .await;
    // Dropped before the directory is removed.
    let workers = Workers(stack.dir.path().join("overseer/workers"));
    let mut containers = Vec::new();
    for n in 0..3 {
        let name = format!("n{n}");
        let submitted = stack.submit(&name, "echo done > result", json!({}));
        containers.push(submitted.await.1);
    }
    let path = stack.dir.path().join("demand");
    let mut demand = Command::new(binary("dispatch"))
        .args(["demand", "--watch", "--until-empty", "--interval", "1s"])
        .arg("--file")
        .arg(&path)
        .args(["/bin/sh", "-c", &script])
        .envs(environment(&stack.ready))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    for container in &containers {
        complete(&stack.end(container, STEP_TIMEOUT).await);
    }
    assert_eq!(stack.dispatcher.end(STEP_TIMEOUT).code(), Some(0));
    assert!(demand.wait().unwrap().success());
    assert_eq!(pids(&workers.0).len(), 1, "{}", stack.dispatcher.log_text());
}

fn pids(workers: &Path) -> Vec<Pid> {
    let notes = |dir: std::io::Result<DirEntry>| {
        let text = std::fs::read(dir.ok()?.path().join("worker.json")).ok()?;
        let notes: Value = serde_json::from_slice(&text).ok()?;
        Pid::from_raw(notes["pid"].as_i64()? as i32)
    };
    let dirs = std::fs::read_dir(workers).into_iter().flatten();
    dirs.filter_map(notes).collect()
}

/// Ended at the end, however the test ends: an overseer never does.
struct Workers(PathBuf);

impl Drop for Workers {
    fn drop(&mut self) {
        for pid in pids(&self.0) {
            // The worker may have ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}
