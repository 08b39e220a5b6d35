//! What a real Arvados server does to its clients while its database restarts, or while it has too much to do: valid tokens
//! are refused, and answers have no body.

use std::time::Duration;

use arvados_client::client::Call;
use arvados_client::records::ContainerState;
use serde_json::{Value, json};

use crate::scene::{Begin, Kind, PATIENCE, running};
use crate::stack::client;

/// Number of containers that run while the server fails.
const CONTAINERS: usize = 20;
/// Seconds for which every second request meets a fault.
const FAULT_SECONDS: u64 = 5;

/// Containers that run while the server has one fault after the other: each completes in its first attempt.
async fn outlive(faults: [&str; 3]) {
    let begin = Begin {
        api_flags: vec!["--emulate=arvados-3"],
        ..running(Kind::Slurm)
    };
    let scene = begin.up().await;
    let mut containers = Vec::new();
    for _ in 0..CONTAINERS {
        let (_, container) = scene.request("sleep 15; echo ok >/out/f", json!({})).await;
        containers.push(container);
    }
    for container in &containers {
        let runs = |c: &arvados_client::records::Container| c.state == ContainerState::Running;
        scene.stack.wait_until(container, PATIENCE, runs).await;
    }
    let root = client(&scene.stack.ready, "root");
    for fault in faults {
        let wanted = json!({"fault": fault, "seconds": FAULT_SECONDS});
        let begun: Result<Value, _> = root.send(Call::post("/_emulation/fault", wanted)).await;
        begun.unwrap();
        tokio::time::sleep(Duration::from_secs(FAULT_SECONDS + 1)).await;
    }
    for container in &containers {
        let record = scene.complete(container, 1).await;
        assert_eq!(record.runtime_status.error, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn running_containers_outlive_three_restarts_of_the_database() {
    outlive(["database-restart"; 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn running_containers_outlive_an_overloaded_server() {
    outlive(["overload", "context-canceled", "overload"]).await;
}
