//! Shared state of the running server: configuration, storage, limits and the stop signal.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use crate::auth::attempt_token::AttemptTokenVerifier;
use crate::auth::{self, Caller};
use crate::blocks::store::BlockStore;
use crate::db::readers::Readers;
use crate::disk_reserve::DiskReserve;
use crate::emulation::faults::Faults;
use crate::error::{ApiError, Result};
use crate::events::event::Event;
use crate::gateway::tunnel_registry::TunnelRegistry;
use crate::limits::{ClientShare, Limits};
use crate::metrics::Metrics;
use crate::request_log::access_log::AccessLog;
use crate::request_log::rejection_log::RejectionLog;
use crate::store::cluster_config::ClusterConfig;
use crate::store::transaction::Tx;
use crate::store::writer::{WriteOrigin, Writer};

pub struct App {
    pub config: Arc<ClusterConfig>,
    pub readers: Readers,
    /// Connections of their own for token checks, which must not wait for long listings.
    pub token_readers: Readers,
    pub writer: Writer,
    pub attempt_tokens: Arc<AttemptTokenVerifier>,
    pub blocks: Arc<BlockStore>,
    pub disk_reserve: DiskReserve,
    /// The channel of committed events.
    pub events: broadcast::Sender<Arc<Event>>,
    pub faults: Faults,
    pub tunnels: TunnelRegistry,
    pub metrics: Metrics,
    /// `host:port` for clients that sent no `Host` header.
    pub address: String,
    /// The discovery document, made when it is asked for first.
    pub discovery: OnceLock<String>,
    pub limits: Limits,
    /// Held while the files of a collection are replaced. A small request can name large manifests,
    /// so the memory for them is taken once, not for each request.
    pub file_replacement: Mutex<()>,
    /// Time that a client may make no progress while it sends or receives a body.
    pub transfer_timeout: Duration,
    pub access_log: Option<AccessLog>,
    pub rejections: RejectionLog,
    pub stop: watch::Sender<bool>,
}

impl App {
    /// Writes for the server itself.
    pub fn write<T, F>(&self, work: F) -> Result<T>
    where
        F: FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.writer.write(WriteOrigin::server(), work)
    }

    pub fn authenticate(&self, token: &str) -> Result<Caller> {
        let (verifier, emulate) = (&self.attempt_tokens, self.config.emulate);
        self.token_readers
            .read(|connection| auth::authenticate(connection, verifier, emulate, token))
            .map_err(|error| match error {
                ApiError::UserDisabled(_) if emulate.is_arvados() => ApiError::NotLoggedIn,
                other => other,
            })
    }
}

/// Runs blocking work on files and the database as soon as a request slot is free. Read the request
/// completely before the call, so that a slow client occupies no slot.
pub async fn run_blocking<T: Send + 'static>(
    app: &Arc<App>,
    share: &ClientShare,
    work: impl FnOnce(&Arc<App>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let slot = app.limits.acquire_work(share).await?;
    let app = app.clone();
    tokio::task::spawn_blocking(move || {
        let result = work(&app);
        drop(slot);
        result
    })
    .await
    .map_err(|_| ApiError::BadRecord("the request handler panicked".into()))?
}

/// Returns when the server begins to stop. It checks the value, not its change, because a
/// connection may become a websocket after the stop.
pub async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // An error means that the server is gone already.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_is_heard_by_those_who_listen_only_afterwards() {
        let stop = watch::Sender::new(false);
        let mut early = stop.subscribe();
        stop.send_replace(true);
        let mut late = stop.subscribe();
        let both = async { tokio::join!(wait_for_stop(&mut early), wait_for_stop(&mut late)) };
        let both = tokio::time::timeout(std::time::Duration::from_secs(1), both).await;
        assert!(both.is_ok());
    }
}
