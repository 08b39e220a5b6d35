//! From options to a running server, and back to nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fail_points::fail_point;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tracing::{info, warn};

use crate::app::{App, MAX_BODY_KIB, MAX_REQUESTS};
use crate::auth::attempt::{AttemptKey, AttemptTokens};
use crate::blocks::store::BlockStore;
use crate::certificate::{self, CertificateError, Files};
use crate::collection::trash;
use crate::connections;
use crate::db::readers::Readers;
use crate::db::writer::Writer;
use crate::db::{self, MigrateError};
use crate::emulation::faults::Faults;
use crate::error::ApiError;
use crate::events::Feed;
use crate::gateway::tunnels::Tunnels;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::state_dir::{StateDir, StateError};
use crate::tx::Setting;
use crate::{bootstrap, edge};

const READERS: usize = 8;
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Requests still running at a stop get this long to finish.
const LAST_CALL: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Database(#[from] MigrateError),
    #[error("cannot prepare the database: {0}")]
    Prepare(#[from] ApiError),
    #[error("cannot open the block store {path}: {source}")]
    Blocks { path: String, source: io::Error },
    #[error("cannot listen on {address}: {source}; {hint}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
        hint: &'static str,
    },
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Exit status where a person must change something, after sysexits.
pub const WRONG: u8 = 78;

impl StartError {
    /// The exit status.
    pub fn exit_code(&self) -> u8 {
        match self {
            StartError::Prepare(_) | StartError::Thread(_) => 1,
            _ => WRONG,
        }
    }
}

/// A server that accepts connections until it is told to stop.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    certificate: PathBuf,
    state: StateDir,
    accepting: tokio::task::JoinHandle<()>,
    sweeping: tokio::task::JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Server {
    pub async fn start(options: &Options) -> Result<Server, StartError> {
        let mut state = StateDir::open(&options.state, options.cluster_id.as_deref())?;
        let listen = listen_address(options, &state);
        let files = match (&options.tls_cert, &options.tls_key) {
            (Some(certificate), Some(key)) => Files {
                certificate: certificate.clone(),
                key: key.clone(),
            },
            _ => {
                let files = certificate::own(&state, listen.ip())?;
                if !listen.ip().is_unspecified() && !certificate::is_for(&files, listen.ip()) {
                    warn!(address = %listen.ip(), certificate = %files.certificate.display(),
                          "clients that use this address refuse the certificate, which was made for others: remove it, \
                           and certificate.key beside it, to have one made at the next start, and give that to all clients");
                }
                files
            }
        };
        let tls = certificate::server_config(&files)?;
        let (listener, address) = bind(listen, options.listen.is_some())?;
        let (app, writer) = open(&state, address, options)?;
        fail_point("api.start.before-port");
        state.remember_port(address.port())?;
        let accepting = tokio::spawn(connections::accept(
            listener,
            tls,
            edge::router(app.clone()),
            app.stopping(),
            LAST_CALL,
        ));
        let sweeping = tokio::spawn(sweep(app.clone()));
        info!(%address, cluster = app.setting.cluster_id, state = %state.path.display(), "ready");
        Ok(Server {
            app,
            address,
            certificate: files.certificate,
            state,
            accepting,
            sweeping,
            writer,
        })
    }

    /// The line that tells the starter everything it needs.
    pub fn ready(&self) -> Value {
        let token = |name: &str| json!(self.state.path.join("tokens").join(name));
        json!({
            "host": reachable(self.address).to_string(),
            "cluster_id": self.app.setting.cluster_id,
            "certificate": self.certificate,
            "tokens": {"user": token("user"), "dispatch": token("dispatch"), "root": token("root")},
        })
    }

    /// Stop accepting, let requests finish for a few seconds, and close the database.
    pub async fn stop(self) {
        info!("stopping");
        self.app.stop.send_replace(true);
        self.sweeping.abort();
        if self.accepting.await.is_err() {
            warn!("the accepting task had failed");
        }
        drop(self.app);
        // The writer ends when the last request that could use it is gone.
        let closed = tokio::task::spawn_blocking(move || self.writer.join());
        if tokio::time::timeout(LAST_CALL, closed).await.is_err() {
            warn!("a write was still running at the end; it is either whole or undone");
        }
        drop(self.state);
    }
}

/// A server listening on all addresses is reached by its own machine on the loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port())
    } else {
        address
    }
}

