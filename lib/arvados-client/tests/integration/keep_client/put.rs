//! Writing blocks: replicas, retries and services that fail.

use std::time::Duration;

use arvados_client::keep::{BlockStore, KeepError, KeepOptions};
use bytes::Bytes;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::services::*;

#[tokio::test]
async fn a_block_is_stored_as_often_as_asked_and_no_more() {
    let servers = servers::<3>().await;
    for server in &servers {
        Mock::given(method("PUT"))
            .and(path("/acbd18db4cc2f85cedef654fccc4a4d8"))
            .and(header("Authorization", format!("Bearer {TOKEN}")))
            .and(header("X-Keep-Desired-Replicas", "2"))
            .and(header("Content-Length", "3"))
            .respond_with(stores(b"foo"))
            .mount(server)
            .await;
    }
    let urls: Vec<String> = servers.iter().map(MockServer::uri).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let locator = client(&urls, options())
        .put(Bytes::from_static(b"foo"))
        .await
        .unwrap();
    assert_eq!(locator, signed(b"foo"));
    assert_eq!(total_requests(&servers).await, 2);
    let first = requests(&servers[0])
        .await
        .into_iter()
        .chain(requests(&servers[1]).await)
        .chain(requests(&servers[2]).await);
    assert!(
        first
            .into_iter()
            .all(|r| r.body == b"foo" && !r.headers.contains_key("X-Keep-Storage-Classes"))
    );
}

#[tokio::test]
async fn one_service_that_makes_all_copies_is_enough() {
    let [server] = servers().await;
    on(
        &server,
        "PUT",
        stores(b"foo").insert_header("X-Keep-Replicas-Stored", "2"),
    )
    .await;
    client(&[&server.uri()], options())
        .put(Bytes::from_static(b"foo"))
        .await
        .unwrap();
}

#[tokio::test]
async fn large_blocks_are_sent_with_their_length_and_arrive_whole() {
    let [server] = servers().await;
    let data: Vec<u8> = (0..1_500_000u32).map(|n| (n % 251) as u8).collect();
    on(&server, "PUT", stores(&data)).await;
    let one = KeepOptions {
        replicas: 1,
        ..options()
    };
    client(&[&server.uri()], one)
        .put(Bytes::from(data.clone()))
        .await
        .unwrap();
    let request = &requests(&server).await[0];
    assert_eq!(request.headers["Content-Length"], "1500000");
    assert!(!request.headers.contains_key("Transfer-Encoding"));
    assert_eq!(request.body, data);
}

#[tokio::test]
async fn a_dead_service_is_replaced_by_the_next() {
    let servers = servers::<2>().await;
    for server in &servers {
        on(server, "PUT", stores(b"foo")).await;
    }
    let (a, b) = (servers[0].uri(), servers[1].uri());
    for urls in [[DEAD, &a, &b], [&a, DEAD, &b], [&a, &b, DEAD]] {
        client(&urls, options())
            .put(Bytes::from_static(b"foo"))
            .await
            .unwrap();
    }
    assert_eq!(total_requests(&servers).await, 6);
}

#[tokio::test]
async fn storing_is_tried_again_after_a_passing_failure() {
    let servers = servers::<2>().await;
    for server in &servers {
        Mock::given(method("PUT"))
            .respond_with(ResponseTemplate::new(503).set_body_string("busy\n"))
            .up_to_n_times(1)
            .mount(server)
            .await;
        on(server, "PUT", stores(b"foo")).await;
    }
    let keep = client(&[&servers[0].uri(), &servers[1].uri()], options());
    keep.put(Bytes::from_static(b"foo")).await.unwrap();
    assert_eq!(total_requests(&servers).await, 4);
}

#[tokio::test]
async fn a_refused_block_is_not_sent_again() {
    let [server] = servers().await;
    on(
        &server,
        "PUT",
        ResponseTemplate::new(403).set_body_string("Forbidden\nmore"),
    )
    .await;
    let error = client(&[&server.uri()], options())
        .put(Bytes::from_static(b"foo"))
        .await
        .unwrap_err();
    assert!(matches!(error, KeepError::Refused { .. }), "{error:?}");
    assert!(!error.is_retryable());
    assert_eq!(
        error.to_string(),
        format!(
            "Keep refused block acbd18db4cc2f85cedef654fccc4a4d8+3: {} answered 403 (Forbidden)",
            server.uri()
        )
    );
    assert_eq!(requests(&server).await.len(), 1);
}

#[tokio::test]
async fn too_few_copies_are_an_error_that_says_how_many_there_are() {
    let [server] = servers().await;
    on(&server, "PUT", stores(b"foo")).await;
    let error = client(&[&server.uri()], options())
        .put(Bytes::from_static(b"foo"))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "only 1 of 2 copies of block acbd18db4cc2f85cedef654fccc4a4d8+3 were stored"
    );
    assert!(!error.is_retryable());
    let error = client(&[&server.uri(), DEAD], tried_for(Duration::from_millis(50)))
        .put(Bytes::from_static(b"foo"))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("were stored: http://127.0.0.1:1 could not be reached"),
        "{error}"
    );
    assert!(error.is_retryable());
}

#[tokio::test]
async fn an_unconfirmed_storage_class_is_named() {
    let servers = servers::<2>().await;
    let default = stores(b"foo").insert_header("X-Keep-Storage-Classes-Confirmed", "default=1");
    for server in &servers {
        on(server, "PUT", default.clone()).await;
    }
    let classes = KeepOptions {
        storage_classes: vec!["default".into(), "hot".into()],
        ..options()
    };
    let keep = client(&[&servers[0].uri(), &servers[1].uri()], classes);
    let error = keep.put(Bytes::from_static(b"foo")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "block acbd18db4cc2f85cedef654fccc4a4d8+3 was not stored in storage class hot"
    );
    let request = &requests(&servers[0]).await[0];
    assert_eq!(request.headers["X-Keep-Storage-Classes"], "default, hot");
}

#[tokio::test]
async fn services_are_asked_until_every_class_is_confirmed() {
    let servers = servers::<3>().await;
    for (server, class) in servers
        .iter()
        .zip(["default=1", "default=1", "default=1, hot=1"])
    {
        on(
            server,
            "PUT",
            stores(b"foo").insert_header("X-Keep-Storage-Classes-Confirmed", class),
        )
        .await;
    }
    let hot = KeepOptions {
        replicas: 1,
        storage_classes: vec!["hot".into()],
        ..options()
    };
    let urls = [servers[0].uri(), servers[1].uri(), servers[2].uri()];
    client(&[&urls[0], &urls[1], &urls[2]], hot)
        .put(Bytes::from_static(b"foo"))
        .await
        .unwrap();
    assert_eq!(requests(&servers[2]).await.len(), 1);
}

#[tokio::test]
async fn a_confirmation_of_another_block_does_not_count() {
    let [server] = servers().await;
    on(&server, "PUT", stores(b"bar")).await;
    let one = KeepOptions {
        replicas: 1,
        ..options()
    };
    let error = client(&[&server.uri()], one)
        .put(Bytes::from_static(b"foo"))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("which is not its locator"),
        "{error}"
    );
}
