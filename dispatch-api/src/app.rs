//! The running server as requests see it.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::auth::attempt::AttemptTokens;
use crate::auth::{self, Caller};
use crate::blocks::store::BlockStore;
use crate::db::readers::Readers;
use crate::db::writer::Writer;
use crate::error::Result;
use crate::events::Feed;
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

    /// Changes when the server begins to stop.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }
}
