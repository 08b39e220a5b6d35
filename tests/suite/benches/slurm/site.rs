//! A Slurm cluster with dispatch-slurm on it. Each call of a Slurm command is counted.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::STEP_TIMEOUT;
use suite_tests::lab::Lab;
use suite_tests::stack::{self, Stack};

/// Part of the dispatcher's log line about a submitted container.
const SUBMITTED: &str = "event=\"dispatched\"";

pub type Made = (ContainerRequestUuid, ContainerUuid);

/// A cluster, the servers, and dispatch-slurm on them.
pub struct Site {
    pub lab: Lab,
    pub stack: Stack,
    /// The log of scheduler commands.
    calls: PathBuf,
}

impl Site {
    pub async fn up(more: &[&str]) -> Self {
        let lab = Lab::up(
            "slurm",
            &["-N", "-n", "1", "-c", "200", "-m", "100000", "-q", "4"],
        );
        let mut calls = PathBuf::new();
        let stack = Stack::with(|servers, dir| {
            calls = dir.join("calls");
            let job = script(
                &dir.join("job"),
                &format!(
                    "while [ ! -e {}/end-$3 ]; do sleep 0.05; done",
                    dir.display()
                ),
            );
            let shared = dir.join("shared");
            let mut args = vec!["--state-dir", shared.to_str().unwrap()];
            args.extend(["--crunch-run", job.to_str().unwrap()]);
            args.extend(["--max-pending", "5000", "--log-level", "info"]);
            args.extend(more);
            let path = listening(dir, &calls);
            let conf = lab.variable("SLURM_CONF");
            let env = [("SLURM_CONF", conf), ("PATH", path.as_str())];
            servers.dispatcher("dispatch-slurm", &args, &env)
        })
        .await;
        Self { lab, stack, calls }
    }

    /// Creates `count` requests whose jobs stay pending or run.
    pub async fn make(&self, count: usize, more: impl Fn(usize) -> Value) -> Vec<Made> {
        let made = (0..count).map(|n| {
            let more = more(n);
            async move { self.stack.submit(&n.to_string(), "true", more).await }
        });
        let made: Vec<_> = made.collect();
        stream::iter(made).buffered(8).collect().await
    }

    /// The names of the jobs in the queue.
    pub fn names(&self) -> BTreeSet<String> {
        let listing = self
            .lab
            .run("squeue", &["--noheader", "--array", "--format=%j"]);
        listing.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Waits until each container has a job; the time since `began`.
    pub fn present(&self, wanted: &[Made], began: Instant) -> Duration {
        // Reads the log first: listing a thousand jobs all the time would slow Slurm down.
        stack::wait_for("the dispatcher to say so of each", STEP_TIMEOUT, || {
            std::thread::sleep(Duration::from_millis(50));
            let log = self.stack.dispatcher.log_text();
            let submitted = log.lines().filter(|line| line.contains(SUBMITTED));
            let name = |line| str::split(line, "container=").nth(1)?.split(' ').next();
            let submitted: BTreeSet<&str> = submitted.filter_map(name).collect();
            let all = |(_, uuid): &Made| submitted.contains(uuid.as_str());
            wanted.iter().all(all).then_some(())
        });
        stack::wait_for("a job of each", STEP_TIMEOUT, || {
            let names = self.names();
            let all = wanted.iter().all(|(_, uuid)| names.contains(uuid.as_str()));
            all.then(|| began.elapsed())
        })
    }

    /// Sets the priority of these containers to 0.
    pub async fn unwanted(&self, made: &[Made]) {
        let zero = made.iter().map(|(request, _)| async move {
            let zero = json!({"priority": 0});
            self.stack
                .user
                .update_container_request(request, zero)
                .await
        });
        let zero: Vec<_> = zero.collect();
        let mut zero = stream::iter(zero).buffer_unordered(8);
        while let Some(done) = zero.next().await {
            done.expect("a priority");
        }
    }

    /// Sets the priority of these containers to 0 and waits until they have no job.
    pub async fn clear(&self, made: &[Made]) {
        self.unwanted(made).await;
        self.lab.run("scancel", &["--user", "root"]);
        stack::wait_for("an empty queue", STEP_TIMEOUT, || {
            self.names().is_empty().then_some(())
        });
        self.put_away(made).await;
    }

    /// Waits until the dispatcher holds none of these containers.
    pub async fn put_away(&self, made: &[Made]) {
        for (_, container) in made {
            let back = |c: &Container| c.state != ContainerState::Locked;
            self.stack.wait_until(container, STEP_TIMEOUT, back).await;
        }
    }

    /// Number of calls of each command so far.
    pub fn count(&self, name: &str) -> usize {
        let text = fs::read_to_string(&self.calls).unwrap_or_default();
        text.lines().filter(|line| *line == name).count()
    }

    pub fn all_calls(&self) -> usize {
        let text = fs::read_to_string(&self.calls).unwrap_or_default();
        text.lines().count()
    }
}

/// Attributes of a container whose job stays pending: the nodes of its partition are down.
pub fn ghost(n: usize) -> Value {
    json!({"scheduling_parameters": {"partitions": ["ghost"]}, "runtime_constraints": {
        "vcpus": 1, "ram": (32 + n as u64) << 20,
    }})
}

pub fn script(path: &Path, text: &str) -> PathBuf {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

/// A PATH in which each of Slurm's commands but sbatch logs its call first. For sbatch, a shell
/// would take half of its time.
fn listening(dir: &Path, calls: &Path) -> String {
    let own = std::env::var("PATH").unwrap();
    let bin = dir.join("listening");
    fs::create_dir_all(&bin).unwrap();
    for name in ["squeue", "scontrol", "scancel", "sinfo", "sacct"] {
        let real = std::env::split_paths(&own)
            .map(|dir| dir.join(name))
            .find(|p| p.is_file());
        if let Some(real) = real {
            let text = format!(
                "echo {name} >>{}\nexec {} \"$@\"",
                calls.display(),
                real.display()
            );
            script(&bin.join(name), &text);
        }
    }
    format!("{}:{own}", bin.display())
}
