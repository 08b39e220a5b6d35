//! Live events over the server's websocket. They only say "look sooner": an event may be lost, late or doubled,
//! so nothing may be concluded from one, and a client must work without any.

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

/// How long connecting, TLS and the handshake may take together.
const CONNECT: Duration = Duration::from_secs(20);
/// Silence after which we ask whether the server is still there, and then the wait for its answer.
const SILENCE: Duration = Duration::from_secs(30);
/// Largest event read: the attributes are cut down by the server.
const LARGEST_EVENT: usize = 4 << 20;

/// Something happened to an object.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Which object; none in the replies to our own messages.
    #[serde(default)]
    pub object_uuid: Option<String>,
    /// `create`, `update`, `delete`, …
    #[serde(default)]
    pub event_type: Option<String>,
    /// Old and new attributes, as far as the server tells.
    #[serde(default)]
    pub properties: Value,
}

/// A subscription to every event this token may see.
#[derive(Debug)]
pub struct Events {
    socket: WebSocketStream<TlsStream<TcpStream>>,
    host: String,
}

impl Client {
    /// Connects to the websocket that the discovery document names, and subscribes to these types of events; none: to
    /// all.
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
            let tcp = TcpStream::connect((name.as_str(), port))
                .await
                .map_err(|e| fail(e.to_string()))?;
            let stream = tls
                .connect(server, tcp)
                .await
                .map_err(|e| fail(e.to_string()))?;
            let config = WebSocketConfig::default().max_message_size(Some(LARGEST_EVENT));
            // The error of a failed handshake may quote the request, and the request holds the token.
            let (socket, _) =
                tokio_tungstenite::client_async_with_config(url.as_str(), stream, Some(config))
                    .await
                    .map_err(|_| fail("the websocket handshake was refused".into()))?;
            Ok::<_, Error>(socket)
        };
        let mut events = match timeout(CONNECT, connect).await {
            Ok(socket) => Events {
                socket: socket?,
                host: host.clone(),
            },
            Err(_) => return Err(fail(format!("no answer within {} s", CONNECT.as_secs()))),
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
    /// The next event. An error ends the subscription: subscribe again, and look, since events may have been missed.
    /// Safe to cancel.
    pub async fn next(&mut self) -> Result<Event, Error> {
        let mut asked = false;
        loop {
            let message = match timeout(SILENCE, self.socket.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Err(self.broken(error.to_string())),
                Ok(None) => return Err(self.broken("the server ended the connection".into())),
                Err(_) if asked => return Err(self.broken("the server fell silent".into())),
                Err(_) => {
                    asked = true;
                    self.send(Message::Ping(Default::default())).await?;
                    continue;
                }
            };
            asked = false;
            if let Message::Text(text) = message
                && let Ok(event) = serde_json::from_str::<Event>(&text)
                && event.object_uuid.is_some()
            {
                return Ok(event);
            }
        }
    }

    async fn send(&mut self, message: Message) -> Result<(), Error> {
        match timeout(CONNECT, self.socket.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.broken(error.to_string())),
            Err(_) => Err(self.broken("the server does not read".into())),
        }
    }

    fn broken(&self, detail: String) -> Error {
        Error::Events {
            host: self.host.clone(),
            detail,
        }
    }
}
