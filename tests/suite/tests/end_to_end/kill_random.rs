//! `kill -9` of servers and executors at random moments: every container reaches its state, and
//! none runs twice.

use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::condor_lab::Pool;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, complete};
use suite_tests::start_log::{Gate, StartLog};

#[derive(Debug, Clone, Copy)]
enum Victim {
    Dispatcher,
    Api,
    Both,
}

async fn survive(mut stack: Stack, victim: Victim) {
    let starts = StartLog::listen();
    let mut jobs: Vec<(String, ContainerUuid)> = Vec::new();
    for n in 0..20 {
        let name = format!("n{n}");
        // Some end while the server is away, some after it is back; most wait in the queue.
        let script = starts.script(&name, 0.3 + 0.2 * (n % 4) as f32);
        let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true}});
        let (_, container) = stack.submit(&name, &script, network).await;
        jobs.push((name, container));
    }
    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(700 + 150 * round)).await;
        if matches!(victim, Victim::Dispatcher | Victim::Both) {
            stack.dispatcher.kill();
        }
        if matches!(victim, Victim::Api | Victim::Both) {
            stack.api.kill();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        if matches!(victim, Victim::Api | Victim::Both) {
            stack.api.start();
        }
        if matches!(victim, Victim::Dispatcher | Victim::Both) {
            stack.dispatcher.start();
        }
    }
    for (name, container) in &jobs {
        let record = stack.end(container, STEP_TIMEOUT).await;
        complete(&record);
        assert_eq!(
            starts.count(name),
            1,
            "{name} ({container}) started {} times",
            starts.count(name)
        );
        let output = record.output.unwrap().to_string();
        assert_eq!(
            stack.read(&output, "result").await,
            format!("done {name}\n")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dispatcher_is_killed() {
    survive(Stack::up().await, Victim::Dispatcher).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_is_killed() {
    survive(Stack::up().await, Victim::Api).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_are_killed() {
    survive(Stack::up().await, Victim::Both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_are_killed_while_slurm_runs_the_jobs() {
    let cluster = Cluster::up(&["-n", "1", "-c", "8", "-m", "4000"]);
    survive(cluster.stack(&[]).await, Victim::Both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_are_killed_while_htcondor_runs_the_jobs() {
    let pool = Pool::up(&["--slots", "8"]);
    survive(pool.stack(&[]).await, Victim::Both).await;
}

/// A drained dispatcher leaves its containers running, and the next one adopts them.
#[tokio::test(flavor = "multi_thread")]
async fn a_drained_dispatcher_leaves_containers_running() {
    let mut stack = Stack::up().await;
    let gate = Gate::closed();
    let script = format!("{}; echo kept > result", gate.script());
    let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true}});
    let (_, container) = stack.submit("long", &script, network).await;
    stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.state == ContainerState::Running
        })
        .await;
    assert!(stack.dispatcher.terminate(STEP_TIMEOUT).success());
    assert_eq!(
        stack.container(&container).await.state,
        ContainerState::Running
    );
    stack.dispatcher.start();
    gate.open();
    let record = stack.end(&container, STEP_TIMEOUT).await;
    let output = complete(&record).output.clone().unwrap().to_string();
    assert_eq!(stack.read(&output, "result").await, "kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_ends_when_asked_also_while_the_api_is_away() {
    let mut stack = Stack::up().await;
    stack.wait_for_dispatcher();
    stack.api.kill();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The drain takes less time than the timeout of a call to the server.
    assert!(
        stack
            .dispatcher
            .terminate(Duration::from_secs(60))
            .success()
    );
}

/// crunch-run is killed: the container ends too, and the record says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_executor_is_told_truthfully() {
    let stack = Stack::up().await;
    let (_, container) = stack.submit("doomed", "sleep 1000", json!({})).await;
    stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.state == ContainerState::Running
        })
        .await;
    let crunch_run = stack.executor(&container);
    rustix::process::kill_process(crunch_run, rustix::process::Signal::KILL).unwrap();
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("crunch-run was killed"), "{why}");
}
