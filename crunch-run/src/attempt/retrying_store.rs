//! A block store that retries each block. Stored blocks stay stored, so one failed block does not
//! restart a large output.

use std::time::Duration;

use arvados_client::keep::{BlockSource, BlockStore, FilePart, KeepError, Locator};
use bytes::Bytes;

use super::retried_operation::{RetryError, RetryPolicy, RetryStopped};
use crate::logs::RunLog;
use crate::node::signals::Stop;

#[derive(Debug, Clone)]
pub struct RetryingStore<S> {
    store: S,
    timeout: Duration,
    stop: Stop,
    run_log: RunLog,
}

impl<S: BlockStore> RetryingStore<S> {
    /// Uses the timeout of `retry` for every block.
    pub fn new(store: S, retry: &RetryPolicy<'_>) -> Self {
        Self {
            store,
            timeout: retry.timeout,
            stop: retry.stop.clone(),
            run_log: retry.run_log.clone(),
        }
    }

    async fn with_retry<T, F: Future<Output = Result<T, KeepError>>>(
        &self,
        what: &str,
        attempt: impl Fn() -> F,
    ) -> Result<T, KeepError> {
        let retry = RetryPolicy {
            timeout: self.timeout,
            stop: &self.stop,
            run_log: &self.run_log,
        };
        let done = retry.run(what, || async {
            attempt().await.map_err(|error| match is_transient(&error) {
                true => RetryError::Transient(error),
                false => RetryError::Final(error),
            })
        });
        done.await
            .map_err(|(RetryStopped::TimedOut(error) | RetryStopped::Final(error))| error)
    }
}

/// Whether a retry of the block may succeed. The caller handles refusals and read errors.
pub fn is_transient(error: &KeepError) -> bool {
    matches!(
        error,
        KeepError::Unavailable { .. }
            | KeepError::InsufficientReplicas { .. }
            | KeepError::ClassesUnconfirmed { .. }
    )
}

impl<S: BlockStore> BlockSource for RetryingStore<S> {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        let get = || self.store.get(locator);
        self.with_retry("Reading a block of the output", get).await
    }
}

impl<S: BlockStore> BlockStore for RetryingStore<S> {
    async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
        let put = || self.store.put(data.clone());
        self.with_retry("Storing a block of the output", put).await
    }

    async fn put_file(&self, part: FilePart) -> Result<Locator, KeepError> {
        let put = || self.store.put_file(part.clone());
        self.with_retry("Storing a block of the output", put).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use arvados_client::ContainerUuid;
    use arvados_client::keep::{BlockHash, Cause, CollectionWriter, Failure, MemoryStore};

    use super::*;

    /// Fails the first time it sees a block.
    #[derive(Debug, Default)]
    struct Flaky {
        reply: Mutex<Vec<BlockHash>>,
        failures: AtomicUsize,
        inner: MemoryStore,
    }

    impl BlockSource for Flaky {
        async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
            self.inner.get(locator).await
        }
    }

    impl BlockStore for Flaky {
        async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
            let block = Locator::of(&data);
            let is_new = {
                let mut reply = self.reply.lock().unwrap();
                let is_new = !reply.contains(&block.hash);
                reply.push(block.hash);
                is_new
            };
            if is_new {
                self.failures.fetch_add(1, Ordering::Relaxed);
                return Err(unavailable(&block, 507));
            }
            self.inner.put(data).await
        }
    }

    fn unavailable(block: &Locator, status: u16) -> KeepError {
        KeepError::Unavailable {
            block: block.to_string(),
            tries: 1,
            waited: Duration::ZERO,
            failure: Box::new(Failure {
                service: "keep0".to_owned(),
                cause: Cause::Status {
                    status,
                    text: "full".to_owned(),
                    retry_after: None,
                },
            }),
        }
    }

    fn patient(store: Arc<Flaky>, timeout: Duration) -> RetryingStore<Arc<Flaky>> {
        let (_, stop) = Stop::channel();
        let file = tempfile::tempfile().unwrap();
        RetryingStore {
            store,
            timeout,
            stop,
            run_log: RunLog::new(file, ContainerUuid::generate("zzzzz")),
        }
    }

    #[tokio::test]
    async fn blocks_that_fail_now_and_then_do_not_fail_the_output() {
        let store = Arc::new(Flaky::default());
        let keep = patient(store.clone(), Duration::from_secs(60));
        let mut writer = CollectionWriter::with_limits(keep, 10, 2);
        writer.start_file("f").unwrap();
        writer.write(b"0123456789abcdefghij").await.unwrap();
        let manifest = writer.finish().await.unwrap();
        assert_eq!(manifest.total_size(), 20);
        assert_eq!(store.failures.load(Ordering::Relaxed), 2);
        assert_eq!(store.reply.lock().unwrap().len(), 4, "each block once more");
    }

    #[tokio::test]
    async fn patience_has_an_end_and_the_reason_is_kept() {
        let keep = patient(Arc::default(), Duration::ZERO);
        let error = keep.put("x".into()).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("507") && text.contains("full"), "{text}");
    }
}
