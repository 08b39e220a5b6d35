//! The dispatcher's look at a server that cuts its pages.

use arvados_client::ContainerUuid;
use dispatch_core::observe::{Interest, look};
use serde_json::json;

use crate::world::World;

/// More than half of what the server puts into one page.
const LARGE: usize = 17 << 20;

#[tokio::test]
async fn a_page_that_was_cut_deletes_nothing() {
    let world = World::new().await;
    let mut followed: Vec<ContainerUuid> = Vec::new();
    for name in ["a", "b"] {
        let content = json!({"kind": "text", "content": name.repeat(LARGE)});
        let made = world
            .user
            .create_container_request(json!({
                "name": name, "state": "Committed", "priority": 1, "use_existing": false,
                "command": ["true"], "container_image": world.image, "output_path": "/out", "cwd": ".",
                "mounts": {"/out": {"kind": "tmp", "capacity": 1}, "/in": content},
                "runtime_constraints": {"vcpus": 1, "ram": 1 << 20},
            }))
            .await
            .unwrap();
        followed.push(made.container_uuid.unwrap());
    }
    let gone = ContainerUuid::generate("local");
    let interest = Interest {
        asked: followed.iter().cloned().chain([gone.clone()]).collect(),
        since: None,
        steps: 1,
        ..Interest::default()
    };
    let seen = look(&world.dispatch, &interest).await.unwrap();
    assert!(
        followed
            .iter()
            .all(|uuid| seen.containers.contains_key(uuid))
    );
    assert_eq!(seen.missing, [gone].into());
}
