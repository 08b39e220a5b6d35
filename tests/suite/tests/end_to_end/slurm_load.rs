//! The load on a real Slurm of four nodes while the controller and a node are killed, too.

use std::time::Duration;

use arvados_client::records::{Container, ContainerState};
use rustix::process::Signal;

use crate::load::{End, Kind, Load, Scenario};
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::wait_for;

const RESTART_CONTROLLER_AT: usize = 60;
const LOSE_NODE_AT: usize = 100;

const SCENARIO: Scenario = Scenario {
    timeout: Duration::from_secs(480),
    seconds: 2.0,
    over_memory: "dd if=/dev/zero of=/dev/null bs=300M count=1",
    has_gpus: false,
    scheduler_end,
    expected_end: |kind| match kind {
        Kind::Plain => Some(End::LostWithItsNode),
        Kind::OverMemory => Some(End::KilledForMemory),
        _ => None,
    },
};

fn scheduler_end(record: &Container) -> Option<End> {
    let why = record.runtime_status.error.as_deref().unwrap_or_default();
    match (&record.state, record.exit_code) {
        (ContainerState::Complete, Some(137)) => Some(End::KilledForMemory),
        (ContainerState::Cancelled, _) => why
            .contains("lost with its node")
            .then_some(End::LostWithItsNode),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_containers_and_the_books_assert_balance() {
    let node_is_missed = ["-x", "SlurmdTimeout=15"];
    let size = ["-n", "4", "-c", "4", "-m", "4000"];
    let cluster = Cluster::up(&[size.as_slice(), &node_is_missed].concat());
    let more = [
        "--command-timeout",
        "20s",
        "--stop-grace",
        "10s",
        "--max-pending",
        "300",
        "--scheduler-rate",
        "none",
    ];
    let mut stack = cluster.stack(&more).await;
    let mut load = Load::submit(&stack, SCENARIO).await;
    loop {
        load.refresh(&mut stack).await;
        if load.is_due("controller", RESTART_CONTROLLER_AT) {
            cluster.end("slurmctld", Signal::TERM);
            cluster.start_controller();
        }
        if load.is_due("node", LOSE_NODE_AT) {
            cluster.end("slurmd.n4", Signal::KILL);
        }
        if load.is_over(&stack).await {
            break;
        }
    }
    load.assert_balance(2);
    wait_for("the last job to go", suite_tests::STEP_TIMEOUT, || {
        (cluster.all_jobs() == 0).then_some(())
    });
}
