//! dispatch-slurm on a real Slurm: slurmctld and slurmd on loopback.

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::slurm_arrays;
use suite_tests::STEP_TIMEOUT;
use suite_tests::processes::crunch_run_of;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, complete, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn containers_run_as_slurm_jobs_also_over_a_killed_dispatcher() {
    over_a_killed_dispatcher(&Cluster::shared()).await;
}

async fn over_a_killed_dispatcher(cluster: &Cluster) {
    let mut stack = cluster.stack(&[]).await;
    let mut jobs = Vec::new();
    for n in 0..6 {
        let script = format!("sleep 1; echo done {n} > result");
        jobs.push((
            n,
            stack.submit(&format!("n{n}"), &script, json!({})).await.1,
        ));
    }
    // A container that was locked but not submitted would be locked again.
    wait_for("a job of each", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        let dispatched: Vec<&str> = log
            .lines()
            .filter(|line| line.contains(r#"event="dispatched""#))
            .collect();
        let is = |container: &ContainerUuid| {
            let mut lines = dispatched.iter();
            lines.any(|line| line.contains(container.as_str()))
        };
        jobs.iter().all(|(_, c)| is(c)).then_some(())
    });
    stack.dispatcher.kill();
    stack.dispatcher.start();
    for (n, container) in jobs {
        let record = stack.end(&container, STEP_TIMEOUT).await;
        assert_eq!(
            complete(&record).lock_count,
            1,
            "it was submitted more than once"
        );
        let output = record.output.unwrap().to_string();
        assert_eq!(stack.read(&output, "result").await, format!("done {n}\n"));
    }
}

/// The slurm.conf of the submit host has a node whose numbers do not add up. Every command of Slurm
/// prints an error about it, and succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn errors_on_stderr_of_commands_that_succeed_stop_nothing() {
    let cluster = Cluster::shared();
    let config = std::fs::read_to_string(cluster.lab.variable("SLURM_CONF")).unwrap();
    let (before, cpus) = config.split_once(" CPUs=").unwrap();
    let (_, after) = cpus.split_once(' ').unwrap();
    let odd = "CPUs=7 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=1";
    let config = format!("{before} {odd} {after}");
    let stack = Stack::with(|servers, dir| {
        let file = dir.join("slurm.conf");
        std::fs::write(&file, config).unwrap();
        let variables = [("SLURM_CONF", file.to_str().unwrap())];
        cluster.dispatcher_with(servers, &dir.join("shared"), &[], &variables)
    })
    .await;
    let (_, container) = stack.submit("odd", "true", json!({})).await;
    complete(&stack.end(&container, STEP_TIMEOUT).await);
    // What sinfo says is believed, too: no node has this many.
    let large = json!({"runtime_constraints": {"vcpus": 4000, "ram": 32 << 20}});
    let (_, large) = stack.submit("large", "true", large).await;
    stack.wait_for_log_line(&large, "4000 CPUs, but one node has", STEP_TIMEOUT);
    let log = stack.dispatcher.log_text();
    let has = |event: &str| log.contains(&format!("event=\"{event}\""));
    assert!(
        has("scheduler_command_stderr") && !has("listing_failed"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_slurm_ends_or_a_user_stops_is_told_truthfully_and_shows_no_secret() {
    cancelled_job_is_reported(&Cluster::shared()).await;
}

async fn cancelled_job_is_reported(cluster: &Cluster) {
    let (lab, stack) = (&cluster.lab, cluster.stack(&[]).await);
    let (_, doomed) = stack.submit("doomed", "sleep 1000", json!({})).await;
    let (request, stopped) = stack.submit("stopped", "sleep 1000", json!({})).await;
    for container in [&doomed, &stopped] {
        stack
            .wait_until(container, STEP_TIMEOUT, |c| {
                c.state == ContainerState::Running
            })
            .await;
    }
    // Slurm's output for other users does not contain the token.
    let attempt = stack.container(&doomed).await.locked_by_uuid.unwrap();
    let token = stack
        .dir
        .path()
        .join("shared")
        .join(doomed.as_str())
        .join(format!("token-{attempt}"));
    let secret = std::fs::read_to_string(&token).unwrap();
    let secret = secret.trim().rsplit('/').next().unwrap().to_owned();
    let id = lab.run(
        "squeue",
        &["--noheader", "--name", doomed.as_str(), "--format=%i"],
    );
    let id = id.trim();
    for shown in [
        lab.run("scontrol", &["show", "job", "--details", id]),
        lab.run("scontrol", &["write", "batch_script", id, "-"]),
    ] {
        assert!(shown.contains(doomed.as_str()), "{shown}");
        assert!(!shown.contains(&secret), "the token is in: {shown}");
    }
    // crunch-run is killed, so it cannot report anything.
    let executor = crunch_run_of(&doomed).expect("a crunch-run of the container");
    kill_process(executor, Signal::KILL).unwrap();
    let record = stack.end(&doomed, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("Slurm job"), "{why}");

    stack
        .user
        .update_container_request(&request, json!({"priority": 0}))
        .await
        .unwrap();
    let record = stack.end(&stopped, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled);
}

/// The release after Debian's oldest supported one: the same, and an array of equal containers.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_slurm_is_understood() {
    let cluster = Cluster::newer(&["-n", "2", "-c", "4", "-m", "8000"]);
    let version = cluster.lab.run("sinfo", &["--version"]);
    assert!(!version.contains(" 22."), "{version}");
    over_a_killed_dispatcher(&cluster).await;
    cancelled_job_is_reported(&cluster).await;
    slurm_arrays::one_array(&cluster).await;
}
