//! The running server as requests see it.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::auth::attempt::AttemptTokens;
use crate::auth::{self, Caller};
use crate::blocks::store::BlockStore;
use crate::db::readers::Readers;
use crate::db::writer::Writer;
use crate::emulation::faults::Faults;
use crate::error::Result;
use crate::events::Feed;
use crate::gateway::tunnels::Tunnels;
use crate::metrics::Metrics;
use crate::tx::{Setting, Tx};

/// Requests worked on at once; more wait briefly and are then told to come back.
pub const MAX_REQUESTS: usize = 96;
/// KiB of request bodies held in memory at once.
pub const MAX_BODY_KIB: usize = 384 << 10;

pub struct App {
    pub setting: Arc<Setting>,
    pub readers: Readers,
    pub writer: Writer,
    pub attempts: Arc<AttemptTokens>,
    pub blocks: BlockStore,
    pub feed: Arc<Feed>,
    pub faults: Faults,
    pub tunnels: Tunnels,
    pub metrics: Metrics,
    /// `host:port` for clients that did not say under which name they know this server.
    pub address: String,
    pub working: Arc<Semaphore>,
    pub body_memory: Arc<Semaphore>,
    pub stop: watch::Sender<bool>,
}

impl App {
    pub fn write<T, F>(&self, work: F) -> Result<T>
    where
        F: FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.writer.write(work)
    }

    pub fn authenticate(&self, token: &str) -> Result<Caller> {
        self.readers
            .read(|connection| auth::authenticate(connection, &self.attempts, token))
    }

    /// To be waited for with [`stopped`].
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}

/// Ends when the server begins to stop. The value counts, not its change: a connection may become a websocket after
/// the stop was told, and would otherwise never hear of it.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the server is gone, which is as good.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_is_heard_by_those_who_listen_only_afterwards() {
        let tell = watch::Sender::new(false);
        let mut early = tell.subscribe();
        tell.send_replace(true);
        let mut late = tell.subscribe();
        let both = async { tokio::join!(stopped(&mut early), stopped(&mut late)) };
        let heard = tokio::time::timeout(std::time::Duration::from_secs(1), both).await;
        assert!(heard.is_ok());
    }
}
