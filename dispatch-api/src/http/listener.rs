//! Accepts connections: TLS, HTTP/1.1, limits and graceful shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::{debug, warn};

use super::connections::{Connection, ConnectionTable};
use super::transfer_rate::RateLimitedStream;
use crate::app::wait_for_stop;

/// Timeout of the whole handshake; a trickle does not renew it.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout from the end of one request to the complete head of the next, which includes idle time.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum size in bytes of a request head, and of the part of a body that waits to be read.
const MAX_HEAD_BYTES: usize = 64 << 10;
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between warnings about a full connection table.
const FULL_WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Settings of the listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerSettings {
    pub max_connections: usize,
    /// Time that a client may make no progress while it receives.
    pub transfer_timeout: Duration,
    /// Time that running requests have to finish after a stop.
    pub shutdown_grace: Duration,
}

/// Accepts connections until the stop signal, then waits for open ones to finish.
pub async fn accept_connections(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    settings: ListenerSettings,
    mut stop: watch::Receiver<bool>,
) {
    let acceptor = TlsAcceptor::from(tls);
    let open = TaskTracker::new();
    let table = ConnectionTable::new(settings.max_connections);
    let mut full_since: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = wait_for_stop(&mut stop) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(connection) = table.insert(peer.ip()) else {
                    if full_since.is_none_or(|at| at.elapsed() > FULL_WARNING_INTERVAL) {
                        full_since = Some(Instant::now());
                        warn!(
                            connections = settings.max_connections,
                            "closed a new connection because requests are in progress on all others; \
                               --max-connections sets the limit"
                        );
                    }
                    continue;
                };
                // Without it, small responses wait for the next packet.
                if let Err(problem) = stream.set_nodelay(true) {
                    debug!(%peer, error = %problem, "cannot set TCP_NODELAY");
                }
                let timeout = settings.transfer_timeout;
                let stream = RateLimitedStream::new(stream, connection.clone(), timeout);
                let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
                open.spawn(async move {
                    tokio::select! {
                        () = serve(stream, peer, connection.clone(), acceptor, router, stop) => {}
                        () = connection.evicted() => debug!(%peer, "closed an idle connection for a new one"),
                    }
                });
            }
            Err(problem) => {
                // Most likely there are no free file descriptors; an immediate retry would fail
                // too.
                warn!(error = %problem, "cannot accept a connection; retrying");
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(settings.shutdown_grace, open.wait())
        .await
        .is_err()
    {
        warn!("closing connections whose requests did not finish before the shutdown timeout");
    }
}

async fn serve(
    stream: RateLimitedStream,
    peer: SocketAddr,
    table_entry: Arc<Connection>,
    acceptor: TlsAcceptor,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    let stream = match tokio::time::timeout(TLS_HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(problem)) => {
            debug!(%peer, error = %problem, "TLS handshake failed");
            return;
        }
        Err(_) => {
            debug!(%peer, "TLS handshake timed out");
            return;
        }
    };
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        request.extensions_mut().insert(table_entry.clone());
        let mut router = router.clone();
        async move { router.call(request).await }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = wait_for_stop(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(problem) = ended {
        debug!(%peer, error = %problem, "connection closed before the response was complete");
    }
}
