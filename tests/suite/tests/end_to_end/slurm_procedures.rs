//! What the documents tell an administrator of a Slurm cluster to do, done on a real Slurm.

use std::fs;

use arvados_client::records::{Container, ContainerState};
use serde_json::json;

use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, complete, wait_for};
use suite_tests::start_log::Gate;
use suite_tests::{STEP_TIMEOUT, workspace};

const NODE: [&str; 6] = ["-n", "1", "-c", "2", "-m", "4000"];

fn document(name: &str) -> String {
    fs::read_to_string(workspace().join("docs").join(name)).unwrap()
}

/// A container that runs behind a gate on the whole node, and one that is pending.
async fn running_and_pending(
    stack: &Stack,
    cluster: &Cluster,
    gate: &Gate,
) -> [arvados_client::ContainerUuid; 2] {
    let whole = json!({"runtime_constraints": {"vcpus": 2, "ram": 32 << 20, "API": true}});
    let (_, running) = stack.submit("runs", &gate.script(), whole.clone()).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&running, STEP_TIMEOUT, runs).await;
    let (_, pending) = stack.submit("waits", "true", whole).await;
    let locked = |c: &Container| c.state == ContainerState::Locked;
    stack.wait_until(&pending, STEP_TIMEOUT, locked).await;
    cluster.job(&pending);
    [running, pending]
}

/// docs/questions.md has two commands for a maintenance. What is pending does not start while the
/// dispatcher is stopped, and runs afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_during_a_maintenance() {
    let cluster = Cluster::up(&NODE);
    let mut stack = cluster.stack(&[]).await;
    let gate = Gate::closed();
    let [running, pending] = running_and_pending(&stack, &cluster, &gate).await;
    let text = document("questions.md");
    let commands = text
        .lines()
        .filter(|line| line.starts_with("squeue -h -u dispatch"));
    let commands: Vec<String> = commands
        .map(|line| line.replace("-u dispatch", "--me"))
        .collect();
    let [hold, release] = &commands[..] else {
        panic!("{commands:?}");
    };

    assert!(stack.dispatcher.terminate(STEP_TIMEOUT).success());
    cluster.lab.run("sh", &["-c", hold]);
    gate.open();
    complete(&stack.end(&running, STEP_TIMEOUT).await);
    let idle = || cluster.lab.run("sinfo", &["-h", "-o", "%T"]);
    wait_for("the node to be free", STEP_TIMEOUT, || {
        (idle().trim() == "idle").then_some(())
    });
    let job = cluster.job(&pending);
    let is_held = |job: &str| {
        let state = cluster.job_field(job, "%T %r");
        state.starts_with("PENDING JobHeld")
    };
    assert!(is_held(&job));

    // The dispatcher does not release what it did not hold.
    stack.dispatcher.start();
    let told = |c: &Container| {
        let activity = c.runtime_status.activity.clone().unwrap_or_default();
        activity.contains("waits to be released")
    };
    stack.wait_until(&pending, STEP_TIMEOUT, told).await;
    assert!(is_held(&job));
    cluster.lab.run("sh", &["-c", release]);
    let record = stack.end(&pending, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 1);
}

/// The state directory is lost. A new one with the old label, which the comment of a job has, takes
/// over what the lost one had.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_state_directory_is_replaced() {
    let cluster = Cluster::up(&NODE);
    let mut stack = cluster.stack(&["--max-evictions", "0"]).await;
    let gate = Gate::closed();
    let [running, pending] = running_and_pending(&stack, &cluster, &gate).await;
    stack.dispatcher.kill();
    let shared = stack.dir.path().join("shared");
    fs::rename(&shared, stack.dir.path().join("lost")).unwrap();
    let comment = cluster.job_field(&cluster.job(&pending), "%k");
    let label = comment.split(' ').nth(1).unwrap();
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("label"), label).unwrap();
    stack.dispatcher.start();
    gate.open();
    complete(&stack.end(&running, STEP_TIMEOUT).await);
    // Its files were in the lost directory.
    let record = stack.end(&pending, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 2);
}

/// The command that docs/crunch-run.md has for `--broken-node-hook`, and whom Slurm lets run it.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_hook_drains_a_node_for_an_administrator_of_slurm_alone() {
    let Some(cluster) = Cluster::with_accounts(&NODE) else {
        return;
    };
    let text = document("crunch-run.md");
    let hook = text
        .lines()
        .find(|line| line.starts_with("scontrol update"));
    let node = cluster.lab.run("sinfo", &["-h", "-o", "%n"]);
    let hook = hook.unwrap().replace("$(hostname -s)", node.trim());
    let as_daemon = |script: &str| {
        let user = ["--reuid=daemon", "--regid=daemon", "--clear-groups"];
        let words = [&user[..], &["sh", "-c", script, "hook", "no space"]].concat();
        cluster.lab.try_run("setpriv", &words)
    };
    let level = |level: &str| {
        let level = format!("adminlevel={level}");
        let words = ["-i", "modify", "user", "daemon", "set", &level];
        cluster.lab.run("sacctmgr", &words);
    };
    let add = ["-i", "add", "user", "daemon", "account=root"];
    cluster.lab.run("sacctmgr", &add);
    let state = || cluster.lab.run("sinfo", &["-h", "-o", "%E %T"]);
    assert_eq!(as_daemon(&hook), None);
    level("operator");
    assert_eq!(as_daemon(&hook), None);
    assert_eq!(state().trim(), "none idle");
    assert!(text.contains("set adminlevel=admin`"));
    level("admin");
    wait_for("slurmctld to know it", STEP_TIMEOUT, || as_daemon(&hook));
    assert_eq!(state().trim(), "no space drained");
}
