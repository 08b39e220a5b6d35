//! One tunnel: a connection that the client made, on which the server opens streams.

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

use super::secret::Secret;

/// Maximum number of requests that go through one tunnel at the same time; more wait.
const MAX_REQUESTS: usize = 8;
/// Maximum number of streams of one tunnel, with those that are being closed.
const MAX_STREAMS: usize = 24;
/// Maximum number of bytes that all streams of a tunnel may have received and not read: the least that yamux allows.
const RECEIVE_LIMIT: usize = MAX_STREAMS * yamux::DEFAULT_CREDIT as usize;
/// Timeout of the wait for a stream.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Tunnel {
    pub secret: Secret,
    /// For whom it was opened.
    pub keeper: Keeper,
    /// Ends it.
    pub end: CancellationToken,
    orders: mpsc::Sender<Order>,
    requests: Arc<Semaphore>,
}

/// The right by which a tunnel is open.
#[derive(Clone)]
pub struct Keeper {
    pub container: String,
    /// The token that it was opened with, as presented; the secret alone may have been enough.
    pub token: Option<String>,
    /// Whether the token must hold the container's lock.
    pub must_hold: bool,
}

/// Somebody who waits for a stream.
type Order = oneshot::Sender<Stream>;

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
#[error("the gateway tunnel is {0}")]
pub struct NoStream(&'static str);

impl Tunnel {
    pub fn new(secret: Secret, keeper: Keeper) -> (Arc<Tunnel>, mpsc::Receiver<Order>) {
        let (orders, ordered) = mpsc::channel(MAX_REQUESTS);
        let tunnel = Tunnel {
            secret,
            keeper,
            end: CancellationToken::new(),
            orders,
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
        };
        (Arc::new(tunnel), ordered)
    }

    /// A new stream, and the place of its request, to be held until that is over.
    pub async fn stream(&self) -> Result<(Stream, OwnedSemaphorePermit), NoStream> {
        let open = async {
            let place = self.requests.clone().acquire_owned().await.ok()?;
            let (order, stream) = oneshot::channel();
            self.orders.send(order).await.ok()?;
            Some((stream.await.ok()?, place))
        };
        match timeout(STREAM_TIMEOUT, open).await {
            Ok(Some(opened)) => Ok(opened),
            Ok(None) => Err(NoStream("down")),
            Err(_) => Err(NoStream("busy")),
        }
    }
}

/// Carry the streams until the connection ends. Streams that the client opens are closed at once.
pub async fn carry(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    mut orders: mpsc::Receiver<Order>,
) {
    let mut config = Config::default();
    config.set_max_num_streams(MAX_STREAMS);
    config.set_max_connection_receive_window(Some(RECEIVE_LIMIT));
    let mut connection = Connection::new(connection.compat(), config, Mode::Server);
    let mut waiting = None;
    poll_fn(|context| {
        loop {
            // Also moves the bytes of all streams.
            match connection.poll_next_inbound(context) {
                Poll::Ready(Some(Ok(unwanted))) => {
                    drop(unwanted);
                    continue;
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            if waiting.is_none() {
                match orders.poll_recv(context) {
                    Poll::Ready(Some(order)) => waiting = Some(order),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            match connection.poll_new_outbound(context) {
                Poll::Ready(Ok(stream)) => {
                    if let Some(order) = waiting.take() {
                        // Who ordered it may have given up; the stream ends with its drop.
                        let _ = order.send(stream);
                    }
                }
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}
