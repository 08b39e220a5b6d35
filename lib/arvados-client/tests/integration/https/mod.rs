//! A mock server behind TLS: the client supports only https, and the mock server only http.

use std::net::SocketAddr;
use std::sync::Arc;

use arvados_client::{Client, Endpoint, Token};
use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use wiremock::MockServer;

/// The token of every client here.
pub const TOKEN: &str = "v2/zzzzz-gj3su-000000000000000/sesame";

/// A mock server, and an endpoint that reaches it.
pub async fn server() -> (MockServer, Endpoint) {
    let server = MockServer::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, acceptor(), *server.address()));
    let mut endpoint = Endpoint::new(&address.to_string(), Token::new(TOKEN)).unwrap();
    endpoint.insecure = true;
    (server, endpoint)
}

/// A client of `endpoint`.
pub fn client(endpoint: Endpoint) -> Client {
    // Another test of this program may have installed the same provider before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new(endpoint).unwrap()
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, to: SocketAddr) {
    while let Ok((stream, _)) = listener.accept().await {
        let tls = tls.clone();
        tokio::spawn(async move {
            let mut from = tls.accept(stream).await?;
            let mut to = TcpStream::connect(to).await?;
            tokio::io::copy_bidirectional(&mut from, &mut to).await
        });
    }
}

fn acceptor() -> TlsAcceptor {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}
