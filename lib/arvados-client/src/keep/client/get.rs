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
        loop {
            for service in services {
                rounds.tries += 1;
                match self.get_from(&service, locator, &mut buffer).await {
                    Ok(()) => {
                        return Ok(Bytes::from_owner(CountedBlock {
                            data: buffer,
                            _share: share,
                        }));
                    }
                    Err(failure) => {
                        let refusal = rounds.failed(service, failure);
                        refusal.into_iter().for_each(|refusal| outcome.add(refusal));
                    }
                }
            }
            let order = |all: &[Service]| service::read_order(all, locator);
            services = match rounds.next(&self.services, order).await {
                Ok(services) => services,
                Err(Some(last)) => return Err(rounds.unavailable(locator, last)),
                Err(None) => return Err(outcome.error(locator)),
            };
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
    fn add(&mut self, failure: Box<Failure>) {
        if failure.cause.is_not_found() {
            self.not_found += 1;
        } else if matches!(failure.cause, Cause::WrongContent { .. }) {
            tracing::warn!(%failure, "a Keep service sent a damaged copy of a block");
            self.corrupt = Some(failure);
        } else {
            self.refused = Some(failure);
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
