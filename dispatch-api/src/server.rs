//! Starts the server from its options, and stops it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use fail_points::fail_point;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, watch};
use tracing::{info, warn};

use crate::EX_CONFIG;
use crate::app::App;
use crate::auth::attempt_token::{AttemptKey, AttemptTokenVerifier};
use crate::blocks::signature::BlockSigner;
use crate::blocks::store::BlockStore;
use crate::bootstrap;
use crate::db::readers::{CONNECTIONS, QUERY_TIMEOUT, Readers};
use crate::db::{self, MigrateError};
use crate::disk_reserve::DiskReserve;
use crate::emulation::faults::Faults;
use crate::error::ApiError;
use crate::events::MAX_LISTENER_LAG;
use crate::events::event::Event;
use crate::gateway::tunnel_registry::TunnelRegistry;
use crate::http::certificate::{self, CertificateError};
use crate::http::listener::{self, ListenerSettings};
use crate::http::router;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::open_files;
use crate::options::Options;
use crate::periodic_tasks;
use crate::request_log::access_log::AccessLog;
use crate::request_log::rejection_log::RejectionLog;
use crate::server_tls::ServerTls;
use crate::state_dir::{StateDir, StateError};
use crate::store::cluster_config::ClusterConfig;
use crate::store::writer::Writer;

const TOKEN_READER_CONNECTIONS: usize = 2;
/// Time that running requests have to finish after a stop, and then the writer.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Database(#[from] MigrateError),
    #[error("cannot prepare the database: {0}")]
    Bootstrap(#[from] ApiError),
    #[error("cannot open the block store {path}: {source}")]
    BlockStore { path: String, source: io::Error },
    #[error("cannot listen on {address}: {source}; {hint}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
        hint: &'static str,
    },
    #[error("cannot open the file of --access-log: {0}")]
    AccessLog(io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl StartError {
    pub fn exit_code(&self) -> u8 {
        match self {
            StartError::Bootstrap(_) | StartError::Thread(_) => 1,
            _ => EX_CONFIG,
        }
    }
}

/// A server that accepts connections until [`Server::stop`].
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    tls: Arc<ServerTls>,
    state: StateDir,
    accept_task: tokio::task::JoinHandle<()>,
    periodic_tasks: tokio::task::JoinHandle<()>,
    writer: JoinHandle<()>,
}

impl Server {
    pub async fn start(options: &Options) -> Result<Server, StartError> {
        let mut state = StateDir::open(&options.state_dir, options.cluster_id.as_deref())?;
        let listen = listen_address(options, &state);
        let tls = Arc::new(ServerTls::open(options, &mut state, listen.ip())?);
        let tls_config = certificate::server_config(tls.current.clone())?;
        let (listener, address) = bind(listen, options.listen.is_some()).await?;
        let max_connections = open_files::limit_connections(options);
        let (app, writer) = open_app(&state, address, options, max_connections)?;
        fail_point("api.start.before-port");
        state.save_port(address.port())?;
        let accept_task = tokio::spawn(listener::accept_connections(
            listener,
            tls_config,
            router::router(app.clone()),
            ListenerSettings {
                max_connections,
                transfer_timeout: options.transfer_timeout,
                shutdown_grace: SHUTDOWN_GRACE,
            },
            app.stop.subscribe(),
        ));
        let periodic_tasks = tokio::spawn(periodic_tasks::run(app.clone(), tls.clone()));
        info!(%address, cluster = app.config.cluster_id, state = %state.path.display(), "ready");
        Ok(Server {
            app,
            address,
            tls,
            state,
            accept_task,
            periodic_tasks,
            writer,
        })
    }

    /// The ready line: address, cluster, certificate and token files.
    pub fn ready(&self) -> Value {
        let token = |name: &str| json!(self.state.path.join("tokens").join(name));
        json!({
            "host": loopback_if_unspecified(self.address).to_string(),
            "cluster_id": self.app.config.cluster_id,
            "certificate": self.tls.trusted_file,
            "tokens": {"user": token("user"), "dispatch": token("dispatch"), "root": token("root")},
        })
    }

    /// Stops accepting connections, lets requests finish within [`SHUTDOWN_GRACE`], and closes the
    /// database.
    pub async fn stop(self) {
        info!("stopping");
        self.app.stop.send_replace(true);
        self.periodic_tasks.abort();
        if self.accept_task.await.is_err() {
            warn!("the task that accepts connections panicked");
        }
        drop(self.app);
        // The writer thread ends when the last request with a handle to it is gone.
        let closed = tokio::task::spawn_blocking(move || self.writer.join());
        if tokio::time::timeout(SHUTDOWN_GRACE, closed).await.is_err() {
            warn!(
                "a write did not finish before the shutdown timeout; it is committed or rolled back as a whole"
            );
        }
        drop(self.state);
    }
}

/// The address for clients on this machine: loopback for a server that listens on all addresses.
fn loopback_if_unspecified(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), address.port())
    } else {
        address
    }
}

fn listen_address(options: &Options, state: &StateDir) -> SocketAddr {
    match options.listen {
        // Port 0 means "any"; the port of the last start is known to clients.
        Some(given) if given.port() == 0 => SocketAddr::new(given.ip(), state.identity.port),
        Some(given) => given,
        None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), state.identity.port),
    }
}

