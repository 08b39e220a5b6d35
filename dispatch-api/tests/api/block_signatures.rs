//! Attacks on blocks: a block is read only with its signature, for the token that got it, while
//! that token is valid and its scopes permit it.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture};

const FOO: &str = "acbd18db4cc2f85cedef654fccc4a4d8";

/// Stores the block `foo` and returns its signed locator.
async fn put_foo(api: &Api) -> String {
    let put = api.raw(Method::PUT, &format!("/{FOO}")).body("foo");
    let locator = api.send(put).await.ok();
    locator.as_str().unwrap().trim().to_owned()
}

async fn status(api: &Api, method: Method, locator: &str) -> u16 {
    let request = api.raw(method, &format!("/{locator}"));
    request.send().await.unwrap().status().as_u16()
}

async fn save(api: &Api, manifest: &str) -> crate::fixture::Response {
    let body = json!({"collection": {"manifest_text": manifest}});
    api.post("collections", body).await
}

fn token_path(api: &Api) -> String {
    let uuid = api.token.split('/').nth(1).unwrap();
    format!("api_client_authorizations/{uuid}")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_manifest_gives_a_signature_for_a_block_of_another_user() {
    let fixture = Fixture::new().await;
    let alice = fixture.plain_user("alice").await;
    let mallory = fixture.plain_user("mallory").await;
    let signed = put_foo(&alice).await;
    let own_block = put_foo_as_bar(&mallory).await;
    let stolen_hint = own_block.split_once("+A").unwrap().1;
    for locator in [
        format!("{FOO}+0"),
        format!("{FOO}+00"),
        format!("{FOO}+3"),
        format!("{FOO}+0+A00@0"),
        format!("{FOO}+0+K@local"),
        format!("{FOO}+3+A{stolen_hint}"),
        format!("{FOO}+0+Rlocal-{stolen_hint}"),
        signed.clone(),
        signed.replace("+3+", "+0+"),
        format!("{own_block} {FOO}+0"),
        format!("{own_block} {FOO}+0 {own_block}"),
    ] {
        for manifest in [
            format!(". {locator} 0:0:s\n"),
            format!(". {locator} 0:3:s\n"),
            format!(". {own_block} 0:3:b\n./x {locator} 0:0:s\n"),
        ] {
            let refused = save(&mallory, &manifest).await;
            assert!([403, 422].contains(&refused.status), "{manifest}");
        }
    }
    let mine = save(&mallory, &format!(". {own_block} 0:3:b\n")).await.ok();
    let path = format!("collections/{}", mine["uuid"].as_str().unwrap());
    let change = json!({"collection": {"manifest_text": format!(". {FOO}+0 0:0:s\n")}});
    mallory.put(&path, change).await.error_of(403);
}

async fn put_foo_as_bar(api: &Api) -> String {
    let put = api
        .raw(Method::PUT, "/37b51d194a7513e45b56f6524f2d51f2")
        .body("bar");
    let locator = api.send(put).await.ok();
    locator.as_str().unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_holds_for_the_size_that_was_signed() {
    let fixture = Fixture::new().await;
    let api = fixture.plain_user("alice").await;
    let signed = put_foo(&api).await;
    for method in [Method::GET, Method::HEAD] {
        assert_eq!(status(&api, method.clone(), &signed).await, 200);
        for wrong in ["+0+", "+00+", "+4+", "+33+", "+67108864+"] {
            let locator = signed.replace("+3+", wrong);
            assert_eq!(status(&api, method.clone(), &locator).await, 400, "{wrong}");
        }
    }
    // An administrator may save unsigned blocks, so its locators may have a wrong size.
    let admin = &fixture.admin;
    let saved = save(admin, &format!(". {FOO}+4 0:4:f\n")).await.ok();
    let wrong = saved["manifest_text"].as_str().unwrap();
    let wrong = wrong.split(' ').nth(1).unwrap();
    for method in [Method::GET, Method::HEAD] {
        assert_eq!(status(admin, method, wrong).await, 400, "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_ended_neither_reads_nor_stores_blocks() {
    let fixture = Fixture::new().await;
    let revoked = fixture.plain_user("revoked").await;
    let expired = fixture.plain_user("expired").await;
    let disabled = fixture.plain_user("disabled").await;
    let mut held = Vec::new();
    for (api, refusal) in [(&revoked, 401), (&expired, 401), (&disabled, 403)] {
        let locator = put_foo(api).await;
        assert_eq!(status(api, Method::GET, &locator).await, 200);
        held.push((api, locator, refusal));
    }
    let user = disabled.get("users/current").await.ok();
    let user = format!("users/{}", user["uuid"].as_str().unwrap());
    fixture.admin.delete(&token_path(&revoked)).await.ok();
    let past = json!({"expires_at": "2020-01-01T00:00:00Z"});
    fixture.admin.put(&token_path(&expired), past).await.ok();
    let inactive = json!({"user": {"is_active": false}});
    fixture.admin.put(&user, inactive).await.ok();
    for (api, locator, refusal) in held {
        for method in [Method::GET, Method::HEAD] {
            assert_eq!(status(api, method, &locator).await, refusal, "{locator}");
        }
        let put = api.raw(Method::PUT, &format!("/{FOO}")).body("foo");
        api.send(put).await.error_of(refusal);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_need_scopes_for_collections() {
    let fixture = Fixture::new().await;
    for (scopes, puts, gets) in [
        (json!(["POST /arvados/v1/collections"]), 200, 200),
        (json!(["GET /arvados/v1/collections/"]), 403, 400),
        (json!(["GET /arvados/v1/containers"]), 403, 403),
        (json!([]), 403, 403),
    ] {
        let api = fixture.token(json!({"scopes": scopes})).await;
        let put = api.raw(Method::PUT, &format!("/{FOO}")).body("foo");
        let stored = api.send(put).await;
        assert_eq!(stored.status, puts, "{scopes}");
        let locator = match stored.body {
            Value::String(locator) => locator.trim().to_owned(),
            _ => format!("{FOO}+3"),
        };
        assert_eq!(status(&api, Method::GET, &locator).await, gets, "{scopes}");
    }
}
