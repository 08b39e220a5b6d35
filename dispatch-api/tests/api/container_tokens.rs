//! Attacks with the token of a container, and on the secrets of tokens.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, v2};

/// A running container of `owner`, and its token.
async fn running(fixture: &Fixture, owner: &Api) -> (String, Api) {
    running_with(fixture, owner, false).await
}

async fn running_with(fixture: &Fixture, owner: &Api, api: bool) -> (String, Api) {
    let put = owner.raw(Method::PUT, "/acbd18db4cc2f85cedef654fccc4a4d8");
    let locator = owner.send(put.body("foo")).await.ok();
    let manifest = format!(". {} 0:3:image.tar\n", locator.as_str().unwrap().trim());
    let image = json!({"collection": {"manifest_text": manifest}});
    let image = owner.post("collections", image).await.ok();
    let image = &image["portable_data_hash"];
    let constraints = json!({"vcpus": 1, "ram": 1 << 20, "API": api});
    let request = json!({"use_existing": false, "container_image": image, "runtime_constraints": constraints});
    let request = crate::fixture::submit(owner, request).await.ok();
    let uuid = request["container_uuid"].as_str().unwrap().to_owned();
    fixture.admin.lock(&uuid).await.ok();
    let token = fixture.admin.container_token(&uuid).await;
    let running = json!({"state": "Running"});
    fixture.admin.change(&uuid, running).await.ok();
    (uuid, token)
}

fn path_of(token: &Api) -> String {
    let uuid = token.token.split('/').nth(1).unwrap();
    format!("api_client_authorizations/{uuid}")
}

