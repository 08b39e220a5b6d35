//! A server that behaves like an Arvados server with a restarting database or too much load: it
//! refuses valid tokens, answers without a body, or does not answer.

use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::client::Call;
use arvados_client::records::{Container, ContainerState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::fixture::{Fixture, FixtureOptions, running};
use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::client;
use suite_tests::start_log::Gate;

/// Number of containers that run while the server fails.
const CONTAINERS: usize = 20;
/// Seconds for which every second request meets a fault.
const FAULT_SECONDS: u64 = 5;
/// Time for which the server does not answer.
const OUTAGE_DURATION: Duration = Duration::from_secs(20);

/// Containers that wait before the gate, and all of them run now.
async fn all_running(gate: &Gate) -> (Fixture, Vec<ContainerUuid>) {
    let options = FixtureOptions {
        api_flags: vec!["--emulate=arvados-3"],
        ..running(Backend::Slurm)
    };
    let fixture = options.up().await;
    let script = format!("{}; echo ok >/out/f", gate.script());
    let with_network = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true}});
    let mut containers = Vec::new();
    for _ in 0..CONTAINERS {
        let (_, container) = fixture.request(&script, with_network.clone()).await;
        containers.push(container);
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

/// Containers run while the server has one fault after the other, and end at the begin of the last.
async fn outlive(faults: [&str; 3]) {
    let gate = Gate::closed();
    let (fixture, containers) = all_running(&gate).await;
    let root = client(&fixture.stack.ready, "root");
    let mut gate = Some(gate);
    for (number, fault) in (1..).zip(faults) {
        if number == faults.len()
            && let Some(gate) = gate.take()
        {
            gate.open();
        }
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
    let gate = Gate::closed();
    let (mut fixture, containers) = all_running(&gate).await;
    let server = fixture.stack.api.pid().unwrap();
    let server = Pid::from_raw(server.try_into().unwrap()).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    tokio::time::sleep(OUTAGE_DURATION).await;
    kill_process(server, Signal::CONT).unwrap();
    fixture.stack.api.kill();
    gate.open();
    tokio::time::sleep(OUTAGE_DURATION).await;
    fixture.stack.api.start();
    all_complete(&fixture, &containers).await;
}

/// A name that the server refuses does not cost the result.
#[tokio::test(flavor = "multi_thread")]
async fn an_output_with_a_name_that_is_refused_is_kept() {
    let options = FixtureOptions {
        api_flags: vec!["--emulate=arvados-3"],
        ..running(Backend::Local)
    };
    let fixture = options.up().await;
    let stack = &fixture.stack;
    let name = json!({"output_name": "a/b"});
    let (_, container) = fixture
        .request("echo result >/out/f; mkfifo /out/p", name)
        .await;
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Complete, "{record:?}");
    assert_eq!((record.exit_code, &record.output), (Some(0), &None));
    let warning = record.runtime_status.warning.unwrap_or_default();
    assert!(
        warning.contains("Name cannot contain") && record.log.is_some(),
        "{warning}"
    );
    let detail = record.runtime_status.warning_detail.unwrap_or_default();
    assert!(
        detail.starts_with("1 entry is not in its output"),
        "{detail}"
    );
    let kept = warning.split(' ').nth(4).unwrap().trim_end_matches(',');
    let kept = stack.user.collection(kept).await.unwrap();
    let pdh = kept.portable_data_hash.unwrap();
    assert_eq!(stack.read(pdh.as_str(), "f").await, "result\n");
}

/// A link that leads nowhere costs the whole output on an Arvados server, as with upstream's
/// crunch-run; with `--strict-output=false` it costs that link.
#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_leads_nowhere_costs_the_output_unless_a_flag_says_no() {
    for (flags, kept) in [
        (vec![], None),
        (
            vec!["--crunch-run-argument=--strict-output=false"],
            Some("result\n"),
        ),
    ] {
        let options = FixtureOptions {
            api_flags: vec!["--emulate=arvados-3"],
            flags,
            ..running(Backend::Local)
        };
        let fixture = options.up().await;
        let stack = &fixture.stack;
        let script = "echo result >/out/f; ln -s nowhere /out/link";
        let (_, container) = fixture.request(script, json!({})).await;
        let record = stack.end(&container, STEP_TIMEOUT).await;
        assert_eq!(record.exit_code, Some(0));
        let status = &record.runtime_status;
        let Some(content) = kept else {
            assert_eq!(record.state, ContainerState::Cancelled, "{record:?}");
            let error = status.error.as_deref().unwrap_or_default();
            assert!(error.contains("/out/link"), "{error}");
            continue;
        };
        assert_eq!(record.state, ContainerState::Complete, "{record:?}");
        let output = record.output.unwrap();
        assert_eq!(stack.read(output.as_str(), "f").await, content);
        let detail = status.warning_detail.as_deref().unwrap_or_default();
        assert!(detail.contains("/out/link"), "{detail}");
    }
}
