//! Accepting connections: TLS, HTTP/1.1, limits and an orderly end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tower::Service;
use tracing::{debug, warn};

use crate::app::stopped;

/// Connections open at once; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 1024;
/// As long as for anything else that a client on a busy machine sends.
const HANDSHAKE: Duration = Duration::from_secs(60);
/// From the end of one request to the complete head of the next: also how long a connection may idle.
const HEAD: Duration = Duration::from_secs(90);
const AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// Serve until told to stop, then give open connections some time to finish.
pub async fn accept(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    mut stop: watch::Receiver<bool>,
    last_call: Duration,
) {
    let acceptor = TlsAcceptor::from(tls);
    let open = TaskTracker::new();
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let next = async {
            let place = room.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = next => accepted,
            _ = stopped(&mut stop) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
                open.spawn(async move {
                    serve(stream, peer, acceptor, router, stop).await;
                    drop(place);
                });
            }
            Err(problem) => {
                // Out of descriptors, most likely; trying again at once would only burn the processor.
                warn!(error = %problem, "a connection could not be accepted");
                tokio::time::sleep(AFTER_ACCEPT_ERROR).await;
            }
        }
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(last_call, open.wait()).await.is_err() {
        warn!("some requests did not finish in time and are cut off");
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    router: Router,
    mut stop: watch::Receiver<bool>,
) {
    // Small answers must not wait for the next packet.
    if let Err(problem) = stream.set_nodelay(true) {
        debug!(%peer, error = %problem, "TCP_NODELAY could not be set");
    }
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(problem)) => {
            debug!(%peer, error = %problem, "the TLS handshake failed");
            return;
        }
        Err(_) => {
            debug!(%peer, "the TLS handshake took too long");
            return;
        }
    };
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let mut router = router.clone();
        async move { router.call(request).await }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(problem) = ended {
        debug!(%peer, error = %problem, "a connection ended early");
    }
}
