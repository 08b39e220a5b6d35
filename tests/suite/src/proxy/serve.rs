//! The proxy's connections: reads each request, forwards it or not, applies the fault and answers.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::rule::{Effect, Fault};
use super::{SeenRequest, Shared};

/// Interval between two attempts to bind the port again.
const REBIND_INTERVAL: Duration = Duration::from_millis(20);

/// TLS with the server's certificate, which is with its key beside the one that clients trust.
pub fn tls(trusted: &Path) -> TlsAcceptor {
    let file = trusted.with_file_name("server.pem");
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&file)
        .and_then(Iterator::collect)
        .expect("the server's certificate");
    let key = PrivateKeyDer::from_pem_file(&file).expect("the key of the server's certificate");
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("protocol versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate with its key");
    TlsAcceptor::from(Arc::new(config))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The client for requests to the server.
pub fn client(trusted: &Path) -> reqwest::Client {
    // Another test of this process may have installed the provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let pem = std::fs::read(trusted).expect("the certificate that clients trust");
    let certificate = reqwest::Certificate::from_pem(&pem).expect("a certificate");
    reqwest::Client::builder()
        .tls_certs_only([certificate])
        .build()
        .expect("an HTTP client")
}

/// Binds a port without listening, so it refuses connections. Other sockets bound like this can
/// share the port, and one of them can listen.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Listens on a port that another socket has bound.
pub fn listen(port: &TcpSocket) -> io::Result<TcpListener> {
    bind(port.local_addr()?)?.listen(128)
}

/// Accepts connections while the proxy is open, and refuses them while it is closed. The port stays
/// bound.
pub async fn accept(
    port: TcpSocket,
    listener: TcpListener,
    tls: TlsAcceptor,
    shared: Arc<Shared>,
    mut open: watch::Receiver<bool>,
) {
    let mut listener = Some(listener);
    let is_open = open.clone();
    loop {
        match &listener {
            Some(listening) => tokio::select! {
                accepted = listening.accept() => {
                    if let Ok((stream, _)) = accepted {
                        tokio::spawn(connection(stream, tls.clone(), shared.clone(), is_open.clone()));
                    }
                }
                changed = open.wait_for(|open| !open) => match changed {
                    Ok(_) => listener = None,
                    Err(_) => return,
                },
            },
            None => {
                if open.wait_for(|open| *open).await.is_err() {
                    return;
                }
                listener = listen(&port).ok();
                tokio::time::sleep(REBIND_INTERVAL).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    shared: Arc<Shared>,
    mut open: watch::Receiver<bool>,
) {
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let service = service_fn(move |request| answer(request, shared.clone()));
    let serve =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // An error is a connection that was cut, by us or by the client.
        _ = serve => {}
        _ = open.wait_for(|open| !open) => {}
    }
}

/// A complete request of a client.
struct ClientRequest {
    head: http::request::Parts,
    body: Bytes,
}

/// A complete answer of the server.
struct ServerResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// An error ends the connection without an answer.
async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Body>, io::Error> {
    let at = Instant::now();
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(Body::new(body), usize::MAX)
        .await
        .map_err(io::Error::other)?;
    let path = head.uri.path().to_owned();
    let query = decoded(head.uri.query().unwrap_or_default());
    let method = head.method.clone();
    let fault = {
        let mut rules = shared.rules();
        let rule = rules
            .iter_mut()
            .find_map(|rule| rule.applies(&method, &path, &query).then_some(&rule.fault));
        rule.cloned()
    };
    if let Some(Fault::Late(time)) = &fault {
        tokio::time::sleep(*time).await;
    }
    // The proxy carries complete requests and answers, and cannot carry a tunnel after a 101.
    if head.headers.contains_key(http::header::UPGRADE) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
        shared.seen().push(SeenRequest {
            at,
            method,
            path,
            status: None,
            faulted: false,
        });
        return Ok(response);
    }
    if let Some(Fault::Instead(respond)) = &fault {
        let response = respond(&head).map(Body::from);
        shared.seen().push(SeenRequest {
            at,
            method,
            path,
            status: None,
            faulted: true,
        });
        return Ok(response);
    }
    let unheard = matches!(
        fault,
        Some(Fault::Cut(Effect::None) | Fault::Answer(_, Effect::None) | Fault::TooMany(_))
    );
    let answered = match unheard {
        true => None,
        false => Some(forward(ClientRequest { head, body }, &shared).await?),
    };
    shared.seen().push(SeenRequest {
        at,
        method,
        path,
        status: answered.as_ref().map(|answered| answered.status.as_u16()),
        faulted: fault.is_some(),
    });
    apply_fault(fault, answered)
}

/// Decodes percent-escapes as far as a search in a query needs.
fn decoded(query: &str) -> String {
    let mut text = query.replace('+', " ");
    for (code, plain) in [("%22", "\""), ("%5B", "["), ("%5D", "]"), ("%2C", ",")] {
        text = text.replace(code, plain);
    }
    text
}

async fn forward(asked: ClientRequest, shared: &Shared) -> io::Result<ServerResponse> {
    let path = asked
        .head
        .uri
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let mut headers = asked.head.headers;
    for name in [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let answer = shared
        .client
        .request(
            asked.head.method,
            format!("https://{}{path}", shared.upstream),
        )
        .headers(headers)
        .body(asked.body)
        .send()
        .await
        .map_err(io::Error::other)?;
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
        headers.remove(name);
    }
    let body = answer.bytes().await.map_err(io::Error::other)?;
    Ok(ServerResponse {
        status,
        headers,
        body,
    })
}

fn apply_fault(
    fault: Option<Fault>,
    answered: Option<ServerResponse>,
) -> io::Result<Response<Body>> {
    let cut = || io::Error::from(io::ErrorKind::ConnectionAborted);
    let refusal = |status: StatusCode| {
        let errors = serde_json::json!({"errors": [format!("the proxy says {status}")]});
        let mut response = Response::new(Body::from(errors.to_string()));
        *response.status_mut() = status;
        response
    };
    match fault {
        Some(Fault::Cut(_)) => return Err(cut()),
        Some(Fault::Answer(status, _)) => return Ok(refusal(status)),
        Some(Fault::TooMany(seconds)) => {
            let mut response = refusal(StatusCode::TOO_MANY_REQUESTS);
            response
                .headers_mut()
                .insert(http::header::RETRY_AFTER, seconds.into());
            return Ok(response);
        }
        _ => {}
    }
    let ServerResponse {
        status,
        headers,
        body,
    } = answered.ok_or_else(cut)?;
    let half = body.slice(..body.len() / 2);
    let length = body.len();
    let (body, length) = match fault {
        Some(Fault::Half) => (Body::from(half), None),
        Some(Fault::CutMidway) => {
            let parts = [Ok(half), Err(cut())];
            (Body::from_stream(stream::iter(parts)), Some(length))
        }
        Some(Fault::Trickle(pause)) => (trickle(body, pause), Some(length)),
        Some(Fault::Changed(change)) => {
            let value = serde_json::from_slice(&body).map_err(io::Error::other)?;
            (Body::from(change(value).to_string()), None)
        }
        _ => (Body::from(body), None),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    if let Some(length) = length {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    Ok(response)
}

fn trickle(body: Bytes, pause: Duration) -> Body {
    Body::from_stream(stream::unfold(0, move |at| {
        let body = body.clone();
        async move {
            if at == body.len() {
                return None;
            }
            tokio::time::sleep(pause).await;
            Some((Ok::<_, Infallible>(body.slice(at..at + 1)), at + 1))
        }
    }))
}
