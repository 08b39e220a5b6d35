//! dispatch-slurm on a real Slurm with accounting: slurmdbd with a MariaDB of its own.

use std::fs;
use std::path::Path;

use arvados_client::client::Call;
use arvados_client::records::{Container, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use suite_tests::STEP_TIMEOUT;
use suite_tests::processes::{crunch_run_of, script_ignoring_term, sleep_process};
use suite_tests::program::{binary, write_script};
use suite_tests::slurm_lab::{Cluster, patient_crunch_run};
use suite_tests::stack::{Stack, complete, environment, wait_for};

use crate::rejected_jobs;

const SMALL: [&str; 6] = ["-n", "1", "-c", "2", "-m", "4000"];
const LARGE: [&str; 6] = ["-n", "1", "-c", "4", "-m", "4000"];
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
    let (request, second) = stack.submit("second", "true", json!({})).await;
    let says = "AssocMaxSubmitJobLimit";
    wait_for("the reason", STEP_TIMEOUT, || {
        stack.dispatcher.log_text().contains(says).then_some(())
    });
    wait_for("the dispatcher to hold such jobs", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        log.contains(r#"event="submissions_held""#).then_some(())
    });
    wait_for("the user to be told", STEP_TIMEOUT, || {
        let told = stack.explained(&request);
        told.contains("not run now: Slurm rejects such jobs now: AssocMax")
            .then_some(())
    });
    // Long enough for two more attempts.
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    assert_eq!(stack.container(&second).await.lock_count, 1);
    assert!(!stack.container(&first).await.state.is_final());
    limit("-1");
    complete(&stack.end(&second, STEP_TIMEOUT).await);
}

