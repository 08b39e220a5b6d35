//! dispatch-condor on a real HTCondor pool of one machine.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use arvados_client::records::{Container, ContainerState};
use rustix::process::{Signal, kill_process};
use serde_json::json;

use crate::condor_lab::{PATIENCE, Pool};
use crate::processes::is_gone;
use crate::stack::{complete, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_container_becomes_a_job_without_secrets_and_a_stopped_one_leaves_the_queue() {
    let pool = Pool::up(&["--slots", "2"]);
    // It waits, so that there is time to look at it.
    let line = "requirements = TARGET.NoSuchThing =?= true";
    let mut stack = pool.stack(&["--submit-line", line]).await;
    let two = json!({"runtime_constraints": {"vcpus": 2, "ram": 32 << 20}});
    let (request, waiting) = stack.submit("waits", "true", two).await;
    let job = wait_for("the job", PATIENCE, || pool.find(&waiting));
    assert_eq!(
        (&job["RequestCpus"], &job["JobStatus"]),
        (&json!(2), &json!(1)),
        "{job}"
    );
    let attempt = stack.container(&waiting).await.locked_by_uuid.unwrap();
    let token = stack
        .dir
        .path()
        .join("jobs")
        .join(waiting.as_str())
        .join(format!("token-{attempt}"));
    let secret = std::fs::read_to_string(&token).unwrap();
    let secret = secret.trim().rsplit('/').next().unwrap();
    assert!(
        !job.to_string().contains(secret),
        "the token is in the job ad"
    );
    let mode = std::fs::metadata(&token).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // Its record says what it waits for.
    let says = |c: &Container| {
        let activity = c.runtime_status.activity.clone().unwrap_or_default();
        activity.contains("waits for room") && activity.contains("no match found")
    };
    stack.wait_until(&waiting, PATIENCE, says).await;

    // A dispatcher that starts anew takes the job for its own and makes no second one.
    stack.dispatcher.kill();
    stack.dispatcher.start();
    let (_, next) = stack.submit("next", "true", json!({})).await;
    wait_for("the next job", PATIENCE, || pool.find(&next));
    assert_eq!(pool.queue().len(), 2, "{:?}", pool.queue());
    let record = stack.container(&waiting).await;
    assert_eq!(
        (record.state, record.lock_count),
        (ContainerState::Locked, 1)
    );

    let change = json!({"priority": 0});
    let changed = stack.user.update_container_request(&request, change);
    changed.await.unwrap();
    wait_for("the job to leave", PATIENCE, || {
        pool.find(&waiting).is_none().then_some(())
    });
}

/// On one machine nothing can move: what cannot run there is given back at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_run_there_is_given_back_and_the_log_says_why() {
    let pool = Pool::up(&["--slots", "2"]);
    let stack = pool.stack(&["--crunch-run", "/bin/sh -c 'exit 75'"]).await;
    let (_, container) = stack.submit("cannot", "true", json!({})).await;
    stack
        .wait_until(&container, PATIENCE, |c| {
            c.lock_count >= 1 && c.state == ContainerState::Queued
        })
        .await;
    wait_for("the reason in the dispatcher's log", PATIENCE, || {
        let said = stack.dispatcher.said();
        said.contains("ended with exit code 75: crunch-run could not start")
            .then_some(())
    });
    assert_eq!(pool.history(&container)[0]["NumJobStarts"], 1);
}

/// And how long things take on a pool that does nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn containers_run_as_condor_jobs_and_both_their_ends_are_seen_at_once() {
    let pool = Pool::up(&["--slots", "4"]);
    let stack = pool.stack(&["--poll-interval", "10s"]).await;
    for n in 0..3 {
        let began = Instant::now();
        let script = format!("echo done {n} > result");
        let (_, container) = stack.submit("quick", &script, json!({})).await;
        stack
            .wait_until(&container, PATIENCE, |c| c.state != ContainerState::Queued)
            .await;
        let locked = began.elapsed();
        let running = |c: &Container| c.state == ContainerState::Running || c.state.is_final();
        stack.wait_until(&container, PATIENCE, running).await;
        let started = began.elapsed();
        let record = stack.end(&container, PATIENCE).await;
        println!(
            "submitted to locked {:.2} s, to Running {:.2} s, to final {:.2} s",
            locked.as_secs_f32(),
            started.as_secs_f32(),
            began.elapsed().as_secs_f32()
        );
        let output = complete(&record).output.clone().unwrap().to_string();
        assert_eq!(stack.read(&output, "result").await, format!("done {n}\n"));
        assert_eq!(record.lock_count, 1);
    }
    // An end that crunch-run does not tell.
    let (_, lost) = stack.submit("lost", "sleep 1000", json!({})).await;
    let running = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&lost, PATIENCE, running).await;
    let executor = crate::processes::crunch_run_of(&lost).expect("a crunch-run of it");
    rustix::process::kill_process(executor, rustix::process::Signal::KILL).unwrap();
    let began = Instant::now();
    let record = stack.end(&lost, PATIENCE).await;
    println!(
        "crunch-run killed to final {:.2} s",
        began.elapsed().as_secs_f32()
    );
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("killed by signal 9"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedd_that_is_down_at_the_start_is_waited_for() {
    let pool = Pool::up(&["--slots", "1"]);
    // Nobody starts it again.
    kill_process(pool.master(), Signal::STOP).unwrap();
    // It takes its address along, as when the whole pool was ended.
    let schedd = pool.daemon("condor_schedd");
    kill_process(schedd, Signal::TERM).unwrap();
    wait_for("it to be gone", PATIENCE, || is_gone(schedd).then_some(()));
    let mut stack = pool.stack(&[]).await;
    let (_, container) = stack.submit("early", "true", json!({})).await;
    let log = stack.dir.path().join("dispatcher.log");
    wait_for("the dispatcher to say what it waits for", PATIENCE, || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.contains("it is waited for").then_some(())
    });
    assert!(stack.dispatcher.has_ended().is_none());
    assert_eq!(stack.container(&container).await.lock_count, 0);
    kill_process(pool.master(), Signal::CONT).unwrap();
    let record = stack.end(&container, PATIENCE).await;
    assert_eq!(complete(&record).lock_count, 1);
}
