//! A server that behaves like an Arvados server with a restarting database or too much load: it
//! refuses valid tokens, answers without a body, or does not answer.

use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::client::Call;
use arvados_client::records::{Container, ContainerState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::fixture::{Fixture, FixtureOptions, STEP_TIMEOUT, running};
use crate::stack::client;

/// Number of containers that run while the server fails.
const CONTAINERS: usize = 20;
/// Seconds for which every second request meets a fault.
const FAULT_SECONDS: u64 = 5;
/// Time for which the server does not answer.
const OUTAGE_DURATION: Duration = Duration::from_secs(20);

/// Containers that run `script`, and all of them run now.
async fn all_running(script: &str) -> (Fixture, Vec<ContainerUuid>) {
    let options = FixtureOptions {
        api_flags: vec!["--emulate=arvados-3"],
        ..running(Backend::Slurm)
    };
    let fixture = options.up().await;
    let mut containers = Vec::new();
    for _ in 0..CONTAINERS {
        containers.push(fixture.request(script, json!({})).await.1);
    }
    for container in &containers {
        let runs = |c: &Container| c.state == ContainerState::Running;
        fixture
            .stack
            .wait_until(container, STEP_TIMEOUT, runs)
            .await;
    }
    (fixture, containers)
}

/// Each completes in its first attempt.
async fn all_complete(fixture: &Fixture, containers: &[ContainerUuid]) {
    for container in containers {
        let record = fixture.complete(container, 1).await;
        assert_eq!(record.runtime_status.error, None);
    }
}

/// Containers run while the server has one fault after the other.
async fn outlive(faults: [&str; 3]) {
    let (fixture, containers) = all_running("sleep 15; echo ok >/out/f").await;
    let root = client(&fixture.stack.ready, "root");
    for fault in faults {
        let wanted = json!({"fault": fault, "seconds": FAULT_SECONDS});
        let begun: Result<Value, _> = root.send(Call::post("/_emulation/fault", wanted)).await;
        begun.unwrap();
        tokio::time::sleep(Duration::from_secs(FAULT_SECONDS + 1)).await;
    }
    all_complete(&fixture, &containers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_containers_outlive_three_restarts_of_the_database() {
    outlive(["database-restart"; 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_containers_outlive_an_overloaded_server() {
    outlive(["overload", "context-canceled", "overload"]).await;
}

/// Controller, Rails, Keep and websocket alike, while the containers end.
#[tokio::test(flavor = "multi_thread")]
async fn running_containers_outlive_a_server_that_is_frozen_and_one_that_is_gone() {
    let (mut fixture, containers) = all_running("sleep 25; echo ok >/out/f").await;
    let server = fixture.stack.api.pid().unwrap();
    let server = Pid::from_raw(server.try_into().unwrap()).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    tokio::time::sleep(OUTAGE_DURATION).await;
    kill_process(server, Signal::CONT).unwrap();
    fixture.stack.api.kill();
    tokio::time::sleep(OUTAGE_DURATION).await;
    fixture.stack.api.start();
    all_complete(&fixture, &containers).await;
}
