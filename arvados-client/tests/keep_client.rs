//! The Keep client against services that work, lie, die, stall and refuse.

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
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

const TOKEN: &str = "v2/zzzzz-gj3su-000000000000000/sesame";
const DEAD: &str = "http://127.0.0.1:1";

fn signed(data: &[u8]) -> Locator {
    Locator::of(data).sign(b"key", TOKEN, 0x7000_0000, 1_209_600)
}

/// Short delays, and more patience than a slow machine needs.
fn options() -> KeepOptions {
    KeepOptions {
        replicas: 2,
        first_delay: Duration::from_millis(1),
        retry_budget: Duration::from_secs(300),
        stall_timeout: Duration::from_secs(300),
        ..KeepOptions::default()
    }
}

/// For what is tried until this is over.
fn tried_for(budget: Duration) -> KeepOptions {
    KeepOptions {
        retry_budget: budget,
        ..options()
    }
}

fn client(urls: &[&str], options: KeepOptions) -> KeepClient {
    // Another test of this program may have installed the same provider before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let services = Service::from_urls(&urls.join(" ")).unwrap();
    let services = Arc::new(ServiceList::fixed(services));
    KeepClient::new(reqwest::Client::new(), Token::new(TOKEN), services, options)
}

async fn servers<const N: usize>() -> [MockServer; N] {
    let mut servers = Vec::new();
    for _ in 0..N {
        servers.push(MockServer::start().await);
    }
    servers.try_into().ok().unwrap()
}

fn stores(data: &[u8]) -> ResponseTemplate {
    ResponseTemplate::new(200)
        .set_body_string(format!("{}\n", signed(data)))
        .insert_header("X-Keep-Replicas-Stored", "1")
}

async fn on(server: &MockServer, verb: &str, response: ResponseTemplate) {
    Mock::given(method(verb))
        .respond_with(response)
        .mount(server)
        .await;
}

async fn requests(server: &MockServer) -> Vec<Request> {
    server.received_requests().await.unwrap()
}

async fn total_requests(servers: &[MockServer]) -> usize {
    let mut total = 0;
    for server in servers {
        total += requests(server).await.len();
    }
    total
}

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
    let error = loop {
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
    assert_eq!(requests(&server).await.len(), 1);
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
    let read_only = Service::new("zzzzz-bi6l4-0", "127.0.0.1", 1, false, "disk", true).unwrap();
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
