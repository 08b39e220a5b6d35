//! The Keep protocol: storing and reading blocks.

use std::time::{Duration, Instant};

use dispatch_api::backup::{self, Depth};
use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde_json::json;

use crate::fixture::{Fixture, STEP_TIMEOUT};
use crate::garbage::{name, put, save, state_of, stored};

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

/// The number of files of blocks that are being received.
fn incoming(fixture: &Fixture) -> usize {
    let dir = fixture.directory.path().join("state/blocks/incoming");
    std::fs::read_dir(dir).unwrap().count()
}

/// A body that never ends: pieces of 1 MiB, and then nothing.
fn unfinished(pieces: usize) -> reqwest::Body {
    let piece = || Ok::<_, std::io::Error>(vec![7_u8; 1 << 20]);
    let pieces = stream::iter(std::iter::repeat_with(piece).take(pieces));
    reqwest::Body::wrap_stream(pieces.chain(stream::pending()))
}

async fn wait_for_incoming(fixture: &Fixture, number: usize) {
    let until = Instant::now() + STEP_TIMEOUT;
    while incoming(fixture) != number {
        assert!(Instant::now() < until, "{} files", incoming(fixture));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_blocks_that_are_not_stored_leave_nothing() {
    let fixture = Fixture::new().await;
    let api = &fixture.admin;
    let data = vec![7_u8; 3 << 20];
    let hash = arvados_client::keep::BlockHash::of(&data);
    let put = api.raw(Method::PUT, HASH).body(data.clone());
    let text = api.send(put).await.error_of(400);
    assert!(text.contains("checksum mismatch"), "{text}");
    assert_eq!(incoming(&fixture), 0);

    // Without Content-Length, so that its size is known only when it has come.
    let pieces = stream::iter((0..65).map(|_| Ok::<_, std::io::Error>(vec![7_u8; 1 << 20])));
    let put = api.raw(Method::PUT, HASH);
    let put = put.body(reqwest::Body::wrap_stream(pieces));
    api.send(put).await.error_of(413);
    assert_eq!(incoming(&fixture), 0);

    let cut_off = api.raw(Method::PUT, &format!("/{hash}"));
    let cut_off = tokio::spawn(cut_off.body(unfinished(2)).send());
    wait_for_incoming(&fixture, 1).await;
    cut_off.abort();
    wait_for_incoming(&fixture, 0).await;
    // Twice: the second time it is there.
    for _ in 0..2 {
        let put = api.raw(Method::PUT, &format!("/{hash}")).body(data.clone());
        api.send(put).await.ok();
        assert_eq!(incoming(&fixture), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_revoked_during_an_upload_stores_nothing() {
    let fixture = Fixture::new().await;
    let caller = fixture.token(json!({})).await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<std::io::Result<Vec<u8>>>(1);
    let hash = arvados_client::keep::BlockHash::of(&vec![7_u8; 2 << 20]);
    let body = stream::unfold(receiver, async |mut pieces| {
        Some((pieces.recv().await?, pieces))
    });
    let put = caller.raw(Method::PUT, &format!("/{hash}"));
    let put = put.body(reqwest::Body::wrap_stream(Box::pin(body)));
    let sending = tokio::spawn(put.send());
    sender.send(Ok(vec![7; 1 << 20])).await.unwrap();
    wait_for_incoming(&fixture, 1).await;
    let uuid = caller.token.split('/').nth(1).unwrap();
    let path = format!("api_client_authorizations/{uuid}");
    fixture.admin.delete(&path).await.ok();
    sender.send(Ok(vec![7; 1 << 20])).await.unwrap();
    drop(sender);
    let answer = sending.await.unwrap().unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    wait_for_incoming(&fixture, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_needs_a_signature_for_exactly_this_token() {
    let fixture = Fixture::new().await;
    let api = &fixture.admin;
    let put = api.raw(Method::PUT, HASH).body("foo");
    let locator = api.send(put).await.ok();
    let signed = format!("/{}", locator.as_str().unwrap().trim());
    let bare = api.with_token(api.token.rsplit('/').next().unwrap());
    let other = fixture.token(json!({})).await;
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

/// As a copy that drops the attributes of files leaves it.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_without_its_sha256_is_counted() {
    let fixture = Fixture::new().await;
    let mut locators = Vec::new();
    for data in ["stored", "copied"] {
        locators.push(put(&fixture.admin, data).await);
    }
    save(&fixture.admin, &locators).await;
    let state = state_of(&fixture);
    let copied = &stored(&state)[&name("copied")];
    std::fs::remove_file(copied).unwrap();
    std::fs::write(copied, "copied").unwrap();
    let probe = fixture.directory.path().join("probe");
    std::fs::write(&probe, "").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let expected = match rustix::fs::setxattr(&probe, "user.sha256", b"x", flags) {
        Ok(()) => 1,
        Err(_) => 2,
    };
    for depth in [Depth::Content, Depth::Presence] {
        let report = backup::fsck(&state, depth).unwrap();
        assert_eq!(report.blocks_without_sha256, expected);
        assert!(report.is_sound());
    }
}
