//! A gateway like crunch-run's, with configurable faults.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::PrivateKeyDer;
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_util::compat::{FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

use crate::events::connect;
use crate::fixture::Fixture;

pub const LOG: &str = "hello world\n";

#[derive(Clone, Copy, PartialEq)]
pub enum GatewayBehavior {
    Honest,
    /// Does not have the secret.
    Impostor,
    /// Accepts streams and never responds on them.
    Silent,
    /// Serves a large log.
    Large,
}

/// Requests that it received, without the tunnel connection.
pub type ReceivedRequests = Arc<Mutex<Vec<(String, HeaderMap)>>>;

pub struct Gateway {
    pub received_requests: ReceivedRequests,
    pub internal_url: String,
    pub serving: tokio::task::JoinHandle<()>,
}

pub fn hmac(key: &str, text: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).unwrap();
    mac.update(text);
    HEXLOWER.encode(&mac.finalize().into_bytes())
}

/// Opens a tunnel. The error is the head of the rejection.
pub async fn open(
    fixture: &Fixture,
    path: &str,
    token: Option<&str>,
    secret: &str,
    manner: GatewayBehavior,
) -> Result<Gateway, String> {
    let mut stream = connect(fixture).await;
    let form = format!("auth_secret={secret}");
    let authorization = token.map_or(String::new(), |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: upgrade\r\nUpgrade: tunnel\r\n{authorization}\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        fixture.admin.host,
        form.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => answer.push(byte),
            Err(_) => break,
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    if !answer.starts_with("HTTP/1.1 101 ") {
        return Err(answer);
    }
    let header = |name: &str| {
        let line = answer.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then(|| value.to_owned())
        });
        line.unwrap_or_default()
    };
    assert_eq!(header("upgrade"), "tunnel");
    let received_requests = ReceivedRequests::default();
    Ok(Gateway {
        internal_url: header("x-arvados-internal-url"),
        serving: tokio::spawn(serve(
            stream,
            secret.to_owned(),
            manner,
            received_requests.clone(),
        )),
        received_requests,
    })
}

async fn serve(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    secret: String,
    manner: GatewayBehavior,
    received_requests: ReceivedRequests,
) {
    let made = rcgen::generate_simple_self_signed(vec!["whatever".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let proof = hmac(&secret, &certificate);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut tunnel = yamux::Connection::new(
        stream.compat(),
        yamux::Config::default(),
        yamux::Mode::Client,
    );
    let mut silent = Vec::new();
    while let Some(Ok(stream)) = poll_fn(|context| tunnel.poll_next_inbound(context)).await {
        if manner == GatewayBehavior::Silent {
            silent.push(stream);
            continue;
        }
        let (acceptor, proof, secret) = (acceptor.clone(), proof.clone(), secret.clone());
        let received_requests = received_requests.clone();
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream.compat()).await else {
                return;
            };
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let answer = answer(&request, &proof, &secret, manner);
                let path = request.uri().path().to_owned();
                let asked_now = (path, request.headers().clone());
                received_requests.lock().unwrap().push(asked_now);
                async move { Ok::<_, Infallible>(answer) }
            });
            let serving = hyper::server::conn::http1::Builder::new();
            let _ = serving
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(
    request: &http::Request<hyper::body::Incoming>,
    proof: &str,
    secret: &str,
    manner: GatewayBehavior,
) -> http::Response<Body> {
    let answered = match manner {
        GatewayBehavior::Impostor => hmac("another secret", proof.as_bytes()),
        _ => hmac(secret, proof.as_bytes()),
    };
    let response = http::Response::builder()
        .header("x-arvados-authorization-response", answered)
        .header("set-cookie", "from=node");
    if request.headers()["x-arvados-authorization"] != proof {
        return response.status(401).body(Body::empty()).unwrap();
    }
    if manner == GatewayBehavior::Large {
        return response.body(Body::from(vec![b'x'; 64 << 20])).unwrap();
    }
    match request.headers().get("range") {
        Some(range) if range == "bytes=-6" => response
            .status(206)
            .header("content-range", "bytes 6-11/12")
            .body(Body::from(&LOG[6..])),
        _ => response.body(Body::from(LOG)),
    }
    .unwrap()
}
