//! Containers whose jobs the scheduler rejects while the dispatcher is restarted.

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::{Stack, complete, wait_for};

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

/// The scheduler takes a few jobs at once. Each place is taken again when its job has ended, and
/// only the first look at the limit costs locks: one of each container at most. A restart costs
/// none, though the new process did not submit the jobs that it finds.
pub async fn keep_the_limit_full(stack: &mut Stack) {
    let mut containers = Vec::new();
    for n in 0..20 {
        let (_, container) = stack.submit(&n.to_string(), "sleep 1", json!({})).await;
        containers.push(container);
    }
    let mut locks = Vec::new();
    for (n, container) in containers.iter().enumerate() {
        let record = stack.end(container, STEP_TIMEOUT).await;
        locks.push(complete(&record).lock_count);
        if n == 3 {
            let log = stack.dispatcher.log_text();
            let held = log.matches(r#"event="submissions_held""#).count();
            assert_eq!(held, 1, "{log}");
        }
        if n % 4 == 3 {
            stack.dispatcher.terminate(STEP_TIMEOUT);
            stack.dispatcher.start();
        }
    }
    assert!(locks.iter().all(|locks| *locks <= 2), "{locks:?}");
}

/// The site refuses the jobs of eve, for a reason that the scheduler's clients do not know. Those
/// of another user start, at a restart, too; hers cost a lock each at most.
pub async fn of_one_user(stack: &mut Stack) {
    let eve = stack.another_user("eve").await;
    let mut hers = Vec::new();
    for n in 0..20 {
        let name = format!("hers {n}");
        let submitted = stack.try_submit_as(&eve, &name, "true", json!({})).await;
        hers.push(submitted.unwrap().1);
    }
    for round in 0..3 {
        for n in 0..6 {
            let name = format!("his {round} {n}");
            let (_, container) = stack.submit(&name, "true", json!({})).await;
            let record = stack.end(&container, STEP_TIMEOUT).await;
            assert_eq!(complete(&record).lock_count, 1, "{name}");
        }
        for container in &hers {
            let back = |c: &Container| c.state == ContainerState::Queued;
            let record = stack
                .wait_until_as(&eve, container, STEP_TIMEOUT, back)
                .await;
            assert!(record.lock_count <= 1, "{record:?}");
        }
        let log = stack.dispatcher.log_text();
        assert!(log.contains("of user eve because the scheduler"), "{log}");
        stack.dispatcher.terminate(STEP_TIMEOUT);
        stack.dispatcher.start();
    }
}
