//! Containers that take all they can get of processes, disk and files, beside containers that do
//! ordinary work.

use std::path::Path;

use arvados_client::records::{Container, ContainerState};
use serde_json::{Value, json};

use suite_tests::STEP_TIMEOUT;
use suite_tests::stack::{Stack, complete, wait_for};

/// Containers that do ordinary work during each storm.
const NEIGHBOURS: usize = 10;

fn is_below(dir: &Path, name: &str) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        // What the storm removes meanwhile is none.
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        entry.file_name() == name || (is_dir && is_below(&entry.path(), name))
    })
}

/// Runs containers beside one that runs `storm`, and compares what they wrote. The storm makes the
/// file `/out/NAME` when it has all that it can get.
async fn none_is_hurt(stack: &Stack, name: &str, storm: &str, more: Value) {
    let (request, storm) = stack.submit(name, storm, more).await;
    let scratch = stack.dispatcher_state_dir().join("scratch");
    wait_for(name, STEP_TIMEOUT, || {
        is_below(&scratch, name).then_some(())
    });
    let work = "seq 40000 >/out/numbers; md5sum </out/numbers";
    let mut neighbours = Vec::new();
    for _ in 0..NEIGHBOURS {
        neighbours.push(stack.submit("neighbour", work, json!({})).await.1);
    }
    let numbers: String = (1..=40_000).map(|n| format!("{n}\n")).collect();
    for neighbour in &neighbours {
        let record = stack.end(neighbour, STEP_TIMEOUT).await;
        complete(&record);
        assert_eq!(record.lock_count, 1, "{name}: {record:?}");
        let status = &record.runtime_status;
        assert_eq!((&status.error, &status.warning), (&None, &None), "{name}");
        let output = record.output.unwrap();
        let written = stack.read(output.as_str(), "numbers").await;
        assert!(
            written == numbers,
            "{name}: {neighbour} wrote something else"
        );
    }
    let record = stack.container(&storm).await;
    assert_eq!(record.state, ContainerState::Running, "{name}: {record:?}");
    let stop = json!({"priority": 0});
    let stopped = stack.user.update_container_request(&request, stop).await;
    stopped.unwrap();
    let record: Container = stack.end(&storm, STEP_TIMEOUT).await;
    assert_eq!(
        record.state,
        ContainerState::Cancelled,
        "{name}: {record:?}"
    );
}

#[tokio::test]
async fn twenty_containers_beside_storms_are_not_hurt() {
    let stack = Stack::up().await;
    let processes = "trap exit TERM; (while :; do sleep 1000 & done) 2>/dev/null
        : >/out/processes; while :; do :; done";
    let room = json!({"runtime_constraints": {"vcpus": 1, "ram": 1_u64 << 30}});
    none_is_hurt(&stack, "processes", processes, room).await;

    let disk = "trap exit TERM; cd /storm
        (while :; do dd if=/dev/zero of=fill bs=1M count=400; : >/out/disk; rm fill; done) 2>/dev/null &
        while :; do mkdir many; cd many; touch $(seq 3000); cd ..; rm -r many; done";
    let room = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/storm": {"kind": "tmp", "capacity": 512 << 20},
    }});
    none_is_hurt(&stack, "disk", disk, room).await;
}
