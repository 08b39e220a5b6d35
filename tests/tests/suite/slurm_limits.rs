//! Containers that use more time or memory than Slurm gives their jobs: the record says so, whoever ends them.

use std::fs;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use serde_json::{Value, json};

use crate::processes::{crunch_run_of, deaf, sleeper};
use crate::slurm_lab::{Cluster, PATIENCE, patient_crunch_run};
use crate::stack::{Stack, wait_for};
use crate::starts::Gate;

const NODE: [&str; 6] = ["-n", "1", "-c", "4", "-m", "4000"];

async fn running(stack: &Stack, script: &str, more: Value) -> ContainerUuid {
    let (_, container) = stack.submit("limited", script, more).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&container, PATIENCE, runs).await;
    container
}

/// It is Cancelled; why.
async fn why(stack: &Stack, container: &ContainerUuid) -> String {
    let record = stack.end(container, PATIENCE).await;
    assert_eq!(record.state, ContainerState::Cancelled, "{record:?}");
    record.runtime_status.error.unwrap_or_default()
}

/// Slurm warns, as it looks every half a minute, and crunch-run ends the container and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_warned_of_the_end_of_its_time_says_so() {
    let cluster = Cluster::up(&NODE);
    // Two minutes for the job, of which all are the last two.
    let stack = cluster.stack(&["--staging-allowance", "1m"]).await;
    let limit = json!({"scheduling_parameters": {"max_run_time": 60}});
    let container = running(&stack, "sleep 1000", limit).await;
    let why = why(&stack, &container).await;
    assert!(
        why.contains("the time limit of its job was reached"),
        "{why}"
    );
}

/// Without a warning, and with a command that does not listen, Slurm ends crunch-run too.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_slurm_ends_at_its_time_limit_is_told_so() {
    let cluster = Cluster::up(&NODE);
    let more = ["--warn-before-end", "0s", "--staging-allowance", "1m"];
    let patient = patient_crunch_run();
    let more = [&more[..], &["--crunch-run", &patient]].concat();
    let stack = cluster.stack(&more).await;
    let limit = json!({"scheduling_parameters": {"max_run_time": 60}});
    let marker = format!("8763{}", std::process::id());
    let container = running(&stack, &deaf(&marker), limit).await;
    wait_for("its process", PATIENCE, || sleeper(&marker));
    let job = cluster.job(&container);
    cluster.control(&["update", &format!("JobId={job}"), "EndTime=now+1"]);
    let why = why(&stack, &container).await;
    assert!(why.contains("reached its time limit in Slurm"), "{why}");
}

/// Slurm gives the job less than the container may have. Whom the kernel ends is its own choice: the command, of which
/// crunch-run tells, or crunch-run, of which Slurm does.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_over_its_memory_is_told_so_whichever_process_the_kernel_ends() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000", "-C", "-p", "mem"]);
    let stack = cluster.stack(&["--sbatch-argument=--mem=150"]).await;
    let large = json!({"runtime_constraints": {"vcpus": 1, "ram": 1 << 30, "API": true}});
    let grows = |gate: &Gate| {
        let wait = gate.script();
        format!("{wait}; dd if=/dev/zero of=/dev/null bs=400M count=1 && sleep 1000")
    };
    let gate = Gate::closed();
    let command = running(&stack, &grows(&gate), large.clone()).await;
    gate.open();
    let record = stack.end(&command, PATIENCE).await;
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("memory"), "{:?}: {why}", record.state);

    let gate = Gate::closed();
    let executor = running(&stack, &grows(&gate), large).await;
    let process = crunch_run_of(&executor).unwrap().as_raw_nonzero();
    fs::write(format!("/proc/{process}/oom_score_adj"), "1000").unwrap();
    gate.open();
    let why = self::why(&stack, &executor).await;
    assert!(
        why.contains("was killed by Slurm for using more memory than it was given"),
        "{why}"
    );
}
