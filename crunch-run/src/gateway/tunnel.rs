//! The tunnel to the API server: made, made again when it is cut, and its streams given to the
//! server. In: the API client and the secret. Out: the address for the record, and one line in
//! crunch-run.txt for each kind of failure.

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

use super::Link;
use super::secret::GatewaySecret;
use super::server::Server;
use crate::logs::Journal;

/// Interval between the end of a tunnel and the next attempt, at first and at most.
const FIRST_WAIT: Duration = Duration::from_secs(5);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
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
    pub journal: Journal,
}

/// What a failure to connect says of the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Failure {
    /// The server does not take the secret or the token.
    Refused,
    /// The server has no tunnels.
    Unknown,
    /// It may go better soon.
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

    fn remark(self, error: &Error) -> String {
        match self {
            Self::Refused => format!(
                "Live logs are not served: the API server refused the gateway secret ({error}). \
                 Does the dispatcher have the SystemRootToken of this cluster?"
            ),
            Self::Unknown => {
                format!("Live logs are not served: the API server has no gateway tunnels ({error})")
            }
            Self::Passing => format!(
                "Live logs are not served for now: there is no tunnel ({error}). \
                 crunch-run keeps trying to make one"
            ),
        }
    }
}

/// The wait before the attempt after the next one fails, too.
fn longer(wait: Duration) -> Duration {
    (wait * 3 / 2).min(LONGEST_WAIT)
}

impl Tunnel {
    /// For as long as it is not dropped.
    pub async fn keep_connected(self, link: watch::Sender<Link>) {
        let mut said = BTreeSet::new();
        let mut wait = FIRST_WAIT;
        loop {
            let begun = Instant::now();
            let made = self.client.gateway_tunnel(&self.uuid, self.secret.token());
            match made.await {
                Ok(tunnel) => {
                    link.send_replace(Link::Made(address(tunnel.internal_url.as_deref())));
                    let end = serve(tunnel.connection, &self.server).await;
                    tracing::debug!(container = %self.uuid, ?end, "the gateway tunnel ended");
                    if begun.elapsed() > LONGEST_WAIT {
                        wait = FIRST_WAIT;
                    }
                }
                Err(error) => {
                    let failure = Failure::of(&error);
                    if said.insert(failure) {
                        self.journal.say(failure.remark(&error));
                    }
                    link.send_if_modified(|link| {
                        let is_first = *link == Link::Pending;
                        if is_first {
                            *link = Link::Failed;
                        }
                        is_first
                    });
                }
            }
            // Many containers lose their tunnels at the same time.
            sleep(wait.mul_f32(1.0 + fastrand::f32() / 4.0)).await;
            wait = longer(wait);
        }
    }
}

/// The record's `gateway_address`: where the server's end of the tunnel is.
fn address(internal_url: Option<&str>) -> String {
    match internal_url {
        Some(url) => format!("tunnel {url}"),
        None => "tunnel".to_owned(),
    }
}

/// Answers on the streams that the server opens, until the tunnel ends.
async fn serve(
    connection: impl AsyncRead + AsyncWrite + Unpin + Send,
    server: &Arc<Server>,
) -> Option<ConnectionError> {
    let mut config = Config::default();
    config.set_max_num_streams(MAX_STREAMS);
    config.set_max_connection_receive_window(Some(RECEIVE_LIMIT));
    let mut tunnel = Connection::new(connection.compat(), config, Mode::Client);
    // Dropped with the tunnel, which ends them.
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
        let waits = std::iter::successors(Some(FIRST_WAIT), |wait| Some(longer(*wait)));
        let seconds: Vec<u64> = waits.take(9).map(|wait| wait.as_secs()).collect();
        assert_eq!(seconds, [5, 7, 11, 16, 25, 37, 56, 60, 60]);
    }

    #[test]
    fn the_address_names_the_process_that_has_the_tunnel() {
        assert_eq!(address(Some("https://[::1]:9/")), "tunnel https://[::1]:9/");
        assert_eq!(address(None), "tunnel");
    }
}
