//! An attempt token has access only to its container, whatever its scopes and the form of the
//! request.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::events::Listener;
use crate::fixture::{Api, Fixture};

const FOO: &str = "/acbd18db4cc2f85cedef654fccc4a4d8";
const UNSIGNED: &str = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo.txt\n";

/// An attempt token of a container, with scopes that are far too wide.
async fn attempt(fixture: &Fixture, uuid: &str) -> Api {
    let scopes = json!([format!("POST /arvados/v1/containers/{uuid}/lock"), "all"]);
    fixture.token(json!({"scopes": scopes})).await
}

/// A collection of a user who has not shared it with the attempt.
async fn others(fixture: &Fixture) -> Value {
    let other = fixture.plain_user("other").await;
    let put = other
        .raw(Method::PUT, FOO)
        .body("foo")
        .send()
        .await
        .unwrap();
    let locator = put.text().await.unwrap();
    let manifest = format!(". {} 0:3:foo.txt\n", locator.trim());
    let body = json!({"collection": {"name": "private", "manifest_text": manifest}});
    other.post("collections", body).await.ok()
}

fn uuid_of(record: &Value) -> &str {
    record["uuid"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_collection_is_changed_or_read_by_an_attempt() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let attempt = attempt(&fixture, &uuid).await;
    let before = others(&fixture).await;
    let path = format!("/arvados/v1/collections/{}", uuid_of(&before));
    let change = json!({"collection": {"name": "mine now"}});
    for method in [Method::PUT, Method::PATCH] {
        let sent = attempt.raw(method.clone(), &path);
        attempt.send(sent.json(&change)).await.error_of(403);
        let sent = attempt.raw(method, &path);
        attempt.send(sent.json(&json!({}))).await.error_of(403);
    }
    for hidden in ["PUT", "PATCH", "GET", "DELETE"] {
        let sent = attempt.raw(Method::POST, &path);
        let body = json!({"_method": hidden, "collection": {"name": "mine now"}});
        attempt.send(sent.json(&body)).await.error_of(403);
        let sent = attempt.raw(Method::POST, &path);
        let sent = sent.header("x-http-method-override", hidden);
        attempt.send(sent.json(&change)).await.error_of(403);
    }
    for (method, tail) in [
        (Method::GET, ""),
        (Method::HEAD, ""),
        (Method::DELETE, ""),
        (Method::POST, "/trash"),
        (Method::POST, "/untrash"),
    ] {
        let sent = attempt.raw(method.clone(), &format!("{path}{tail}"));
        assert_eq!(sent.send().await.unwrap().status(), 403, "{method} {tail}");
    }
    let sent = attempt.raw(Method::PUT, &path.replace("v1/", "v1//"));
    attempt.send(sent.json(&change)).await.error_of(403);
    attempt.get("collections").await.error_of(403);
    // Nor is it copied.
    let source = format!("{}/", before["portable_data_hash"].as_str().unwrap());
    let copy = json!({"replace_files": {"/": source}});
    attempt.post("collections", copy).await.error_of(403);
    let root = Api::of(&fixture.server.ready(), "root");
    let after = root.get(&format!("collections/{}", uuid_of(&before))).await;
    assert_eq!(after.ok()["modified_at"], before["modified_at"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_saves_only_blocks_that_were_signed_for_it_and_only_under_its_owner() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let attempt = attempt(&fixture, &uuid).await;
    let other = others(&fixture).await;
    let save = |manifest: &str| json!({"collection": {"manifest_text": manifest}});
    attempt
        .post("collections", save(UNSIGNED))
        .await
        .error_of(403);
    for said in ["+0", "+00", "+0+A00@0"] {
        let empty = UNSIGNED.replace("+3 0:3", &format!("{said} 0:0"));
        let answer = attempt.post("collections", save(&empty)).await;
        answer.error_of(403);
    }
    let put = attempt.raw(Method::PUT, FOO).body("foo");
    let locator = put.send().await.unwrap().text().await.unwrap();
    let signed = format!(". {} 0:3:foo.txt\n", locator.trim());
    attempt.post("collections", save(&signed)).await.ok();
    let given_away = json!({"collection": {"owner_uuid": other["owner_uuid"]}});
    attempt.post("collections", given_away).await.error_of(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_cannot_hand_out_what_others_saved_as_its_log_or_output() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let attempt = attempt(&fixture, &uuid).await;
    let other = fixture.plain_user("other").await;
    let put = other.raw(Method::PUT, "/37b51d194a7513e45b56f6524f2d51f2");
    let locator = put.body("bar").send().await.unwrap().text().await.unwrap();
    let private = format!(". {} 0:3:private\n", locator.trim());
    let private = json!({"collection": {"manifest_text": private}});
    let private = other.post("collections", private).await.ok();
    let private = private["portable_data_hash"].clone();
    attempt.lock(&uuid).await.ok();
    let running = json!({"state": "Running", "log": private});
    attempt.change(&uuid, running).await.error_of(422);
    attempt
        .change(&uuid, json!({"state": "Running"}))
        .await
        .ok();
    let output = json!({"output": private});
    attempt.change(&uuid, output).await.error_of(422);
    let own = attempt
        .post("collections", json!({"is_trashed": true}))
        .await;
    let own = own.ok()["portable_data_hash"].clone();
    let change = json!({"log": own, "output": own});
    attempt.change(&uuid, change).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_has_no_say_in_what_another_holds() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let early = attempt(&fixture, &uuid).await;
    let holder = attempt(&fixture, &uuid).await;
    holder.lock(&uuid).await.ok();
    for state in ["Running", "Cancelled", "Queued"] {
        early
            .change(&uuid, json!({"state": state}))
            .await
            .error_of(403);
    }
    holder.change(&uuid, json!({"state": "Running"})).await.ok();
    early
        .change(&uuid, json!({"state": "Complete"}))
        .await
        .error_of(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_hears_of_its_own_container_only_also_in_a_replay() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let attempt = attempt(&fixture, &uuid).await;
    others(&fixture).await;
    let mut listener = Listener::connect(&fixture, &attempt).await;
    let replay = json!({"method": "subscribe", "last_log_id": 0});
    listener.send(replay).await;
    assert_eq!(listener.next().await, Some(json!({"status": 200})));
    fixture.submit(json!({"use_existing": false})).await;
    attempt.lock(&uuid).await.ok();
    loop {
        let event = listener.next().await.expect("an event");
        assert_eq!(event["object_uuid"], uuid, "{event}");
        if event["properties"]["new_attributes"]["state"] == "Locked" {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_narrow_token_hears_only_of_what_its_scopes_let_it_read() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let scopes = json!([format!("GET /arvados/v1/containers/{uuid}")]);
    let narrow = fixture.token(json!({"scopes": scopes})).await;
    let mut listener = Listener::connect(&fixture, &narrow).await;
    let replay = json!({"method": "subscribe", "last_log_id": 0});
    listener.send(replay).await;
    assert_eq!(listener.next().await, Some(json!({"status": 200})));
    let event = listener.next().await.expect("an event");
    assert_eq!(event["object_uuid"], uuid, "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_ends_with_its_token() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(10);
    let expiring = fixture
        .token(json!({"expires_at": expires.to_string()}))
        .await;
    let revoked = attempt(&fixture, &uuid).await;
    let mut listeners = Vec::new();
    for api in [&expiring, &revoked] {
        let mut listener = Listener::connect(&fixture, api).await;
        listener.send(json!({"method": "subscribe"})).await;
        assert_eq!(listener.next().await, Some(json!({"status": 200})));
        listeners.push(listener);
    }
    revoke(&fixture, &revoked).await;
    for listener in &mut listeners {
        assert!(listener.ends_within(Duration::from_secs(30)).await);
    }
}

async fn revoke(fixture: &Fixture, token: &Api) {
    let token = token.token.split('/').nth(1).unwrap();
    let path = format!("api_client_authorizations/{token}");
    fixture.admin.delete(&path).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_attempt_neither_reads_nor_stores_blocks_nor_anything_else() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let attempt = attempt(&fixture, &uuid).await;
    let put = || attempt.raw(Method::PUT, FOO).body("foo").send();
    let locator = put().await.unwrap().text().await.unwrap();
    let get = format!("/{}", locator.trim());
    let get = || attempt.raw(Method::GET, &get).send();
    assert_eq!(get().await.unwrap().status(), 200);
    revoke(&fixture, &attempt).await;
    assert_eq!(get().await.unwrap().status(), 401);
    assert_eq!(put().await.unwrap().status(), 401);
    attempt
        .get(&format!("containers/{uuid}"))
        .await
        .error_of(401);
    attempt.post("collections", json!({})).await.error_of(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_scopes_stores_no_block() {
    let fixture = Fixture::new().await;
    let without = fixture.token(json!({"scopes": []})).await;
    let put = without.raw(Method::PUT, FOO).body("foo");
    without.send(put).await.error_of(403);
}
