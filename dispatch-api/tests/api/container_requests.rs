//! Requests: commit, children, secrets, numbers and results.

use serde_json::{Value, json};

use crate::fixture::{Fixture, Response, request, submit};

const FOO: &str = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo.txt\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_request_has_a_container_with_everything_resolved() {
    let fixture = Fixture::new().await;
    let image = fixture.image().await;
    let input = json!({"collection": {"name": "in", "manifest_text": FOO}});
    let input = fixture.admin.post("collections", input).await.ok();
    let created = fixture
        .submit(json!({"mounts": {
            "/out": {"kind": "tmp", "capacity": 5},
            "/in": {"kind": "collection", "uuid": input["uuid"]}}}))
        .await;
    assert_eq!(created["state"], "Committed");
    assert_eq!(created["container_count"], 1);
    let container = fixture
        .admin
        .container(created["container_uuid"].as_str().unwrap())
        .await;
    assert_eq!(container["container_image"], image.as_str());
    assert_eq!(
        container["mounts"]["/in"]["portable_data_hash"],
        input["portable_data_hash"]
    );
    assert_eq!(container["mounts"]["/in"].get("uuid"), None);
    assert_eq!(
        container["runtime_constraints"]["keep_cache_disk"],
        2_147_483_648_u64
    );
    let created_at = created["created_at"]
        .as_str()
        .unwrap()
        .parse::<jiff::Timestamp>()
        .unwrap();
    assert_eq!(
        container["priority"],
        500 * (1_i64 << 50) - created_at.as_millisecond()
    );
    for name in ["secret_mounts", "runtime_token", "reuse_key"] {
        assert_eq!(container.get(name), None, "{name} is nobody's business");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_run_is_refused_with_a_sentence_that_names_it() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let cases = [
        (json!({"container_image": "nosuch:1"}), "nosuch:1"),
        (json!({"command": []}), "Command can't be blank"),
        (
            json!({"priority": 1001}),
            "Priority must be between 0 and 1000",
        ),
        (json!({"runtime_constraints": {"ram": 1}}), "vcpus"),
        (
            json!({"command": vec!["x".repeat(1000); 2100]}),
            "Command and environment together take 2118900 bytes",
        ),
        (
            json!({"environment": {"A": "x".repeat(2 << 20)}}),
            "pass them in a file",
        ),
        (json!({"output_path": "/elsewhere"}), "/elsewhere"),
        (
            json!({"output_storage_classes": ["default", "archive"]}),
            "archive",
        ),
        (
            json!({"mounts": {"/out": {"kind": "tmp"}, "/in": {"kind": "collection", "uuid": "local-4zz18-aaaaaaaaaaaaaaa"}}}),
            "local-4zz18-aaaaaaaaaaaaaaa",
        ),
        (
            json!({"nonsense": 1}),
            "unknown attribute 'nonsense' for ContainerRequest.",
        ),
    ];
    for (extra, word) in cases {
        let text = submit(&fixture.admin, extra).await.error_of(422);
        assert!(text.contains(word), "{text}");
    }
    let left = fixture
        .admin
        .list("container_requests", json!({}))
        .await
        .ok();
    assert_eq!(
        left["items_available"], 0,
        "a refused request leaves nothing behind"
    );
}

/// Runs a container to success with this collection as log and output.
pub async fn finish(fixture: &Fixture, uuid: &str, pdh: &str) {
    fixture.admin.lock(uuid).await.ok();
    fixture
        .admin
        .change(uuid, json!({"state": "Running", "log": pdh}))
        .await
        .ok();
    fixture.admin.change(uuid, complete(pdh)).await.ok();
}

/// The success of a container with this collection as log and output.
pub fn complete(pdh: &str) -> Value {
    json!({"state": "Complete", "exit_code": 0, "log": pdh, "output": pdh, "cost": 1.5})
}

#[tokio::test(flavor = "multi_thread")]
async fn results_become_collections_of_the_requester() {
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let created = fixture
        .submit(json!({"output_name": "result", "output_properties": {"kind": "test"}}))
        .await;
    let (request_uuid, uuid) = (
        created["uuid"].as_str().unwrap(),
        created["container_uuid"].as_str().unwrap(),
    );
    fixture.admin.lock(uuid).await.ok();
    fixture
        .admin
        .change(uuid, json!({"state": "Running", "log": pdh}))
        .await
        .ok();
    let path = format!("container_requests/{request_uuid}");
    let early = fixture.admin.get(&path).await.ok();
    assert!(
        early["log_uuid"].is_string(),
        "the log shows as soon as there is one"
    );
    fixture
        .admin
        .change(
            uuid,
            json!({"state": "Complete", "exit_code": 1, "output": pdh}),
        )
        .await
        .ok();
    let done = fixture.admin.get(&path).await.ok();
    assert_eq!(done["state"], "Final");
    assert_eq!(done["log_uuid"], early["log_uuid"]);
    // Clients show this as who has submitted it.
    assert_eq!(
        done["modified_by_user_uuid"],
        created["modified_by_user_uuid"]
    );
    assert_ne!(done["modified_by_user_uuid"], "local-tpzed-000000000000000");
    let output = format!("collections/{}", done["output_uuid"].as_str().unwrap());
    let output = fixture.admin.get(&output).await.ok();
    assert_eq!(output["name"], "result");
    assert_eq!(output["portable_data_hash"], pdh.as_str());
    assert_eq!(
        output["properties"],
        json!({"type": "output", "container_request": request_uuid, "kind": "test"})
    );
    let log = format!("collections/{}", done["log_uuid"].as_str().unwrap());
    let log = fixture.admin.get(&log).await.ok();
    assert_eq!(log["file_count"], 2);
    let text = log["manifest_text"].as_str().unwrap();
    assert!(
        text.contains(&format!("log\\040for\\040container\\040{uuid}")),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn children_share_their_parents_priority_and_end_with_it() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let parent_request = fixture.submit(json!({})).await;
    let parent = parent_request["container_uuid"].as_str().unwrap();
    fixture.admin.lock(parent).await.ok();
    fixture
        .admin
        .change(parent, json!({"state": "Running"}))
        .await
        .ok();
    let inside = fixture.admin.container_token(parent).await;
    let child = submit(&inside, json!({"command": ["child"], "priority": 3}))
        .await
        .ok();
    assert_eq!(child["requesting_container_uuid"], parent);
    assert_eq!(child["priority"], 500, "the sent value is ignored");
    let child_container = child["container_uuid"].as_str().unwrap();
    let parent_priority = fixture.admin.container(parent).await["priority"].clone();
    assert_eq!(
        fixture.admin.container(child_container).await["priority"],
        parent_priority
    );
    let path = format!(
        "container_requests/{}",
        parent_request["uuid"].as_str().unwrap()
    );
    fixture.admin.put(&path, json!({"priority": 0})).await.ok();
    assert_eq!(
        fixture.admin.container(child_container).await["priority"],
        0
    );
    fixture.admin.put(&path, json!({"priority": 7})).await.ok();
    fixture
        .admin
        .change(parent, json!({"state": "Complete", "exit_code": 0}))
        .await
        .ok();
    let path = format!("container_requests/{}", child["uuid"].as_str().unwrap());
    let child = fixture.admin.get(&path).await.ok();
    assert_eq!(
        (&child["state"], &child["priority"]),
        (&json!("Final"), &json!(0))
    );
    assert_eq!(
        fixture.admin.container(child_container).await["priority"],
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_may_change_and_a_committed_request_hardly() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let draft = request(json!({"state": "Uncommitted", "command": []}));
    let draft = fixture.admin.post("container_requests", draft).await.ok();
    assert_eq!(draft["container_uuid"], Value::Null);
    let path = format!("container_requests/{}", draft["uuid"].as_str().unwrap());
    fixture
        .admin
        .put(&path, json!({"command": ["true"]}))
        .await
        .ok();
    let committed = fixture
        .admin
        .put(&path, json!({"state": "Committed"}))
        .await
        .ok();
    assert!(committed["container_uuid"].is_string());
    let text = fixture
        .admin
        .put(&path, json!({"command": ["false"]}))
        .await
        .error_of(422);
    assert!(
        text.contains("Command cannot be modified in state 'Committed'"),
        "{text}"
    );
    fixture
        .admin
        .put(&path, json!({"name": "better"}))
        .await
        .ok();
    let text = fixture
        .admin
        .put(&path, json!({"state": "Uncommitted"}))
        .await
        .error_of(422);
    assert!(
        text.contains("State cannot change from Committed to Uncommitted"),
        "{text}"
    );
    let closed = fixture
        .admin
        .put(&path, json!({"state": "Final"}))
        .await
        .ok();
    assert_eq!(closed["state"], "Final");
    let container = committed["container_uuid"].as_str().unwrap();
    assert_eq!(fixture.admin.container(container).await["priority"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_for_the_container_only() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    // No uuid or digest contains this text.
    const HUSH: &str = "hush, hush!";
    let secret = json!({"/key": {"kind": "text", "content": HUSH}});
    let created = fixture.submit(json!({"secret_mounts": secret})).await;
    assert!(!created.to_string().contains(HUSH));
    let uuid = created["container_uuid"].as_str().unwrap();
    assert!(
        !fixture
            .admin
            .container(uuid)
            .await
            .to_string()
            .contains(HUSH)
    );
    fixture.admin.lock(uuid).await.ok();
    let inside = fixture.admin.container_token(uuid).await;
    let path = format!("containers/{uuid}/secret_mounts");
    assert_eq!(inside.get(&path).await.ok()["secret_mounts"], secret);
    let logs = fixture
        .admin
        .list("logs", json!({"limit": 1000}))
        .await
        .ok();
    assert!(!logs.to_string().contains(HUSH), "nor in the log entries");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supplied_token_is_used_in_place_of_a_made_one() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let plain = fixture.plain_user("plain").await;
    let owner = plain.get("users/current").await.ok()["uuid"].clone();
    let created = fixture.submit(json!({"runtime_token": plain.token})).await;
    assert_eq!(created["runtime_token"], "");
    let uuid = created["container_uuid"].as_str().unwrap();
    assert_eq!(
        fixture.admin.container(uuid).await["runtime_user_uuid"],
        owner
    );
    let locked = fixture.admin.lock(uuid).await.ok();
    assert_eq!(locked["auth_uuid"], Value::Null);
    let inside = fixture.admin.container_token(uuid).await;
    assert_eq!(inside.token, plain.token);
    inside.get("containers/current").await.error_of(404);
    let suffixed = inside.with_token(&format!("{}/{uuid}", plain.token));
    let refused = submit(&fixture.admin, json!({"runtime_token": "v2/x/y"}))
        .await
        .error_of(422);
    assert!(refused.contains("Runtime token"), "{refused}");
    assert_eq!(suffixed.get("containers/current").await.ok()["uuid"], uuid);
    fixture
        .admin
        .change(uuid, json!({"state": "Running"}))
        .await
        .ok();
    fixture
        .admin
        .change(uuid, json!({"state": "Complete", "exit_code": 0}))
        .await
        .ok();
    plain.get("users/current").await.ok();
}

/// The number of a request in its properties, and whose it is.
fn number(request: &Value) -> (Option<u64>, Option<&str>) {
    let properties = &request["properties"];
    (
        properties["dispatch_id"].as_u64(),
        properties["dispatch_user"].as_str(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_of_a_user_has_the_next_number_for_good() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let admin = &fixture.admin;
    let me = admin.get("users/current").await.ok();
    let me = me["uuid"].as_str().unwrap();
    let makes = (0..20).map(|_| submit(admin, json!({"properties": {"a": 1}})));
    let made = futures_util::future::join_all(makes).await;
    let made: Vec<Value> = made.into_iter().map(Response::ok).collect();
    let mut numbers: Vec<_> = made.iter().map(number).collect();
    numbers.sort_unstable();
    let expected: Vec<_> = (1..=20).map(|n| (Some(n), Some(me))).collect();
    assert_eq!(numbers, expected);
    // A copy, as Workbench makes it, and a change of all properties.
    let mut copied = made[0]["properties"].clone();
    copied["dispatch_killed"] = json!(true);
    copied["dispatch_retry_of"] = made[1]["uuid"].clone();
    let copy = submit(admin, json!({"properties": copied})).await.ok();
    assert_eq!(number(&copy), (Some(21), Some(me)));
    let kept = &copy["properties"];
    assert_eq!(
        (&kept["a"], &kept["dispatch_killed"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(kept["dispatch_retry_of"], made[1]["uuid"]);
    let path = format!("container_requests/{}", copy["uuid"].as_str().unwrap());
    let other = json!({"container_request": {"properties": {"dispatch_id": 7, "b": 2}}});
    let changed = admin.put(&path, other).await.ok();
    assert_eq!(number(&changed), (Some(21), Some(me)));
    assert_eq!(changed["properties"]["b"], 2);
    admin.delete(&path).await.ok();
    let next = submit(admin, json!({})).await.ok();
    assert_eq!(
        number(&next),
        (Some(22), Some(me)),
        "no number is given twice"
    );
    let project = json!({"group": {"group_class": "project", "name": "p"}});
    let project = admin.post("groups", project).await.ok();
    let shared = json!({"owner_uuid": project["uuid"], "properties": {"dispatch_id": 3}});
    let shared = submit(admin, shared).await.ok();
    assert_eq!(number(&shared), (None, None));
}

/// It is not even read then.
#[tokio::test]
async fn long_json_stays_as_it_is_when_something_else_changes() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let content = json!(vec![json!({"class": "File", "size": 1.5}); 3000]);
    let mounts = json!({
        "/out": {"kind": "tmp", "capacity": 1},
        "/in": {"kind": "json", "content": content},
    });
    let request = fixture.submit(json!({"mounts": mounts})).await;
    let path = format!("container_requests/{}", request["uuid"].as_str().unwrap());
    for change in [json!({"priority": 7}), json!({"properties": {"a": "b"}})] {
        let changed = fixture.admin.put(&path, change.clone()).await.ok();
        assert_eq!(changed["mounts"]["/in"]["content"], content, "{change}");
    }
    let now = fixture.admin.get(&path).await.ok();
    assert_eq!(now["mounts"]["/in"]["content"], content);
    assert_eq!(
        (&now["priority"], &now["properties"]["a"]),
        (&json!(7), &json!("b"))
    );
    let container = format!("containers/{}", now["container_uuid"].as_str().unwrap());
    let container = fixture.admin.get(&container).await.ok();
    assert_eq!(container["mounts"]["/in"]["content"], content);
}
