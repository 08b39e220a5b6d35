//! Containers whose jobs the scheduler rejects while the dispatcher is restarted.

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::{Stack, wait_for};

/// Submits containers and restarts the dispatcher three times. It does not know what the scheduler
/// rejects, and asks before it locks a container again: the server gives a container few locks.
pub async fn after_restarts(stack: &mut Stack) -> Vec<ContainerUuid> {
    let mut containers = Vec::new();
    for name in ["one", "two", "three"] {
        containers.push(stack.submit(name, "true", json!({})).await.1);
    }
    for _ in 0..3 {
        wait_for("the dispatcher to hold such jobs", STEP_TIMEOUT, || {
            let is_held = stack.dispatcher.log_contains(r#"event="submissions_held""#);
            is_held.then_some(())
        });
        for container in &containers {
            let back = |c: &Container| c.state == ContainerState::Queued;
            let record = stack.wait_until(container, STEP_TIMEOUT, back).await;
            assert!(record.lock_count <= 1, "{record:?}");
        }
        stack.dispatcher.terminate(STEP_TIMEOUT);
        stack.dispatcher.start();
    }
    containers
}
