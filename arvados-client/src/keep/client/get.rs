//! Reading a block: the services in turn, again while there is hope and time.

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::{Inner, Rounds, kib};
use crate::keep::error::{Cause, Failure, KeepError};
use crate::keep::locator::{Locator, MAX_BLOCK_SIZE};
use crate::keep::service::{self, Service};

/// A block's memory together with its share of the limit, given back when the last user drops the block.
struct Held {
    data: Vec<u8>,
    _share: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
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
        let mut services = service::read_order(&self.services.known(), locator);
        if services.is_empty() {
            return Err(KeepError::NoService);
        }

        // The semaphore is never closed; without a share the block would merely not be counted.
        let share = self.memory.clone().acquire_many_owned(kib(locator.size));
        let share = share.await.ok();
        let mut buffer = Vec::with_capacity(size);
        let mut rounds = Rounds::new(&self.options);
        let mut verdict = Verdict::default();
        // Those that need not be asked again.
        let mut done = Vec::new();
        loop {
            let mut again = Vec::new();
            let mut last = None;
            for service in services {
                rounds.tries += 1;
                match self.get_from(&service, locator, &mut buffer).await {
                    Ok(()) => {
                        return Ok(Bytes::from_owner(Held {
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
                        verdict.add(failure);
                    }
                }
            }
            let Some(last) = last else {
                return Err(verdict.error(locator));
            };
            if !rounds.pause(&last).await {
                return Err(rounds.give_up(locator, last));
            }
            services = again;
            if last.cause.is_of_the_way() && self.services.refresh().await {
                let mut order = service::read_order(&self.services.known(), locator);
                // One that moved is still the same one.
                order.retain(|new| done.iter().all(|old: &Service| old.uuid() != new.uuid()));
                if !order.is_empty() {
                    services = order;
                }
            }
        }
    }
}

/// What the services that need not be asked again have said.
#[derive(Debug, Default)]
struct Verdict {
    not_found: usize,
    refused: Option<Box<Failure>>,
    corrupt: Option<Box<Failure>>,
}

impl Verdict {
    fn add(&mut self, failure: Failure) {
        if failure.cause.is_not_found() {
            self.not_found += 1;
        } else if matches!(failure.cause, Cause::WrongContent { .. }) {
            tracing::warn!(%failure, "a copy of a block is damaged");
            self.corrupt = Some(Box::new(failure));
        } else {
            self.refused = Some(Box::new(failure));
        }
    }

    /// A damaged copy says most: the block is there and somebody has to look. A refusal may hide the block.
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
