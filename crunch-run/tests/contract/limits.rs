//! What a command may use, and how it is stopped.

use rustix::process::Signal;
use serde_json::json;

use crate::lab::Lab;
use crate::run_lab::{file, signal};

pub async fn the_memory_limit_kills_and_is_named(lab: &Lab) {
    let more = json!({"runtime_constraints": {"vcpus": 1, "ram": 24 << 20}});
    let ended = lab.sh_with("exec tail /dev/zero", more).await;
    assert_eq!(ended.code(), 137);
    assert!(
        ended.error().starts_with("killed by its memory limit"),
        "{}",
        ended.error()
    );
}

pub async fn exit_0_after_a_child_was_killed_for_memory_is_a_warning(lab: &Lab) {
    let more = json!({"runtime_constraints": {"vcpus": 1, "ram": 24 << 20}});
    let ended = lab.sh_with("tail /dev/zero; exit 0", more).await;
    assert_eq!(ended.code(), 0);
    let warning = ended.record.runtime_status.warning.unwrap_or_default();
    assert!(warning.contains("memory"), "{warning}");
}

pub async fn term_is_heard_within_the_grace(lab: &Lab) {
    let script = "trap 'echo stopping; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let (job, child) = lab.start(&["sh", "-c", script], json!({}), &[]).await;
    lab.world.until_said(&job, "ready").await;
    signal(&child, Signal::TERM);
    let ended = lab.end(job, child).await;
    // Its trap ran.
    assert!(file(&ended.log, "stdout.txt").contains("stopping"));
    assert_eq!(ended.story().last(), Some(&"Cancelled"));
}

pub async fn who_ignores_term_is_killed(lab: &Lab) {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let (job, child) = lab
        .start(&["sh", "-c", script], json!({}), &["--grace=1s"])
        .await;
    lab.world.until_said(&job, "ready").await;
    signal(&child, Signal::TERM);
    let ended = lab.end(job, child).await;
    assert_eq!(ended.story().last(), Some(&"Cancelled"));
}

pub async fn max_run_time_ends_it(lab: &Lab) {
    let more = json!({"scheduling_parameters": {"max_run_time": 1}});
    let (job, child) = lab.start(&["sleep", "1000"], more, &["--grace=1s"]).await;
    let ended = lab.end(job, child).await;
    assert_eq!(ended.story().last(), Some(&"Cancelled"));
}

pub async fn what_it_leaves_in_the_background_ends_with_it(lab: &Lab) {
    let ended = lab.sh("sleep 1000 & (sleep 1000 &) ; echo done").await;
    assert_eq!(ended.stdout(), ["done"]);
}
