//! Locks, the state machine over HTTP, attempts and etags.

use serde_json::{Value, json};

use crate::fixture::{Api, Fixture};

/// Brings a new container into a state; the administrator's token holds its lock.
async fn in_state(fixture: &Fixture, state: &str) -> String {
    let request = fixture.submit(json!({"use_existing": false})).await;
    let uuid = request["container_uuid"].as_str().unwrap().to_owned();
    let path: &[&str] = match state {
        "Queued" => &[],
        "Locked" => &["Locked"],
        "Running" => &["Locked", "Running"],
        "Complete" => &["Locked", "Running", "Complete"],
        _ => &["Cancelled"],
    };
    for step in path {
        fixture
            .admin
            .change(&uuid, json!({"state": step}))
            .await
            .ok();
    }
    uuid
}

#[tokio::test(flavor = "multi_thread")]
async fn the_transition_matrix_is_that_of_the_real_server() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let other = fixture.token(json!({})).await;
    let plain = fixture.plain_user("plain").await;
    const STATES: [&str; 5] = ["Queued", "Locked", "Running", "Complete", "Cancelled"];
    let expected = [
        [200, 200, 422, 422, 200],
        [403, 200, 200, 422, 200],
        [422, 422, 200, 200, 200],
        [422, 422, 422, 200, 200],
        [422, 422, 422, 422, 200],
    ];
    for (row, from) in STATES.into_iter().enumerate() {
        for (column, to) in STATES.into_iter().enumerate() {
            let uuid = in_state(&fixture, from).await;
            let refused = plain.change(&uuid, json!({"state": to})).await;
            assert_eq!(refused.status, 404, "a stranger does not even see it");
            let answer = other.change(&uuid, json!({"state": to})).await;
            assert_eq!(
                answer.status, expected[row][column],
                "other: {from} to {to}: {}",
                answer.body
            );
            let uuid = in_state(&fixture, from).await;
            let answer = fixture.admin.change(&uuid, json!({"state": to})).await;
            let due = if (from, to) == ("Locked", "Queued") {
                200
            } else {
                expected[row][column]
            };
            assert_eq!(
                answer.status, due,
                "holder: {from} to {to}: {}",
                answer.body
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_of_a_request_sees_its_container_and_may_not_change_it() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let plain = fixture.plain_user("plain").await;
    let links = fixture.admin.list("links", json!({})).await.ok();
    let head = links["items"][0]["head_uuid"].clone();
    let everyone = "local-j7d0g-fffffffffffffff";
    let grant = json!({"link": {"link_class": "permission", "name": "can_read",
                                "tail_uuid": everyone, "head_uuid": head}});
    fixture.admin.post("links", grant).await.ok();
    let request = crate::fixture::submit(&plain, json!({})).await.ok();
    let uuid = request["container_uuid"].as_str().unwrap();
    assert_eq!(plain.container(uuid).await["state"], "Queued");
    plain
        .change(uuid, json!({"state": "Locked"}))
        .await
        .error_of(403);
    plain.lock(uuid).await.error_of(403);
    plain
        .delete(&format!("containers/{uuid}"))
        .await
        .error_of(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_simultaneous_locks_one_wins() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let mut tokens = Vec::new();
    for _ in 0..16 {
        tokens.push(fixture.token(json!({})).await);
    }
    let locks = tokens.into_iter().map(|api| {
        let uuid = uuid.clone();
        tokio::spawn(async move { api.lock(&uuid).await })
    });
    let mut won = 0;
    for lock in locks.collect::<Vec<_>>() {
        let answer = lock.await.unwrap();
        match answer.status {
            200 => {
                won += 1;
                let mut keys: Vec<&str> = answer
                    .body
                    .as_object()
                    .unwrap()
                    .keys()
                    .map(String::as_str)
                    .collect();
                keys.sort_unstable();
                assert_eq!(
                    keys,
                    ["auth_uuid", "locked_by_uuid", "priority", "state", "uuid"]
                );
            }
            _ => {
                let text = answer.error_of(422);
                assert!(text.contains("cannot lock when Locked"), "{text}");
            }
        }
    }
    assert_eq!(won, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn locking_needs_a_positive_priority() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let request = fixture.submit(json!({"priority": 0})).await;
    let uuid = request["container_uuid"].as_str().unwrap();
    let text = fixture.admin.lock(uuid).await.error_of(422);
    assert!(text.contains("cannot lock when priority<=0"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outdated_view_cannot_lock_or_change() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let api = &fixture.admin;
    let seen = api.list("containers", json!({})).await.ok()["items"][0]["etag"].clone();
    let seen = seen.as_str().unwrap();
    api.change(&uuid, json!({"priority": 7})).await.ok();
    let path = format!("/arvados/v1/containers/{uuid}");
    for (method, path) in [
        (reqwest::Method::POST, format!("{path}/lock")),
        (reqwest::Method::PUT, path.clone()),
        (reqwest::Method::PATCH, path.clone()),
    ] {
        let request = api
            .raw(method, &path)
            .header("if-match", format!("\"{seen}\""))
            .json(&json!({"priority": 8}));
        api.send(request).await.error_of(412);
    }
    let answer = api.get(&format!("containers/{uuid}")).await;
    let header = answer.etag.clone().unwrap();
    let current = answer.ok();
    assert_ne!(current["etag"], seen);
    assert_eq!(header, format!("\"{}\"", current["etag"].as_str().unwrap()));
    let lock = api
        .raw(reqwest::Method::POST, &format!("{path}/lock"))
        .header("if-match", header);
    assert_eq!(api.send(lock).await.ok()["state"], "Locked");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tenth_unlock_cancels() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    for attempt in 1..=10 {
        let locked = fixture.admin.lock(&uuid).await.ok();
        assert!(locked["auth_uuid"].is_string());
        let unlocked = fixture.admin.unlock(&uuid).await.ok();
        let due = if attempt < 10 { "Queued" } else { "Cancelled" };
        assert_eq!(unlocked["state"], due, "attempt {attempt}");
        assert_eq!(unlocked["locked_by_uuid"], Value::Null);
    }
    let container = fixture.admin.container(&uuid).await;
    assert_eq!(
        container["runtime_status"]["error"],
        "Failed to start container.  Cancelled after exceeding 'Containers.MaxDispatchAttempts' (lock_count=10)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_sees_the_container_token_and_it_dies_with_the_lock() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let other = fixture.token(json!({})).await;
    let auth = format!("containers/{uuid}/auth");
    fixture.admin.get(&auth).await.error_of(403);
    fixture.admin.lock(&uuid).await.ok();
    other.get(&auth).await.error_of(403);
    other.unlock(&uuid).await.error_of(403);
    let inside = fixture.admin.container_token(&uuid).await;
    assert_eq!(
        inside.get("containers/current").await.ok()["uuid"],
        uuid.as_str()
    );
    let suffixed = inside.with_token(&format!("{}/{uuid}", inside.token));
    suffixed.get("containers/current").await.ok();
    let foreign = inside.with_token(&format!("{}/local-dz642-aaaaaaaaaaaaaaa", inside.token));
    foreign.get("containers/current").await.error_of(401);
    assert_eq!(
        inside
            .get(&format!("containers/{uuid}/secret_mounts"))
            .await
            .ok(),
        json!({"secret_mounts": {}})
    );
    other
        .get(&format!("containers/{uuid}/secret_mounts"))
        .await
        .error_of(403);
    other.get("containers/current").await.error_of(404);
    fixture.admin.unlock(&uuid).await.ok();
    inside.get("containers/current").await.error_of(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_container_reports_its_own_progress_and_nothing_else() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    fixture.admin.lock(&uuid).await.ok();
    let inside = fixture.admin.container_token(&uuid).await;
    inside
        .change(&uuid, json!({"progress": 0.5}))
        .await
        .error_of(403);
    fixture
        .admin
        .change(&uuid, json!({"state": "Running"}))
        .await
        .ok();
    inside.change(&uuid, json!({"progress": 0.5})).await.ok();
    inside
        .change(&uuid, json!({"log": "x"}))
        .await
        .error_of(422);
    inside
        .change(&uuid, json!({"priority": 1}))
        .await
        .error_of(422);
    let text = inside
        .change(
            &uuid,
            json!({"output": "00000000000000000000000000000000+0"}),
        )
        .await
        .error_of(422);
    assert!(text.contains("Output collection must exist"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_holder_cannot_write_into_a_later_attempt() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let (first, second) = (
        attempt(&fixture, &uuid).await,
        attempt(&fixture, &uuid).await,
    );
    assert!(first.token.contains("/eyJ"), "attempt secrets are signed");
    first.lock(&uuid).await.ok();
    let text = second.lock(&uuid).await.error_of(422);
    assert!(text.contains("cannot lock when Locked"));
    first
        .change(&uuid, json!({"runtime_status": {"activity": "waiting"}}))
        .await
        .ok();
    first.get("containers").await.error_of(403);
    first.unlock(&uuid).await.ok();
    second.lock(&uuid).await.ok();
    first
        .change(&uuid, json!({"state": "Running", "log": "x"}))
        .await
        .error_of(401);
    second
        .change(&uuid, json!({"state": "Running", "log": "x"}))
        .await
        .ok();
    second
        .change(&uuid, json!({"state": "Cancelled"}))
        .await
        .ok();
    second
        .get(&format!("containers/{uuid}"))
        .await
        .error_of(401);
}

/// An attempt token of a container.
pub async fn attempt(fixture: &Fixture, uuid: &str) -> Api {
    let path = format!("/arvados/v1/containers/{uuid}");
    let scopes = json!([
        format!("GET {path}"),
        format!("PUT {path}"),
        format!("POST {path}/lock"),
        format!("POST {path}/unlock"),
        format!("GET {path}/auth"),
        "POST /arvados/v1/collections",
    ]);
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    fixture
        .token(json!({"scopes": scopes, "expires_at": end.to_string()}))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_read_as_those_of_the_real_server() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let cases = [
        (
            json!({"state": "Running"}),
            "State cannot change from Queued to Running",
        ),
        (
            json!({"nonsense": "x"}),
            "unknown attribute 'nonsense' for Container.",
        ),
        (
            json!({"exit_code": 1}),
            "Exit code cannot be modified in state 'Queued' (nil, 1)",
        ),
        (
            json!({"state": "Cancelled", "exit_code": 0}),
            "cannot be modified in state 'Cancelled'",
        ),
    ];
    for (attributes, expected) in cases {
        let text = fixture.admin.change(&uuid, attributes).await.error_of(422);
        assert!(text.contains(expected), "{text}");
    }
    fixture.admin.lock(&uuid).await.ok();
    let text = fixture
        .admin
        .change(&uuid, json!({"runtime_status": {"error": 5}}))
        .await
        .error_of(422);
    assert!(
        text.contains("Runtime status 'error' value must be a string"),
        "{text}"
    );
    fixture
        .admin
        .change(
            &uuid,
            json!({"cost": 0, "exit_code": null, "state": "Queued"}),
        )
        .await
        .ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_and_overridden_methods_work() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let api = &fixture.admin;
    let path = format!("/arvados/v1/containers/{uuid}");
    let form = [
        ("container", r#"{"priority":9,"etag":"x"}"#),
        ("select", r#"["uuid","priority"]"#),
    ];
    let request = api.raw(reqwest::Method::PUT, &path).form(&form);
    assert_eq!(
        api.send(request).await.ok(),
        json!({"uuid": uuid, "priority": 9})
    );
    let request = api
        .raw(reqwest::Method::POST, "/arvados/v1/containers")
        .header("x-http-method-override", "GET")
        .form(&[("filters", format!(r#"[["uuid","=","{uuid}"]]"#))]);
    assert_eq!(api.send(request).await.ok()["items_available"], 1);
    let request = api
        .raw(reqwest::Method::POST, &path)
        .form(&[("_method", "PUT"), ("container", r#"{"priority":10}"#)]);
    assert_eq!(api.send(request).await.ok()["priority"], 10);
}
