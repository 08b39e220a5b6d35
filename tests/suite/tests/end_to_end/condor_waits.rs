//! The reasons that dispatch-condor reports for jobs that do not start, or whose node is lost.

use std::fs;

use arvados_client::records::{Container, ContainerState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::rejected_jobs;
use suite_tests::STEP_TIMEOUT;
use suite_tests::condor_lab::Pool;
use suite_tests::stack::{complete, wait_for};
use suite_tests::start_log::{Gate, StartLog};

/// A requirement that no slot meets. HTCondor names it only in the analysis of one job.
const UNMET_REQUIREMENTS: &str = "requirements = TARGET.HasUnobtainium =?= True";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_asks_for_what_no_machine_is_says_so() {
    let pool = Pool::up(&["--slots", "2"]);
    let stack = pool.stack(&["--submit-line", UNMET_REQUIREMENTS]).await;
    let mut containers = Vec::new();
    for n in 0..3 {
        let (_, container) = stack.submit(&format!("n{n}"), "true", json!({})).await;
        containers.push(container);
    }
    for container in &containers {
        let says = |c: &Container| {
            let activity = c.runtime_status.activity.clone().unwrap_or_default();
            activity.contains("no slot meets its requirements")
                && activity.contains("HasUnobtainium")
        };
        let record = stack.wait_until(container, STEP_TIMEOUT, says).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Locked, 1)
        );
    }
    // The reason is logged as a decision, and queried once for the three jobs.
    let log = stack.dispatcher.log_text();
    assert!(
        log.contains("decided_not_to_run") && log.contains("HasUnobtainium"),
        "{log}"
    );
}

/// The condor_starter of the one running job.
fn starter(startd: Pid) -> Pid {
    let children = format!("/proc/{startd}/task/{startd}/children");
    let children = fs::read_to_string(children).unwrap();
    let mut pids = children.split_whitespace().filter(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim() == "condor_starter"
    });
    Pid::from_raw(pids.next().unwrap().parse().unwrap()).unwrap()
}

/// The startd does not answer and the condor_starter is gone: HTCondor waits for the lease to end.
/// So does the dispatcher, and reports it.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_whose_machine_is_lost_is_waited_for_and_told_of() {
    let pool = Pool::up(&["--slots", "2"]);
    // An eviction counts, so that this is the request's one container.
    let stack = pool.stack(&["--max-evictions", "0"]).await;
    let (starts, gate) = (StartLog::listen(), Gate::closed());
    let script = format!("{}; {}", starts.script("waits", 0.0), gate.script());
    let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true}});
    let (_, container) = stack.submit("waits", &script, network).await;
    let container = &container;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(container, STEP_TIMEOUT, runs).await;
    wait_for("the container's start", STEP_TIMEOUT, || {
        (starts.count("waits") == 1).then_some(())
    });
    let startd = pool.daemon("condor_startd");
    let starter = starter(startd);
    kill_process(startd, Signal::STOP).unwrap();
    kill_process(starter, Signal::KILL).unwrap();
    wait_for(
        "the dispatcher to report the lost node",
        STEP_TIMEOUT,
        || {
            let log = stack.dispatcher.log_text();
            log.contains(r#"event="execute_node_lost""#).then_some(())
        },
    );
    let record = stack.container(container).await;
    assert_eq!(record.state, ContainerState::Running, "{record:?}");
    kill_process(startd, Signal::CONT).unwrap();
    // The container may have ended together with its condor_starter.
    gate.open();
    stack.end(container, STEP_TIMEOUT).await;
    assert_eq!(starts.count("waits"), 1);
}

/// The schedd takes no further job.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_cost_rejected_containers_no_locks() {
    let pool = Pool::with(&["--slots", "4"], "MAX_JOBS_PER_OWNER = 1\n");
    let mut stack = pool.stack(&[]).await;
    let (first, container) = stack.submit("first", "sleep 1000", json!({})).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&container, STEP_TIMEOUT, runs).await;
    let containers = rejected_jobs::after_restarts(&mut stack).await;
    let hold = json!({"priority": 0});
    let user = &stack.user;
    user.update_container_request(&first, hold).await.unwrap();
    for container in &containers {
        complete(&stack.end(container, STEP_TIMEOUT).await);
    }
}