/// Many jobs of an account are over its limit. The other account's start as on an empty cluster.
#[tokio::test(flavor = "multi_thread")]
async fn one_account_at_its_limit_stops_no_other() {
    let enforce = ["-x", "AccountingStorageEnforce=associations,limits"];
    let Some(cluster) = Cluster::with_accounts(&[&LARGE[..], &enforce].concat()) else {
        return;
    };
    let sacctmgr = |words: &str| {
        let words: Vec<&str> = ["-i"].into_iter().chain(words.split(' ')).collect();
        cluster.lab.run("sacctmgr", &words);
    };
    for account in ["limited", "free"] {
        sacctmgr(&format!("add account {account}"));
        sacctmgr(&format!("add user root account={account}"));
    }
    sacctmgr("modify user where name=root account=limited set MaxSubmitJobs=1");
    let temp_dir = tempfile::tempdir().unwrap();
    let map = temp_dir.path().join("map");
    fs::write(&map, "* --account=free\n").unwrap();
    // Each job is submitted alone, as beside a server that locks one container in a call.
    let flags = ["--arrays", "off", "--owner-map", map.to_str().unwrap()];
    let stack = cluster.stack(&flags).await;
    let group = json!({"group": {"name": "limited", "group_class": "project"}});
    let group: Value = stack.user.send(Call::post("groups", group)).await.unwrap();
    let project = group["uuid"].as_str().unwrap();
    fs::write(
        &map,
        format!("{project} --account=limited\n* --account=free\n"),
    )
    .unwrap();
    wait_for("the map to be read", STEP_TIMEOUT, || {
        let read = stack.dispatcher.log_contains(r#"event="owner_map_read""#);
        read.then_some(())
    });
    let mut limited = Vec::new();
    for n in 0..20 {
        let more = json!({"owner_uuid": project});
        let (_, container) = stack.submit(&n.to_string(), "sleep 1000", more).await;
        limited.push(container);
    }
    wait_for("the limit", STEP_TIMEOUT, || {
        let held = stack.dispatcher.log_contains(r#"event="submissions_held""#);
        held.then_some(())
    });
    for n in 0..6 {
        let (_, container) = stack.submit(&format!("free {n}"), "true", json!({})).await;
        let record = stack.end(&container, STEP_TIMEOUT).await;
        complete(&record);
        assert_eq!(record.lock_count, 1);
    }
    let log = stack.dispatcher.log_text();
    assert!(!log.contains("failed before the"), "{log}");
    for container in &limited {
        let record = stack.container(container).await;
        assert!(
            !record.state.is_final() && record.lock_count <= 3,
            "{record:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_an_account_is_kept_full() {
    let enforce = ["-x", "AccountingStorageEnforce=associations,limits"];
    let Some(cluster) = Cluster::with_accounts(&[&LARGE[..], &enforce].concat()) else {
        return;
    };
    let words = ["-i", "modify", "user", "root", "set", "MaxSubmitJobs=3"];
    cluster.lab.run("sacctmgr", &words);
    rejected_jobs::keep_the_limit_full(&mut cluster.stack(&[]).await).await;
}

/// Alone it is over a limit of its account that other jobs share. The user is told that nothing may
/// change.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_alone_is_over_the_limit_of_its_account_says_so() {
    let enforce = ["-x", "AccountingStorageEnforce=associations,limits"];
    let Some(cluster) = Cluster::with_accounts(&[&SMALL[..], &enforce].concat()) else {
        return;
    };
    let words = ["-i", "modify", "user", "root", "set", "GrpTRES=cpu=1"];
    cluster.lab.run("sacctmgr", &words);
    let stack = cluster.stack(&[]).await;
    let two = json!({"runtime_constraints": {"vcpus": 2, "ram": 32 << 20}});
    let (_, container) = stack.submit("two", "true", two).await;
    let says = |c: &Container| {
        let activity = c.runtime_status.activity.clone().unwrap_or_default();
        activity.contains("for ever if it alone is over their limit")
    };
    stack.wait_until(&container, STEP_TIMEOUT, says).await;
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

/// What `dispatch-slurm explain` says about a job.
fn explained(cluster: &Cluster, stack: &Stack, job: &str) -> Value {
    let output = subcommand(cluster, stack, &["explain", "--json", job]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{job}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn subcommand(cluster: &Cluster, stack: &Stack, more: &[&str]) -> std::process::Output {
    let token = stack.ready["tokens"]["dispatch"].as_str().unwrap();
    std::process::Command::new(binary("dispatch-slurm"))
        .arg("--state-dir")
        .arg(stack.dir.path().join("shared"))
        .args(["--token-file", token])
        .args(more)
        .envs(environment(&stack.ready))
        .env_remove("ARVADOS_API_TOKEN")
        .env("SLURM_CONF", cluster.lab.variable("SLURM_CONF"))
        .env("PATH", cluster.lab.path())
        .output()
        .unwrap()
}

/// Jobs are charged by project and user, the file is read again when it changes, and a limit of one
/// account holds back nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_charged_to_their_users_and_projects() {
    let enforce = ["-x", "AccountingStorageEnforce=associations,limits"];
    let Some(cluster) = Cluster::with_accounts(&[&LARGE[..], &enforce].concat()) else {
        return;
    };
    for account in ["genomics", "proteomics", "guests"] {
        cluster
            .lab
            .run("sacctmgr", &["-i", "add", "account", account]);
        let account = format!("account={account}");
        cluster
            .lab
            .run("sacctmgr", &["-i", "add", "user", "root", &account]);
    }
    let temp_dir = tempfile::tempdir().unwrap();
    let (map, audit) = (temp_dir.path().join("map"), temp_dir.path().join("audit"));
    fs::write(&map, "* --account=guests\n").unwrap();
    let flags = [
        "--owner-map",
        map.to_str().unwrap(),
        "--audit-file",
        audit.to_str().unwrap(),
    ];
    let stack = cluster.stack(&flags).await;
    let group = json!({"group": {"name": "RNA", "group_class": "project"}});
    let group: Value = stack.user.send(Call::post("groups", group)).await.unwrap();
    let project = group["uuid"].as_str().unwrap().to_owned();
    let user = stack.user.current_user().await.unwrap().username;
    // As an admin does it while the dispatcher runs.
    let lines = format!("{project} --account=proteomics\n{user} --account=genomics\n");
    fs::write(&map, lines).unwrap();
    wait_for("the map to be read", STEP_TIMEOUT, || {
        stack
            .dispatcher
            .log_contains(r#"event="owner_map_read""#)
            .then_some(())
    });
    // `check` asks Slurm about each line, and tells of a file that cannot be used.
    let wrong = temp_dir.path().join("wrong");
    let checked = |flag: &str, value: &str| {
        let output = subcommand(&cluster, &stack, &[flag, value, "check"]);
        String::from_utf8(output.stdout).unwrap()
    };
    let with_map = |file: &Path| checked("--owner-map", file.to_str().unwrap());
    let report = with_map(&map);
    assert!(report.contains("Slurm accepts all 2 lines"), "{report}");
    fs::write(&wrong, "ada --account=nobodys\n").unwrap();
    let report = with_map(&wrong);
    let rejected = "Slurm would reject the jobs of ada";
    assert!(report.contains(rejected), "{report}");
    fs::write(&wrong, "ada account=x\n").unwrap();
    let report = with_map(&wrong);
    let fails = |line: &str| line.contains("FAIL") && line.contains("owner map");
    let has_others = report.contains("squeue");
    assert!(report.lines().any(fails) && has_others, "{report}");
    for (account, words) in [
        ("genomics", "Slurm accepts a small job with them"),
        ("nobodys", "Slurm would reject a small job with them"),
    ] {
        let report = checked("--account", account);
        assert!(report.contains(words), "{report}");
    }
    let accounts = [
        (json!({}), "genomics"),
        (json!({"owner_uuid": project}), "proteomics"),
    ];
    for (n, (more, account)) in accounts.iter().enumerate() {
        let (_, container) = stack
            .submit(&n.to_string(), "sleep 1000", more.clone())
            .await;
        let job = cluster.job(&container);
        assert_eq!(cluster.job_field(&job, "%a"), *account);
        let comment = cluster.job_field(&job, "%k");
        let mark = format!(" user={user}");
        assert!(comment.contains(&mark), "{comment}");
        let mark = format!(" project={project}");
        assert_eq!(
            comment.contains(&mark),
            *account == "proteomics",
            "{comment}"
        );
        // The number of the job is enough for an admin.
        let page = explained(&cluster, &stack, &job);
        assert_eq!(page["container"], container.as_str(), "{page}");
        let owner = page["owner"].as_str().unwrap();
        assert!(owner.starts_with(&format!("user {user}, ")), "{page}");
        assert_eq!(
            owner.contains("\"RNA\""),
            *account == "proteomics",
            "{page}"
        );
    }
    let audit = fs::read_to_string(&audit).unwrap();
    let charged = |line: &&str| {
        line.contains(r#""event":"dispatched""#)
            && line.contains(&format!(r#""user":"{user}""#))
            && line.contains(project.as_str())
    };
    assert_eq!(audit.lines().filter(charged).count(), 1, "{audit}");

    // One account is full.
    let limit = [
        "-i",
        "modify",
        "user",
        "root",
        "where",
        "account=proteomics",
        "set",
    ];
    cluster
        .lab
        .run("sacctmgr", &[&limit[..], &["MaxSubmitJobs=1"]].concat());
    let in_project = json!({"owner_uuid": project});
    let (_, held) = stack.submit("held", "true", in_project).await;
    wait_for("the dispatcher to hold such jobs", STEP_TIMEOUT, || {
        stack
            .dispatcher
            .log_contains(r#"event="submissions_held""#)
            .then_some(())
    });
    let (_, free) = stack.submit("free", "true", json!({})).await;
    complete(&stack.end(&free, STEP_TIMEOUT).await);
    assert!(!stack.container(&held).await.state.is_final());
    cluster
        .lab
        .run("sacctmgr", &[&limit[..], &["MaxSubmitJobs=-1"]].concat());
    complete(&stack.end(&held, STEP_TIMEOUT).await);
    // A job that is over is found in the accounting, which has it a little later.
    let past = wait_for("the record of the job", STEP_TIMEOUT, || {
        let query = [
            "-nPX",
            "-Snow-1day",
            "--format=JobID",
            "--name",
            free.as_str(),
        ];
        let jobs = cluster.lab.run("sacct", &query);
        jobs.lines().next().map(str::to_owned)
    });
    let page = explained(&cluster, &stack, &past);
    assert_eq!(page["container"], free.as_str(), "{page}");
}
