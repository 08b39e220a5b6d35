//! dispatch-slurm on a real Slurm that keeps accounts: slurmdbd with a MariaDB of its own.

use std::fs;
use std::path::Path;

use arvados_client::records::{Container, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid};
use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::processes::{crunch_run_of, deaf, sleeper};
use crate::program::write_script;
use crate::slurm_lab::{Cluster, PATIENCE, patient_crunch_run};
use crate::stack::{Stack, complete, wait_for};

const SMALL: [&str; 6] = ["-n", "1", "-c", "2", "-m", "4000"];
const COMMANDS: [&str; 6] = ["sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct"];

async fn running(stack: &Stack, name: &str) -> (ContainerRequestUuid, ContainerUuid) {
    let (request, container) = stack.submit(name, "sleep 1000", json!({})).await;
    stack
        .wait_until(&container, PATIENCE, |c| c.state == ContainerState::Running)
        .await;
    (request, container)
}

/// A PATH with Slurm's commands that write down how they are called.
fn noting(dir: &Path, notes: &Path) -> String {
    let path = std::env::var("PATH").unwrap();
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    for name in COMMANDS {
        let mut places = std::env::split_paths(&path).map(|place| place.join(name));
        let real = places.find(|file| file.is_file()).unwrap();
        let (notes, real) = (notes.display(), real.display());
        let script = format!("#!/bin/sh\necho \"{name} $*\" >>{notes}\nexec {real} \"$@\"\n");
        write_script(&bin.join(name), &script);
    }
    format!("{}:{path}", bin.display())
}

/// A command that is not told would look at, or end, another cluster's job of the same number.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_is_told_of_the_cluster_that_is_meant() {
    let Some(cluster) = Cluster::with_accounts(&SMALL) else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let notes = place.path().join("notes");
    let path = noting(place.path(), &notes);
    let told = format!("--clusters={}", cluster.name());
    let stack = Stack::with(|servers, dir| {
        let env = [("PATH", path.as_str())];
        cluster.dispatcher_with(servers, &dir.join("shared"), &[&told], &env)
    })
    .await;
    let (_, killed) = running(&stack, "killed").await;
    let (request, stopped) = running(&stack, "stopped").await;
    let (_, waits) = stack.submit("waits", "true", json!({})).await;
    let job = cluster.job(&waits);
    wait_for("its place in the queue", PATIENCE, || {
        (cluster.tell(&job, "%y") == "0").then_some(())
    });
    kill_process(crunch_run_of(&killed).unwrap(), Signal::KILL).unwrap();
    stack.end(&killed, PATIENCE).await;
    let hold = json!({"priority": 0});
    stack
        .user
        .update_container_request(&request, hold)
        .await
        .unwrap();
    stack.end(&stopped, PATIENCE).await;
    complete(&stack.end(&waits, PATIENCE).await);

    let notes = fs::read_to_string(&notes).unwrap();
    let calls = notes.lines().filter(|line| !line.ends_with("--version"));
    for name in COMMANDS {
        let of_it = |line: &&str| line.split(' ').next() == Some(name);
        let calls: Vec<&str> = calls.clone().filter(of_it).collect();
        assert!(!calls.is_empty(), "{name} was not called: {notes}");
        for call in calls {
            assert!(call.contains(&told), "{call}");
        }
    }
}

/// What sbatch refuses for a limit of the account waits without a lock, is told of, and goes on when the limit is raised.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_account_is_waited_for() {
    let enforce = ["-x", "AccountingStorageEnforce=associations,limits,qos"];
    let Some(cluster) = Cluster::with_accounts(&[&SMALL[..], &enforce].concat()) else {
        return;
    };
    let limit = |jobs: &str| {
        let change = format!("MaxSubmitJobs={jobs}");
        let words = ["-i", "modify", "user", "root", "set", &change];
        cluster.lab.ask("sacctmgr", &words);
    };
    limit("1");
    let stack = cluster.stack(&[]).await;
    let (_, first) = running(&stack, "first").await;
    let (_, second) = stack.submit("second", "true", json!({})).await;
    let says = "Slurm did not take its job: AssocMaxSubmitJobLimit";
    wait_for("the reason", PATIENCE, || {
        stack.dispatcher.said().contains(says).then_some(())
    });
    wait_for("the dispatcher to hold such jobs", PATIENCE, || {
        let said = stack.dispatcher.said();
        said.contains("Slurm is given no jobs for now")
            .then_some(())
    });
    // Long enough for two attempts more, if they were made.
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    assert_eq!(stack.container(&second).await.lock_count, 1);
    assert!(!stack.container(&first).await.state.is_final());
    limit("-1");
    complete(&stack.end(&second, PATIENCE).await);
}

/// Only accounts know that.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_tell_who_cancelled_a_job() {
    let Some(cluster) = Cluster::with_accounts(&SMALL) else {
        return;
    };
    let stack = cluster
        .stack(&["--crunch-run", &patient_crunch_run()])
        .await;
    // Slurm ends crunch-run two seconds after it asked, and this one does not listen.
    let marker = format!("8764{}", std::process::id());
    let (_, container) = stack.submit("cancelled", &deaf(&marker), json!({})).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&container, PATIENCE, runs).await;
    // Running is said before its shell has come that far.
    wait_for("its process", PATIENCE, || sleeper(&marker));
    cluster.lab.ask("scancel", &[&cluster.job(&container)]);
    let record = stack.end(&container, PATIENCE).await;
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("was cancelled in Slurm by root"), "{why}");
}

/// The partition is closed to our account: nothing is lost, it is told, and goes on when the partition is opened.
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
    wait_for("the reason", PATIENCE, || {
        let said = stack.dispatcher.said();
        let told = said.contains("may not use its partition")
            || said.contains("Invalid account or account/partition combination");
        told.then_some(())
    });
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let record = stack.container(&container).await;
    assert!(!record.state.is_final(), "{record:?}");
    assert_eq!(record.lock_count, 1);
    open_to("ALL");
    complete(&stack.end(&container, PATIENCE).await);
}
