//! The server's file storage takes no data for a while: nothing is started, and no lock is spent.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use arvados_client::records::{Container, ContainerState};
use serde_json::json;

use suite_tests::STEP_TIMEOUT;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, complete, wait_for};

use suite_tests::small_disk::SmallDisk;

/// More than start before the fault is known.
const CONTAINERS: usize = 24;

/// A full disk for the blocks that the server of `state` receives. What is stored can be read.
struct FullStorage<'a> {
    state: &'a Path,
    disk: SmallDisk,
}

impl<'a> FullStorage<'a> {
    fn begin(state: &'a Path) -> Self {
        let incoming = state.join("blocks/incoming");
        fs::rename(&incoming, state.join("incoming")).unwrap();
        let disk = SmallDisk::mount(incoming.clone(), 1);
        let mut fill = File::create(incoming.join("fill")).unwrap();
        while fill.write_all(&[1; 1 << 12]).is_ok() {}
        Self { state, disk }
    }

    fn end(self) {
        let Self { state, disk } = self;
        drop(disk);
        let incoming = state.join("blocks/incoming");
        fs::remove_dir(&incoming).unwrap();
        fs::rename(state.join("incoming"), incoming).unwrap();
    }
}

/// Containers wait without locks while nothing can be stored, their users are told, and all of them
/// run afterwards. At most `at_once` attempts are under way when the fault is found.
async fn starts_wait_for_the_storage(stack: &Stack, at_once: i64) {
    let (_, first) = stack.submit("first", "true", json!({})).await;
    complete(&stack.end(&first, STEP_TIMEOUT).await);
    let (request, running) = stack.submit("running", "sleep 3", json!({})).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    stack.wait_until(&running, STEP_TIMEOUT, runs).await;
    let state = stack.dir.path().join("state");
    let storage = FullStorage::begin(&state);
    let mut all = Vec::new();
    for n in 0..CONTAINERS {
        all.push(stack.submit(&n.to_string(), "true", json!({})).await);
    }
    let dispatcher = &stack.dispatcher;
    wait_for("the fault", STEP_TIMEOUT, || {
        dispatcher
            .log_contains(r#"event="file_storage_failed""#)
            .then_some(())
    });
    // Three looks of the dispatcher.
    wait_for("three trials", STEP_TIMEOUT, || {
        let log = dispatcher.log_text();
        let trials = log.matches("a trial failed part=FileStorage").count();
        (trials >= 3).then_some(())
    });
    let (_, last) = all.last().unwrap();
    assert_eq!(stack.container(last).await.state, ContainerState::Queued);
    // The users of those that would be next are told.
    let is_told = |request| stack.explained(request).contains("takes no data");
    assert!(all.iter().any(|(request, _)| is_told(request)));
    // The command of this one has ended.
    wait_for("its user to be told", STEP_TIMEOUT, || {
        let text = stack.explained(&request);
        text.contains("saving results").then_some(())
    });
    storage.end();
    let record = stack.end(&running, STEP_TIMEOUT).await;
    assert_eq!(complete(&record).lock_count, 1);
    let mut locks = 0;
    for (_, container) in &all {
        let record = stack.end(container, STEP_TIMEOUT).await;
        locks += i64::from(complete(&record).lock_count);
    }
    let spent = locks - CONTAINERS as i64;
    assert!((1..=at_once).contains(&spent), "{spent} locks were spent");
    assert!(dispatcher.log_contains(r#"event="file_storage_mended""#));
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_wait_for_the_storage_on_one_machine() {
    let stack = Stack::with(|servers, dir| {
        let state = dir.join("run");
        let flags = ["--state-dir", state.to_str().unwrap(), "--cpus", "2"];
        servers.dispatcher("dispatch-local", &flags, &[])
    })
    .await;
    starts_wait_for_the_storage(&stack, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_wait_for_the_storage_on_slurm() {
    let cluster = Cluster::up(&["-n", "1", "-c", "2", "-m", "4000"]);
    let stack = cluster.stack(&["--max-pending", "4"]).await;
    // Those that run, and those that wait in Slurm already.
    starts_wait_for_the_storage(&stack, 8).await;
}
