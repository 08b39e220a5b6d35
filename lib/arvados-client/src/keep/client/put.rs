//! Stores a block: sends it to as many services at once as copies are missing, and to others if
//! some fail.

use std::collections::{BTreeMap, VecDeque};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::content::Content;
use super::transfer::StoredReply;
use super::{Inner, Rounds};
use crate::keep::error::{Failure, KeepError};
use crate::keep::service::{self, Service};
use crate::locator::{Locator, MAX_BLOCK_SIZE};

impl Inner {
    pub(super) async fn put(&self, data: Content) -> Result<Locator, KeepError> {
        let block = data.locator().await?;
        if data.len() > MAX_BLOCK_SIZE {
            return Err(KeepError::TooLarge {
                block: block.to_string(),
                limit: MAX_BLOCK_SIZE,
            });
        }
        let services = self.services.current();
        if services.is_empty() {
            return Err(KeepError::NoService);
        }
        let order = service::write_order(&services, &block.hash);
        if order.is_empty() {
            return Err(KeepError::NoWritableService);
        }

        let mut tally = Tally::new(self.options.replicas, &self.options.storage_classes);
        let mut rounds = Rounds::new(&self.options);
        let mut waiting: VecDeque<Service> = order.into();
        loop {
            let mut running = FuturesUnordered::new();
            loop {
                while running.len() < tally.missing() as usize
                    && let Some(service) = waiting.pop_front()
                {
                    rounds.tries += 1;
                    let (block, data) = (&block, data.clone());
                    running.push(async move {
                        let result = self.put_to(&service, block, data).await;
                        (service, result)
                    });
                }
                match running.next().await {
                    Some((service, Ok(stored))) => {
                        rounds.done.push(service);
                        if let Some(locator) = tally.add(stored) {
                            return Ok(locator);
                        }
                    }
                    Some((service, Err(failure))) => {
                        tracing::debug!(%block, %failure, "a Keep service did not store the block");
                        if let Some(refusal) = rounds.failed(service, failure) {
                            tally.refused = Some(refusal);
                        }
                    }
                    None => break,
                }
            }
            let order = |all: &[Service]| service::write_order(all, &block.hash);
            waiting = match rounds.next(&self.services, order).await {
                Ok(services) => services.into(),
                Err(last) => return Err(tally.error(&block, &rounds, last)),
            };
        }
    }
}

/// Number of confirmed copies.
#[derive(Debug)]
struct Tally {
    wanted: u32,
    stored: u32,
    /// Confirmed copies per requested storage class.
    classes: BTreeMap<String, u32>,
    locator: Option<Locator>,
    /// The last final failure of a service.
    refused: Option<Box<Failure>>,
}

impl Tally {
    fn new(replicas: u32, classes: &[String]) -> Self {
        Self {
            wanted: replicas.max(1),
            stored: 0,
            classes: classes.iter().map(|class| (class.clone(), 0)).collect(),
            locator: None,
            refused: None,
        }
    }

    /// Number of missing copies, in total or in the class with the fewest.
    fn missing(&self) -> u32 {
        let least = self.classes.values().copied().fold(self.stored, u32::min);
        self.wanted.saturating_sub(least)
    }

    /// Counts a confirmation. Returns the locator once there are enough copies.
    fn add(&mut self, stored: StoredReply) -> Option<Locator> {
        self.stored = self.stored.saturating_add(stored.replicas);
        for (class, copies) in stored.classes {
            if let Some(count) = self.classes.get_mut(&class) {
                *count = count.saturating_add(copies);
            }
        }
        let locator = self.locator.get_or_insert(stored.locator);
        let locator = locator.clone();
        (self.missing() == 0).then_some(locator)
    }

    /// `last` is the failure after which there is no time for another round.
    fn error(self, block: &Locator, rounds: &Rounds, last: Option<Box<Failure>>) -> KeepError {
        let (wanted, stored) = (self.wanted, self.stored);
        let classes = self.classes.into_iter();
        let classes: Vec<String> = classes
            .filter(|(_, count)| *count < wanted)
            .map(|(class, _)| class)
            .collect();
        let name = block.to_string();
        match last.or(self.refused) {
            Some(failure) if stored == 0 && failure.cause.is_retryable() => {
                rounds.unavailable(block, failure)
            }
            Some(failure) if stored == 0 => KeepError::Refused {
                block: name,
                failure,
            },
            failure if stored < wanted => KeepError::InsufficientReplicas {
                block: name,
                stored,
                wanted,
                failure,
            },
            failure => KeepError::ClassesUnconfirmed {
                block: name,
                classes,
                failure,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(replicas: u32, classes: &[(&str, u32)]) -> StoredReply {
        StoredReply {
            locator: Locator::of(b"foo"),
            replicas,
            classes: classes.iter().map(|(c, n)| ((*c).to_owned(), *n)).collect(),
        }
    }

    #[test]
    fn enough_copies_are_enough_when_no_class_was_asked_for() {
        let mut tally = Tally::new(2, &[]);
        assert_eq!(tally.missing(), 2);
        assert_eq!(tally.add(stored(1, &[])), None);
        assert_eq!(tally.missing(), 1);
        assert_eq!(
            tally.add(stored(1, &[("default", 1)])),
            Some(Locator::of(b"foo"))
        );
    }

    #[test]
    fn every_class_needs_all_its_copies() {
        let mut tally = Tally::new(2, &["hot".into(), "default".into()]);
        assert_eq!(tally.add(stored(2, &[("default", 2)])), None);
        assert_eq!(tally.missing(), 2);
        assert_eq!(tally.add(stored(1, &[("hot", 1)])), None);
        assert_eq!(tally.missing(), 1);
        assert!(tally.add(stored(1, &[("hot", 1)])).is_some());
    }
}
