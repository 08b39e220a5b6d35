//! Bulk requests: the reply to each item equals the reply to the single request.

use arvados_client::scopes;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, Response, v2};

/// Three queued containers, the third with priority 0.
async fn containers(fixture: &Fixture, count: usize) -> Vec<String> {
    fixture.image().await;
    let mut created = Vec::new();
    for n in 0..count {
        let priority = if n == 2 { 0 } else { 500 };
        let request = json!({"use_existing": false, "priority": priority});
        let request = fixture.submit(request).await;
        created.push(request["container_uuid"].as_str().unwrap().to_owned());
    }
    created
}

fn attempt(uuid: &str) -> Value {
    let container = arvados_client::ContainerUuid::parse(uuid).unwrap();
    json!({"scopes": scopes::attempt(&container, "test")})
}

async fn create(api: &Api, items: Value) -> Response {
    api.post(
        "api_client_authorizations/bulk_create",
        json!({"items": items}),
    )
    .await
}

async fn lock(api: &Api, items: Value) -> Vec<Value> {
    let render_item = api
        .post("containers/bulk_lock", json!({"items": items}))
        .await;
    render_item.ok()["items"].as_array().unwrap().clone()
}

/// Attempt tokens of these containers.
async fn tokens(fixture: &Fixture, uuids: &[String]) -> Vec<String> {
    let items: Vec<Value> = uuids.iter().map(|uuid| attempt(uuid)).collect();
    let created = create(&fixture.admin, json!(items)).await.ok();
    let created = created["items"].as_array().unwrap();
    created.iter().map(|item| v2(&item["record"])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_lock_is_judged_by_itself_as_the_single_call_does() {
    let fixture = Fixture::new().await;
    let uuids = containers(&fixture, 7).await;
    let tokens = tokens(&fixture, &uuids).await;
    let etag = fixture.admin.container(&uuids[0]).await["etag"].clone();
    fixture.admin.lock(&uuids[1]).await.ok();
    let plain = fixture.plain_user("plain").await;
    let own = [
        json!({"uuid": uuids[0], "token": tokens[0], "etag": etag}),
        json!({"uuid": uuids[1], "token": tokens[1]}),
        json!({"uuid": uuids[2], "token": tokens[2]}),
        json!({"uuid": uuids[3], "token": tokens[3], "etag": "an-older-one"}),
        json!({"uuid": uuids[4], "token": tokens[5]}),
        json!({"uuid": uuids[5], "token": "v2/local-gj3su-000000000000000/nonsense"}),
        json!({"uuid": "local-dz642-000000000000000", "token": fixture.admin.token}),
        json!({"uuid": uuids[5], "token": plain.token}),
        json!({"uuid": uuids[6]}),
        json!({"uuid": uuids[6], "token": tokens[6]}),
    ];
    let answers = lock(&fixture.admin, json!(own)).await;
    let status = |render_item: &Value| render_item["status"].as_u64();
    let seen: Vec<_> = answers.iter().map(status).collect();
    let refused = [None, Some(422), Some(422), Some(412), Some(403), Some(401)];
    assert_eq!(seen[..6], refused, "{answers:#?}");
    assert_eq!(
        seen[6..],
        [Some(404), Some(404), Some(401), None],
        "{answers:#?}"
    );
    assert_eq!(answers[0]["record"]["state"], "Locked");
    assert!(
        answers[1]["errors"][0]
            .as_str()
            .unwrap()
            .contains("cannot lock when Locked")
    );
    for (n, state) in [
        "Locked", "Locked", "Queued", "Queued", "Queued", "Queued", "Locked",
    ]
    .into_iter()
    .enumerate()
    {
        let record = fixture.admin.container(&uuids[n]).await;
        assert_eq!(record["state"], state, "{n}");
        let holder = record["locked_by_uuid"].as_str();
        if n == 0 || n == 6 {
            assert_eq!(holder, tokens[n].split('/').nth(1), "{n}");
        }
    }
    // Rejected items cause no event, and each lock is in the audit log once.
    for (n, times) in [(0, 1), (3, 0), (6, 1)] {
        let filters = json!([
            ["object_uuid", "=", uuids[n]],
            ["event_type", "=", "update"]
        ]);
        let logs = fixture
            .admin
            .list("logs", json!({"filters": filters}))
            .await
            .ok();
        assert_eq!(
            logs["items"].as_array().unwrap().len(),
            times,
            "{n}: {logs}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_cannot_be_made_takes_no_other_with_it() {
    let fixture = Fixture::new().await;
    let uuids = containers(&fixture, 1).await;
    let plain = fixture.plain_user("plain").await;
    let stranger = json!({"scopes": ["all"], "owner_uuid": "local-tpzed-000000000000000"});
    let items = json!([attempt(&uuids[0]), stranger, {"scopes": "all"}, 5, {"scopes": ["all"]}]);
    let answers = create(&plain, items).await.ok();
    let answers = answers["items"].as_array().unwrap().clone();
    let seen: Vec<_> = answers.iter().map(|a| a["status"].as_u64()).collect();
    assert_eq!(
        seen,
        [None, Some(403), Some(422), Some(422), None],
        "{answers:#?}"
    );
    let created = fixture.admin.with_token(&v2(&answers[4]["record"]));
    assert_eq!(created.get("users/current").await.ok()["username"], "plain");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_log_entry_is_judged_by_itself() {
    let fixture = Fixture::new().await;
    let uuids = containers(&fixture, 1).await;
    let plain = fixture.plain_user("plain").await;
    let note =
        json!({"object_uuid": uuids[0], "event_type": "dispatch", "properties": {"text": "x"}});
    let large = json!({"event_type": "dispatch", "properties": {"text": "x".repeat(300 << 10)}});
    let items = json!({"items": [note, large, {"nonsense": 1}, 5, note]});
    let foreign = plain.post("logs/bulk_create", items.clone()).await.ok();
    for index in [0, 4] {
        assert_eq!(foreign["items"][index]["status"], 403, "{foreign:#}");
    }
    let answers = fixture.admin.post("logs/bulk_create", items).await.ok();
    let answers = answers["items"].as_array().unwrap().clone();
    let seen: Vec<_> = answers.iter().map(|a| a["status"].as_u64()).collect();
    assert_eq!(
        seen,
        [None, Some(422), Some(422), Some(422), None],
        "{answers:#?}"
    );
    let entry = &answers[0]["record"];
    let path = format!("logs/{}", entry["uuid"].as_str().unwrap());
    let log = fixture.admin.get(&path).await.ok();
    assert_eq!(log["object_uuid"], uuids[0]);
    assert_eq!(log["object_kind"], "arvados#container");
    assert_eq!(log["properties"], json!({"text": "x"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_request_is_judged_by_itself() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let mut own = Vec::new();
    for _ in 0..3 {
        let request = fixture.submit(json!({"use_existing": false})).await;
        own.push(request["uuid"].as_str().unwrap().to_owned());
    }
    let plain = fixture.plain_user("plain").await;
    let update = async |api: &Api, items: Value| {
        let path = "container_requests/bulk_update";
        api.post(path, json!({"items": items})).await
    };
    let stop = |uuid: &str| json!({"uuid": uuid, "priority": 0, "properties": {"why": "test"}});
    let foreign = update(&plain, json!([stop(&own[0])])).await.ok();
    assert_eq!(foreign["items"][0]["status"], 404, "{foreign:#}");
    let nonsense = json!({"uuid": own[1], "nonsense": 1});
    let items = json!([stop(&own[0]), nonsense, {"priority": 0}, 5, stop(&own[2])]);
    let answers = update(&fixture.admin, items).await.ok();
    let answers = answers["items"].as_array().unwrap();
    let seen: Vec<_> = answers.iter().map(|a| a["status"].as_u64()).collect();
    let record = answers[0]["record"].as_object().unwrap();
    assert_eq!(record["priority"], 0, "{record:?}");
    assert!(!record.contains_key("mounts"), "{record:?}");
    let refused = Some(422);
    assert_eq!(
        seen,
        [None, refused, refused, refused, None],
        "{answers:#?}"
    );
    for (uuid, priority) in [(&own[0], 0), (&own[1], 500), (&own[2], 0)] {
        let path = format!("container_requests/{uuid}");
        let request = fixture.admin.get(&path).await.ok();
        assert_eq!(request["priority"], priority, "{request:#}");
        let stopped = request["properties"]["why"] == "test";
        assert_eq!(stopped, priority == 0, "{request:#}");
    }
    let bulk_only = json!({"scopes": ["POST /arvados/v1/container_requests/bulk_update"]});
    let bulk_only = fixture.token(bulk_only).await;
    let refused = update(&bulk_only, json!([stop(&own[1])])).await.ok();
    assert_eq!(refused["items"][0]["status"], 403, "{refused:#}");
    let too_many = json!(vec![stop(&own[1]); 51]);
    update(&fixture.admin, too_many).await.error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_for_whoever_may_have_one_and_not_for_more_than_announced() {
    let fixture = Fixture::new().await;
    let path = "/arvados/v1/api_client_authorizations/bulk_create";
    let bulk_only = fixture
        .token(json!({"scopes": [format!("POST {path}")]}))
        .await;
    create(&bulk_only, json!([{"scopes": ["all"]}]))
        .await
        .error_of(403);
    let single = "POST /arvados/v1/api_client_authorizations";
    let both = fixture
        .token(json!({"scopes": [format!("POST {path}"), single]}))
        .await;
    create(&both, json!([{"scopes": ["all"]}])).await.ok();
    let path = "/discovery/v1/apis/arvados/v1/rest";
    let document = fixture
        .admin
        .send(fixture.admin.raw(reqwest::Method::GET, path))
        .await
        .ok();
    let most = |resource: &str, method: &str| {
        document["resources"][resource]["methods"][method]["maxItems"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(
        most("containers", "bulk_lock"),
        most("api_client_authorizations", "bulk_create")
    );
    let too_many = vec![json!({}); most("containers", "bulk_lock") as usize + 1];
    create(&fixture.admin, json!(too_many)).await.error_of(422);
    create(&fixture.admin, json!("x")).await.error_of(422);
}
