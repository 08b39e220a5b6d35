//! What is tried again, and what is not.

use serde_json::{Value, json};

use crate::world::World;

async fn request_of(world: &World, request: &Value) -> Value {
    let path = format!("container_requests/{}", request["uuid"].as_str().unwrap());
    world.admin.get(&path).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_container_is_tried_again_until_the_limit() {
    let world = World::new().await;
    world.image().await;
    let secret = json!({"/key": {"kind": "text", "content": "hush"}});
    let request = world.submit(json!({"secret_mounts": secret})).await;
    let mut seen = Vec::new();
    for count in 1..=3 {
        let now = request_of(&world, &request).await;
        assert_eq!(
            (&now["state"], &now["container_count"]),
            (&json!("Committed"), &json!(count))
        );
        let uuid = now["container_uuid"].as_str().unwrap().to_owned();
        assert!(!seen.contains(&uuid));
        world.admin.lock(&uuid).await.ok();
        let inside = world.admin.container_token(&uuid).await;
        let secrets = inside
            .get(&format!("containers/{uuid}/secret_mounts"))
            .await
            .ok();
        assert_eq!(
            secrets["secret_mounts"], secret,
            "a new try needs the secrets too"
        );
        world
            .admin
            .change(&uuid, json!({"state": "Cancelled"}))
            .await
            .ok();
        seen.push(uuid);
    }
    let done = request_of(&world, &request).await;
    assert_eq!(
        (&done["state"], &done["container_count"]),
        (&json!("Final"), &json!(3))
    );
    assert_eq!(done["container_uuid"], seen[2].as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_try_has_the_same_work_and_priority() {
    let world = World::new().await;
    world.image().await;
    let request = world.submit(json!({})).await;
    let first = world
        .admin
        .container(request["container_uuid"].as_str().unwrap())
        .await;
    let uuid = first["uuid"].as_str().unwrap();
    world
        .admin
        .change(uuid, json!({"state": "Cancelled"}))
        .await
        .ok();
    let now = request_of(&world, &request).await;
    let second = world
        .admin
        .container(now["container_uuid"].as_str().unwrap())
        .await;
    for name in [
        "command",
        "mounts",
        "runtime_constraints",
        "container_image",
        "priority",
        "runtime_user_uuid",
        "environment",
        "output_path",
        "scheduling_parameters",
    ] {
        assert_eq!(first[name], second[name], "{name}");
    }
    assert_eq!(second["state"], "Queued");
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_failed_program_nor_a_users_cancel_is_tried_again() {
    let world = World::new().await;
    world.image().await;
    let failed = world.submit(json!({})).await;
    let uuid = failed["container_uuid"].as_str().unwrap();
    world.admin.lock(uuid).await.ok();
    world
        .admin
        .change(uuid, json!({"state": "Running"}))
        .await
        .ok();
    world
        .admin
        .change(uuid, json!({"state": "Complete", "exit_code": 1}))
        .await
        .ok();
    let done = request_of(&world, &failed).await;
    assert_eq!(
        (&done["state"], &done["container_count"]),
        (&json!("Final"), &json!(1))
    );

    let unwanted = world.submit(json!({"command": ["sleep"]})).await;
    let path = format!("container_requests/{}", unwanted["uuid"].as_str().unwrap());
    world.admin.put(&path, json!({"priority": 0})).await.ok();
    let uuid = unwanted["container_uuid"].as_str().unwrap();
    world
        .admin
        .change(uuid, json!({"state": "Cancelled"}))
        .await
        .ok();
    let done = request_of(&world, &unwanted).await;
    assert_eq!(
        (&done["state"], &done["container_count"]),
        (&json!("Final"), &json!(1))
    );
}
