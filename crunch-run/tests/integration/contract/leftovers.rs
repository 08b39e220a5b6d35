//! What `kill -9` of crunch-run leaves on the node, and what removes it.

use std::fs;
use std::time::{Duration, Instant};

use arvados_client::records::ContainerState;
use rustix::process::Signal;
use serde_json::json;
use tokio::process::Child;

use crate::contract::lab::Lab;
use crate::contract::nobody;
use crate::run_lab::{Job, finish, signal};

/// A container that runs until it is told to end; cleaning must not touch it.
async fn start_other(lab: &Lab) -> (Job, Child) {
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let (job, child) = lab.start(&["sh", "-c", script], json!({}), &[]).await;
    lab.world.until_logged(&job, "ready").await;
    (job, child)
}

/// Ends the bystander, and checks that it ran until now.
async fn assert_ran_and_end(lab: &Lab, (job, child): (Job, Child)) {
    assert_eq!(lab.world.record(&job).await.state, ContainerState::Running);
    assert!(!lab.engine.left_overs(&job.uuid).await.is_empty());
    signal(&child, Signal::TERM);
    let ended = lab.end(job, child).await;
    assert!(ended.error().contains("TERM"), "{}", ended.error());
}

pub async fn what_a_killed_attempt_made_is_removed_by_the_next(lab: &Lab) {
    if !fail_points::ENABLED {
        panic!("this test needs --features fail-points/enabled");
    }
    let other = start_other(lab).await;
    // A run of another test may remove the leftovers before the next attempt does.
    let mut is_logged = false;
    for _ in 0..30 {
        let story = killed_and_run_again(lab).await;
        is_logged = story.contains("left by an earlier attempt");
        if is_logged || !lab.engine.is_a_service() {
            break;
        }
    }
    assert!(
        is_logged || !lab.engine.is_a_service(),
        "nothing was ever left, or nobody told of it"
    );
    assert_ran_and_end(lab, other).await;
}

/// The first attempt is killed when its container is created; the second runs it. Returns the
/// second one's output.
async fn killed_and_run_again(lab: &Lab) -> String {
    let job = killed(lab).await;
    let uuid = job.uuid.clone();
    let child = lab.start_job(&job, &[]);
    let ended = lab.end(job, child).await;
    assert_eq!(ended.stdout(), ["well"]);
    let left = lab.engine.left_overs(&uuid).await;
    assert!(left.is_empty(), "{left:?} is left");
    ended.story().join("\n")
}

/// A job whose attempt was killed when its container was created.
async fn killed(lab: &Lab) -> Job {
    let job = lab.world.lock(&["echo", "well"], json!({})).await;
    let points = tempfile::tempdir().unwrap();
    fs::write(points.path().join("run.created"), "1").unwrap();
    if lab.engine.is_nobodys() {
        nobody::give(points.path());
        nobody::give(&points.path().join("run.created"));
    }
    let mut program = lab.program(&job, &[]);
    program.env(fail_points::VARIABLE, points.path());
    let killed = program.spawn().unwrap().wait_with_output().await.unwrap();
    assert_eq!(killed.status.code(), None, "{killed:?}");
    assert_eq!(lab.world.record(&job).await.state, ContainerState::Locked);
    job
}

/// Runs that start at the same moment find the same leftovers: one removes them, and none fails.
pub async fn what_killed_attempts_made_is_removed_by_several_at_once(lab: &Lab) {
    let (first, second) = (killed(lab).await, killed(lab).await);
    let again = |job: Job| async {
        let child = lab.start_job(&job, &[]);
        let ended = lab.end(job, child).await;
        assert_eq!(ended.stdout(), ["well"]);
    };
    let beside = async {
        lab.run(&["true"], json!({})).await.code();
    };
    tokio::join!(again(first), again(second), beside);
}

/// The files may belong to another user of the node.
pub async fn files_of_a_killed_attempt_are_removed_by_the_next(lab: &Lab) {
    let script = "umask 022; mkdir -p /out/a/b && echo x >/out/a/b/c; echo ready; sleep 1000";
    let (job, mut child) = lab.start(&["sh", "-c", script], json!({}), &[]).await;
    lab.world.until_logged(&job, "ready").await;
    signal(&child, Signal::KILL);
    child.wait().await.unwrap();
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    while job.dir.join("scratch").exists() {
        assert!(Instant::now() < deadline, "its files are left");
        lab.run(&["true"], json!({})).await.code();
    }
}

pub async fn the_command_of_a_killed_attempt_does_not_outlive_the_next(lab: &Lab) {
    let other = start_other(lab).await;
    let (job, mut child) = start_other(lab).await;
    signal(&child, Signal::KILL);
    child.wait().await.unwrap();
    // The next run of any container removes them, because this container may never run here again.
    lab.run(&["true"], json!({})).await.code();
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    loop {
        let left = lab.engine.left_overs(&job.uuid).await;
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{left:?} is left");
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Podman lists no containers while another one is just ending, and a run does not wait long
        // for that.
        if lab.engine.is_a_service() {
            lab.run(&["true"], json!({})).await.code();
        }
    }
    assert_ran_and_end(lab, other).await;
    // This attempt must not change the record.
    let again = finish(lab.start_job(&job, &[])).await;
    assert_eq!(again.code, 76, "{}", again.output);
}
