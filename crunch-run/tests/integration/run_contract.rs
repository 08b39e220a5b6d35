//! The contract with dispatchers: exit codes, the lock's holder, starting in the background,
//! outages.

use std::fs;
use std::time::{Duration, Instant};

use crate::run_lab::{World, can_run, file, finish, go_on, left_overs, lines, signal, write_token};
use arvados_client::records::ContainerState;
use rustix::process::Signal;
use serde_json::{Value, json};

async fn soon<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "not {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn who_does_not_hold_the_lock_runs_nothing() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    let (_, other) = world.mint(&job.uuid).await;
    write_token(&job.dir, &other);
    let finished = world.run(&job, &[]).await;
    assert_eq!(finished.code, 76, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Locked);
    assert_eq!(record.log, None);

    // An attempt whose token was revoked after it lost the lock.
    write_token(&job.dir, &job.token);
    world
        .dispatch
        .with_token(job.token.clone())
        .unlock_container(&job.uuid)
        .await
        .unwrap();
    let finished = world.run(&job, &["--delivery-timeout=4s"]).await;
    assert_eq!(finished.code, 76, "{}", finished.output);
    assert_eq!(world.record(&job).await.state, ContainerState::Queued);
}

/// With one token for all attempts, the lock's owner proves nothing.
#[tokio::test]
async fn who_comes_second_with_the_same_token_runs_nothing() {
    if !fail_points::ENABLED {
        suite_tests::skip("this test needs the feature fail-points/enabled");
        return;
    }
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["echo", "twice"], json!({})).await;
    let points = world.dir().join("points");
    fs::create_dir(&points).unwrap();
    let hold = points.join("run.before-running.hold");
    fs::write(&hold, "").unwrap();
    let mut program = world.program(&job, &[]);
    let second = program.env(fail_points::VARIABLE, &points).spawn().unwrap();
    soon("it is about to run", || {
        let passed = fs::read_to_string(points.join("passed")).ok()?;
        passed.contains("run.before-running").then_some(())
    })
    .await;
    let log = "d41d8cd98f00b204e9800998ecf8427e+0";
    world
        .dispatch
        .with_token(job.token.clone())
        .update_container(&job.uuid, json!({"state": "Running", "log": log}))
        .await
        .unwrap();
    fs::remove_file(hold).unwrap();
    let finished = finish(second).await;
    assert_eq!(finished.code, 76, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Running);
    assert_eq!(record.log.unwrap().to_string(), log);
    assert!(left_overs(&job.uuid).is_empty());
}

#[tokio::test]
async fn a_record_that_is_taken_away_stops_the_command() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["sleep", "1000"], json!({})).await;
    let child = world.start(&job, &["--delivery-timeout=4s"]);
    world.until_running(&job).await;
    // What a dispatcher does when it believes that the job is gone.
    world
        .dispatch
        .update_container(&job.uuid, json!({"state": "Cancelled"}))
        .await
        .unwrap();
    let finished = finish(child).await;
    assert_eq!(finished.code, 76, "{}", finished.output);
    assert!(left_overs(&job.uuid).is_empty());
}

