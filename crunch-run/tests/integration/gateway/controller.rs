//! A test controller: accepts tunnels, opens streams in them, and forwards every other call to an
//! API server. It computes the proofs by itself.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arvados_client::tls::any_certificate;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

type Opener = mpsc::Sender<oneshot::Sender<yamux::Stream>>;

pub struct Controller {
    pub host: String,
    /// The controller's certificate, and that of the server behind it.
    pub certificates: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    behind: Option<String>,
    /// The secret that is accepted.
    secret: Mutex<String>,
    /// Whether any secret is accepted, as the discovery document says; requests use the newest.
    takes_any: AtomicBool,
    internal_url: Mutex<String>,
    /// The newest tunnel; dropping it cuts it.
    tunnel: Mutex<Option<Opener>>,
    made: watch::Sender<u32>,
    refused: watch::Sender<u32>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

pub fn mac(secret: &str, message: &[u8]) -> String {
    let mut mac = <Hmac<sha2::Sha256> as KeyInit>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(message);
    HEXLOWER.encode(&mac.finalize().into_bytes())
}

impl Controller {
    /// Starts a controller in front of the server at `behind`, whose certificate is in the file
    /// beside it.
    pub async fn start(dir: &Path, secret: &str, behind: Option<(&str, &Path)>) -> Self {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let mut pem = made.cert.pem();
        if let Some((_, file)) = behind {
            pem.push_str(&std::fs::read_to_string(file).unwrap());
        }
        let certificates = dir.join("controller.pem");
        std::fs::write(&certificates, pem).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            behind: behind.map(|(host, _)| host.to_owned()),
            secret: Mutex::new(secret.to_owned()),
            takes_any: AtomicBool::new(false),
            internal_url: Mutex::new("http://controller-1:8003".to_owned()),
            tunnel: Mutex::new(None),
            made: watch::channel(0).0,
            refused: watch::channel(0).0,
        });
        let serving = shared.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, shared) = (acceptor.clone(), serving.clone());
                tokio::spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else {
                        return;
                    };
                    let service = service_fn(|request| answer(shared.clone(), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(tls), service)
                        .with_upgrades()
                        .await;
                });
            }
        });
        Self {
            host,
            certificates,
            shared,
        }
    }

    /// From now on as dispatch-api does.
    pub fn take_any_secret(&self) {
        self.shared.takes_any.store(true, Ordering::Relaxed);
    }

    /// Tunnels since the start.
    pub fn tunnels(&self) -> u32 {
        *self.shared.made.borrow()
    }

    /// Waits for this number of tunnels since the start.
    pub async fn until_tunnels(&self, count: u32) {
        until(&self.shared.made, count, "tunnels").await;
    }

    pub async fn until_refused(&self, count: u32) {
        until(&self.shared.refused, count, "refusals").await;
    }

    /// Cuts tunnels as a proxy with an idle timeout does; the next one ends at another process.
    pub fn cut(&self, next_internal_url: &str) {
        *self.shared.internal_url.lock().unwrap() = next_internal_url.to_owned();
        self.shared.tunnel.lock().unwrap().take().expect("a tunnel");
    }

    /// A TLS connection to the gateway, and the certificate it has shown.
    pub async fn connect(&self) -> (TlsStream<Compat<yamux::Stream>>, Vec<u8>) {
        self.try_connect().await.unwrap()
    }

    pub async fn try_connect(&self) -> io::Result<(TlsStream<Compat<yamux::Stream>>, Vec<u8>)> {
        let opener = self.shared.tunnel.lock().unwrap().clone();
        let (ask, answer) = oneshot::channel();
        opener.expect("a tunnel").send(ask).await.unwrap();
        let stream = answer.await.unwrap().compat();
        let connector = TlsConnector::from(Arc::new(trusting()));
        let name = ServerName::try_from("0.0.0.0").unwrap();
        let tls = timeout(suite_tests::STEP_TIMEOUT, connector.connect(name, stream)).await;
        let tls = tls.expect("a handshake in time")?;
        let certificates = tls.get_ref().1.peer_certificates().unwrap();
        let certificate = certificates[0].to_vec();
        Ok((tls, certificate))
    }

    /// Asks as Arvados does, but for `more`, and checks the proof of an answer that is not of a
    /// stranger.
    pub async fn ask(&self, uuid: &str, method: &str, path: &str, more: &[(&str, &str)]) -> Reply {
        let (tls, certificate) = self.connect().await;
        let secret = self.shared.secret.lock().unwrap().clone();
        let shown = mac(&secret, &certificate);
        let base = format!("/arvados/v1/container_requests/CR/log/{uuid}");
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{base}{path}"));
        let headers = request.headers_mut().unwrap();
        for (name, value) in [
            ("host", "0.0.0.0:0"),
            ("x-arvados-container-gateway-uuid", uuid),
            ("x-arvados-authorization", shown.as_str()),
            ("x-webdav-source", "/log"),
            ("x-webdav-prefix", base.as_str()),
        ]
        .iter()
        .chain(more)
        {
            let name: header::HeaderName = name.parse().unwrap();
            headers.insert(name, value.parse().unwrap());
        }
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let exchange = async {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
                .await
                .unwrap();
            tokio::spawn(connection);
            let (head, body) = sender.send_request(request).await.unwrap().into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Reply {
                status: head.status.as_u16(),
                headers: head.headers,
                body: String::from_utf8_lossy(&body).into_owned(),
            }
        };
        let answer = timeout(suite_tests::STEP_TIMEOUT, exchange)
            .await
            .expect("an answer in time");
        let proof = answer.header("x-arvados-authorization-response");
        let expected = mac(&secret, shown.as_bytes());
        match answer.status {
            401 | 502 => assert_eq!(proof, None),
            _ => assert_eq!(proof, Some(expected.as_str())),
        }
        answer
    }

    /// The content of a log file, as far as there is one.
    pub async fn read(&self, uuid: &str, name: &str) -> String {
        let answer = self.ask(uuid, "GET", &format!("/{name}"), &[]).await;
        match answer.status {
            200 => answer.body,
            404 => String::new(),
            _ => panic!("{answer:?}"),
        }
    }
}

