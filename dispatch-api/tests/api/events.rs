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
use tokio_tungstenite::tungstenite::Message;

use crate::world::{Api, World};

/// A connection to the server, for what no HTTP client does.
pub async fn connect(world: &World) -> TlsStream<TcpStream> {
    let ready = world.server.ready();
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
    let stream = TcpStream::connect(&world.admin.host).await.unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

pub struct Listener(WebSocketStream<TlsStream<TcpStream>>);

impl Listener {
    pub async fn connect(world: &World, api: &Api) -> Listener {
        let stream = connect(world).await;
        let url = format!("wss://{}/websocket?api_token={}", api.host, api.token);
        let (socket, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
        Listener(socket)
    }

    pub async fn say(&mut self, message: Value) {
        self.0
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }

    /// The next message.
    pub async fn hear(&mut self) -> Option<Value> {
        self.hear_within(Duration::from_secs(60)).await
    }

    /// The next message, or nothing for a while.
    pub async fn hear_within(&mut self, patience: Duration) -> Option<Value> {
        loop {
            let next = tokio::time::timeout(patience, self.0.next());
            match next.await.ok()??.ok()? {
                Message::Text(text) => return serde_json::from_str(&text).ok(),
                _ => continue,
            }
        }
    }

    /// Whether the server ends the connection within a time.
    pub async fn ends_within(&mut self, patience: Duration) -> bool {
        let ended = async {
            while let Some(Ok(message)) = self.0.next().await {
                if message.is_close() {
                    break;
                }
            }
        };
        tokio::time::timeout(patience, ended).await.is_ok()
    }

    /// The next event about an object.
    pub async fn hear_of(&mut self, uuid: &str) -> Value {
        loop {
            let event = self.hear().await.expect("an event");
            if event["object_uuid"] == uuid {
                return event;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_state_and_of_priority_are_told() {
    let world = World::new().await;
    let mut listener = Listener::connect(&world, &world.admin).await;
    listener
        .say(json!({"method": "subscribe", "filters": []}))
        .await;
    assert_eq!(listener.hear().await, Some(json!({"status": 200})));
    world.image().await;
    let request = world.submit(json!({})).await;
    let uuid = request["container_uuid"].as_str().unwrap();
    let created = listener.hear_of(uuid).await;
    assert_eq!(
        (&created["event_type"], &created["object_kind"]),
        (&json!("create"), &json!("arvados#container"))
    );
    let raised = listener.hear_of(uuid).await;
    assert_eq!(raised["properties"]["old_attributes"]["priority"], 0);
    assert!(
        raised["properties"]["new_attributes"]["priority"]
            .as_i64()
            .unwrap()
            > 0
    );
    world.admin.lock(uuid).await.ok();
    let locked = listener.hear_of(uuid).await;
    assert_eq!(locked["properties"]["new_attributes"]["state"], "Locked");
    assert_eq!(locked["properties"]["new_attributes"].get("mounts"), None);
    assert!(
        locked["event_at"].as_str().unwrap().len() == 27,
        "six digits"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_get_400_and_the_connection_stays() {
    let world = World::new().await;
    let mut listener = Listener::connect(&world, &world.admin).await;
    listener.0.send(Message::text("{")).await.unwrap();
    assert_eq!(listener.hear().await, Some(json!({"status": 400})));
    for message in [
        json!({"method": "dance"}),
        json!({"method": "unsubscribe", "filters": [["a", "=", 1]]}),
    ] {
        listener.say(message).await;
        assert_eq!(listener.hear().await, Some(json!({"status": 400})));
    }
    listener.say(json!({"method": "subscribe"})).await;
    assert_eq!(listener.hear().await, Some(json!({"status": 200})));
    listener.say(json!({"method": "unsubscribe"})).await;
    assert_eq!(listener.hear().await, Some(json!({"status": 200})));
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_events_are_replayed_from_the_last_one_known() {
    let world = World::new().await;
    world.image().await;
    let logs = world
        .admin
        .list("logs", json!({"order": "id desc", "limit": 1}))
        .await
        .ok();
    let last = logs["items"][0]["id"].as_i64().unwrap();
    let uuid = world.submit(json!({})).await["container_uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut listener = Listener::connect(&world, &world.admin).await;
    listener
        .say(json!({"method": "subscribe", "last_log_id": last}))
        .await;
    assert_eq!(listener.hear().await, Some(json!({"status": 200})));
    let event = listener.hear_of(&uuid).await;
    assert_eq!(event["event_type"], "create");
    assert!(event["id"].as_i64().unwrap() > last);
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_hear_nothing() {
    let world = World::new().await;
    let plain = world.plain_user("plain").await;
    let mut stranger = Listener::connect(&world, &plain).await;
    let mut nobody = Listener::connect(&world, &world.admin.with_token("nonsense")).await;
    for listener in [&mut stranger, &mut nobody] {
        listener.say(json!({"method": "subscribe"})).await;
        assert_eq!(listener.hear().await, Some(json!({"status": 200})));
    }
    world.queued().await;
    let own = plain
        .post("collections", json!({"collection": {"name": "own"}}))
        .await
        .ok();
    let heard = stranger.hear().await.unwrap();
    assert_eq!(
        heard["object_uuid"], own["uuid"],
        "the first thing heard is one's own"
    );
    let for_a_while = Duration::from_millis(600);
    assert_eq!(nobody.hear_within(for_a_while).await, None);
}
