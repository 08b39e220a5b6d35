//! Reads a block: tries the services in order, in rounds until the retry budget is used up.

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::{Inner, Rounds, kib};
use crate::keep::error::{Cause, Failure, KeepError};
use crate::keep::service::{self, Service};
use crate::locator::{Locator, MAX_BLOCK_SIZE};

/// The memory of a block with its share of the memory limit, released when the last user drops the
/// block.
struct CountedBlock {
    data: Vec<u8>,
    _share: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for CountedBlock {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Inner {
    pub(super) async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
        let size = match usize::try_from(locator.size) {
            Ok(size) if size <= MAX_BLOCK_SIZE => size,
            _ => {
                return Err(KeepError::TooLarge {
                    block: locator.stripped().to_string(),
                    limit: MAX_BLOCK_SIZE,
                });
            }
        };
        if locator.stripped() == Locator::empty() {
            return Ok(Bytes::new());
        }
        let mut services = service::read_order(&self.services.current(), locator);
        if services.is_empty() {
            return Err(KeepError::NoService);
        }

        // The semaphore is never closed, so this always gets a share.
        let share = self.memory.clone().acquire_many_owned(kib(locator.size));
        let share = share.await.ok();
        let mut buffer = Vec::with_capacity(size);
        let mut rounds = Rounds::new(&self.options);
        let mut outcome = ReadOutcome::default();
        // Services that are not tried again.
        let mut done = Vec::new();
        loop {
            let mut again = Vec::new();
            let mut last = None;
            for service in services {
                rounds.tries += 1;
                match self.get_from(&service, locator, &mut buffer).await {
                    Ok(()) => {
                        return Ok(Bytes::from_owner(CountedBlock {
                            data: buffer,
                            _share: share,
                        }));
                    }
                    Err(failure) if failure.cause.is_retryable() => {
                        again.push(service);
                        last = Some(Box::new(failure));
                    }
                    Err(failure) => {
                        done.push(service);
                        outcome.add(failure);
                    }
                }
            }
            let Some(last) = last else {
                return Err(outcome.error(locator));
            };
            if !rounds.wait(&last).await {
                return Err(rounds.unavailable(locator, last));
            }
            services = again;
            if last.cause.is_connection_failure() && self.services.refresh().await {
                let mut order = service::read_order(&self.services.current(), locator);
                // A service that moved has the same uuid.
                order.retain(|new| done.iter().all(|old: &Service| old.uuid() != new.uuid()));
                if !order.is_empty() {
                    services = order;
                }
            }
        }
    }
}

/// Final replies of the services.
#[derive(Debug, Default)]
struct ReadOutcome {
    not_found: usize,
    refused: Option<Box<Failure>>,
    corrupt: Option<Box<Failure>>,
}

impl ReadOutcome {
    fn add(&mut self, failure: Failure) {
        if failure.cause.is_not_found() {
            self.not_found += 1;
        } else if matches!(failure.cause, Cause::WrongContent { .. }) {
            tracing::warn!(%failure, "a Keep service sent a damaged copy of a block");
            self.corrupt = Some(Box::new(failure));
        } else {
            self.refused = Some(Box::new(failure));
        }
    }

    /// The most useful error: a damaged copy first, then a refusal, which may hide the block.
    fn error(self, locator: &Locator) -> KeepError {
        let block = locator.stripped().to_string();
        match (self.corrupt, self.refused) {
            (Some(failure), _) => KeepError::Corrupt { block, failure },
            (None, Some(failure)) => KeepError::Refused { block, failure },
            (None, None) => KeepError::NotFound {
                block,
                services: self.not_found,
            },
        }
    }
}
