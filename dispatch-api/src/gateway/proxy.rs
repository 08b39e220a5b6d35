//! One request through a tunnel to a gateway: TLS with mutual proof of the secret, then HTTP/1.1.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arvados_client::tls::AnyCertificate;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_pki_types::ServerName;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::compat::FuturesAsyncReadCompatExt;
use tokio_util::task::AbortOnDropHandle;

use super::tunnel::{NoStream, Tunnel};

/// Timeout of the TLS handshake, and of the head of the answer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeouts of the gateway's next piece of a body, and of the client's taking it: a slow client must not keep its place
/// in the tunnel.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of bytes of the answer's head, and of those read ahead of it.
const MAX_HEAD: usize = 64 << 10;
/// Maximum number of pieces of a body that wait for the client.
const PIECES_AHEAD: usize = 2;

/// Headers of a request that a gateway is told.
const ASKED: [HeaderName; 5] = [
    header::RANGE,
    header::IF_RANGE,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::CONTENT_TYPE,
];
/// Headers of its answer that the client is told: a node does not set cookies for this server.
const ANSWERED: [HeaderName; 8] = [
    header::ACCEPT_RANGES,
    header::ALLOW,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::DATE,
];

#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error(transparent)]
    NoStream(#[from] NoStream),
    #[error("the gateway did not answer within {} s", .0.as_secs())]
    Slow(Duration),
    #[error("the gateway's TLS failed: {0}")]
    Tls(io::Error),
    #[error("the gateway's answer cannot be read: {0}")]
    Http(hyper::Error),
    #[error("the gateway did not prove that it knows the container's secret")]
    Unproved,
    #[error("the request cannot be sent to a gateway")]
    Request,
}

/// What a client wants of the log of a running container.
pub struct Wanted {
    pub method: Method,
    /// Path and query, as the client wrote them.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The part of the path that stands for the directory of the log.
    pub prefix: String,
}

/// The gateway's answer, whose body goes through as the client takes it.
pub async fn ask(tunnel: &Tunnel, wanted: Wanted) -> Result<Response, ProxyError> {
    let (stream, place) = tunnel.stream().await?;
    let name = ServerName::try_from("gateway").map_err(|_| ProxyError::Request)?;
    let connecting = TlsConnector::from(tls_config()).connect(name, stream.compat());
    let connection = within(HANDSHAKE_TIMEOUT, connecting)
        .await?
        .map_err(ProxyError::Tls)?;
    let certificates = connection.get_ref().1.peer_certificates();
    let certificate = certificates
        .and_then(<[_]>::first)
        .ok_or(ProxyError::Unproved)?;
    let proof = tunnel.secret.request_proof(certificate);
    let (mut sender, driver) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(connection))
        .await
        .map_err(ProxyError::Http)?;
    let driver = AbortOnDropHandle::new(tokio::spawn(driver));
    let request = request(wanted, &tunnel.keeper.container, &proof)?;
    let answer = within(HEAD_TIMEOUT, sender.send_request(request))
        .await?
        .map_err(ProxyError::Http)?;
    let answered = answer.headers().get("x-arvados-authorization-response");
    if !answered.is_some_and(|given| tunnel.secret.is_answer(&proof, given.as_bytes())) {
        return Err(ProxyError::Unproved);
    }
    let (head, body) = answer.into_parts();
    let mut response = Response::new(passed_on(Body::new(body), (sender, driver, place)));
    *response.status_mut() = head.status;
    let mut told = ANSWERED.to_vec();
    told.extend(["dav", "ms-author-via"].map(HeaderName::from_static));
    copy(&head.headers, response.headers_mut(), &told);
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    Ok(response)
}

async fn within<F: Future>(limit: Duration, work: F) -> Result<F::Output, ProxyError> {
    timeout(limit, work)
        .await
        .map_err(|_| ProxyError::Slow(limit))
}

fn request(
    wanted: Wanted,
    container: &str,
    proof: &str,
) -> Result<http::Request<Body>, ProxyError> {
    let mut request = http::Request::builder()
        .method(wanted.method)
        .uri(wanted.target)
        .header(header::HOST, "gateway")
        .header("x-arvados-container-gateway-uuid", container)
        .header("x-arvados-authorization", proof)
        .header("x-webdav-source", "/log")
        .header("x-webdav-prefix", wanted.prefix)
        .body(Body::from(wanted.body))
        .map_err(|_| ProxyError::Request)?;
    let mut told = ASKED.to_vec();
    told.push(HeaderName::from_static("depth"));
    copy(&wanted.headers, request.headers_mut(), &told);
    Ok(request)
}

fn copy(from: &HeaderMap, to: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        if let Some(value) = from.get(name) {
            to.insert(name.clone(), value.clone());
        }
    }
}

/// The body in few pieces at a time. What it needs is let go with its last piece, or when one side is too slow.
fn passed_on(body: Body, needed: impl Send + 'static) -> Body {
    let (pieces, taken) = mpsc::channel(PIECES_AHEAD);
    tokio::spawn(async move {
        let mut body = body.into_data_stream();
        loop {
            let next = tokio::select! {
                next = timeout(PIECE_TIMEOUT, body.next()) => next,
                () = pieces.closed() => break,
            };
            let piece = match next {
                Ok(None) => break,
                Ok(Some(piece)) => piece.map_err(io::Error::other),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            let is_last = piece.is_err();
            let passed = timeout(CLIENT_TIMEOUT, pieces.send(piece)).await;
            if is_last || !matches!(passed, Ok(Ok(()))) {
                // Dropped with the sender: the client's connection breaks, which tells it that there was more.
                break;
            }
        }
        drop(needed);
    });
    Body::from_stream(stream::unfold(taken, |mut taken| async {
        taken
            .recv()
            .await
            .map(|piece: io::Result<Bytes>| (piece, taken))
    }))
}

fn tls_config() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let make = || {
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions")
            .dangerous()
            // That it is the right one is proved by the secret, which goes into the proof together with the certificate.
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    };
    CONFIG.get_or_init(make).clone()
}
