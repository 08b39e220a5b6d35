//! Serves one HTTP request per stream of the tunnel, over TLS with a certificate of this run. A
//! stream without progress is closed, so that no client holds resources forever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arvados_client::ContainerUuid;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use super::answer::{self, Body, Progress};
use super::request::{self, Refusal};
use super::secret::{GatewaySecret, Proofs};
use crate::logs::LogDir;

/// Maximum time in which a stream makes no progress: a handshake, a request, or 32 KiB of an
/// answer.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of the head of a request, and of what waits to be written to a stream.
const BUFFER_LIMIT: usize = 64 << 10;
const RESPONSE_PROOF: &str = "x-arvados-authorization-response";

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("the gateway's certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS of the gateway cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Serves any number of streams.
pub struct Server {
    tls: TlsAcceptor,
    proofs: Proofs,
    uuid: String,
    logs: LogDir,
    stream_timeout: Duration,
}

impl Server {
    pub fn new(
        uuid: &ContainerUuid,
        secret: &GatewaySecret,
        logs: LogDir,
    ) -> Result<Self, ServerError> {
        let made = rcgen::generate_simple_self_signed(["crunch-run".to_owned()])?;
        let certificate = made.cert.der().clone();
        let proofs = secret.proofs(&certificate);
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into())?;
        Ok(Self {
            tls: TlsAcceptor::from(Arc::new(config)),
            proofs,
            uuid: uuid.to_string(),
            logs,
            stream_timeout: STREAM_TIMEOUT,
        })
    }

    /// Serves one request.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let progress = Progress::default();
        let serving = async {
            let stream = self.tls.accept(stream).await?;
            progress.fetch_add(1, Ordering::Relaxed);
            let answer = service_fn(|request| self.answer(request, &progress));
            http1::Builder::new()
                .max_buf_size(BUFFER_LIMIT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answer)
                .await
                .map_err(io::Error::other)
        };
        tokio::select! {
            served = serving => if let Err(error) = served {
                tracing::debug!(container = %self.uuid, %error, "a stream of the gateway broke");
            },
            () = stalled(&progress, self.stream_timeout) => {
                tracing::debug!(container = %self.uuid, "a stream of the gateway made no progress");
            }
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        progress: &Progress,
    ) -> Result<Response<Body>, io::Error> {
        progress.fetch_add(1, Ordering::Relaxed);
        let (head, _body) = request.into_parts();
        let (mut response, is_authorized) =
            match request::parse_request(&head, &self.uuid, &self.proofs) {
                Ok(wanted) => {
                    let answered =
                        answer::answer(wanted, &head.headers, &self.logs, progress).await;
                    (answered.unwrap_or_else(|error| self.failed(&error)), true)
                }
                Err(Refusal {
                    status,
                    sentence,
                    is_authorized,
                }) => (answer::text_response(status, &sentence), is_authorized),
            };
        if is_authorized && let Ok(proof) = HeaderValue::from_str(self.proofs.response()) {
            response.headers_mut().insert(RESPONSE_PROOF, proof);
        }
        Ok(response)
    }

    fn failed(&self, error: &io::Error) -> Response<Body> {
        tracing::debug!(container = %self.uuid, %error, "a log file cannot be served");
        answer::text_response(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the log cannot be read on its node",
        )
    }
}

/// Returns when `progress` has not changed for `limit`.
async fn stalled(progress: &Progress, limit: Duration) {
    let mut before = None;
    loop {
        let now = Some(progress.load(Ordering::Relaxed));
        if now == before {
            return;
        }
        before = now;
        sleep(limit).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_stream_without_progress_ends() {
        let dir = tempfile::tempdir().unwrap();
        let secret = GatewaySecret::new("00ff").unwrap();
        let logs = LogDir::create(&dir.path().join("log")).unwrap();
        let mut server = Server::new(&ContainerUuid::generate("zzzzz"), &secret, logs).unwrap();
        server.stream_timeout = Duration::from_millis(50);
        let (mut ours, theirs) = tokio::io::duplex(1024);
        let started = Instant::now();
        // A client that connects and sends nothing.
        server.serve(theirs).await;
        assert!(started.elapsed() >= Duration::from_millis(50));
        assert_eq!(ours.read(&mut [0; 16]).await.unwrap(), 0);
    }
}
