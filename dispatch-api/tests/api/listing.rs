//! Lists: filters, order, pages, selections.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Fixture, request};

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatchers_questions_are_answered() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let mut uuids = Vec::new();
    for priority in [0, 10, 30, 20] {
        let made = fixture
            .submit(json!({"priority": priority, "use_existing": false}))
            .await;
        uuids.push(made["container_uuid"].as_str().unwrap().to_owned());
    }
    let api = &fixture.admin;
    let available = json!([["state", "=", "Queued"], ["priority", ">", "0"]]);
    let count = api
        .list("containers", json!({"filters": available, "limit": 0}))
        .await
        .ok();
    assert_eq!(
        (&count["items_available"], &count["items"]),
        (&json!(3), &json!([]))
    );
    let page = json!({"filters": available, "order": "priority desc", "limit": 2, "count": "none",
                      "select": ["uuid", "priority"]});
    let page = api.list("containers", page).await.ok();
    assert_eq!(page.get("items_available"), None);
    let items = page["items"].as_array().unwrap();
    assert_eq!(
        (&items[0]["uuid"], &items[1]["uuid"]),
        (&json!(uuids[2]), &json!(uuids[3]))
    );
    assert_eq!(items[0]["kind"], "arvados#container");
    assert_eq!(items[0].get("state"), None);
    let locked = api.lock(&uuids[1]).await.ok();
    let mine = json!([["locked_by_uuid", "in", [locked["locked_by_uuid"]]]]);
    let mine = api.list("containers", json!({"filters": mine})).await.ok();
    assert_eq!(mine["items"][0]["uuid"], uuids[1].as_str());
    let named = json!([["uuid", "in", uuids]]);
    assert_eq!(
        api.list("containers", json!({"filters": named})).await.ok()["items_available"],
        4
    );
    let free = json!([["locked_by_uuid", "=", null]]);
    assert_eq!(
        api.list("containers", json!({"filters": free})).await.ok()["items_available"],
        3
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_cover_everything_once() {
    let fixture = Fixture::new().await;
    for number in 0..25 {
        let body = json!({"collection": {"name": format!("c{number}")}});
        fixture.admin.post("collections", body).await.ok();
    }
    let mut seen = Vec::new();
    loop {
        let params =
            json!({"limit": 10, "offset": seen.len(), "order": "name", "select": ["name"]});
        let page = fixture.admin.list("collections", params).await.ok();
        let items = page["items"].as_array().unwrap().clone();
        if items.is_empty() {
            break;
        }
        seen.extend(
            items
                .iter()
                .map(|item| item["name"].as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(seen.len(), 25);
    assert!(seen.is_sorted());
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused_as_the_real_server_does() {
    let fixture = Fixture::new().await;
    for (params, status) in [
        (json!({"filters": [["x", "=", 1]]}), 422),
        (json!({"filters": "nonsense"}), 400),
        (json!({"where": "nonsense"}), 400),
        (json!({"where": [1]}), 400),
        (json!({"where": ""}), 200),
        (json!({"count": "maybe"}), 422),
        (json!({"limit": -1}), 422),
        (json!({"select": ["x"]}), 422),
        (json!({"select": ["kind"], "distinct": true}), 422),
        (json!({"select": [], "distinct": true}), 422),
        (json!({"filters": [["properties.a\"b", "=", 1]]}), 422),
    ] {
        let answer = fixture.admin.list("containers", params.clone()).await;
        assert_eq!(answer.status, status, "{params}: {}", answer.body);
    }
    fixture
        .admin
        .list("containers", json!({"order": "x desc"}))
        .await
        .ok();
    // An empty uuid does not mean all records.
    for nowhere in ["nonsense", "groups//contents", "/containers"] {
        fixture.admin.get(nowhere).await.error_of(404);
    }
    fixture.admin.get("containers/").await.ok();
    let text = fixture
        .admin
        .get("containers/local-dz642-aaaaaaaaaaaaaaa")
        .await
        .error_of(404);
    assert!(text.contains("Path not found"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_request_and_answers_carry_its_id() {
    let fixture = Fixture::new().await;
    let request = fixture
        .admin
        .raw(reqwest::Method::GET, "/arvados/v1/containers/x")
        .header("x-request-id", "req-abcdefghij0123456789");
    let response = request.send().await.unwrap();
    assert_eq!(
        response.headers()["x-request-id"],
        "req-abcdefghij0123456789"
    );
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        body["errors"],
        json!(["Path not found (req-abcdefghij0123456789)"])
    );
    assert!(body["error_token"].as_str().unwrap().contains('+'));
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_can_be_searched() {
    let fixture = Fixture::new().await;
    for (name, tags) in [("a", json!(["x", "y"])), ("b", json!(["z"]))] {
        let body =
            json!({"collection": {"name": name, "properties": {"tags": tags, "step": name}}});
        fixture.admin.post("collections", body).await.ok();
    }
    for (filter, expected) in [
        (json!(["properties.step", "=", "a"]), 1),
        (json!(["properties.tags", "contains", "z"]), 1),
        (json!(["properties.step", "exists", true]), 2),
        (json!(["properties.none", "exists", true]), 0),
        (json!(["name", "like", "A%"]), 0),
        (json!(["name", "ilike", "A%"]), 1),
        (json!(["name", "like", "_"]), 2),
        (json!(["name", "like", r"\_"]), 0),
        (json!(["name", "ilike", r"\A"]), 1),
        (json!(["properties.step", "like", r"\_"]), 0),
        (json!(["uuid", "is_a", "arvados#collection"]), 2),
        (json!(["name", "not in", ["a"]]), 1),
        (json!(["name", "!=", "a"]), 1),
    ] {
        let found = fixture
            .admin
            .list("collections", json!({"filters": [filter]}))
            .await
            .ok();
        assert_eq!(found["items_available"], expected, "{filter}");
    }
    let kinds = json!({"select": ["owner_uuid"], "distinct": true});
    assert_eq!(
        fixture.admin.list("collections", kinds).await.ok()["items_available"],
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documents_a_client_starts_from_need_no_token() {
    let fixture = Fixture::new().await;
    let nobody = fixture.admin.with_token("nonsense");
    let path = "/discovery/v1/apis/arvados/v1/rest";
    let document = nobody
        .send(nobody.raw(reqwest::Method::GET, path))
        .await
        .ok();
    assert_eq!(
        document["rootUrl"],
        format!("https://{}/", fixture.admin.host)
    );
    for method in [
        "get",
        "list",
        "create",
        "update",
        "delete",
        "auth",
        "lock",
        "unlock",
        "update_priority",
        "secret_mounts",
        "current",
    ] {
        assert!(
            document["resources"]["containers"]["methods"][method].is_object(),
            "{method}"
        );
    }
    assert_eq!(
        document["schemas"]["Container"]["properties"]["priority"]["type"],
        "integer"
    );
    assert_eq!(nobody.get("config").await.ok()["ClusterID"], "local");
    let ping = nobody
        .send(nobody.raw(reqwest::Method::GET, "/_health/ping"))
        .await
        .ok();
    assert_eq!(ping, json!({"health": "OK"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_administrators_and_their_tokens_for_metrics() {
    let fixture = Fixture::new().await;
    let scoped = |path: &str| json!({"scopes": [format!("GET {path}")]});
    let plain = fixture.plain_user("plain").await;
    for (api, status) in [
        (&fixture.admin, 200),
        (&fixture.token(scoped("/metrics")).await, 200),
        (&fixture.token(scoped("/arvados/v1/containers")).await, 403),
        (&plain, 403),
        (&fixture.admin.with_token("nonsense"), 401),
    ] {
        let answer = api.send(api.raw(reqwest::Method::GET, "/metrics")).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        let text = answer.body.as_str().unwrap_or("");
        let has_counts = text.contains("dispatch_api_containers{state=\"Queued\"} 0");
        assert_eq!(has_counts, status == 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_private_settings_of_users_cannot_be_searched() {
    let fixture = Fixture::new().await;
    let plain = fixture.plain_user("plain").await;
    for filter in [
        json!(["prefs", "like", "%a%"]),
        json!(["identity_url", ">", "a"]),
    ] {
        let answer = plain.list("users", json!({"filters": [filter]})).await;
        assert_eq!(answer.status, 422, "{filter}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_json_with_very_many_values_ends_early() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let many = json!({"many": vec![json!({"": 0}); 40_000]});
    let mounts = json!({
        "/out": {"kind": "tmp", "capacity": 1},
        "/in": {"kind": "json", "content": many},
    });
    for _ in 0..5 {
        let request = json!({"mounts": mounts, "use_existing": false});
        fixture.submit(request).await;
    }
    let page = json!({"select": ["mounts"]});
    let page = fixture.admin.list("container_requests", page).await.ok();
    let listed = page["items"].as_array().unwrap().len();
    assert!((1..5).contains(&listed), "{listed}");
    assert_eq!(page["items_available"], 5);
}

/// Keys that arvados-cwl-runner, arv-mount, arv-copy, crunchstat-summary and the Python SDK read
/// without a default (3.2.1).
#[tokio::test]
async fn the_configuration_has_every_key_that_clients_read() {
    let fixture = Fixture::new().await;
    let config = fixture.admin.get("config").await.ok();
    for key in [
        "/ClusterID",
        "/Collections/CollectionVersioning",
        "/Collections/DefaultReplication",
        "/Collections/ForwardSlashNameSubstitution",
        "/Containers/DefaultKeepCacheRAM",
        "/Containers/ReserveExtraRAM",
        "/Services/Controller/ExternalURL",
        "/Services/Workbench1/ExternalURL",
        "/Services/Workbench2/ExternalURL",
        "/StorageClasses/default/Default",
    ] {
        assert!(config.pointer(key).is_some(), "{key} is not in {config}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_are_found_by_the_paths_of_their_files() {
    let fixture = Fixture::new().await;
    let block = "acbd18db4cc2f85cedef654fccc4a4d8+3";
    for (name, text) in [
        ("reads", format!("./run\\0401 {block} 0:3:sample1.fastq\n")),
        ("other", format!(". {block} 0:3:notes.txt\n")),
    ] {
        let collection = json!({"name": name, "manifest_text": text});
        let body = json!({"collection": collection});
        fixture.admin.post("collections", body).await.ok();
    }
    let plain = fixture.plain_user("plain").await;
    for (operator, pattern, found) in [
        ("like", "%sample1.fastq%", 1),
        ("like", "%SAMPLE1%", 0),
        ("ilike", "%SAMPLE1%", 1),
        ("ilike", "%run 1/sample%", 1),
        ("like", "%acbd18%", 0),
        ("like", "%", 2),
    ] {
        let filters = json!({"filters": [["file_names", operator, pattern]]});
        let listed = fixture
            .admin
            .list("collections", filters.clone())
            .await
            .ok();
        let items = listed["items"].as_array().unwrap();
        assert_eq!(items.len(), found, "{operator} {pattern}: {listed}");
        assert!(items.iter().all(|item| item.get("file_names").is_none()));
        // A filter shows nothing that the caller may not read.
        let listed = plain.list("collections", filters).await.ok();
        assert_eq!(listed["items"], json!([]));
    }
    for bad in [
        json!(["file_names", "=", "x"]),
        json!(["file_names", "like", 7]),
    ] {
        let filters = json!({"filters": [bad]});
        fixture
            .admin
            .list("collections", filters)
            .await
            .error_of(422);
    }
    let requests = json!({"filters": [["file_names", "like", "%"]]});
    let listed = fixture.admin.list("container_requests", requests).await;
    listed.error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_with_an_unknown_selection_is_not_carried_out() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let kept = fixture.submit(json!({})).await;
    let own = format!("container_requests/{}", kept["uuid"].as_str().unwrap());
    let requests = async || {
        let listed = fixture
            .admin
            .list("container_requests", json!({}))
            .await
            .ok();
        listed["items"].clone()
    };
    let before = requests().await;
    for (method, path) in [
        (Method::POST, "container_requests"),
        (Method::PUT, &own),
        (Method::DELETE, &own),
    ] {
        let path = format!("/arvados/v1/{path}?select=%5B%22bogus%22%5D");
        let sent = fixture.admin.raw(method, &path);
        let sent = sent.json(&request(json!({"name": "other"})));
        let text = fixture.admin.send(sent).await.error_of(422);
        assert!(text.contains("bogus"), "{text}");
        assert_eq!(requests().await, before);
    }
}