#[tokio::test]
async fn a_worker_in_the_background_keeps_the_contract() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world
        .lock(&["sh", "-c", "echo ready; sleep 1000 & wait"], json!({}))
        .await;
    fs::write(job.dir.join("job.json"), "{}").unwrap();
    fs::write(job.dir.join("exit"), "{\"code\":75}").unwrap();
    let started = world.run(&job, &["--detach"]).await;
    assert_eq!(started.code, 0, "{}", started.output);
    let reply: Value = serde_json::from_str(started.output.trim()).unwrap();
    assert_eq!(reply["UUID"], job.uuid.as_str());
    let note: Value =
        serde_json::from_str(&fs::read_to_string(job.dir.join("lock")).unwrap()).unwrap();
    assert_eq!(note["uuid"], job.uuid.as_str());
    assert_eq!(note["attempt"], job.attempt.as_str());
    assert_eq!(note["pid"], reply["PID"]);
    assert_eq!(note["boot_id"].as_str().unwrap().len(), 36);
    let pid = note["pid"].as_u64().unwrap();
    let stat = procfs::process::Process::new(pid as i32)
        .unwrap()
        .stat()
        .unwrap();
    assert_eq!(note["start_time"], stat.starttime);
    assert_eq!(stat.session, pid as i32, "it has a session of its own");
    assert!(!job.dir.join("exit").exists(), "the old end is forgotten");

    world.until_running(&job).await;
    world.until_logged(&job, "ready").await;
    let second = world.run(&job, &["--detach"]).await;
    assert_eq!(second.code, 76, "{}", second.output);
    assert!(second.output.contains("another crunch-run is running in"));

    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let exit = soon("the exit file is there", || {
        fs::read_to_string(job.dir.join("exit")).ok()
    })
    .await;
    assert_eq!(exit, "{\"code\":0}");
    assert_eq!(world.record(&job).await.state, ContainerState::Cancelled);
    soon("the lock is free", || {
        let lock = fs::File::open(job.dir.join("lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()
    })
    .await;
    // The worker empties the trash without the lock, so that nobody waits for it.
    soon("only what a dispatcher reads is left", || {
        let mut left: Vec<String> = fs::read_dir(&job.dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        (left == ["exit", "job.json", "lock", "output.log"]).then_some(())
    })
    .await;
    let output = fs::read_to_string(job.dir.join("output.log")).unwrap();
    assert!(output.contains("caught signal: TERM"), "{output}");
}

#[tokio::test]
async fn a_second_run_in_the_same_directory_leaves_the_first_alone() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock_held("echo ready", "echo data >/out/file").await;
    let first = world.start(&job, &[]);
    world.until_logged(&job, "ready").await;
    let second = world.run(&job, &[]).await;
    assert_eq!(second.code, 76, "{}", second.output);
    assert!(job.dir.join("log/stdout.txt").exists());
    go_on(&job);
    let first = finish(first).await;
    assert_eq!(first.code, 0, "{}", first.output);
    assert_eq!(world.output(&job).await.len(), 1);
}

#[tokio::test]
async fn a_killed_worker_leaves_neither_container_nor_exit_file_and_the_next_attempt_cleans_up() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world
        .lock(&["sh", "-c", "echo ready; sleep 1000"], json!({}))
        .await;
    let started = world.run(&job, &["--detach"]).await;
    let reply: Value = serde_json::from_str(started.output.trim()).unwrap();
    world.until_logged(&job, "ready").await;
    let pid = rustix::process::Pid::from_raw(reply["PID"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    soon("the container is gone", || {
        left_overs(&job.uuid).is_empty().then_some(())
    })
    .await;
    assert!(!job.dir.join("exit").exists());
    assert_eq!(world.record(&job).await.state, ContainerState::Running);
    // The record is not Locked any more, so the same attempt cannot begin again.
    let again = world.run(&job, &[]).await;
    assert_eq!(again.code, 76, "{}", again.output);
}

#[tokio::test]
async fn a_request_to_stop_before_the_command_runs_leaves_the_record_locked() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    world.stop_server().await;
    let child = world.start(&job, &[]);
    // Signals are handled before the log exists.
    soon("it is at work", || {
        job.dir.join("log/crunch-run.txt").exists().then_some(())
    })
    .await;
    signal(&child, Signal::TERM);
    let finished = finish(child).await;
    assert_eq!(finished.code, 75, "{}", finished.output);
    assert!(
        finished.output.contains("caught signal TERM before"),
        "{}",
        finished.output
    );
    world.start_server().await;
    assert_eq!(world.record(&job).await.state, ContainerState::Locked);
}

#[tokio::test]
async fn results_survive_an_outage_of_the_server() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = world.lock_held("echo ready", "echo data >/out/file").await;
    let child = world.start(&job, &["--delivery-timeout=60s"]);
    world.until_logged(&job, "ready").await;
    world.stop_server().await;
    go_on(&job);
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.start_server().await;
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Complete);
    assert_eq!(world.output(&job).await.len(), 1);
}

