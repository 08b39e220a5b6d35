//! A block store that is asked again, block by block, for as long as results are worth it: what is stored stays
//! stored, and a large output is not begun anew because one block failed.

use std::time::Duration;

use arvados_client::keep::{BlockSource, BlockStore, FilePart, KeepError, Locator};
use bytes::Bytes;

use super::insist::{GaveUp, Insistence, Trouble};
use crate::logs::Journal;
use crate::signals::Stop;

#[derive(Debug, Clone)]
pub struct PatientStore<S> {
    store: S,
    patience: Duration,
    stop: Stop,
    journal: Journal,
}

impl<S: BlockStore> PatientStore<S> {
    /// As patient as `insistence`, for every block.
    pub fn new(store: S, insistence: &Insistence<'_>) -> Self {
        Self {
            store,
            patience: insistence.patience,
            stop: insistence.stop.clone(),
            journal: insistence.journal.clone(),
        }
    }

    async fn insist<T, F: Future<Output = Result<T, KeepError>>>(
        &self,
        what: &str,
        attempt: impl Fn() -> F,
    ) -> Result<T, KeepError> {
        let insistence = Insistence {
            patience: self.patience,
            stop: &self.stop,
            journal: &self.journal,
        };
        let done = insistence.on(what, || async {
            attempt().await.map_err(|error| match may_pass(&error) {
                true => Trouble::Later(error),
                false => Trouble::Final(error),
            })
        });
        done.await
            .map_err(|(GaveUp::TooLong(error) | GaveUp::Final(error))| error)
    }
}

/// Whether the same block may be stored a moment later. What was refused, or cannot be read here, is for the caller to
/// look at.
pub fn may_pass(error: &KeepError) -> bool {
    matches!(
        error,
        KeepError::Unavailable { .. }
            | KeepError::InsufficientReplicas { .. }
            | KeepError::ClassesUnconfirmed { .. }
    )
}

impl<S: BlockStore> BlockSource for PatientStore<S> {
    async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        let get = || self.store.get(locator);
        self.insist("Reading a block of the output", get).await
    }
}

impl<S: BlockStore> BlockStore for PatientStore<S> {
    async fn put(&self, data: Bytes) -> Result<Locator, KeepError> {
        let put = || self.store.put(data.clone());
        self.insist("Storing a block of the output", put).await
    }

    async fn put_file(&self, part: FilePart) -> Result<Locator, KeepError> {
        let put = || self.store.put_file(part.clone());
        self.insist("Storing a block of the output", put).await
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
        seen: Mutex<Vec<BlockHash>>,
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
                let mut seen = self.seen.lock().unwrap();
                let is_new = !seen.contains(&block.hash);
                seen.push(block.hash);
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

    fn patient(store: Arc<Flaky>, patience: Duration) -> PatientStore<Arc<Flaky>> {
        let (_, stop) = Stop::channel();
        let file = tempfile::tempfile().unwrap();
        PatientStore {
            store,
            patience,
            stop,
            journal: Journal::new(file, ContainerUuid::generate("zzzzz")),
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
        assert_eq!(store.seen.lock().unwrap().len(), 4, "each block once more");
    }

    #[tokio::test]
    async fn patience_has_an_end_and_the_reason_is_kept() {
        let keep = patient(Arc::default(), Duration::ZERO);
        let error = keep.put("x".into()).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("507") && text.contains("full"), "{text}");
    }
}
