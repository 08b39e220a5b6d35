//! Removing the files of a large job while other jobs wait to start.

use std::fs;
use std::path::{Path, PathBuf};

use arvados_client::records::ContainerState;
use rustix::process::{Signal, kill_process};
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::fail_point_dir::FailPointDir;
use suite_tests::stack::{Stack, wait_for};

/// The trashes in a directory.
fn trashes(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().contains("trash"))
        .map(|entry| entry.path())
        .collect()
}

/// The removal stands still: no job waits for it, and it goes on after a restart.
#[tokio::test]
async fn no_start_waits_for_the_removal_of_files() {
    let mut stack = Stack::up().await;
    let points = FailPointDir::of(&stack.points_dir());
    let scratch = stack.dispatcher_state_dir().join("scratch");
    points.block_at("trash.removing");
    let mounts = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/many": {"kind": "tmp", "capacity": 1 << 20},
    }});
    let files = "cd /many && touch $(seq 2000)";
    let (_, ended) = stack.submit("ended", files, mounts.clone()).await;
    let record = stack.end(&ended, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Complete);
    assert_eq!(record.exit_code, Some(0));
    let script = format!("{files} && sleep 600");
    let (_, killed) = stack.submit("killed", &script, mounts).await;
    let there = |c: &arvados_client::records::Container| c.state == ContainerState::Running;
    stack.wait_until(&killed, STEP_TIMEOUT, there).await;
    kill_process(stack.executor(&killed), Signal::KILL).unwrap();
    let record = stack.end(&killed, STEP_TIMEOUT).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    // The next ones start and end while nothing is removed.
    for name in ["next", "after"] {
        let (_, next) = stack.submit(name, "true", json!({})).await;
        let record = stack.end(&next, STEP_TIMEOUT).await;
        assert_eq!(record.state, ContainerState::Complete);
    }
    // What killed runs left in their scratch directories, any run of this machine may remove.
    wait_for("the directories of both jobs", STEP_TIMEOUT, || {
        let all = trashes(&stack.dispatcher_state_dir());
        let count = all.iter().map(|dir| fs::read_dir(dir).unwrap().count());
        (count.sum::<usize>() >= 2).then_some(())
    });
    assert!(!stack.dispatcher.log_contains("delivering the results"));
    stack.dispatcher.kill();
    points.unblock("trash.removing");
    stack.dispatcher.start();
    wait_for("an empty trash", STEP_TIMEOUT, || {
        let state_dir = stack.dispatcher_state_dir();
        (trashes(&scratch).is_empty() && trashes(&state_dir).is_empty()).then_some(())
    });
}
