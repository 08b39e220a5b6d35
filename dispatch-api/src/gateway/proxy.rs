//! Proxies one request through a tunnel to a gateway: TLS, mutual proof of the secret, HTTP/1.1.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arvados_client::tls::any_certificate;
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

use super::tunnel::{StreamError, Tunnel};

/// Timeouts of the TLS handshake and of the head of the response.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeouts of the next body chunk from the gateway, and of the client's reading it. A slow client
/// must not occupy a stream of the tunnel.
const BODY_CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
const CLIENT_READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size in bytes of the response head, with read-ahead.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Maximum number of body chunks that wait for the client.
const MAX_BUFFERED_CHUNKS: usize = 2;

/// Request headers that are passed to the gateway.
const REQUEST_HEADERS: [HeaderName; 5] = [
    header::RANGE,
    header::IF_RANGE,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::CONTENT_TYPE,
];
/// Response headers that are passed to the client. A node must not set cookies for this server.
const RESPONSE_HEADERS: [HeaderName; 8] = [
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
    Stream(#[from] StreamError),
    #[error("the gateway did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error("TLS with the gateway failed: {0}")]
    Tls(io::Error),
    #[error("cannot read the gateway's response: {0}")]
    Http(hyper::Error),
    #[error("the gateway did not prove that it knows the container's secret")]
    ProofMissing,
    #[error("the request is not valid for a gateway")]
    Request,
}

/// A request for the log of a running container.
pub struct ProxyRequest {
    pub method: Method,
    /// Path and query, as the client sent them.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The path prefix that stands for the log directory.
    pub prefix: String,
}

/// Sends the request to the gateway. The response body is streamed as the client reads it.
pub async fn forward(tunnel: &Tunnel, request: ProxyRequest) -> Result<Response, ProxyError> {
    let (stream, slot) = tunnel.stream().await?;
    let name = ServerName::try_from("gateway").map_err(|_| ProxyError::Request)?;
    let connecting = TlsConnector::from(tls_config()).connect(name, stream.compat());
    let connection = within(HANDSHAKE_TIMEOUT, connecting)
        .await?
        .map_err(ProxyError::Tls)?;
    let certificates = connection.get_ref().1.peer_certificates();
    let certificate = certificates
        .and_then(<[_]>::first)
        .ok_or(ProxyError::ProofMissing)?;
    let proof = tunnel.secret.request_proof(certificate);
    let (mut sender, driver) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(connection))
        .await
        .map_err(ProxyError::Http)?;
    let driver = AbortOnDropHandle::new(tokio::spawn(driver));
    let request = gateway_request(request, &tunnel.grant.container, &proof)?;
    let response = within(RESPONSE_HEAD_TIMEOUT, sender.send_request(request))
        .await?
        .map_err(ProxyError::Http)?;
    let response_proof = response.headers().get("x-arvados-authorization-response");
    if !response_proof.is_some_and(|given| {
        tunnel
            .secret
            .verify_response_proof(&proof, given.as_bytes())
    }) {
        return Err(ProxyError::ProofMissing);
    }
    let (head, body) = response.into_parts();
    let mut response = Response::new(stream_body(Body::new(body), (sender, driver, slot)));
    *response.status_mut() = head.status;
    let mut headers = RESPONSE_HEADERS.to_vec();
    headers.extend(["dav", "ms-author-via"].map(HeaderName::from_static));
    copy(&head.headers, response.headers_mut(), &headers);
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    Ok(response)
}

async fn within<F: Future>(limit: Duration, work: F) -> Result<F::Output, ProxyError> {
    timeout(limit, work)
        .await
        .map_err(|_| ProxyError::Timeout(limit))
}

fn gateway_request(
    original: ProxyRequest,
    container: &str,
    proof: &str,
) -> Result<http::Request<Body>, ProxyError> {
    let mut request = http::Request::builder()
        .method(original.method)
        .uri(original.target)
        .header(header::HOST, "gateway")
        .header("x-arvados-container-gateway-uuid", container)
        .header("x-arvados-authorization", proof)
        .header("x-webdav-source", "/log")
        .header("x-webdav-prefix", original.prefix)
        .body(Body::from(original.body))
        .map_err(|_| ProxyError::Request)?;
    let mut headers = REQUEST_HEADERS.to_vec();
    headers.push(HeaderName::from_static("depth"));
    copy(&original.headers, request.headers_mut(), &headers);
    Ok(request)
}

fn copy(from: &HeaderMap, to: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        if let Some(value) = from.get(name) {
            to.insert(name.clone(), value.clone());
        }
    }
}

/// Streams the body with few chunks in memory. `held` is dropped after the last chunk, or when one
/// side is too slow.
fn stream_body(body: Body, held: impl Send + 'static) -> Body {
    let (pieces, taken) = mpsc::channel(MAX_BUFFERED_CHUNKS);
    tokio::spawn(async move {
        let mut body = body.into_data_stream();
        loop {
            let next = tokio::select! {
                next = timeout(BODY_CHUNK_TIMEOUT, body.next()) => next,
                () = pieces.closed() => break,
            };
            let piece = match next {
                Ok(None) => break,
                Ok(Some(piece)) => piece.map_err(io::Error::other),
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            };
            let is_last = piece.is_err();
            let passed = timeout(CLIENT_READ_TIMEOUT, pieces.send(piece)).await;
            if is_last || !matches!(passed, Ok(Ok(()))) {
                // Dropping the sender breaks the client's connection, so that the client detects
                // the missing rest.
                break;
            }
        }
        drop(held);
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
            // Any certificate is accepted here: the proof of the secret covers the certificate.
            .with_custom_certificate_verifier(any_certificate(&provider))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    };
    CONFIG.get_or_init(make).clone()
}
