//! What Slurm refuses at submission, and what others do to jobs: nothing fails that can wait, and nobody else's job is touched.

use std::fs;

use arvados_client::records::{Container, ContainerState};
use rustix::process::Signal;
use serde_json::json;

use crate::slurm_lab::{Cluster, PATIENCE};
use crate::stack::{complete, wait_for};
use crate::starts::Gate;

const NODE: [&str; 6] = ["-n", "1", "-c", "4", "-m", "4000"];

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_takes_no_jobs_is_waited_for() {
    let cluster = Cluster::up(&NODE);
    let stack = cluster.stack(&[]).await;
    cluster.control(&["update", "PartitionName=main", "State=DRAIN"]);
    let (_, container) = stack.submit("waits", "true", json!({})).await;
    let says = "Slurm did not take its job: Required partition not available";
    wait_for("the reason", PATIENCE, || {
        stack.dispatcher.said().contains(says).then_some(())
    });
    let back = |c: &Container| c.state == ContainerState::Queued;
    stack.wait_until(&container, PATIENCE, back).await;
    cluster.control(&["update", "PartitionName=main", "State=UP"]);
    let record = stack.end(&container, PATIENCE).await;
    assert_eq!(complete(&record).lock_count, 2);
}

/// Slurm holds as many jobs as it may; sbatch itself waits for a while, and is given up.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_jobs_in_slurm_are_waited_for() {
    // One less than it says.
    let cluster = Cluster::up(&[&NODE[..], &["-x", "MaxJobCount=2"]].concat());
    let wrapped = ["--parsable", "--wrap=sleep 1000"];
    let other = cluster.lab.ask("sbatch", &wrapped);
    let stack = cluster.stack(&["--command-timeout", "3s"]).await;
    let (_, container) = stack.submit("waits", "true", json!({})).await;
    wait_for("the dispatcher to hold such jobs", PATIENCE, || {
        let said = stack.dispatcher.said();
        said.contains("Slurm is given no jobs for now")
            .then_some(())
    });
    cluster.end("slurmctld", Signal::TERM);
    let conf = cluster.lab.variable("SLURM_CONF");
    let text = fs::read_to_string(conf).unwrap();
    fs::write(conf, text.replace("MaxJobCount=2\n", "MaxJobCount=100\n")).unwrap();
    cluster.start_controller();
    complete(&stack.end(&container, PATIENCE).await);
    assert_eq!(cluster.tell(other.trim(), "%T"), "RUNNING");
}

/// An administrator puts a running job back into the queue, which `--no-requeue` forbids; renames one; and somebody else
/// has a job of the same name.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_are_requeued_renamed_or_named_alike_do_no_harm() {
    let cluster = Cluster::up(&NODE);
    let stack = cluster.stack(&[]).await;
    let gate = Gate::closed();
    let script = format!("{}; echo x > y", gate.script());
    let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true}});
    let (_, container) = stack.submit("busy", &script, network).await;
    let alike = format!("--job-name={container}");
    let other = cluster
        .lab
        .ask("sbatch", &["--parsable", &alike, "--wrap=sleep 1000"]);
    let other = other.trim();
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&container, PATIENCE, runs).await;
    let jobs = cluster.jobs(&container);
    let job = jobs.iter().find(|job| *job != other).unwrap();
    assert!(cluster.may_not(&["requeue", job]), "it was requeued");
    gate.open();
    let record = stack.end(&container, PATIENCE).await;
    assert_eq!(complete(&record).lock_count, 1);
    assert_eq!(cluster.tell(other, "%T"), "RUNNING");

    let (_, renamed) = stack.submit("renamed", "sleep 1000", json!({})).await;
    stack.wait_until(&renamed, PATIENCE, runs).await;
    let job = cluster.job(&renamed);
    cluster.control(&["update", &format!("JobId={job}"), "Name=somebody-elses"]);
    // Each of these takes several looks.
    let (_, last) = stack.submit("last", "true", json!({})).await;
    complete(&stack.end(&last, PATIENCE).await);
    assert!(runs(&stack.container(&renamed).await));
    let said = stack.dispatcher.said();
    assert!(!said.contains("the scheduler's listing failed"), "{said}");
}
