//! Live events over a websocket.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::fixture::{Api, Fixture};

/// A websocket connection, read and written frame by frame.
pub async fn connect(fixture: &Fixture) -> TlsStream<TcpStream> {
    let ready = fixture.server.ready();
    let certificate = ready["certificate"].as_str().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(certificate).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(&fixture.admin.host).await.unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

/// A websocket connection, or the status with which the server refused it.
pub async fn try_websocket(fixture: &Fixture, api: &Api) -> Result<Listener, u16> {
    let stream = connect(fixture).await;
    let url = format!("wss://{}/websocket?api_token={}", api.host, api.token);
    match tokio_tungstenite::client_async(url, stream).await {
        Ok((socket, _)) => Ok(Listener(socket)),
        Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(problem) => panic!("{problem}"),
    }
}

pub struct Listener(WebSocketStream<TlsStream<TcpStream>>);

impl Listener {
    pub async fn connect(fixture: &Fixture, api: &Api) -> Listener {
        match try_websocket(fixture, api).await {
            Ok(listener) => listener,
            Err(status) => panic!("refused with status {status}"),
        }
    }

    pub async fn send(&mut self, message: Value) {
        self.0
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }

    /// The next message.
    pub async fn next(&mut self) -> Option<Value> {
        self.next_within(crate::fixture::STEP_TIMEOUT).await
    }

    /// The next message, or `None` after a timeout.
    pub async fn next_within(&mut self, timeout: Duration) -> Option<Value> {
        loop {
            let next = tokio::time::timeout(timeout, self.0.next());
            match next.await.ok()??.ok()? {
                Message::Text(text) => return serde_json::from_str(&text).ok(),
                _ => continue,
            }
        }
    }

    /// Whether the server closes the connection before a timeout.
    pub async fn ends_within(&mut self, timeout: Duration) -> bool {
        let ended = async {
            while let Some(Ok(message)) = self.0.next().await {
                if message.is_close() {
                    break;
                }
            }
        };
        tokio::time::timeout(timeout, ended).await.is_ok()
    }

    /// The next event about an object.
    pub async fn next_about(&mut self, uuid: &str) -> Value {
        loop {
            let event = self.next().await.expect("an event");
            if event["object_uuid"] == uuid {
                return event;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_state_and_of_priority_are_told() {
    let fixture = Fixture::new().await;
    let mut listener = Listener::connect(&fixture, &fixture.admin).await;
    listener
        .send(json!({"method": "subscribe", "filters": []}))
        .await;
    assert_eq!(listener.next().await, Some(json!({"status": 200})));
    fixture.image().await;
    let request = fixture.submit(json!({})).await;
    let uuid = request["container_uuid"].as_str().unwrap();
    let created = listener.next_about(uuid).await;
    assert_eq!(
        (&created["event_type"], &created["object_kind"]),
        (&json!("create"), &json!("arvados#container"))
    );
    let attributes = &created["properties"]["new_attributes"];
    assert!(attributes["priority"].as_i64().unwrap() > 0);
    let request = format!("container_requests/{}", request["uuid"].as_str().unwrap());
    let held = json!({"container_request": {"priority": 0}});
    fixture.admin.put(&request, held).await.ok();
    let lowered = listener.next_about(uuid).await;
    assert_eq!(lowered["properties"]["new_attributes"]["priority"], 0);
    let raised = json!({"container_request": {"priority": 5}});
    fixture.admin.put(&request, raised).await.ok();
    let raised = listener.next_about(uuid).await;
    assert_eq!(raised["properties"]["old_attributes"]["priority"], 0);
    fixture.admin.lock(uuid).await.ok();
    let locked = listener.next_about(uuid).await;
    assert_eq!(locked["properties"]["new_attributes"]["state"], "Locked");
    assert_eq!(locked["properties"]["new_attributes"].get("mounts"), None);
    assert!(
        locked["event_at"].as_str().unwrap().len() == 27,
        "six digits"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_get_400_and_the_connection_stays() {
    let fixture = Fixture::new().await;
    let mut listener = Listener::connect(&fixture, &fixture.admin).await;
    listener.0.send(Message::text("{")).await.unwrap();
    assert_eq!(listener.next().await, Some(json!({"status": 400})));
    for message in [
        json!({"method": "dance"}),
        json!({"method": "unsubscribe", "filters": [["a", "=", 1]]}),
    ] {
        listener.send(message).await;
        assert_eq!(listener.next().await, Some(json!({"status": 400})));
    }
    listener.send(json!({"method": "subscribe"})).await;
    assert_eq!(listener.next().await, Some(json!({"status": 200})));
    listener.send(json!({"method": "unsubscribe"})).await;
    assert_eq!(listener.next().await, Some(json!({"status": 200})));
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_events_are_replayed_from_the_last_one_known() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let logs = fixture
        .admin
        .list("logs", json!({"order": "id desc", "limit": 1}))
        .await
        .ok();
    let last = logs["items"][0]["id"].as_i64().unwrap();
    let uuid = fixture.submit(json!({})).await["container_uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut listener = Listener::connect(&fixture, &fixture.admin).await;
    listener
        .send(json!({"method": "subscribe", "last_log_id": last}))
        .await;
    assert_eq!(listener.next().await, Some(json!({"status": 200})));
    let event = listener.next_about(&uuid).await;
    assert_eq!(event["event_type"], "create");
    assert!(event["id"].as_i64().unwrap() > last);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_hear_nothing() {
    let fixture = Fixture::as_arvados().await;
    let plain = Api::of(&fixture.server.ready(), "user");
    let mut stranger = Listener::connect(&fixture, &plain).await;
    let mut nobody = Listener::connect(&fixture, &fixture.admin.with_token("nonsense")).await;
    for listener in [&mut stranger, &mut nobody] {
        listener.send(json!({"method": "subscribe"})).await;
        assert_eq!(listener.next().await, Some(json!({"status": 200})));
    }
    fixture.queued().await;
    let own = plain
        .post("collections", json!({"collection": {"name": "own"}}))
        .await
        .ok();
    let event = stranger.next().await.unwrap();
    assert_eq!(
        event["object_uuid"], own["uuid"],
        "the first thing heard is one's own"
    );
    let for_a_while = Duration::from_millis(600);
    assert_eq!(nobody.next_within(for_a_while).await, None);
}
