//! An emulated Arvados: one test for each difference from this server.

use reqwest::Method;
use serde_json::{Value, json};

use crate::container_requests::finish;
use crate::containers::attempt;
use crate::events::Listener;
use crate::fixture::{Api, Fixture, submit};

const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e+0";
const FOO: &str = "/acbd18db4cc2f85cedef654fccc4a4d8";

/// A user without administrator rights, with an image of its own.
async fn user(fixture: &Fixture) -> Api {
    let user = Api::of(&fixture.server.ready(), "user");
    let image = json!({"collection": {"name": "image", "manifest_text": ""}});
    user.post("collections", image).await.ok();
    user
}

async fn submit_as(user: &Api, extra: Value) -> Value {
    let mut extra = extra;
    extra["container_image"] = json!(EMPTY);
    submit(user, extra).await.ok()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn if_match_is_not_honoured_and_etags_are_weak() {
    let fixture = Fixture::as_arvados().await;
    let uuid = fixture.queued().await;
    let put = fixture
        .admin
        .raw(Method::PUT, &format!("/arvados/v1/containers/{uuid}"))
        .header("if-match", "\"nonsense\"")
        .json(&json!({"container": {"priority": 7}}));
    let answer = fixture.admin.send(put).await;
    assert!(answer.etag.as_deref().unwrap().starts_with("W/\""));
    assert_eq!(answer.ok()["priority"], 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_conflict_is_422_by_the_name_of_its_class() {
    let fixture = Fixture::as_arvados().await;
    let uuid = fixture.queued().await;
    fixture.admin.lock(&uuid).await.ok();
    let refused = fixture.admin.lock(&uuid).await.error_of(422);
    let class = "#<ArvadosModel::LockFailedError: cannot lock when Locked>";
    assert!(refused.starts_with(class), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_admin_may_flip_the_state_of_what_is_locked() {
    let fixture = Fixture::as_arvados().await;
    let uuid = fixture.queued().await;
    let holder = attempt(&fixture, &uuid).await;
    let locked = holder.lock(&uuid).await.ok();
    fixture.admin.unlock(&uuid).await.error_of(403);
    let with_log = json!({"state": "Running", "log": EMPTY});
    fixture.admin.change(&uuid, with_log).await.error_of(422);
    let running = fixture
        .admin
        .change(&uuid, json!({"state": "Running"}))
        .await;
    let running = running.ok();
    assert_eq!(running["locked_by_uuid"], locked["locked_by_uuid"]);
    let cancelled = fixture
        .admin
        .change(&uuid, json!({"state": "Cancelled"}))
        .await;
    assert_eq!(cancelled.ok()["state"], "Cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unlock_after_the_tenth_lock_cancels() {
    let fixture = Fixture::as_arvados().await;
    let uuid = fixture.queued().await;
    for _ in 0..9 {
        fixture.admin.lock(&uuid).await.ok();
        assert_eq!(fixture.admin.unlock(&uuid).await.ok()["state"], "Queued");
    }
    fixture.admin.lock(&uuid).await.ok();
    assert_eq!(fixture.admin.unlock(&uuid).await.ok()["state"], "Cancelled");
    let status = fixture.admin.container(&uuid).await["runtime_status"].clone();
    assert_eq!(
        status["error"],
        "Failed to start container.  Cancelled after exceeding 'Containers.MaxDispatchAttempts' (lock_count=10)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_come_in_two_dialects() {
    let fixture = Fixture::as_arvados().await;
    let none = "zzzzz-dz642-aaaaaaaaaaaaaaa";
    let passed = fixture.admin.get(&format!("containers/{none}")).await;
    assert!(passed.body["error_token"].is_string(), "{}", passed.body);
    let text = passed.error_of(404);
    assert!(text.starts_with("Path not found (req-"), "{text}");

    let path = "/arvados/v1/container_requests/zzzzz-xvhdp-aaaaaaaaaaaaaaa";
    let raw = fixture.admin.raw(Method::GET, path).send().await.unwrap();
    assert_eq!(raw.status(), 404);
    let raw = raw.text().await.unwrap();
    let start =
        format!("{{\"errors\":[\"//railsapi.internal{path}: 404 Not Found: Path not found (req-");
    assert!(raw.starts_with(&start), "{raw}");
    assert!(raw.ends_with("\n") && !raw.contains("error_token"), "{raw}");

    let unreadable = |path: &str| {
        let post = fixture.admin.raw(Method::POST, path);
        fixture
            .admin
            .send(post.header("content-type", "application/json").body("{"))
    };
    unreadable("/arvados/v1/containers").await.error_of(422);
    let text = unreadable("/arvados/v1/container_requests")
        .await
        .error_of(400);
    assert!(!text.contains("req-"), "{text}");
    let get = fixture.admin.raw(Method::GET, &format!("{FOO}+3"));
    assert_eq!(fixture.admin.send(get).await.body, "invalid signature\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_mounts_of_the_controller_have_its_shape() {
    let fixture = Fixture::as_arvados().await;
    fixture.queued().await;
    let list = fixture.admin.get("container_requests").await.ok();
    assert_eq!(list.get("self_link"), None);
    assert_eq!(list["items"][0]["mounts"]["/out"]["writable"], false);
    let answer = fixture.admin.get("api_client_authorizations").await;
    assert_eq!(answer.etag, None);
    let tokens = answer.ok();
    assert!(tokens["items"].is_array());
    assert_eq!(tokens.as_object().unwrap().len(), 2, "{tokens}");
    let list = fixture.admin.get("containers").await.ok();
    assert_eq!(list["self_link"], "");
    assert_eq!(list["items"][0]["mounts"]["/out"].get("writable"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reused_success_is_final_in_the_answer_to_its_post() {
    let fixture = Fixture::as_arvados().await;
    let pdh = fixture.image().await;
    let first = fixture.submit(json!({})).await;
    finish(&fixture, first["container_uuid"].as_str().unwrap(), &pdh).await;
    let second = fixture.submit(json!({})).await;
    assert_eq!(second["state"], "Final");
    assert!(second["output_uuid"].is_string() && second["log_uuid"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slash_is_refused_in_names_also_when_results_are_handed_over() {
    let fixture = Fixture::as_arvados().await;
    let pdh = fixture.image().await;
    let api = &fixture.admin;
    let sentence = "Name cannot contain a '/' character";
    for path in ["collections", "groups"] {
        let body = json!({"name": "a/b", "group_class": "project"});
        let body = match path {
            "groups" => body,
            _ => json!({"name": "a/b"}),
        };
        let refused = api.post(path, body).await.error_of(422);
        assert!(refused.contains(sentence), "{refused}");
    }
    let made = api.post("collections", json!({"name": "a"})).await.ok();
    let made = format!("collections/{}", made["uuid"].as_str().unwrap());
    api.put(&made, json!({"name": "a/b"})).await.error_of(422);

    let request = fixture.submit(json!({"output_name": "a/b"})).await;
    let uuid = request["container_uuid"].as_str().unwrap();
    api.lock(uuid).await.ok();
    let running = json!({"state": "Running", "log": pdh});
    api.change(uuid, running).await.ok();
    let complete = json!({"state": "Complete", "exit_code": 0, "output": pdh});
    let refused = api.change(uuid, complete).await.error_of(422);
    assert!(refused.contains(sentence), "{refused}");
    assert_eq!(api.container(uuid).await["state"], "Running");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_uuid_of_the_keep_service_has_28_characters() {
    let fixture = Fixture::as_arvados().await;
    let found = fixture.admin.get("keep_services/accessible").await.ok();
    assert_eq!(text(&found["items"][0]["uuid"]).len(), 28);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_version_of_zero_is_refused() {
    for fixture in [Fixture::as_arvados().await, Fixture::new().await] {
        fixture.image().await;
        let with = |version: &str| {
            json!({"runtime_constraints": {"ram": 1_000_000, "vcpus": 1, "gpu": {
                "stack": "cuda", "device_count": 1, "driver_version": version, "hardware_target": ["9.0"]}}})
        };
        let refused = submit(&fixture.admin, with("0.0")).await.error_of(422);
        assert!(
            refused.contains("[gpu.driver_version]=\"0.0\""),
            "{refused}"
        );
        submit(&fixture.admin, with("11.4")).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_container_is_not_found_by_the_requester_after_a_retry() {
    let fixture = Fixture::as_arvados().await;
    let user = user(&fixture).await;
    let request = submit_as(&user, json!({})).await;
    let first = text(&request["container_uuid"]);
    user.get(&format!("containers/{first}")).await.ok();
    fixture.admin.lock(&first).await.ok();
    let cancelled = json!({"state": "Cancelled"});
    fixture.admin.change(&first, cancelled).await.ok();
    user.get(&format!("containers/{first}")).await.error_of(404);
    let request = format!("container_requests/{}", text(&request["uuid"]));
    let second = text(&user.get(&request).await.ok()["container_uuid"]);
    assert_ne!(first, second);
    user.get(&format!("containers/{second}")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_container_is_not_found_by_the_user_and_that_of_the_request_is() {
    let fixture = Fixture::as_arvados().await;
    let user = user(&fixture).await;
    let pdh = fixture.image().await;
    let request = submit_as(&user, json!({})).await;
    let uuid = text(&request["container_uuid"]);
    fixture.admin.lock(&uuid).await.ok();
    let running = json!({"state": "Running", "log": pdh});
    fixture.admin.change(&uuid, running).await.ok();
    let log = text(&user.container(&uuid).await["log"]);
    user.get(&format!("collections/{log}")).await.error_of(404);
    let request = format!("container_requests/{}", text(&request["uuid"]));
    let log = text(&user.get(&request).await.ok()["log_uuid"]);
    user.get(&format!("collections/{log}")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_storage_class_is_accepted_and_its_blocks_are_refused_with_507() {
    let fixture = Fixture::as_arvados().await;
    fixture.image().await;
    fixture
        .submit(json!({"output_storage_classes": ["archive"]}))
        .await;
    let put = |classes: &str| {
        let put = fixture.admin.raw(Method::PUT, FOO).body("foo");
        put.header("x-keep-storage-classes", classes).send()
    };
    assert_eq!(put("archive").await.unwrap().status(), 507);
    let both = put("archive,default").await.unwrap();
    assert_eq!(
        both.headers()["x-keep-storage-classes-confirmed"],
        "default=1"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_block_store_takes_blocks_with_any_token() {
    let fixture = Fixture::as_arvados().await;
    let nobody = fixture.admin.with_token("bogus");
    let put = nobody.raw(Method::PUT, FOO).body("foo");
    let locator = put.send().await.unwrap().text().await.unwrap();
    let get = nobody.raw(Method::GET, &format!("/{}", locator.trim()));
    assert_eq!(get.send().await.unwrap().text().await.unwrap(), "foo");
}

#[tokio::test(flavor = "multi_thread")]
async fn published_ports_need_an_initial_path() {
    for fixture in [Fixture::as_arvados().await, Fixture::new().await] {
        fixture.image().await;
        let without = json!({"published_ports": {"80": {"access": "private", "label": "web"}}});
        let refused = submit(&fixture.admin, without).await.error_of(422);
        assert!(
            refused.contains("'initial_path' must be a string"),
            "{refused}"
        );
        let with = json!({"published_ports": {
            "80": {"access": "private", "label": "web", "initial_path": ""}}});
        submit(&fixture.admin, with).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_event_tells_of_a_priority() {
    let fixture = Fixture::as_arvados().await;
    fixture.image().await;
    let mut listener = Listener::connect(&fixture, &fixture.admin).await;
    listener.send(json!({"method": "subscribe"})).await;
    assert_eq!(listener.next().await, Some(json!({"status": 200})));
    let request = fixture.submit(json!({})).await;
    let uuid = text(&request["container_uuid"]);
    let path = format!("container_requests/{}", text(&request["uuid"]));
    fixture
        .admin
        .put(&path, json!({"priority": 600}))
        .await
        .ok();
    fixture.admin.lock(&uuid).await.ok();
    let created = listener.next_about(&uuid).await;
    assert_eq!(created["event_type"], "create");
    let next = listener.next_about(&uuid).await;
    let attributes = &next["properties"]["new_attributes"];
    assert_eq!(attributes["state"], "Locked", "the priority was not told");
    assert_eq!(attributes.get("priority"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_no_bulk_calls_and_nothing_of_ours_in_the_discovery_document() {
    let fixture = Fixture::as_arvados().await;
    for path in [
        "containers/bulk_lock",
        "api_client_authorizations/bulk_create",
        "logs/bulk_create",
        "container_requests/bulk_update",
    ] {
        fixture
            .admin
            .post(path, json!({"items": []}))
            .await
            .error_of(404);
    }
    let get = |fixture: &Fixture| {
        let get = fixture
            .admin
            .bare(Method::GET, "/discovery/v1/apis/arvados/v1/rest");
        get.send()
    };
    let there = get(&fixture).await.unwrap().text().await.unwrap();
    let here = get(&Fixture::new().await)
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    for word in [
        "bulk_",
        "dispatcher suite",
        "gatewayAuth",
        "permanentFailures",
        "badOutputEntries",
    ] {
        assert!(!there.contains(word), "{word}");
        assert!(here.contains(word), "{word}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_token_is_one_like_any_other_and_lives_until_it_is_deleted() {
    let fixture = Fixture::as_arvados().await;
    let uuid = fixture.queued().await;
    let first = attempt(&fixture, &uuid).await;
    assert_eq!(first.token.rsplit('/').next().unwrap().len(), 50);
    first.lock(&uuid).await.ok();
    first.unlock(&uuid).await.ok();
    let second = attempt(&fixture, &uuid).await;
    second.lock(&uuid).await.ok();
    let cancelled = first.change(&uuid, json!({"state": "Cancelled"})).await;
    assert_eq!(cancelled.ok()["state"], "Cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_database_makes_valid_tokens_look_invalid_for_a_while() {
    let fixture = Fixture::as_arvados().await;
    begin(&fixture, "database-restart").await;
    let refused = fixture.admin.get("users/current").await.error_of(401);
    assert!(refused.contains("Not logged in"), "{refused}");
    fixture.admin.get("users/current").await.ok();
    begin_for(&fixture, "database-restart", 0).await;
    fixture.admin.get("users/current").await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_server_answers_503_with_an_empty_body() {
    let fixture = Fixture::as_arvados().await;
    begin(&fixture, "overload").await;
    let answer = fixture.admin.get("users/current").await;
    assert_eq!((answer.status, answer.body), (503, json!("")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_is_500_context_canceled() {
    let fixture = Fixture::as_arvados().await;
    begin(&fixture, "context-canceled").await;
    let answer = fixture.admin.get("users/current").await;
    let body = json!({"errors": ["context canceled"]});
    assert_eq!((answer.status, answer.body), (500, body));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_of_an_emulation_may_ask_for_faults() {
    let fixture = Fixture::as_arvados().await;
    let wanted = json!({"fault": "overload", "seconds": 60});
    let user = Api::of(&fixture.server.ready(), "user");
    for (api, status) in [(&user, 403), (&user.with_token("bogus"), 401)] {
        let post = api.raw(Method::POST, "/_emulation/fault").json(&wanted);
        api.send(post).await.error_of(status);
    }
    let fixture = Fixture::new().await;
    let post = fixture.admin.raw(Method::POST, "/_emulation/fault");
    fixture.admin.send(post.json(&wanted)).await.error_of(404);
}

async fn begin(fixture: &Fixture, fault: &str) {
    begin_for(fixture, fault, 60).await;
}

async fn begin_for(fixture: &Fixture, fault: &str, seconds: u64) {
    let post = fixture.admin.raw(Method::POST, "/_emulation/fault");
    let wanted = json!({"fault": fault, "seconds": seconds});
    fixture.admin.send(post.json(&wanted)).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_name_methods_and_paths_to_the_letter() {
    let fixture = Fixture::as_arvados().await;
    let uuid = fixture.queued().await;
    let path = format!("containers/{uuid}");
    let scopes = json!([
        format!("GET /arvados/v1/{path}"),
        format!("PUT /arvados/v1/{path}")
    ]);
    let narrow = fixture.token(json!({"scopes": scopes})).await;
    narrow.get(&path).await.ok();
    let head = narrow.raw(Method::HEAD, &format!("/arvados/v1/{path}"));
    assert_eq!(head.send().await.unwrap().status(), 200);
    narrow.put(&path, json!({})).await.ok();
    let patch = narrow.raw(Method::PATCH, &format!("/arvados/v1/{path}"));
    let refused = narrow.send(patch.json(&json!({}))).await.error_of(403);
    assert!(refused.starts_with("Forbidden"), "{refused}");
    narrow.get(&format!("{path}/auth")).await.error_of(403);
    narrow.get("containers").await.error_of(403);
    narrow.get("api_client_authorizations/current").await.ok();
}
