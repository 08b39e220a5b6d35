//! Connects the tunnel to the API server, reconnects it, and passes its streams to the server. In:
//! the API client and the secret. Out: the address for the record, and one log line for each kind
//! of failure.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::error::StatusCode;
use arvados_client::{Client, ContainerUuid, Error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::compat::{FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use yamux::{Config, Connection, ConnectionError, Mode};

use super::TunnelState;
use super::secret::GatewaySecret;
use super::server::Server;
use crate::logs::RunLog;

/// Initial interval between the end of a tunnel and the next attempt.
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);
/// Maximum interval of the same kind.
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// Maximum number of requests answered at the same time; further streams are closed at once.
const MAX_REQUESTS: usize = 32;
/// Maximum number of streams of a tunnel. One more ends the tunnel, so it is far above
/// `MAX_REQUESTS`.
const MAX_STREAMS: usize = 256;
/// Maximum number of bytes that all streams together may have received and not read: the least
/// that yamux allows.
const RECEIVE_LIMIT: usize = MAX_STREAMS * (256 << 10);

pub struct Tunnel {
    pub client: Client,
    pub uuid: ContainerUuid,
    pub secret: GatewaySecret,
    pub server: Arc<Server>,
    pub run_log: RunLog,
}

/// Kind of a failure to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Failure {
    /// The server refused the secret or the token.
    Refused,
    /// The server does not support tunnels.
    Unknown,
    /// A temporary failure.
    Passing,
}

impl Failure {
    fn of(error: &Error) -> Self {
        match error.status() {
            Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Self::Refused,
            Some(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) => Self::Unknown,
            _ => Self::Passing,
        }
    }

    fn message(self, error: &Error) -> String {
        match self {
            Self::Refused => format!(
                "Live logs are not served: the API server refused the gateway secret ({error}). \
                 Does the dispatcher have the SystemRootToken of this cluster?"
            ),
            Self::Unknown => {
                format!("Live logs are not served: the API server has no gateway tunnels ({error})")
            }
            Self::Passing => format!(
                "Live logs are not served for now: the tunnel cannot be opened ({error}). \
                 crunch-run retries"
            ),
        }
    }
}

/// The next reconnect delay.
fn next_backoff(backoff: Duration) -> Duration {
    (backoff * 3 / 2).min(MAX_BACKOFF)
}

impl Tunnel {
    /// Keeps the tunnel connected until it is dropped.
    pub async fn keep_connected(self, state: watch::Sender<TunnelState>) {
        let mut reported = BTreeSet::new();
        let mut backoff = INITIAL_BACKOFF;
        loop {
            let begun = Instant::now();
            let made = self.client.gateway_tunnel(&self.uuid, self.secret.token());
            match made.await {
                Ok(tunnel) => {
                    state.send_replace(TunnelState::Made(address(tunnel.internal_url.as_deref())));
                    let end = serve(tunnel.connection, &self.server).await;
                    tracing::debug!(container = %self.uuid, ?end, "the gateway tunnel ended");
                    if begun.elapsed() > MAX_BACKOFF {
                        backoff = INITIAL_BACKOFF;
                    }
                }
                Err(error) => {
                    let failure = Failure::of(&error);
                    if reported.insert(failure) {
                        self.run_log.write(failure.message(&error));
                    }
                    state.send_if_modified(|state| {
                        let is_first = *state == TunnelState::Pending;
                        if is_first {
                            *state = TunnelState::Failed;
                        }
                        is_first
                    });
                }
            }
            // Spread reconnects, because many containers lose their tunnels at the same time.
            sleep(backoff.mul_f32(1.0 + fastrand::f32() / 4.0)).await;
            backoff = next_backoff(backoff);
        }
    }
}

/// The record's `gateway_address` for the server's end of the tunnel.
fn address(internal_url: Option<&str>) -> String {
    match internal_url {
        Some(url) => format!("tunnel {url}"),
        None => "tunnel".to_owned(),
    }
}

/// Serves the streams that the server opens, until the tunnel ends.
async fn serve(
    connection: impl AsyncRead + AsyncWrite + Unpin + Send,
    server: &Arc<Server>,
) -> Option<ConnectionError> {
    let mut config = Config::default();
    config.set_max_num_streams(MAX_STREAMS);
    config.set_max_connection_receive_window(Some(RECEIVE_LIMIT));
    let mut tunnel = Connection::new(connection.compat(), config, Mode::Client);
    // Requests end with the tunnel.
    let mut requests = JoinSet::new();
    loop {
        tokio::select! {
            stream = poll_fn(|context| tunnel.poll_next_inbound(context)) => match stream {
                Some(Ok(stream)) if requests.len() < MAX_REQUESTS => {
                    let server = server.clone();
                    requests.spawn(async move { server.serve(stream.compat()).await });
                }
                Some(Ok(stream)) => drop(stream),
                Some(Err(error)) => return Some(error),
                None => return None,
            },
            Some(_) = requests.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_minute() {
        let waits = std::iter::successors(Some(INITIAL_BACKOFF), |backoff| {
            Some(next_backoff(*backoff))
        });
        let seconds: Vec<u64> = waits.take(9).map(|backoff| backoff.as_secs()).collect();
        assert_eq!(seconds, [5, 7, 11, 16, 25, 37, 56, 60, 60]);
    }

    #[test]
    fn the_address_names_the_process_that_has_the_tunnel() {
        assert_eq!(address(Some("https://[::1]:9/")), "tunnel https://[::1]:9/");
        assert_eq!(address(None), "tunnel");
    }
}
