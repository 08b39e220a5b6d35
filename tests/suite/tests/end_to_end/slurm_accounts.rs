//! dispatch-slurm on a real Slurm with accounting: slurmdbd with a MariaDB of its own.

use std::fs;
use std::path::Path;

use arvados_client::records::{Container, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid};
use rustix::process::{Signal, kill_process};
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::processes::{crunch_run_of, script_ignoring_term, sleep_process};
use suite_tests::program::write_script;
use suite_tests::slurm_lab::{Cluster, patient_crunch_run};
use suite_tests::stack::{Stack, complete, wait_for};

const SMALL: [&str; 6] = ["-n", "1", "-c", "2", "-m", "4000"];
const COMMANDS: [&str; 6] = ["sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct"];

async fn running(stack: &Stack, name: &str) -> (ContainerRequestUuid, ContainerUuid) {
    let (request, container) = stack.submit(name, "sleep 1000", json!({})).await;
    stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.state == ContainerState::Running
        })
        .await;
    (request, container)
}

/// A PATH with Slurm's commands that write down how they are called.
fn noting(dir: &Path, notes: &Path) -> String {
    let path = std::env::var("PATH").unwrap();
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    for name in COMMANDS {
        let mut candidates = std::env::split_paths(&path).map(|place| place.join(name));
        let real = candidates.find(|file| file.is_file()).unwrap();
        let (notes, real) = (notes.display(), real.display());
        let script = format!("#!/bin/sh\necho \"{name} $*\" >>{notes}\nexec {real} \"$@\"\n");
        write_script(&bin.join(name), &script);
    }
    format!("{}:{path}", bin.display())
}

/// A command without `-M` would show or cancel another cluster's job with the same number.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_is_told_of_the_cluster_that_is_meant() {
    let Some(cluster) = Cluster::with_accounts(&SMALL) else {
        return;
    };
    let temp_dir = tempfile::tempdir().unwrap();
    let notes = temp_dir.path().join("notes");
    let path = noting(temp_dir.path(), &notes);
    let argument = format!("--clusters={}", cluster.name());
    let stack = Stack::with(|servers, dir| {
        let env = [("PATH", path.as_str())];
        cluster.dispatcher_with(servers, &dir.join("shared"), &[&argument], &env)
    })
    .await;
    let (_, killed) = running(&stack, "killed").await;
    let (request, stopped) = running(&stack, "stopped").await;
    let (_, waits) = stack.submit("waits", "true", json!({})).await;
    let job = cluster.job(&waits);
    wait_for("its place in the queue", STEP_TIMEOUT, || {
        (cluster.job_field(&job, "%y") == "0").then_some(())
    });
    kill_process(crunch_run_of(&killed).unwrap(), Signal::KILL).unwrap();
    stack.end(&killed, STEP_TIMEOUT).await;
    let hold = json!({"priority": 0});
    stack
        .user
        .update_container_request(&request, hold)
        .await
        .unwrap();
    stack.end(&stopped, STEP_TIMEOUT).await;
    complete(&stack.end(&waits, STEP_TIMEOUT).await);

    let notes = fs::read_to_string(&notes).unwrap();
    let calls = notes.lines().filter(|line| !line.ends_with("--version"));
    for name in COMMANDS {
        let of_it = |line: &&str| line.split(' ').next() == Some(name);
        let calls: Vec<&str> = calls.clone().filter(of_it).collect();
        assert!(!calls.is_empty(), "{name} was not called: {notes}");
        for call in calls {
            assert!(call.contains(&argument), "{call}");
        }
    }
}

/// A container that sbatch rejects for a limit of the account waits unlocked, its record says why,
/// and it runs when the limit is raised.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_account_is_waited_for() {
    let enforce = ["-x", "AccountingStorageEnforce=associations,limits,qos"];
    let Some(cluster) = Cluster::with_accounts(&[&SMALL[..], &enforce].concat()) else {
        return;
    };
    let limit = |jobs: &str| {
        let change = format!("MaxSubmitJobs={jobs}");
        let words = ["-i", "modify", "user", "root", "set", &change];
        cluster.lab.run("sacctmgr", &words);
    };
    limit("1");
    let stack = cluster.stack(&[]).await;
    let (_, first) = running(&stack, "first").await;
    let (_, second) = stack.submit("second", "true", json!({})).await;
    let says = "AssocMaxSubmitJobLimit";
    wait_for("the reason", STEP_TIMEOUT, || {
        stack.dispatcher.log_text().contains(says).then_some(())
    });
    wait_for("the dispatcher to hold such jobs", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        log.contains(r#"event="submissions_held""#).then_some(())
    });
    // Long enough for two more attempts.
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    assert_eq!(stack.container(&second).await.lock_count, 1);
    assert!(!stack.container(&first).await.state.is_final());
    limit("-1");
    complete(&stack.end(&second, STEP_TIMEOUT).await);
}

/// Only accounting has this information.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_tell_who_cancelled_a_job() {
    let Some(cluster) = Cluster::with_accounts(&SMALL) else {
        return;
    };
    let patient = patient_crunch_run();
    // An eviction counts, so that this is the request's one container.
    let stack = cluster
        .stack(&["--crunch-run", &patient, "--max-evictions", "0"])
        .await;
    // Slurm kills crunch-run two seconds after TERM, and this container ignores TERM.
    let marker = format!("8764{}", std::process::id());
    let (_, container) = stack
        .submit("cancelled", &script_ignoring_term(&marker), json!({}))
        .await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&container, STEP_TIMEOUT, runs).await;
    // The record is Running before the shell has come to this command.
    wait_for("the container's process", STEP_TIMEOUT, || {
        sleep_process(&marker)
    });
    cluster.lab.run("scancel", &[&cluster.job(&container)]);
    let record = stack.end(&container, STEP_TIMEOUT).await;
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("was cancelled in Slurm by root"), "{why}");
}

/// The partition does not allow our account: the record says so, and the container starts once the
/// partition allows it.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_may_not_use_the_partition_is_told_and_waited_for() {
    let enforce = ["-x", "AccountingStorageEnforce=associations"];
    let Some(cluster) = Cluster::with_accounts(&[&SMALL[..], &enforce].concat()) else {
        return;
    };
    let open_to = |accounts: &str| {
        let accounts = format!("AllowAccounts={accounts}");
        cluster.control(&["update", "PartitionName=main", &accounts]);
    };
    open_to("nobodys");
    let stack = cluster.stack(&[]).await;
    let (_, container) = stack.submit("closed", "true", json!({})).await;
    wait_for("the reason", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        let is_rejected = log.contains("its account is not allowed in its partition")
            || log.contains("Invalid account or account/partition combination");
        is_rejected.then_some(())
    });
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let record = stack.container(&container).await;
    assert!(!record.state.is_final(), "{record:?}");
    assert_eq!(record.lock_count, 1);
    open_to("ALL");
    complete(&stack.end(&container, STEP_TIMEOUT).await);
}
