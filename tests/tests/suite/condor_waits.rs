//! What dispatch-condor tells of jobs that a real HTCondor pool does not run, or does not hear of.

use std::fs;

use arvados_client::records::{Container, ContainerState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::condor_lab::{PATIENCE, Pool};
use crate::stack::wait_for;
use crate::starts::{Gate, Starts};

/// The condition that HTCondor itself only tells of when it is asked about one job.
const UNMET: &str = "requirements = TARGET.HasUnobtainium =?= True";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_asks_for_what_no_machine_is_says_so() {
    let pool = Pool::up(&["--slots", "2"]);
    let stack = pool.stack(&["--submit-line", UNMET]).await;
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
        let record = stack.wait_until(container, PATIENCE, says).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Locked, 1)
        );
    }
    // It is one of the log's decisions, and was asked once for the three of them.
    let said = stack.dispatcher.said();
    assert!(
        said.contains("decided_not_to_run") && said.contains("HasUnobtainium"),
        "{said}"
    );
}

/// The process of a machine's daemon that looks after the one running job.
fn starter(startd: Pid) -> Pid {
    let children = format!("/proc/{startd}/task/{startd}/children");
    let children = fs::read_to_string(children).unwrap();
    let mut pids = children.split_whitespace().filter(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        comm.trim() == "condor_starter"
    });
    Pid::from_raw(pids.next().unwrap().parse().unwrap()).unwrap()
}

/// The machine's daemon does not answer and what looks after the job there is gone: HTCondor waits for the lease to end,
/// and so does the dispatcher, who says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_whose_machine_is_lost_is_waited_for_and_told_of() {
    let pool = Pool::up(&["--slots", "2"]);
    let stack = pool.stack(&[]).await;
    let (starts, gate) = (Starts::listen(), Gate::closed());
    let script = format!("{}; {}", starts.script("waits", 0.0), gate.script());
    let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true}});
    let (_, container) = stack.submit("waits", &script, network).await;
    let container = &container;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(container, PATIENCE, runs).await;
    wait_for("its start", PATIENCE, || {
        (starts.of("waits") == 1).then_some(())
    });
    let startd = pool.daemon("condor_startd");
    let starter = starter(startd);
    kill_process(startd, Signal::STOP).unwrap();
    kill_process(starter, Signal::KILL).unwrap();
    wait_for("the dispatcher to tell", PATIENCE, || {
        let said = stack.dispatcher.said();
        said.contains("that the connection to it is lost")
            .then_some(())
    });
    let record = stack.container(container).await;
    assert_eq!(record.state, ContainerState::Running, "{record:?}");
    kill_process(startd, Signal::CONT).unwrap();
    // It may have been ended with what looked after it.
    gate.open();
    stack.end(container, PATIENCE).await;
    assert_eq!(starts.of("waits"), 1);
}