fn listen_address(options: &Options, state: &StateDir) -> SocketAddr {
    match options.listen {
        // Port 0 means "any", and then the one of the last start is as good as any, and known to clients.
        Some(given) if given.port() == 0 => SocketAddr::new(given.ip(), state.kept.port),
        Some(given) => given,
        None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), state.kept.port),
    }
}

fn bind(address: SocketAddr, given: bool) -> Result<(TcpListener, SocketAddr), StartError> {
    let hint = if given {
        "free the port or choose another with --listen"
    } else {
        "the port of the last start is taken: free it, or choose another with --listen (clients then need the new address)"
    };
    let failed = |source| StartError::Listen {
        address,
        source,
        hint,
    };
    let socket = if address.is_ipv6() {
        tokio::net::TcpSocket::new_v6()
    } else {
        tokio::net::TcpSocket::new_v4()
    }
    .map_err(failed)?;
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(address).map_err(failed)?;
    let listener = socket.listen(1024).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn open(
    state: &StateDir,
    address: SocketAddr,
    options: &Options,
) -> Result<(Arc<App>, JoinHandle<()>), StartError> {
    let kept = &state.kept;
    let attempt_key = AttemptKey::new(kept.attempt_key.as_bytes());
    let setting = Arc::new(Setting {
        cluster_id: kept.cluster_id.clone(),
        attempt_key: attempt_key.clone(),
        blob_signing_key: kept.blob_signing_key.clone(),
        max_dispatch_attempts: 10,
        container_count_max: 3,
        rules: options.emulate.rules(),
    });
    let database = state.path.join("state.db");
    let mut connection = db::open(&database)?;
    let tokens = bootstrap::ensure(&mut connection, &setting)?;
    fail_point("api.start.before-tokens");
    for (name, token) in tokens {
        state.write_private(&format!("tokens/{name}"), &token)?;
    }
    let blocks_path = state.path.join("blocks");
    let blocks = BlockStore::open(blocks_path.clone()).map_err(|source| StartError::Blocks {
        path: blocks_path.display().to_string(),
        source,
    })?;
    let attempts = Arc::new(AttemptTokens::load(attempt_key, &connection)?);
    let readers = Readers::open(&database, READERS).map_err(MigrateError::from)?;
    let feed = Arc::new(Feed::default());
    let publish = {
        let (feed, attempts) = (feed.clone(), attempts.clone());
        Box::new(move |events, overrides| {
            attempts.apply(overrides);
            feed.publish(events);
        })
    };
    let (writer, thread) = Writer::start(connection, setting.clone(), database, publish)
        .map_err(StartError::Thread)?;
    let app = Arc::new(App {
        setting,
        readers,
        writer,
        attempts,
        blocks,
        feed,
        faults: Faults::default(),
        tunnels: Tunnels::new(options.max_gateway_tunnels),
        metrics: Metrics::default(),
        address: reachable(address).to_string(),
        working: Arc::new(Semaphore::new(MAX_REQUESTS)),
        body_memory: Arc::new(Semaphore::new(MAX_BODY_KIB)),
        stop: watch::channel(false).0,
    });
    Ok((app, thread))
}

/// Housekeeping once a minute, in pieces, until the server stops.
async fn sweep(app: Arc<App>) {
    let mut tick = tokio::time::interval(SWEEP_EVERY);
    loop {
        tick.tick().await;
        loop {
            let worker = app.clone();
            let swept = tokio::task::spawn_blocking(move || worker.write(trash::sweep)).await;
            match swept {
                Ok(Ok(swept)) => {
                    app.attempts.forget(&swept.forgotten);
                    if !swept.more {
                        break;
                    }
                }
                Ok(Err(problem)) => {
                    warn!(error = %problem, "housekeeping failed; it is tried again in a minute");
                    break;
                }
                Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_with_its_hands_full_tells_clients_to_come_back() {
        // Another test of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(&Options::new(directory.path().to_owned()))
            .await
            .unwrap();
        let client = reqwest::Client::builder()
            .tls_danger_accept_invalid_certs(true)
            .build()
            .unwrap();
        let url = format!("https://{}/arvados/v1/config", server.address);
        let every_turn = u32::try_from(MAX_REQUESTS).unwrap();
        let taken = server.app.working.clone().acquire_many_owned(every_turn);
        let taken = taken.await.unwrap();
        let refused = client.get(&url).send().await.unwrap();
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers()["retry-after"], "1");
        drop(taken);
        assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
        server.stop().await;
    }
}
