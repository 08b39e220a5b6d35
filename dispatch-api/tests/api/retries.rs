//! Retries of cancelled containers, and when there is none.

use serde_json::{Value, json};

use crate::fixture::Fixture;

async fn request_of(fixture: &Fixture, request: &Value) -> Value {
    let path = format!("container_requests/{}", request["uuid"].as_str().unwrap());
    fixture.admin.get(&path).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_container_is_tried_again_until_the_limit() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let secret = json!({"/key": {"kind": "text", "content": "hush"}});
    let request = fixture.submit(json!({"secret_mounts": secret})).await;
    let mut seen = Vec::new();
    for count in 1..=3 {
        let now = request_of(&fixture, &request).await;
        assert_eq!(
            (&now["state"], &now["container_count"]),
            (&json!("Committed"), &json!(count))
        );
        let uuid = now["container_uuid"].as_str().unwrap().to_owned();
        assert!(!seen.contains(&uuid));
        fixture.admin.lock(&uuid).await.ok();
        let inside = fixture.admin.container_token(&uuid).await;
        let secrets = inside
            .get(&format!("containers/{uuid}/secret_mounts"))
            .await
            .ok();
        assert_eq!(
            secrets["secret_mounts"], secret,
            "a new try needs the secrets too"
        );
        fixture
            .admin
            .change(&uuid, json!({"state": "Cancelled"}))
            .await
            .ok();
        seen.push(uuid);
    }
    let done = request_of(&fixture, &request).await;
    assert_eq!(
        (&done["state"], &done["container_count"]),
        (&json!("Final"), &json!(3))
    );
    assert_eq!(done["container_uuid"], seen[2].as_str());
    assert_eq!(
        done["modified_by_user_uuid"],
        request["modified_by_user_uuid"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_try_has_the_same_work_and_priority() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let request = fixture.submit(json!({})).await;
    let first = fixture
        .admin
        .container(request["container_uuid"].as_str().unwrap())
        .await;
    let uuid = first["uuid"].as_str().unwrap();
    fixture
        .admin
        .change(uuid, json!({"state": "Cancelled"}))
        .await
        .ok();
    let now = request_of(&fixture, &request).await;
    let second = fixture
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
    let fixture = Fixture::new().await;
    fixture.image().await;
    let failed = fixture.submit(json!({})).await;
    let uuid = failed["container_uuid"].as_str().unwrap();
    fixture.admin.lock(uuid).await.ok();
    fixture
        .admin
        .change(uuid, json!({"state": "Running"}))
        .await
        .ok();
    fixture
        .admin
        .change(uuid, json!({"state": "Complete", "exit_code": 1}))
        .await
        .ok();
    let done = request_of(&fixture, &failed).await;
    assert_eq!(
        (&done["state"], &done["container_count"]),
        (&json!("Final"), &json!(1))
    );

    let unwanted = fixture.submit(json!({"command": ["sleep"]})).await;
    let path = format!("container_requests/{}", unwanted["uuid"].as_str().unwrap());
    fixture.admin.put(&path, json!({"priority": 0})).await.ok();
    let uuid = unwanted["container_uuid"].as_str().unwrap();
    fixture
        .admin
        .change(uuid, json!({"state": "Cancelled"}))
        .await
        .ok();
    let done = request_of(&fixture, &unwanted).await;
    assert_eq!(
        (&done["state"], &done["container_count"]),
        (&json!("Final"), &json!(1))
    );
}
