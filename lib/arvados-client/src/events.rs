//! Live events over the websocket of the server. An event may be lost, late or doubled, so it is
//! only a reason to poll earlier. A client must also work without events.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::client::Client;
use crate::error::Error;

/// Timeout of connection, TLS and handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Idle time after which a ping is sent, and then the timeout of its reply.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Maximum size of an event; the server omits most attributes.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// A change of an object.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Uuid of the object; `None` in replies to messages of the client.
    #[serde(default)]
    pub object_uuid: Option<String>,
    /// `create`, `update`, `delete`, …
    #[serde(default)]
    pub event_type: Option<String>,
    /// Old and new attributes, as far as the server sends them.
    #[serde(default)]
    pub properties: Value,
}

/// A subscription to events that this token can read.
#[derive(Debug)]
pub struct Events {
    socket: WebSocketStream<TlsStream<TcpStream>>,
    host: String,
}

impl Client {
    /// Connects to the websocket in the discovery document and subscribes to these types of events;
    /// an empty list means all.
    pub async fn events(&self, types: &[&str]) -> Result<Events, Error> {
        let address = self.discovery().await?.websocket_url;
        let host = self.endpoint().host.clone();
        let fail = |detail: String| Error::Events {
            host: host.clone(),
            detail,
        };
        let mut url = url::Url::parse(&address).map_err(|_| fail("the server has none".into()))?;
        let name = url
            .host_str()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        let port = url.port().unwrap_or(443);
        url.query_pairs_mut()
            .append_pair("api_token", self.endpoint().token.expose());

        let tls = tokio_rustls::TlsConnector::from(Arc::new(crate::tls::config(self.endpoint())?));
        let connect = async {
            let server = ServerName::try_from(name.clone()).map_err(|e| fail(e.to_string()))?;
            let tcp = TcpStream::connect((name.as_str(), port)).await;
            let tcp = tcp.map_err(|e| fail(e.to_string()))?;
            let stream = tls.connect(server, tcp).await;
            let stream = stream.map_err(|e| fail(e.to_string()))?;
            let config = WebSocketConfig::default().max_message_size(Some(MAX_EVENT_BYTES));
            // The error of a failed handshake may quote the request, which contains the token.
            let (socket, _) =
                tokio_tungstenite::client_async_with_config(url.as_str(), stream, Some(config))
                    .await
                    .map_err(|_| fail("the websocket handshake was refused".into()))?;
            Ok::<_, Error>(socket)
        };
        let seconds = CONNECT_TIMEOUT.as_secs();
        let connected = timeout(CONNECT_TIMEOUT, connect).await;
        let socket = connected.map_err(|_| fail(format!("no answer within {seconds} s")))??;
        let mut events = Events {
            socket,
            host: host.clone(),
        };
        let filters = match types {
            [] => json!([]),
            types => json!([["event_type", "in", types]]),
        };
        let subscribe = json!({"method": "subscribe", "filters": filters});
        events.send(Message::text(subscribe.to_string())).await?;
        Ok(events)
    }
}

impl Events {
    /// Returns the next event. After an error, subscribe again and poll, since events may have been
    /// lost. Cancel safe.
    pub async fn next(&mut self) -> Result<Event, Error> {
        let mut ping_sent = false;
        loop {
            let message = match timeout(PING_AFTER, self.socket.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Err(self.failed(&error.to_string())),
                Ok(None) => return Err(self.failed("the server ended the connection")),
                Err(_) if ping_sent => return Err(self.failed("the server fell silent")),
                Err(_) => {
                    ping_sent = true;
                    self.send(Message::Ping(Default::default())).await?;
                    continue;
                }
            };
            ping_sent = false;
            if let Message::Text(text) = message
                && let Ok(event) = serde_json::from_str::<Event>(&text)
                && event.object_uuid.is_some()
            {
                return Ok(event);
            }
        }
    }

    async fn send(&mut self, message: Message) -> Result<(), Error> {
        match timeout(CONNECT_TIMEOUT, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.failed(&error.to_string())),
            Err(_) => Err(self.failed("the server does not read")),
        }
    }

    fn failed(&self, detail: &str) -> Error {
        Error::Events {
            host: self.host.clone(),
            detail: detail.to_owned(),
        }
    }
}
