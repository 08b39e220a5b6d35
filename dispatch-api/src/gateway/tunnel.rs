//! One tunnel: a connection from a client, on which the server opens streams.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::compat::TokioAsyncReadCompatExt;
use tokio_util::sync::CancellationToken;
use yamux::{Config, Connection, Mode, Stream};

use super::secret::GatewaySecret;

/// Maximum number of concurrent requests through one tunnel; more wait.
const MAX_TUNNEL_REQUESTS: usize = 8;
/// Maximum number of streams of one tunnel, including closing ones.
const MAX_STREAMS: usize = 24;
/// Maximum number of unread bytes of all streams of a tunnel: the minimum that yamux allows.
const MAX_UNREAD_BYTES: usize = MAX_STREAMS * yamux::DEFAULT_CREDIT as usize;
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Tunnel {
    pub secret: GatewaySecret,
    /// The permission by which it is open.
    pub grant: TunnelGrant,
    /// Closes the tunnel.
    pub cancel: CancellationToken,
    stream_requests: mpsc::Sender<StreamRequest>,
    requests: Arc<Semaphore>,
}

/// The permission to keep a tunnel open.
#[derive(Clone)]
pub struct TunnelGrant {
    pub container: String,
    /// The token that opened the tunnel; `None` if the secret alone was enough.
    pub token: Option<String>,
    /// Whether the token must hold the container's lock.
    pub must_hold_lock: bool,
}

/// Where to send the requested stream.
type StreamRequest = oneshot::Sender<Stream>;

/// The reason why no stream could be opened.
#[derive(Debug, thiserror::Error)]
#[error("the gateway tunnel is {0}")]
pub struct StreamError(&'static str);

impl Tunnel {
    pub fn new(
        secret: GatewaySecret,
        grant: TunnelGrant,
    ) -> (Arc<Tunnel>, mpsc::Receiver<StreamRequest>) {
        let (stream_requests, receiver) = mpsc::channel(MAX_TUNNEL_REQUESTS);
        let tunnel = Tunnel {
            secret,
            grant,
            cancel: CancellationToken::new(),
            stream_requests,
            requests: Arc::new(Semaphore::new(MAX_TUNNEL_REQUESTS)),
        };
        (Arc::new(tunnel), receiver)
    }

    /// Opens a stream, and returns it with the request slot to hold until the request ends.
    pub async fn stream(&self) -> Result<(Stream, OwnedSemaphorePermit), StreamError> {
        let open = async {
            let slot = self.requests.clone().acquire_owned().await.ok()?;
            let (request, stream) = oneshot::channel();
            self.stream_requests.send(request).await.ok()?;
            Some((stream.await.ok()?, slot))
        };
        match timeout(STREAM_TIMEOUT, open).await {
            Ok(Some(opened)) => Ok(opened),
            Ok(None) => Err(StreamError("down")),
            Err(_) => Err(StreamError("busy")),
        }
    }
}

/// Runs the connection until it ends. Streams that the client opens are closed immediately.
pub async fn carry(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    mut stream_requests: mpsc::Receiver<StreamRequest>,
) {
    let mut config = Config::default();
    config.set_max_num_streams(MAX_STREAMS);
    config.set_max_connection_receive_window(Some(MAX_UNREAD_BYTES));
    let mut connection = Connection::new(connection.compat(), config, Mode::Server);
    let mut waiting = None;
    poll_fn(|context| {
        loop {
            // This poll also moves the bytes of all streams.
            match connection.poll_next_inbound(context) {
                Poll::Ready(Some(Ok(unwanted))) => {
                    drop(unwanted);
                    continue;
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            if waiting.is_none() {
                match stream_requests.poll_recv(context) {
                    Poll::Ready(Some(request)) => waiting = Some(request),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            match connection.poll_new_outbound(context) {
                Poll::Ready(Ok(stream)) => {
                    if let Some(request) = waiting.take() {
                        // The requester may have given up; dropping the stream closes it.
                        let _ = request.send(stream);
                    }
                }
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}
