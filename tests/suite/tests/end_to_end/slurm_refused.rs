//! Jobs that Slurm rejects at submission, and jobs that other people change. Containers that can
//! wait do not fail, and other people's jobs are not touched.

use std::fs;

use arvados_client::records::{Container, ContainerState};
use rustix::process::Signal;
use serde_json::json;

use crate::rejected_jobs;
use suite_tests::STEP_TIMEOUT;
use suite_tests::program::write_script;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, complete, wait_for};
use suite_tests::start_log::Gate;

const NODE: [&str; 6] = ["-n", "1", "-c", "4", "-m", "4000"];

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_takes_no_jobs_is_waited_for() {
    let cluster = Cluster::up(&NODE);
    let stack = cluster.stack(&[]).await;
    cluster.control(&["update", "PartitionName=main", "State=DRAIN"]);
    let (_, container) = stack.submit("waits", "true", json!({})).await;
    let says = "Required partition not available";
    wait_for("the reason", STEP_TIMEOUT, || {
        stack.dispatcher.log_text().contains(says).then_some(())
    });
    let back = |c: &Container| c.state == ContainerState::Queued;
    stack.wait_until(&container, STEP_TIMEOUT, back).await;
    cluster.control(&["update", "PartitionName=main", "State=UP"]);
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 2);
}

/// A test of Slurm refuses jobs while all nodes are drained, and Slurm accepts them.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_was_rejected_waits_in_slurm_for_drained_nodes() {
    let cluster = Cluster::up(&NODE);
    let stack = cluster.stack(&[]).await;
    cluster.control(&["update", "PartitionName=main", "State=DRAIN"]);
    let (_, container) = stack.submit("waits", "true", json!({})).await;
    wait_for("the dispatcher to hold such jobs", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        log.contains(r#"event="submissions_held""#).then_some(())
    });
    cluster.control(&["update", "NodeName=n1", "State=DRAIN", "Reason=test"]);
    cluster.control(&["update", "PartitionName=main", "State=UP"]);
    wait_for("the job", STEP_TIMEOUT, || {
        let jobs = cluster.jobs(&container);
        (!jobs.is_empty()).then_some(())
    });
    assert_eq!(cluster.job_field(&cluster.job(&container), "%T"), "PENDING");
    cluster.control(&["update", "NodeName=n1", "State=RESUME"]);
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 2);
}

/// Slurm has as many jobs as it may have; sbatch retries for a while, and times out.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_jobs_in_slurm_are_waited_for() {
    // Slurm accepts one job less than this.
    let cluster = Cluster::up(&[&NODE[..], &["-x", "MaxJobCount=2"]].concat());
    let wrapped = ["--parsable", "--wrap=sleep 1000"];
    let other = cluster.lab.run("sbatch", &wrapped);
    let stack = cluster.stack(&["--command-timeout", "3s"]).await;
    let (_, container) = stack.submit("waits", "true", json!({})).await;
    wait_for("the dispatcher to hold such jobs", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        log.contains(r#"event="submissions_held""#).then_some(())
    });
    cluster.end("slurmctld", Signal::TERM);
    let conf = cluster.lab.variable("SLURM_CONF");
    let text = fs::read_to_string(conf).unwrap();
    fs::write(conf, text.replace("MaxJobCount=2\n", "MaxJobCount=100\n")).unwrap();
    cluster.start_controller();
    complete(&stack.end(&container, STEP_TIMEOUT).await);
    assert_eq!(cluster.job_field(other.trim(), "%T"), "RUNNING");
}

/// An administrator requeues a running job, which `--no-requeue` forbids, and renames another; a
/// third user has a job of the same name.
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
        .run("sbatch", &["--parsable", &alike, "--wrap=sleep 1000"]);
    let other = other.trim();
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&container, STEP_TIMEOUT, runs).await;
    let jobs = cluster.jobs(&container);
    let job = jobs.iter().find(|job| *job != other).unwrap();
    assert!(cluster.is_refused(&["requeue", job]), "it was requeued");
    gate.open();
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 1);
    assert_eq!(cluster.job_field(other, "%T"), "RUNNING");

    let (_, renamed) = stack.submit("renamed", "sleep 1000", json!({})).await;
    stack.wait_until(&renamed, STEP_TIMEOUT, runs).await;
    let job = cluster.job(&renamed);
    cluster.control(&["update", &format!("JobId={job}"), "Name=somebody-elses"]);
    // Each of these changes takes several polls.
    let (_, last) = stack.submit("last", "true", json!({})).await;
    complete(&stack.end(&last, STEP_TIMEOUT).await);
    assert!(runs(&stack.container(&renamed).await));
    let log = stack.dispatcher.log_text();
    assert!(!log.contains(r#"event="listing_failed""#), "{log}");
}

/// The reservation that all jobs name does not exist yet.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_cost_rejected_containers_no_locks() {
    let cluster = Cluster::up(&NODE);
    let mut stack = cluster
        .stack(&["--sbatch-argument=--reservation=later"])
        .await;
    let containers = rejected_jobs::after_restarts(&mut stack).await;
    let reservation = "create reservation=later users=root nodes=ALL starttime=now duration=60";
    cluster.control(&reservation.split(' ').collect::<Vec<_>>());
    for container in &containers {
        let record = stack.end(container, STEP_TIMEOUT).await;
        assert!(complete(&record).lock_count <= 2, "{record:?}");
    }
}

/// As a plugin of the site would (job_submit.lua), which sees the comment.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_against_one_user_stops_no_other() {
    let cluster = Cluster::up(&NODE);
    let mut stack = Stack::with(|servers, dir| {
        let site = dir.join("site");
        fs::create_dir(&site).unwrap();
        let rule = "#!/bin/sh\n\
                    case \"$*\" in\n\
                    *user=eve*) echo 'sbatch: error: eve has no grant' >&2; exit 1 ;;\n\
                    esac\n\
                    PATH=${PATH#*:} exec sbatch \"$@\"\n";
        write_script(&site.join("sbatch"), rule);
        let path = format!("{}:{}", site.display(), cluster.lab.path());
        // The comment of an array's containers follows when it is submitted.
        let flags = ["--arrays=off"];
        cluster.dispatcher_with(servers, &dir.join("shared"), &flags, &[("PATH", &path)])
    })
    .await;
    rejected_jobs::of_one_user(&mut stack).await;
}