async fn until(counter: &watch::Sender<u32>, count: u32, what: &str) {
    let mut seen = counter.subscribe();
    let waited = timeout(
        suite_tests::STEP_TIMEOUT,
        seen.wait_for(|seen| *seen >= count),
    )
    .await;
    waited
        .unwrap_or_else(|_| panic!("no {count} {what}"))
        .unwrap();
}

async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    match request.uri().path().ends_with("/gateway_tunnel") {
        true => Ok(tunnel(shared, request).await),
        false => Ok(pass_on(&shared, request).await),
    }
}

async fn tunnel(shared: Arc<Shared>, mut request: Request<Incoming>) -> Response<Full<Bytes>> {
    assert_eq!(request.method(), "POST");
    assert!(request.uri().path().starts_with("/arvados/v1/connect/"));
    assert_eq!(request.headers()["upgrade"], "tunnel");
    assert!(
        request.headers()["authorization"]
            .to_str()
            .unwrap()
            .starts_with("Bearer ")
    );
    let upgrade = hyper::upgrade::on(&mut request);
    let form = request.into_body().collect().await.unwrap().to_bytes();
    if shared.takes_any.load(Ordering::Relaxed) {
        let form = String::from_utf8(form.to_vec()).unwrap();
        let given = form.strip_prefix("auth_secret=").unwrap();
        assert!(given.len() >= 32, "a secret that can be guessed");
        *shared.secret.lock().unwrap() = given.to_owned();
    }
    let secret = shared.secret.lock().unwrap().clone();
    if form != format!("auth_secret={secret}") {
        shared.refused.send_modify(|count| *count += 1);
        let body = r#"{"errors": ["authentication error"]}"#;
        return reply(StatusCode::UNAUTHORIZED, body.into());
    }
    let mut response = reply(StatusCode::SWITCHING_PROTOCOLS, Bytes::new());
    let headers = response.headers_mut();
    headers.insert("connection", "upgrade".parse().unwrap());
    headers.insert("upgrade", "tunnel".parse().unwrap());
    let url = shared.internal_url.lock().unwrap().clone();
    headers.insert("x-arvados-internal-url", url.parse().unwrap());
    tokio::spawn(async move {
        let stream = TokioIo::new(upgrade.await.unwrap());
        let (opener, wanted) = mpsc::channel(1);
        *shared.tunnel.lock().unwrap() = Some(opener);
        shared.made.send_modify(|count| *count += 1);
        drive(stream, wanted).await;
    });
    response
}

/// Serves a tunnel until its connection ends and no stream can be requested.
async fn drive(
    stream: TokioIo<hyper::upgrade::Upgraded>,
    mut wanted: mpsc::Receiver<oneshot::Sender<yamux::Stream>>,
) {
    let config = yamux::Config::default();
    let mut tunnel = yamux::Connection::new(stream.compat(), config, yamux::Mode::Server);
    loop {
        tokio::select! {
            inbound = poll_fn(|context| tunnel.poll_next_inbound(context)) => match inbound {
                Some(Ok(_)) => panic!("crunch-run opens no streams"),
                _ => return,
            },
            asked = wanted.recv() => {
                let Some(asked) = asked else { return };
                let stream = poll_fn(|context| tunnel.poll_new_outbound(context)).await;
                let _ = asked.send(stream.unwrap());
            }
        }
    }
}

async fn pass_on(shared: &Shared, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let behind = shared.behind.as_ref().expect("a server behind");
    let (head, body) = request.into_parts();
    let is_discovery = head.uri.path().starts_with("/discovery/");
    let body = body.collect().await.unwrap().to_bytes();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(trusting())
        .build()
        .unwrap();
    let mut headers = head.headers;
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    let request = client
        .request(head.method, format!("https://{behind}{}", head.uri))
        .headers(headers)
        .body(body);
    let Ok(answer) = request.send().await else {
        return reply(StatusCode::BAD_GATEWAY, Bytes::new());
    };
    let (status, headers) = (answer.status(), answer.headers().clone());
    let mut body = answer.bytes().await.unwrap();
    if is_discovery {
        let mut document: serde_json::Value = serde_json::from_slice(&body).unwrap();
        // Replaces what the server behind announces.
        document["gatewayAuth"] = match shared.takes_any.load(Ordering::Relaxed) {
            true => "attempt-token".into(),
            false => serde_json::Value::Null,
        };
        body = document.to_string().into();
    }
    let mut response = reply(status, body);
    for (name, value) in &headers {
        if name != header::TRANSFER_ENCODING && name != header::CONTENT_LENGTH {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

fn reply(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Takes any certificate, as Arvados does here.
fn trusting() -> ClientConfig {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(any_certificate(&provider()))
        .with_no_client_auth()
}
