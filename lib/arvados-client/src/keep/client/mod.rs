//! The client of Keep services: reads and stores blocks, verifies them, and counts copies.

mod content;
mod get;
mod put;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::content::Content;
use super::error::{Cause, Failure, KeepError};
use super::file_part::FilePart;
use super::service::Service;
use super::service_list::ServiceList;
use super::store::{BlockSource, BlockStore};
use crate::locator::{Locator, MAX_BLOCK_SIZE};
use crate::token::Token;

/// Options of a [`KeepClient`].
#[derive(Debug, Clone)]
pub struct KeepOptions {
    /// Number of copies of a block that must be confirmed.
    pub replicas: u32,
    /// Storage classes in which every block must be confirmed; none means the default of the
    /// cluster.
    pub storage_classes: Vec<String>,
    /// Maximum memory for blocks that were read, in bytes, counted until the last user drops a
    /// block. At least one block of the maximum size.
    pub memory: usize,
    /// Maximum number of concurrent requests.
    pub connections: usize,
    /// Timeout of a transfer without progress.
    pub stall_timeout: Duration,
    /// Time after which no new round of tries begins.
    pub retry_budget: Duration,
    /// Initial delay between two rounds; it doubles up to 30 s.
    pub first_delay: Duration,
}

impl Default for KeepOptions {
    fn default() -> Self {
        Self {
            replicas: 2,
            storage_classes: Vec::new(),
            memory: 4 * MAX_BLOCK_SIZE,
            connections: 8,
            stall_timeout: Duration::from_secs(120),
            retry_budget: Duration::from_secs(300),
            first_delay: Duration::from_millis(500),
        }
    }
}

/// Reads and stores blocks. Clones share connections and limits.
#[derive(Debug, Clone)]
pub struct KeepClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    token: Token,
    services: Arc<ServiceList>,
    options: KeepOptions,
    /// In KiB, so that small blocks cost little.
    memory: Arc<Semaphore>,
    connections: Semaphore,
}

impl KeepClient {
    /// A client of `services`, tried in an order that depends on the block.
    ///
    /// The token is sent unchanged to every service: signatures are valid for this spelling only.
    pub fn new(
        http: reqwest::Client,
        token: Token,
        services: Arc<ServiceList>,
        options: KeepOptions,
    ) -> Self {
        let memory = kib(options.memory.max(MAX_BLOCK_SIZE) as u64) as usize;
        let connections = Semaphore::new(options.connections.max(1));
        Self {
            inner: Arc::new(Inner {
                http,
                token,
                services,
                memory: Arc::new(Semaphore::new(memory.min(Semaphore::MAX_PERMITS))),
                connections,
                options,
            }),
        }
    }

    /// The list of services.
    pub fn services(&self) -> &Arc<ServiceList> {
        &self.inner.services
    }
}

impl BlockSource for KeepClient {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        self.inner.get(locator).await
    }
}

impl BlockStore for KeepClient {
    async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
        self.inner.put(Content::Memory(data)).await
    }

    async fn put_file(&self, part: FilePart) -> Result<Locator, KeepError> {
        self.inner.put(Content::File(part)).await
    }
}

fn kib(bytes: u64) -> u32 {
    // Blocks and the memory limit are checked to be far below 4 TiB.
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

/// Rounds of tries, with delays between them, until the retry budget is used up.
struct Rounds {
    began: Instant,
    budget: Duration,
    delays: ExponentialBackoff,
    tries: u32,
    /// Services that are not tried again: their answer was final.
    done: Vec<Service>,
    /// Services to try again in the next round.
    again: Vec<Service>,
    /// The last failure in this round that may pass.
    last: Option<Box<Failure>>,
}

impl Rounds {
    fn new(options: &KeepOptions) -> Self {
        let delays = ExponentialBuilder::default()
            .with_min_delay(options.first_delay)
            .with_max_delay(Duration::from_secs(30))
            .with_jitter()
            .without_max_times();
        Self {
            began: Instant::now(),
            budget: options.retry_budget,
            delays: delays.build(),
            tries: 0,
            done: Vec::new(),
            again: Vec::new(),
            last: None,
        }
    }

    /// Notes the failure of a service. Returns it if it is final.
    fn failed(&mut self, service: Service, failure: Failure) -> Option<Box<Failure>> {
        let failure = Box::new(failure);
        if failure.cause.is_retryable() {
            self.again.push(service);
            self.last = Some(failure);
            return None;
        }
        self.done.push(service);
        Some(failure)
    }

    /// Waits before the next round. Returns its services, in `order` if the list of them has
    /// changed meanwhile; or the last failure if there is no next round.
    async fn next(
        &mut self,
        list: &ServiceList,
        order: impl Fn(&[Service]) -> Vec<Service>,
    ) -> Result<Vec<Service>, Option<Box<Failure>>> {
        let Some(last) = self.last.take() else {
            return Err(None);
        };
        if !self.wait(&last).await {
            return Err(Some(last));
        }
        let again = std::mem::take(&mut self.again);
        if last.cause.is_connection_failure() && list.refresh().await {
            let mut order = order(&list.current());
            // A service that moved has the same uuid.
            order.retain(|new| self.done.iter().all(|old| old.uuid() != new.uuid()));
            if !order.is_empty() {
                return Ok(order);
            }
        }
        Ok(again)
    }

    /// Waits before the next round. False if the budget is used up.
    async fn wait(&mut self, last: &Failure) -> bool {
        let mut delay = self.delays.next().unwrap_or(self.budget);
        if let Cause::Status {
            retry_after: Some(wait),
            ..
        } = last.cause
        {
            delay = delay.max(wait);
        }
        if self.began.elapsed() + delay > self.budget {
            return false;
        }
        tracing::debug!(delay_ms = delay.as_millis() as u64, failure = %last, "retrying a Keep request after a delay");
        tokio::time::sleep(delay).await;
        true
    }

    fn unavailable(&self, block: &Locator, failure: Box<Failure>) -> KeepError {
        KeepError::Unavailable {
            block: block.stripped().to_string(),
            tries: self.tries,
            waited: self.began.elapsed(),
            failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keep::Service;
    use wiremock::matchers::method;
    use wiremock::{Mock, MockServer, ResponseTemplate};

    #[tokio::test]
    async fn a_block_in_use_leaves_its_memory_to_nobody_else() {
        // Another test of this program may have installed the same provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = MockServer::start().await;
        let data = vec![7; 3000];
        Mock::given(method("GET"))
            .respond_with(ResponseTemplate::new(200).set_body_bytes(data.clone()))
            .mount(&server)
            .await;
        let services = Service::from_urls(&server.uri()).unwrap();
        let services = Arc::new(ServiceList::fixed(services));
        let inner = Inner {
            http: reqwest::Client::new(),
            token: Token::new("t"),
            services,
            options: KeepOptions::default(),
            memory: Arc::new(Semaphore::new(5)),
            connections: Semaphore::new(8),
        };
        let locator = Locator::of(&data);
        let block = inner.get(&locator).await.unwrap();
        assert_eq!(inner.memory.available_permits(), 2);
        let part = block.slice(10..20);
        drop(block);

        let second = tokio::time::timeout(Duration::from_millis(50), inner.get(&locator)).await;
        assert!(second.is_err(), "a second block was read beyond the limit");
        drop(part);
        let third = inner.get(&locator).await.unwrap();
        assert_eq!(third, data);
        drop(third);
        assert_eq!(inner.memory.available_permits(), 5);
    }
}
