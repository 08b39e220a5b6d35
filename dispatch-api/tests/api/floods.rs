//! Floods of connections, bodies and websockets, with and without a token.

use std::path::Path;
use std::time::{Duration, Instant};

use dispatch_api::{Emulate, Options};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::events::{Listener, connect, try_websocket};
use crate::fixture::{Api, Fixture};

const MAX_CONNECTIONS: usize = 40;
const TRANSFER_TIMEOUT: Duration = Duration::from_millis(300);

/// A server with low limits.
async fn fixture() -> Fixture {
    fixture_with(|_| {}).await
}

async fn fixture_with(change: impl FnOnce(&mut Options)) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let mut options = Options::new(directory.path().join("state"));
    options.max_connections = MAX_CONNECTIONS;
    options.max_request_memory = 128 << 20;
    change(&mut options);
    Fixture::with(directory, options).await
}

/// Sends the head of a request with a body of this size, and the beginning of the body.
async fn begin(fixture: &Fixture, token: &str, size: u64, body: &[u8]) -> TlsStream<TcpStream> {
    let mut stream = connect(fixture).await;
    let head = format!(
        "POST /arvados/v1/collections HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Authorization: Bearer {token}\r\nContent-Length: {size}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream
}

/// The first piece of a response; empty if the server closes the connection.
async fn answer(stream: &mut TlsStream<TcpStream>) -> String {
    let mut buffer = vec![0; 64 << 10];
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut buffer));
    let length = read.await.expect("an answer within a minute").unwrap_or(0);
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

async fn is_served(api: &Api) -> bool {
    let served = tokio::time::timeout(Duration::from_secs(30), api.get("users/current"));
    served.await.is_ok_and(|response| response.status == 200)
}