async fn token_count(fixture: &Fixture) -> Value {
    let root = Api::of(&fixture.server.ready(), "root");
    let list = root.list("api_client_authorizations", json!({})).await;
    list.ok()["items_available"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_an_administrators_container_has_no_administrator_rights() {
    let fixture = Fixture::new().await;
    let other = fixture.plain_user("other").await;
    let secret = json!({"collection": {"name": "private"}});
    let secret = other.post("collections", secret).await.ok();
    let secret = format!("collections/{}", secret["uuid"].as_str().unwrap());
    let (uuid, token) = running(&fixture, &fixture.admin).await;
    fixture.admin.get(&secret).await.ok();
    token.get("users/current").await.ok();
    token.get(&secret).await.error_of(404);
    token
        .post("users", json!({"user": {"username": "x"}}))
        .await
        .error_of(403);
    let unsigned = json!({"collection":
        {"manifest_text": ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:f\n"}});
    token.post("collections", unsigned).await.error_of(403);
    fixture.image().await;
    let queued = fixture.submit(json!({"use_existing": false})).await;
    token
        .lock(queued["container_uuid"].as_str().unwrap())
        .await
        .error_of(403);
    token
        .delete(&format!("containers/{uuid}"))
        .await
        .error_of(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_reaches_no_token_and_ends_with_its_container() {
    let fixture = Fixture::new().await;
    for owner in [fixture.admin.clone(), fixture.plain_user("owner").await] {
        let (uuid, token) = running(&fixture, &owner).await;
        let before = token_count(&fixture).await;
        let own = token.get("api_client_authorizations/current").await.ok();
        assert_eq!(v2(&own), token.token);
        let root = "api_client_authorizations/local-gj3su-000000000000000";
        for path in [
            root,
            &path_of(&owner),
            &path_of(&token),
            &path_of(&fixture.admin),
        ] {
            for path in [path.to_owned(), format!("/{path}")] {
                token.get(&path).await.error_of(403);
                let later = json!({"expires_at": "2099-01-01T00:00:00Z"});
                token.put(&path, later.clone()).await.error_of(403);
                let hidden = json!({"_method": "PUT", "api_client_authorization": later});
                token.post(&path, hidden).await.error_of(403);
                token.delete(&path).await.error_of(403);
            }
        }
        let list = token.list("api_client_authorizations", json!({})).await;
        list.error_of(403);
        let endless = json!({"api_client_authorization": {"scopes": ["all"]}});
        for path in ["api_client_authorizations", "/api_client_authorizations"] {
            token.post(path, endless.clone()).await.error_of(403);
        }
        let bulk = json!({"items": [{"scopes": ["all"]}]});
        let bulk = token
            .post("api_client_authorizations/bulk_create", bulk)
            .await;
        bulk.error_of(403);
        assert_eq!(token_count(&fixture).await, before);
        // Not even an expiry that its owner set keeps the token after the container's end.
        fixture
            .admin
            .change(&uuid, json!({"state": "Complete"}))
            .await
            .ok();
        token.get("users/current").await.error_of(401);
        let later = json!({"expires_at": "2099-01-01T00:00:00Z"});
        owner.put(&path_of(&token), later).await.ok();
        token.get("users/current").await.error_of(401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_shown_only_when_its_token_is_created() {
    let fixture = Fixture::new().await;
    let admin = &fixture.admin;
    let root = Api::of(&fixture.server.ready(), "root");
    let alice = fixture.plain_user("alice").await;
    let made = alice
        .post("api_client_authorizations", json!({}))
        .await
        .ok();
    assert!(made["api_token"].as_str().unwrap().len() >= 50);
    let path = path_of(&alice);
    for reader in [admin, &root, &alice] {
        for answer in [
            reader.get(&path).await,
            reader
                .put(&path, json!({"expires_at": "2098-01-01T00:00:00Z"}))
                .await,
            reader
                .list(&path, json!({"select": ["uuid", "api_token"]}))
                .await,
        ] {
            assert_eq!(answer.ok()["api_token"], Value::Null);
        }
        let list = reader
            .list("api_client_authorizations", json!({}))
            .await
            .ok();
        for token in list["items"].as_array().unwrap() {
            assert_eq!(token["api_token"], Value::Null, "{token}");
        }
    }
    let own = alice.get("api_client_authorizations/current").await.ok();
    assert_eq!(v2(&own), alice.token);
    // No filter and no order tells a secret letter by letter.
    let secret = own["api_token"].as_str().unwrap();
    for filter in [
        json!(["api_token", "=", secret]),
        json!(["api_token", "like", format!("{}%", &secret[..1])]),
        json!(["api_client_authorizations.api_token", ">", "a"]),
    ] {
        let list = alice.list("api_client_authorizations", json!({"filters": [filter]}));
        list.await.error_of(422);
    }
    let condition = json!({"where": {"api_token": secret}});
    alice
        .list("api_client_authorizations", condition)
        .await
        .error_of(422);
    // Root's tokens are not even found.
    let root_path = path_of(&root);
    admin.get(&root_path).await.error_of(404);
    admin.delete(&root_path).await.error_of(404);
    alice.get(&root_path).await.error_of(404);
    root.get(&root_path).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_an_attempt_is_not_for_other_users() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let scopes = json!([format!("POST /arvados/v1/containers/{uuid}/lock"), "all"]);
    let attempt = fixture.token(json!({"scopes": scopes})).await;
    attempt.lock(&uuid).await.ok();
    let secret = |list: Value| {
        let held = list["items"].as_array().unwrap().clone();
        let held = held
            .into_iter()
            .find(|token| path_of(&attempt).ends_with(token["uuid"].as_str().unwrap()));
        held.unwrap()["api_token"].clone()
    };
    let list =
        |api: Api| async move { api.list("api_client_authorizations", json!({})).await.ok() };
    let admin = fixture.admin.clone();
    assert!(
        secret(list(admin.clone()).await).is_string(),
        "a dispatcher finds its attempts"
    );
    let root = Api::of(&fixture.server.ready(), "root");
    assert_eq!(secret(list(root).await), Value::Null);
    let other = json!({"user": {"username": "boss", "is_active": true, "is_admin": true}});
    let other = admin.post("users", other).await.ok();
    let other = fixture.token(json!({"owner_uuid": other["uuid"]})).await;
    let held = other.container(&uuid).await["locked_by_uuid"].clone();
    let held = format!("api_client_authorizations/{}", held.as_str().unwrap());
    assert_eq!(other.get(&held).await.ok()["api_token"], Value::Null);
    // A restarted dispatcher reads the tokens of its attempts one by one.
    assert!(admin.get(&held).await.ok()["api_token"].is_string());
    let tokens = "GET /arvados/v1/api_client_authorizations";
    let narrow = fixture
        .token(json!({"scopes": [tokens, format!("{tokens}/")]}))
        .await;
    assert_eq!(narrow.get(&held).await.ok()["api_token"], Value::Null);
    assert_eq!(secret(list(narrow).await), Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_narrow_token_creates_none_that_may_do_more() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let victim = alice.get("users/current").await.ok()["uuid"].clone();
    let tokens = "/arvados/v1/api_client_authorizations";
    let scopes = json!([format!("POST {tokens}"), format!("PUT {tokens}/")]);
    let attributes = json!({"scopes": scopes, "expires_at": "2090-01-01T00:00:00Z"});
    let narrow = fixture.token(attributes).await;
    let create = |attributes: Value| {
        let body = json!({"api_client_authorization": attributes});
        narrow.post("api_client_authorizations", body)
    };
    let soon = "2089-01-01T00:00:00Z";
    for wide in [
        json!({}),
        json!({"scopes": ["all"], "expires_at": soon}),
        json!({"scopes": ["GET /"], "expires_at": soon}),
        json!({"scopes": scopes}),
        json!({"scopes": scopes, "expires_at": "2091-01-01T00:00:00Z"}),
        json!({"scopes": scopes, "expires_at": soon, "owner_uuid": victim}),
    ] {
        create(wide.clone()).await.error_of(403);
    }
    create(json!({"scopes": [scopes[0]], "expires_at": soon}))
        .await
        .ok();
    for path in [path_of(&narrow), path_of(&alice), path_of(&fixture.admin)] {
        let wide = json!({"scopes": ["all"]});
        narrow.put(&path, wide).await.error_of(403);
    }
}

/// crunch-run saves the output of a container with the token of the container.
#[tokio::test(flavor = "multi_thread")]
async fn the_container_of_a_disabled_user_keeps_its_token_unless_it_may_use_it_itself() {
    for (fixture, outlasts) in [
        (Fixture::new().await, true),
        (Fixture::as_arvados().await, false),
    ] {
        let ana = fixture.plain_user("ana").await;
        let (uuid, token) = running(&fixture, &ana).await;
        let (_, with_api) = running_with(&fixture, &ana, true).await;
        let user = ana.get("users/current").await.ok();
        let path = format!("users/{}", user["uuid"].as_str().unwrap());
        let disable = json!({"user": {"is_active": false}});
        fixture.admin.put(&path, disable).await.ok();
        let refusal = if outlasts { 403 } else { 401 };
        let output = || json!({"collection": {"name": "output", "manifest_text": ""}});
        with_api
            .post("collections", output())
            .await
            .error_of(refusal);
        ana.post("collections", output()).await.error_of(refusal);
        let saved = token.post("collections", output()).await;
        if !outlasts {
            saved.error_of(refusal);
            continue;
        }
        assert_eq!(saved.ok()["owner_uuid"], user["uuid"]);
        let ended = json!({"state": "Cancelled"});
        fixture.admin.change(&uuid, ended).await.ok();
        token.post("collections", output()).await.error_of(401);
    }
}
