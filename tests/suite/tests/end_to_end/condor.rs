//! dispatch-condor on a real HTCondor pool of one machine.

use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use arvados_client::records::{Container, ContainerState};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use suite_tests::STEP_TIMEOUT;
use suite_tests::condor_lab::Pool;
use suite_tests::processes::is_gone;
use suite_tests::stack::{complete, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_container_becomes_a_job_without_secrets_and_a_stopped_one_leaves_the_queue() {
    let pool = Pool::shared();
    // The job stays pending, so that the test can read its ad.
    let line = "requirements = TARGET.NoSuchThing =?= true";
    let mut stack = pool.stack(&["--submit-line", line]).await;
    let two = json!({"runtime_constraints": {"vcpus": 2, "ram": 32 << 20}});
    let (request, waiting) = stack.submit("waits", "true", two).await;
    let job = wait_for("the job", STEP_TIMEOUT, || pool.find(&waiting));
    assert_eq!(
        (&job["RequestCpus"], &job["JobStatus"]),
        (&json!(2), &json!(1)),
        "{job}"
    );
    // An admin makes an attribute undefined: it costs no listing.
    let id = format!("{}.{}", job["ClusterId"], job["ProcId"]);
    pool.lab
        .run("condor_qedit", &[&id, "VacateReason", "undefined"]);
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

    // The record says why the job is pending.
    let says = |c: &Container| {
        let activity = c.runtime_status.activity.clone().unwrap_or_default();
        activity.contains("no slot meets") && activity.contains("NoSuchThing")
    };
    stack.wait_until(&waiting, STEP_TIMEOUT, says).await;

    // A restarted dispatcher adopts the job and submits no second one.
    stack.dispatcher.kill();
    stack.dispatcher.start();
    let (_, next) = stack.submit("next", "true", json!({})).await;
    wait_for("the next job", STEP_TIMEOUT, || pool.find(&next));
    let is_of = |ad: &&Value| ad["ContainerUUID"] == waiting.as_str();
    let queue = pool.queue();
    assert_eq!(queue.iter().filter(is_of).count(), 1, "{queue:?}");
    let edited = queue.iter().find(is_of).unwrap();
    assert_eq!(edited.get("VacateReason"), Some(&Value::Null), "{edited}");
    let log = stack.dispatcher.log_text();
    assert!(!log.contains(r#"event="listing_failed""#), "{log}");
    let record = stack.container(&waiting).await;
    assert_eq!(
        (record.state, record.lock_count),
        (ContainerState::Locked, 1)
    );

    let change = json!({"priority": 0});
    let changed = stack.user.update_container_request(&request, change);
    changed.await.unwrap();
    wait_for("the job to leave", STEP_TIMEOUT, || {
        pool.find(&waiting).is_none().then_some(())
    });
}

/// With only one machine, a job that cannot run there cannot move and is returned at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_run_there_is_given_back_and_the_log_says_why() {
    let pool = Pool::shared();
    let stack = pool.stack(&["--crunch-run", "/bin/sh -c 'exit 75'"]).await;
    let (_, container) = stack.submit("cannot", "true", json!({})).await;
    stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.lock_count >= 1 && c.state == ContainerState::Queued
        })
        .await;
    wait_for("the reason in the dispatcher's log", STEP_TIMEOUT, || {
        let log = stack.dispatcher.log_text();
        log.contains("exit code 75").then_some(())
    });
    assert_eq!(pool.history(&container)[0]["NumJobStarts"], 1);
}

/// The test also prints the latencies on an idle pool.
#[tokio::test(flavor = "multi_thread")]
async fn containers_run_as_condor_jobs_and_both_their_ends_are_seen_at_once() {
    let pool = Pool::shared();
    let stack = pool.stack(&["--poll-interval", "10s"]).await;
    for n in 0..3 {
        let began = Instant::now();
        let script = format!("echo done {n} > result");
        let (_, container) = stack.submit("quick", &script, json!({})).await;
        stack
            .wait_until(&container, STEP_TIMEOUT, |c| {
                c.state != ContainerState::Queued
            })
            .await;
        let locked = began.elapsed();
        let running = |c: &Container| c.state == ContainerState::Running || c.state.is_final();
        stack.wait_until(&container, STEP_TIMEOUT, running).await;
        let started = began.elapsed();
        let record = stack.end(&container, STEP_TIMEOUT).await;
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
    // crunch-run is killed, so it cannot report the end.
    let (_, lost) = stack.submit("lost", "sleep 1000", json!({})).await;
    let running = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&lost, STEP_TIMEOUT, running).await;
    let executor = suite_tests::processes::crunch_run_of(&lost).expect("a crunch-run of it");
    rustix::process::kill_process(executor, rustix::process::Signal::KILL).unwrap();
    let began = Instant::now();
    let record = stack.end(&lost, STEP_TIMEOUT).await;
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
    // The master must not start the schedd again.
    kill_process(pool.master(), Signal::STOP).unwrap();
    // The address file is removed as well, as when the whole pool was stopped.
    let schedd = pool.daemon("condor_schedd");
    kill_process(schedd, Signal::TERM).unwrap();
    wait_for("it to be gone", STEP_TIMEOUT, || {
        is_gone(schedd).then_some(())
    });
    let mut stack = pool.stack(&[]).await;
    let (_, container) = stack.submit("early", "true", json!({})).await;
    let log = stack.dir.path().join("dispatcher.log");
    wait_for(
        "the dispatcher to say what it waits for",
        STEP_TIMEOUT,
        || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            log.contains("HTCondor does not answer yet").then_some(())
        },
    );
    assert!(stack.dispatcher.has_ended().is_none());
    assert_eq!(stack.container(&container).await.lock_count, 0);
    kill_process(pool.master(), Signal::CONT).unwrap();
    let record = stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 1);
}