#[tokio::test]
async fn results_that_cannot_be_delivered_stay_on_the_node() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = world.lock_held("echo ready", "echo data >/out/file").await;
    let child = world.start(&job, &["--delivery-timeout=2s"]);
    world.until_logged(&job, "ready").await;
    world.stop_server().await;
    go_on(&job);
    let finished = finish(child).await;
    assert_eq!(finished.code, 77, "{}", finished.output);
    assert!(
        finished
            .output
            .contains("The results are not delivered and stay in")
    );
    // The token is kept, so that the results can be delivered later.
    assert!(job.dir.join("token").exists());
    let stdout = fs::read_to_string(job.dir.join("log/stdout.txt")).unwrap();
    assert_eq!(lines(&stdout), ["ready"]);
    assert!(job.dir.join("scratch").is_dir());
}

#[tokio::test]
async fn the_log_is_saved_while_the_command_runs_when_asked() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world
        .lock(&["sh", "-c", "echo ready; sleep 1000 & wait"], json!({}))
        .await;
    let child = world.start(&job, &[]);
    world.until_logged(&job, "ready").await;
    let first = world.record(&job).await.log;
    assert!(first.is_some(), "the record has a log from Running on");
    // Upstream's liveness signal, and a closed terminal.
    signal(&child, Signal::USR2);
    signal(&child, Signal::HUP);
    signal(&child, Signal::USR1);
    world.until(&job, "saved again", |c| c.log != first).await;
    let log = world.log(&job).await;
    assert_eq!(lines(file(&log, "stdout.txt")), ["ready"]);
    signal(&child, Signal::TERM);
    assert_eq!(finish(child).await.code, 0);
}

#[tokio::test]
async fn in_the_foreground_the_environment_is_enough() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    let parent = tempfile::tempdir().unwrap();
    let ready = world.program(&job, &[]);
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_crunch-run"));
    program.env_clear();
    for (name, value) in ready.as_std().get_envs() {
        program.env(name, value.unwrap());
    }
    let finished = program
        .arg("-runtime-engine=auto")
        .arg("-cgroup-parent-subsystem=memory")
        .arg("--cache-dir")
        .arg(parent.path().join("cache"))
        .arg(job.uuid.as_str())
        .env("ARVADOS_API_TOKEN", job.token.expose())
        .env("TMPDIR", parent.path())
        .output()
        .await
        .unwrap();
    let stderr = String::from_utf8_lossy(&finished.stderr);
    assert_eq!(finished.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("flag --cgroup-parent-subsystem is obsolete"),
        "{stderr}"
    );
    assert_eq!(world.record(&job).await.state, ContainerState::Complete);
    let left: Vec<_> = fs::read_dir(parent.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "only the cache is left: {left:?}");
}

/// Some dispatchers pass variables along that they do not have themselves.
#[tokio::test]
async fn variables_that_are_set_but_empty_count_as_unset() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    let ready = world.program(&job, &[]);
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_crunch-run"));
    program.env_clear();
    for (name, value) in ready.as_std().get_envs() {
        program.env(name, value.unwrap());
    }
    for name in [
        "TMPDIR",
        "XDG_RUNTIME_DIR",
        "XDG_CACHE_HOME",
        "HOME",
        "ARVADOS_KEEP_SERVICES",
        "InstanceType",
        "_CONDOR_SCRATCH_DIR",
    ] {
        program.env(name, "");
    }
    let cache = tempfile::tempdir().unwrap();
    let finished = program
        .arg("--cache-dir")
        .arg(cache.path())
        .arg(job.uuid.as_str())
        .env("ARVADOS_API_TOKEN", job.token.expose())
        .output()
        .await
        .unwrap();
    let stderr = String::from_utf8_lossy(&finished.stderr);
    assert_eq!(finished.status.code(), Some(0), "{stderr}");
    assert_eq!(world.record(&job).await.state, ContainerState::Complete);
}

#[tokio::test]
async fn a_wrong_start_is_a_configuration_error() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    fs::remove_file(job.dir.join("token")).unwrap();
    let finished = world.run(&job, &[]).await;
    assert_eq!(finished.code, 78, "{}", finished.output);
    assert!(finished.output.contains("token"), "{}", finished.output);
    let finished = world.run(&job, &["--no-such-flag"]).await;
    assert_eq!(finished.code, 78, "{}", finished.output);
}
