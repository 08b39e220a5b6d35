//! The dispatcher's snapshot of a server that returns shorter pages than asked for.

use arvados_client::ContainerUuid;
use dispatch_core::model::snapshot::{QueueRead, SnapshotRequest};
use dispatch_core::observe::api_snapshot::fetch_snapshot;
use dispatch_core::observe::owners::OwnerNames;
use serde_json::json;

use crate::fixture::Fixture;

/// Size of a text mount that fills a page by itself: dispatch-api ends a page after 8 MiB.
const LARGE_TEXT_BYTES: usize = (8 << 20) + 1;

#[tokio::test]
async fn a_page_that_was_cut_deletes_nothing() {
    let fixture = Fixture::new().await;
    let mut followed: Vec<ContainerUuid> = Vec::new();
    // Whichever end a page begins at, it ends with the large one, and one is left.
    for (name, bytes) in [("a", 1), ("b", LARGE_TEXT_BYTES), ("c", 1)] {
        let content = json!({"kind": "text", "content": name.repeat(bytes)});
        let made = fixture
            .user
            .create_container_request(json!({
                "name": name, "state": "Committed", "priority": 1, "use_existing": false,
                "command": ["true"], "container_image": fixture.image, "output_path": "/out", "cwd": ".",
                "mounts": {"/out": {"kind": "tmp", "capacity": 1}, "/in": content},
                "runtime_constraints": {"vcpus": 1, "ram": 1 << 20},
            }))
            .await
            .unwrap();
        followed.push(made.container_uuid.unwrap());
    }
    let gone = ContainerUuid::generate("local");
    let interest = SnapshotRequest {
        named: followed.iter().cloned().chain([gone.clone()]).collect(),
        since: None,
        queue: QueueRead::Head,
        ..SnapshotRequest::default()
    };
    let seen = fetch_snapshot(&fixture.dispatch, &OwnerNames::default(), &interest)
        .await
        .unwrap();
    assert!(
        followed
            .iter()
            .all(|uuid| seen.containers.contains_key(uuid))
    );
    assert_eq!(seen.missing, [gone].into());
}

/// Of many containers that no page has, a few are read by themselves with each poll. A token that
/// may not read them is asked for none.
#[tokio::test]
async fn many_that_are_missing_cost_few_reads() {
    let fixture = Fixture::new().await;
    let interest = SnapshotRequest {
        named: (0..200).map(|_| ContainerUuid::generate("local")).collect(),
        queue: QueueRead::Head,
        ..SnapshotRequest::default()
    };
    for (client, missing) in [(&fixture.dispatch, 50), (&fixture.user, 0)] {
        let seen = fetch_snapshot(client, &OwnerNames::default(), &interest).await;
        assert_eq!(seen.unwrap().missing.len(), missing);
    }
}