/// The lines of an access log, as soon as there are so many.
async fn wait_for_lines(log: &Path, number: usize) -> Vec<Value> {
    let until = Instant::now() + crate::fixture::STEP_TIMEOUT;
    loop {
        let text = std::fs::read_to_string(log).unwrap();
        let lines = text.lines().map(serde_json::from_str);
        match lines.collect::<Result<Vec<Value>, _>>() {
            Ok(lines) if lines.len() >= number => return lines,
            read => assert!(Instant::now() < until, "{read:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A client without connections of an earlier request.
fn new_client(fixture: &Fixture) -> Api {
    Api::of(&fixture.server.ready(), "user")
}

/// The same for the user of `fixture.admin`.
fn client_of_the_same_user(fixture: &Fixture) -> Api {
    Api::of(&fixture.server.ready(), "dispatch")
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_give_way_to_new_clients() {
    let fixture = fixture().await;
    let mut silent = Vec::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        silent.push(TcpStream::connect(&fixture.admin.host).await.unwrap());
    }
    let mut slow_heads = Vec::new();
    for _ in 0..2 * MAX_CONNECTIONS {
        let mut stream = connect(&fixture).await;
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost").await;
        slow_heads.push(stream);
    }
    assert!(is_served(&new_client(&fixture)).await);
    drop((silent, slow_heads));
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_without_a_valid_token_is_not_read() {
    let fixture = fixture().await;
    for token in ["", "nonsense"] {
        // The body never comes, so the answer must not wait for it.
        let mut stream = begin(&fixture, token, 60 << 20, b"{").await;
        let text = answer(&mut stream).await;
        assert!(text.starts_with("HTTP/1.1 401"), "{text}");
        assert!(text.contains("Not logged in"), "{text}");
    }
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn announced_bodies_of_strangers_take_no_memory_from_others() {
    let fixture = fixture().await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(begin(&fixture, "nonsense", 64 << 20, b"{").await);
    }
    let created = new_client(&fixture);
    let created = created.post("collections", json!({"collection": {}}));
    let created = tokio::time::timeout(Duration::from_secs(25), created).await;
    assert_eq!(created.expect("an answer").status, 200);
    drop(held);
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_uploads_of_a_user_do_not_delay_his_small_requests() {
    let fixture = fixture().await;
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(begin(&fixture, &fixture.admin.token, 64 << 20, b"{").await);
    }
    let created = client_of_the_same_user(&fixture);
    let created = created.post("collections", json!({"collection": {}}));
    // Without a free small body, it waits for the stalled ones until they end after 30 s.
    let created = tokio::time::timeout(Duration::from_secs(25), created).await;
    assert_eq!(created.expect("an answer").status, 200);
    drop(held);
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_uploads_of_blocks_leave_room_for_another() {
    let fixture = fixture().await;
    let token = &fixture.admin.token;
    let mut held = Vec::new();
    for _ in 0..6 {
        let mut stream = connect(&fixture).await;
        let head = format!(
            "PUT /acbd18db4cc2f85cedef654fccc4a4d8 HTTP/1.1\r\nHost: x\r\n\
             Authorization: Bearer {token}\r\nContent-Length: {}\r\n\r\nx",
            64 << 20
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        held.push(stream);
    }
    let data = vec![7_u8; 20 << 20];
    let hash = arvados_client::keep::BlockHash::of(&data);
    let api = client_of_the_same_user(&fixture);
    let put = api.raw(Method::PUT, &format!("/{hash}")).body(data);
    // In memory one of them takes the share of the user, so that this one waits for 30 s.
    let stored = tokio::time::timeout(Duration::from_secs(25), api.send(put)).await;
    assert_eq!(stored.expect("an answer").status, 200);
    drop(held);
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trickling_body_gets_408() {
    let fixture = fixture_with(|options| options.transfer_timeout = TRANSFER_TIMEOUT).await;
    let mut stream = begin(&fixture, &fixture.admin.token, 1 << 20, b"{").await;
    let (mut reading, mut writing) = tokio::io::split(&mut stream);
    let trickle = async {
        loop {
            tokio::time::sleep(TRANSFER_TIMEOUT / 6).await;
            if writing.write_all(b" ").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let mut buffer = vec![0; 4096];
    let length = tokio::select! {
        length = reading.read(&mut buffer) => length.unwrap(),
        () = trickle => unreachable!(),
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("no answer in a minute"),
    };
    let text = String::from_utf8_lossy(&buffer[..length]);
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    assert!(text.contains("arrived too slowly"), "{text}");
    drop(stream);
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_gets_413_and_its_client_reads_it() {
    let fixture = fixture().await;
    let token = fixture.admin.token.clone();
    // All of the body is sent before the answer is read, as many clients do.
    let mut stream = begin(&fixture, &token, 100 << 20, b"{").await;
    let piece = vec![b' '; 1 << 20];
    for _ in 0..99 {
        // The server reads on for half a minute.
        if stream.write_all(&piece).await.is_err() {
            break;
        }
    }
    let text = answer(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 413"), "{text}");
    assert!(text.contains("larger than 67108864 bytes"), "{text}");
    drop(stream);
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_a_form_is_found_in_its_beginning_only() {
    let fixture = fixture().await;
    let send = async |body: String| {
        let request = fixture
            .admin
            .bare(Method::POST, "/arvados/v1/collections")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        fixture.admin.send(request).await.status
    };
    let token = &fixture.admin.token;
    let long = "x".repeat(20 << 10);
    for (body, status) in [
        (format!("_method=GET&api_token={token}"), 200),
        (format!("_method=GET&api_token={token}&ignored={long}"), 200),
        (format!("_method=GET&ignored={long}&api_token={token}"), 401),
    ] {
        assert_eq!(send(body).await, status);
    }
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn small_values_do_not_become_large_memory() {
    let fixture = fixture().await;
    let body = format!("{{\"x\":[{}{{}}]}}", "{},".repeat(1 << 20));
    let request = fixture
        .admin
        .raw(Method::POST, "/arvados/v1/collections")
        .header("content-type", "application/json")
        .body(body);
    let refused = fixture.admin.send(request).await.error_of(413);
    assert!(refused.contains("250000 values"), "{refused}");
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_its_answer_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let fixture = fixture_with(|options| {
        // The request that makes the collection keeps it, too.
        options.transfer_timeout = 10 * TRANSFER_TIMEOUT;
        options.access_log = Some(log.clone());
    })
    .await;
    let size = 24 << 20;
    let body = json!({"collection": {"description": "x".repeat(size)}, "select": ["uuid"]});
    let made = fixture.admin.post("collections", body).await.ok();
    let mut stream = connect(&fixture).await;
    let head = format!(
        "GET /arvados/v1/collections/{} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        made["uuid"].as_str().unwrap(),
        fixture.admin.token
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server gives up while nothing is read; its log says how much it has sent.
    let sent = wait_for_lines(&log, 2).await[1]["bytes"].as_u64().unwrap();
    assert!(sent < size as u64, "all {sent} bytes were sent");
    drop(stream);
    assert!(is_served(&fixture.admin).await);
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_needs_a_token_here() {
    let fixture = fixture().await;
    let stranger = fixture.admin.with_token("nonsense");
    let refused = try_websocket(&fixture, &stranger).await;
    assert_eq!(refused.err(), Some(401));
    let mut listener = Listener::connect(&fixture, &fixture.admin).await;
    listener.send(json!({"method": "subscribe"})).await;
    assert_eq!(listener.next().await, Some(json!({"status": 200})));
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn websockets_without_a_token_are_few_where_arvados_is_emulated() {
    let fixture = fixture_with(|options| options.emulate = Emulate::Arvados3).await;
    let stranger = fixture.admin.with_token("nonsense");
    let mut accepted = Vec::new();
    let refused = loop {
        match try_websocket(&fixture, &stranger).await {
            Ok(socket) => accepted.push(socket),
            Err(status) => break status,
        }
        assert!(accepted.len() < 100, "no limit");
    };
    assert_eq!((accepted.len(), refused), (16, 429));
    assert!(try_websocket(&fixture, &fixture.admin).await.is_ok());
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_head_gets_431() {
    let fixture = fixture().await;
    let mut stream = connect(&fixture).await;
    let path = "x".repeat(100 << 10);
    let head = format!("GET /?{path} HTTP/1.1\r\nHost: x\r\nX-Long: {path}\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).await;
    let text = answer(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 431"), "{text}");
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_says_who_asked_for_what_and_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let fixture = fixture_with(|options| options.access_log = Some(log.clone())).await;
    let api = &fixture.admin;
    let path = format!("/arvados/v1/users/current?api_token={}", api.token);
    assert_eq!(api.send(api.bare(Method::GET, &path)).await.status, 200);
    let path = format!("api_client_authorizations/{}", api.token);
    assert_eq!(api.get(&path).await.status, 404);
    let refused = api.with_token("nonsense").get("containers").await;
    assert_eq!(refused.status, 401);
    let lines = wait_for_lines(&log, 3).await;
    assert_eq!(lines[0]["path"], "/arvados/v1/users/current");
    let user = lines[0]["user"].as_str().unwrap();
    assert_eq!(user.get(5..12), Some("-tpzed-"));
    assert!(lines[0]["bytes"].as_u64().unwrap() > 100);
    for (line, status) in lines.iter().zip([200, 404, 401]) {
        assert_eq!(line["status"], status);
    }
    assert_eq!(lines[2]["user"], json!(null));
    let secret = api.token.rsplit('/').next().unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains(secret), "{text}");
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_filters_are_the_clients_error_and_many_orders_none() {
    let fixture = fixture().await;
    let list = async |parameter: &str, value: Value| {
        let request = fixture
            .admin
            .raw(Method::POST, "/arvados/v1/containers")
            .form(&[("_method", "GET"), (parameter, &value.to_string())]);
        fixture.admin.send(request).await
    };
    let filters = json!(vec![json!(["state", "=", "Queued"]); 2000]);
    let refused = list("filters", filters).await.error_of(422);
    assert!(refused.contains("maximum of 500"), "{refused}");
    let order = json!(vec!["priority desc, created_at"; 10_000]);
    list("order", order).await.ok();
    fixture.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_rewrites_no_token_file() {
    use std::os::unix::fs::MetadataExt;
    let fixture = Fixture::new().await;
    let path = fixture.directory.path().join("state/tokens/root");
    let before = std::fs::metadata(&path).unwrap().ino();
    let fixture = fixture.restarted().await;
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), before);
    fixture.server.stop().await;
}
