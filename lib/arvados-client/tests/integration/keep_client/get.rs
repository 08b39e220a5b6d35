//! Reading blocks, and requests that are refused before anything is sent.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::Token;
use arvados_client::keep::{
    BlockSource, BlockStore, Cause, KeepClient, KeepError, KeepOptions, Locator, Service,
    ServiceList,
};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, ResponseTemplate};

use super::services::*;

#[tokio::test]
async fn a_block_is_read_with_its_signature_from_the_service_that_has_it() {
    let servers = servers::<3>().await;
    on(&servers[0], "GET", ResponseTemplate::new(404)).await;
    on(&servers[1], "GET", ResponseTemplate::new(503)).await;
    Mock::given(method("GET"))
        .and(path(format!("/{}", signed(b"foo"))))
        .and(header("Authorization", format!("Bearer {TOKEN}")))
        .respond_with(ResponseTemplate::new(200).set_body_bytes(b"foo"))
        .mount(&servers[2])
        .await;
    let urls = [servers[0].uri(), servers[1].uri(), servers[2].uri()];
    let keep = client(&[&urls[0], &urls[1], &urls[2], DEAD], options());
    assert_eq!(keep.get(&signed(b"foo")).await.unwrap(), "foo");
}

#[tokio::test]
async fn a_missing_block_is_not_found_at_once() {
    let servers = servers::<2>().await;
    for server in &servers {
        on(server, "GET", ResponseTemplate::new(404)).await;
    }
    let keep = client(&[&servers[0].uri(), &servers[1].uri()], options());
    let error = keep.get(&signed(b"foo")).await.unwrap_err();
    assert!(error.is_not_found() && !error.is_retryable());
    assert_eq!(
        error.to_string(),
        "block acbd18db4cc2f85cedef654fccc4a4d8+3 does not exist in Keep (services asked: 2)"
    );
    assert_eq!(total_requests(&servers).await, 2);
}

#[tokio::test]
async fn a_missing_block_is_not_declared_missing_while_a_service_is_down() {
    let [server] = servers().await;
    on(&server, "GET", ResponseTemplate::new(404)).await;
    // However slow the machine is, some budget is enough for a few tries.
    let mut budget = Duration::from_millis(50);
    let mut clients = 0;
    let error = loop {
        clients += 1;
        let keep = client(&[&server.uri(), DEAD], tried_for(budget));
        let error = keep.get(&signed(b"foo")).await.unwrap_err();
        let few = matches!(error, KeepError::Unavailable { tries, .. } if tries <= 2);
        if !few || budget > Duration::from_secs(60) {
            break error;
        }
        budget *= 2;
    };
    assert!(
        matches!(error, KeepError::Unavailable { tries, .. } if tries > 2),
        "{error:?}"
    );
    assert!(error.is_retryable());
    // Each client asks a service that lacks the block once.
    assert_eq!(requests(&server).await.len(), clients);
}

#[tokio::test]
async fn a_damaged_copy_is_noticed_and_a_good_one_preferred() {
    for bad in [&b"fop"[..], b"fo", b"fooo", b""] {
        let servers = servers::<2>().await;
        on(
            &servers[0],
            "GET",
            ResponseTemplate::new(200).set_body_bytes(bad),
        )
        .await;
        let (a, b) = (servers[0].uri(), servers[1].uri());
        let error = client(&[&a], options())
            .get(&signed(b"foo"))
            .await
            .unwrap_err();
        assert!(matches!(error, KeepError::Corrupt { .. }), "{error:?}");
        on(
            &servers[1],
            "GET",
            ResponseTemplate::new(200).set_body_bytes(b"foo"),
        )
        .await;
        let block = client(&[&a, &b], options())
            .get(&signed(b"foo"))
            .await
            .unwrap();
        assert_eq!(block, "foo");
    }
}

#[tokio::test]
async fn a_bad_signature_is_reported_as_the_service_puts_it() {
    let [server] = servers().await;
    on(
        &server,
        "GET",
        ResponseTemplate::new(400).set_body_string("invalid signature\n"),
    )
    .await;
    let error = client(&[&server.uri()], options())
        .get(&signed(b"foo"))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("answered 400 (invalid signature)"),
        "{error}"
    );
    let shown = format!("{error} {error:?}");
    let mac = signed(b"foo").signature().unwrap().mac.to_owned();
    assert!(
        !shown.contains(&mac) && !shown.contains("sesame"),
        "{shown}"
    );
    assert_eq!(requests(&server).await.len(), 1);
}

#[tokio::test]
async fn a_service_that_never_answers_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let impatient = KeepOptions {
        stall_timeout: Duration::from_millis(300),
        ..tried_for(Duration::from_millis(50))
    };
    let keep = client(&[&url], impatient);
    let stalled = |error: KeepError| match error {
        KeepError::Unavailable { failure, .. } => {
            assert!(matches!(failure.cause, Cause::Stalled(_)), "{failure}")
        }
        other => panic!("{other:?}"),
    };
    stalled(keep.get(&signed(b"foo")).await.unwrap_err());
    stalled(keep.put(Bytes::from(vec![0; 20 << 20])).await.unwrap_err());
}

/// Answers one connection after the other with the given bytes and closes it.
async fn raw_server(answers: Vec<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for answer in answers {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            assert!(peer.read(&mut request).await.unwrap() > 0);
            peer.write_all(answer).await.unwrap();
        }
    });
    url
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_asked_for_again() {
    let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nfo";
    let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nfoo";
    let url = raw_server(vec![cut, whole]).await;
    let keep = client(&[&url], options());
    assert_eq!(keep.get(&signed(b"foo")).await.unwrap(), "foo");
}

#[tokio::test]
async fn a_busy_service_is_left_alone_as_long_as_it_asks() {
    let [server] = servers().await;
    on(
        &server,
        "GET",
        ResponseTemplate::new(503).insert_header("Retry-After", "3600"),
    )
    .await;
    let error = client(&[&server.uri()], options())
        .get(&signed(b"foo"))
        .await
        .unwrap_err();
    assert!(
        matches!(error, KeepError::Unavailable { tries: 1, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn impossible_requests_never_leave_the_program() {
    let keep = client(&[], options());
    assert!(matches!(
        keep.get(&signed(b"foo")).await,
        Err(KeepError::NoService)
    ));
    assert!(matches!(
        keep.put(Bytes::new()).await,
        Err(KeepError::NoService)
    ));
    assert_eq!(keep.get(&Locator::empty()).await.unwrap(), "");
    let huge = Locator {
        size: (64 << 20) + 1,
        ..Locator::of(b"foo")
    };
    assert!(matches!(
        keep.get(&huge).await,
        Err(KeepError::TooLarge { .. })
    ));
    let read_only = serde_json::json!({
        "uuid": "zzzzz-bi6l4-0123456789abcde", "service_host": "127.0.0.1", "service_port": 1,
        "read_only": true,
    });
    let read_only = Service::of(&serde_json::from_value(read_only).unwrap()).unwrap();
    let keep = KeepClient::new(
        reqwest::Client::new(),
        Token::new(TOKEN),
        Arc::new(ServiceList::fixed(vec![read_only])),
        options(),
    );
    assert!(matches!(
        keep.put(Bytes::new()).await,
        Err(KeepError::NoWritableService)
    ));
}
