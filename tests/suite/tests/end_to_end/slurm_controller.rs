//! dispatch-slurm while slurmctld is away: at the start, for long, and repeatedly.

use std::time::Duration;

use arvados_client::records::{Container, ContainerState};
use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::batch::Batch;
use suite_tests::STEP_TIMEOUT;
use suite_tests::health_page::{address, page};
use suite_tests::processes::{crunch_run_of, is_gone, sbatch_of};
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, complete, wait_for};

const NODE: [&str; 6] = ["-n", "1", "-c", "4", "-m", "4000"];

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_down_at_the_start_is_waited_for() {
    let cluster = Cluster::up(&NODE);
    cluster.end("slurmctld", Signal::TERM);
    let more = ["--command-timeout", "2s", "--health-listen", "127.0.0.1:0"];
    let mut stack = cluster.stack(&more).await;
    let health = address(&stack);
    let (_, container) = stack.submit("early", "true", json!({})).await;
    let waits = "the scheduler has not answered yet: the slurm scheduler did not answer";
    wait_for(
        "its health page to say what it waits for",
        STEP_TIMEOUT,
        || {
            let (ping, status) = (page(health, "/_health/ping"), page(health, "/status"));
            (ping.contains(" 503 ") && ping.contains(waits) && status.contains(waits)).then_some(())
        },
    );
    assert!(stack.dispatcher.has_ended().is_none());
    assert_eq!(stack.container(&container).await.lock_count, 0);
    cluster.start_controller();
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 1);
    let ping = page(health, "/_health/ping");
    assert!(ping.contains(" 200 "), "{ping}");
}

/// A configuration error ends the dispatcher at once, with a message.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_told_at_the_start() {
    let cluster = Cluster::up(&NODE);
    let temp_dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = temp_dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let own = std::fs::read_to_string(cluster.lab.variable("SLURM_CONF")).unwrap();
    let odd = file("odd.conf", &format!("{own}\nNoSuchKey=1\n"));
    let absent = temp_dir
        .path()
        .join("absent.conf")
        .to_str()
        .unwrap()
        .to_owned();
    let good = cluster.lab.variable("SLURM_CONF").to_owned();
    let path = std::env::var("PATH").unwrap();
    #[rustfmt::skip]
    let rows = [
        (good.as_str(), "/nonexistent", "squeue could not be run"),
        (&absent, &path, "SLURM_CONF names "),
        (&odd, &path, "NoSuchKey"),
    ];
    for (conf, path, words) in rows {
        let mut stack = Stack::with(|servers, dir| {
            let shared = dir.join("shared");
            let args = ["--state-dir", shared.to_str().unwrap()];
            let env = [("SLURM_CONF", conf), ("PATH", path)];
            servers.dispatcher("dispatch-slurm", &args, &env)
        })
        .await;
        let status = stack.dispatcher.end(STEP_TIMEOUT);
        let log = stack.dispatcher.log_text();
        assert_eq!(status.code(), Some(78), "{log}");
        assert!(log.contains(words), "not {words:?}: {log}");
    }
}

/// Containers that were locked just before, so that their sbatch reaches no slurmctld.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_away_when_jobs_are_submitted_costs_no_lock() {
    let cluster = Cluster::up(&NODE);
    let stack = cluster.stack(&["--arrays=off"]).await;
    let (_, first) = stack.submit("first", "true", json!({})).await;
    complete(&stack.end(&first, STEP_TIMEOUT).await);
    let mut containers = Vec::new();
    for n in 0..8 {
        containers.push(stack.submit(&n.to_string(), "true", json!({})).await.1);
        if n == 0 {
            cluster.end("slurmctld", Signal::TERM);
        }
    }
    let submission = wait_for("an sbatch", STEP_TIMEOUT, || {
        containers.iter().find_map(sbatch_of)
    });
    wait_for("it to give up", STEP_TIMEOUT, || {
        is_gone(submission).then_some(())
    });
    cluster.start_controller();
    for container in &containers {
        let record = stack.end(container, STEP_TIMEOUT).await;
        assert_eq!(complete(&record).lock_count, 1, "{container}");
    }
}

/// `SLURM_AWAY` seconds each time: 600 is what admins fear.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_away_again_and_again_loses_and_doubles_nothing() {
    let away = std::env::var("SLURM_AWAY").map_or(5, |text| text.parse().unwrap());
    let cluster = Cluster::up(&NODE);
    let stack = cluster.stack(&["--command-timeout", "2s"]).await;
    let (_, killed) = stack.submit("killed", "sleep 1000", json!({})).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&killed, STEP_TIMEOUT, runs).await;
    let executor = crunch_run_of(&killed).unwrap();
    let mut batch = Batch::submit(&stack, 1, 1.0).await;
    wait_for("a start", STEP_TIMEOUT, || {
        (batch.started() > 0).then_some(())
    });
    for time in 0..2 {
        // With SIGKILL, slurmctld would forget jobs that it has not written down yet.
        cluster.end("slurmctld", Signal::TERM);
        if time == 0 {
            kill_process(executor, Signal::KILL).unwrap();
        }
        batch.add(&stack, 0.5).await;
        tokio::time::sleep(Duration::from_secs(away)).await;
        let record = stack.container(&killed).await;
        assert!(
            time > 0 || runs(&record),
            "nothing is known of its job: {record:?}"
        );
        cluster.start_controller();
        batch.add(&stack, 0.5).await;
        wait_for("another start", STEP_TIMEOUT, || {
            (batch.started() >= 2 + time).then_some(())
        });
    }
    batch.all_complete_once(&stack).await;
    let record = stack.end(&killed, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("Slurm job"), "{why}");
}
