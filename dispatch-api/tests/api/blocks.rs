//! The Keep protocol: storing and reading blocks.

use reqwest::Method;

use crate::fixture::Fixture;

const HASH: &str = "/acbd18db4cc2f85cedef654fccc4a4d8";

#[tokio::test(flavor = "multi_thread")]
async fn a_block_comes_back_as_it_was_put() {
    let fixture = Fixture::new().await;
    let api = &fixture.admin;
    let response = api.raw(Method::PUT, HASH).body("foo").send().await.unwrap();
    assert_eq!(response.headers()["x-keep-replicas-stored"], "1");
    assert_eq!(
        response.headers()["x-keep-storage-classes-confirmed"],
        "default=1"
    );
    let locator = response.text().await.unwrap();
    assert!(locator.ends_with('\n'));
    let path = format!("/{}", locator.trim());
    let response = api.raw(Method::GET, &path).send().await.unwrap();
    assert_eq!(response.headers()["content-length"], "3");
    assert_eq!(response.text().await.unwrap(), "foo");
    let head = api.raw(Method::HEAD, &path).send().await.unwrap();
    assert_eq!(
        (
            head.status().as_u16(),
            head.headers()["content-length"].to_str().unwrap()
        ),
        (200, "3")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_block_comes_back_as_it_was_put() {
    let fixture = Fixture::new().await;
    let api = &fixture.admin;
    let data: Vec<u8> = (0..20_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    let hash = arvados_client::keep::BlockHash::of(&data);
    let put = api.raw(Method::PUT, &format!("/{hash}")).body(data.clone());
    let locator = put.send().await.unwrap().text().await.unwrap();
    let back = api
        .raw(Method::GET, &format!("/{}", locator.trim()))
        .send()
        .await
        .unwrap();
    assert!(back.bytes().await.unwrap() == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_match_its_hash_is_refused() {
    let fixture = Fixture::new().await;
    let put = fixture.admin.raw(Method::PUT, HASH).body("bar");
    let text = fixture.admin.send(put).await.error_of(400);
    assert!(text.contains("checksum mismatch"), "{text}");
    let put = fixture
        .admin
        .raw(Method::PUT, HASH)
        .body(vec![0; (64 << 20) + 1]);
    fixture.admin.send(put).await.error_of(413);
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_needs_a_signature_for_exactly_this_token() {
    let fixture = Fixture::new().await;
    let api = &fixture.admin;
    let put = api.raw(Method::PUT, HASH).body("foo");
    let locator = api.send(put).await.ok();
    let signed = format!("/{}", locator.as_str().unwrap().trim());
    let bare = api.with_token(api.token.rsplit('/').next().unwrap());
    let other = fixture.token(serde_json::json!({})).await;
    for (caller, path) in [
        (api, format!("{HASH}+3")),
        (api, signed.replace("+A", "+A0")),
        (&bare, signed.clone()),
        (&other, signed.clone()),
    ] {
        let text = caller
            .send(caller.raw(Method::GET, &path))
            .await
            .error_of(400);
        assert!(text.contains("invalid signature"), "{path}: {text}");
    }
    let nobody = api.with_token("nonsense");
    nobody
        .send(nobody.raw(Method::PUT, HASH).body("foo"))
        .await
        .error_of(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_is_not_served() {
    let fixture = Fixture::new().await;
    let api = &fixture.admin;
    let put = api.raw(Method::PUT, HASH).body("foo");
    let locator = api.send(put).await.ok();
    let signed = format!("/{}", locator.as_str().unwrap().trim());
    let file = fixture
        .directory
        .path()
        .join("state/blocks/acb")
        .join(&HASH[1..]);
    std::fs::write(&file, "fox").unwrap();
    api.send(api.raw(Method::GET, &signed)).await.error_of(404);
    assert!(!file.exists(), "it was moved aside");
    api.send(api.raw(Method::PUT, HASH).body("foo")).await.ok();
    api.send(api.raw(Method::GET, &signed)).await.ok();
}