async fn bind(address: SocketAddr, given: bool) -> Result<(TcpListener, SocketAddr), StartError> {
    let hint = if given {
        "free the port or choose another with --listen"
    } else {
        "the port of the last start is in use: free it, or choose another with --listen (clients then need the new address)"
    };
    let failed = |source| StartError::Listen {
        address,
        source,
        hint,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn open_app(
    state: &StateDir,
    address: SocketAddr,
    options: &Options,
    max_connections: usize,
) -> Result<(Arc<App>, JoinHandle<()>), StartError> {
    let identity = &state.identity;
    let attempt_key = AttemptKey::new(identity.attempt_key.as_bytes());
    let block_key = identity.blob_signing_key.clone();
    let config = Arc::new(ClusterConfig {
        cluster_id: identity.cluster_id.clone(),
        attempt_key: attempt_key.clone(),
        block_signer: BlockSigner::new(block_key, !options.emulate.is_arvados()),
        accepts_preemptible: options.accept_preemptible,
        emulate: options.emulate,
    });
    let database = state.path.join("state.db");
    let mut connection = db::open(&database)?;
    let tokens = bootstrap::ensure_users_and_tokens(&mut connection, &config)?;
    fail_point("api.start.before-tokens");
    for (name, token) in tokens {
        state.ensure_private(&format!("tokens/{name}"), &token)?;
    }
    let blocks_path = state.path.join("blocks");
    let blocks =
        BlockStore::open(blocks_path.clone()).map_err(|source| StartError::BlockStore {
            path: blocks_path.display().to_string(),
            source,
        })?;
    let attempt_tokens = Arc::new(AttemptTokenVerifier::load(attempt_key, &connection)?);
    let readers =
        Readers::open(&database, CONNECTIONS, QUERY_TIMEOUT).map_err(MigrateError::from)?;
    let token_readers = Readers::open(&database, TOKEN_READER_CONNECTIONS, QUERY_TIMEOUT)
        .map_err(MigrateError::from)?;
    let access_log = options.access_log.as_deref().map(AccessLog::open);
    let access_log = access_log.transpose().map_err(StartError::AccessLog)?;
    let events = broadcast::channel(MAX_LISTENER_LAG).0;
    let publish = {
        let (events, attempt_tokens) = (events.clone(), attempt_tokens.clone());
        Box::new(move |committed: Vec<Event>, overrides| {
            attempt_tokens.apply_overrides(overrides);
            for event in committed {
                // An event without listeners is dropped.
                let _ = events.send(Arc::new(event));
            }
        })
    };
    let (writer, thread) =
        Writer::start(connection, config.clone(), database, publish).map_err(StartError::Thread)?;
    let app = Arc::new(App {
        config,
        readers,
        token_readers,
        writer,
        attempt_tokens,
        blocks: Arc::new(blocks),
        disk_reserve: DiskReserve::open(&state.path),
        events,
        file_replacement: Mutex::default(),
        faults: Faults::default(),
        tunnels: TunnelRegistry::new(options.max_gateway_tunnels),
        metrics: Metrics::default(),
        address: loopback_if_unspecified(address).to_string(),
        discovery: OnceLock::new(),
        limits: Limits::new(max_connections, options.max_request_memory),
        transfer_timeout: options.transfer_timeout,
        access_log,
        rejections: RejectionLog::default(),
        stop: watch::channel(false).0,
    });
    Ok((app, thread))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{ClientKey, MAX_CONCURRENT_REQUESTS};
    use jiff::Timestamp;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_with_its_hands_full_tells_clients_to_come_back() {
        // Another test of this process may have installed it.
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
        let mut taken = Vec::new();
        for client in ["a", "b"] {
            let share = server.app.limits.share(&ClientKey::Admin(client.into()));
            for _ in 0..MAX_CONCURRENT_REQUESTS / 2 {
                taken.push(server.app.limits.acquire_work(&share).await.unwrap());
            }
        }
        let refused = client.get(&url).send().await.unwrap();
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers()["retry-after"], "1");
        drop(taken);
        assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
        server.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_running_server_renews_its_certificate_and_its_clients_go_on() {
        // Another test of this process may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = tempfile::tempdir().unwrap();
        let server = Server::start(&Options::new(directory.path().to_owned()))
            .await
            .unwrap();
        let pem = std::fs::read(&server.tls.trusted_file).unwrap();
        let url = format!("https://{}/arvados/v1/config", server.address);
        let presented = async || {
            // A new client each time, because a resumed session presents no certificate.
            let client = reqwest::Client::builder()
                .tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()])
                .tls_info(true)
                .build()
                .unwrap();
            let reply = client.get(&url).send().await.unwrap();
            let info = reply.extensions().get::<reqwest::tls::TlsInfo>().unwrap();
            info.peer_certificate().unwrap().to_vec()
        };
        let first = presented().await;
        server.tls.renew_if_due(Timestamp::now()).unwrap();
        assert!(presented().await == first, "it was not due");
        let next_year = Timestamp::now() + jiff::SignedDuration::from_hours(365 * 24);
        server.tls.renew_if_due(next_year).unwrap();
        assert!(presented().await != first, "it was due");
        server.stop().await;
    }
}
