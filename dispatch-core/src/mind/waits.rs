//! What jobs wait for in their scheduler: kept between listings, and told to those who ask why a container does not start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use super::Mind;
use crate::act::Task;
use crate::events::Event;
use crate::pace::Pace;
use crate::scheduler::{Outlook, Waiting};
use crate::world::{Holder, Moment, Waits};

/// Records that get a new word a second. Many jobs may wait, and what they wait for may change with every look.
const RATE: f64 = 2.0;
const BURST: u32 = 20;

/// What the records say.
#[derive(Debug)]
pub(super) struct Told {
    words: BTreeMap<ContainerUuid, Arc<str>>,
    pace: Pace,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            words: BTreeMap::new(),
            pace: Pace::new(RATE, BURST),
        }
    }
}

impl Mind {
    /// What the jobs of the newest listing wait for.
    pub fn waits(&mut self, now: Moment, waiting: BTreeMap<ContainerUuid, Waiting>) -> Vec<Event> {
        let old = std::mem::take(&mut self.world.waiting);
        // Thousands may wait for the same.
        let mut sentences: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut events = Vec::new();
        for (container, Waiting { outlook, words }) in waiting {
            let words = match sentences.get(words.as_str()) {
                Some(known) => known.clone(),
                None => {
                    let new: Arc<str> = words.into();
                    sentences.insert(new.clone());
                    new
                }
            };
            let earlier = old.get(&container).and_then(|waits| waits.in_vain_since);
            let in_vain_since = (outlook != Outlook::Passes).then(|| earlier.unwrap_or(now));
            if in_vain_since.is_some() {
                events.extend(self.not_run(container.clone(), words.to_string()));
            }
            let waits = Waits {
                words,
                in_vain_since,
            };
            self.world.waiting.insert(container, waits);
        }
        let waiting = &self.world.waiting;
        self.waits_told.words.retain(|c, _| waiting.contains_key(c));
        events
    }

    /// At most so many records to be told what their jobs wait for. Those that wait in vain come first.
    pub(super) fn untold(&mut self, now: Moment, most: usize) -> Vec<Task> {
        let mut untold: Vec<_> = self
            .world
            .waiting
            .iter()
            .filter(|(container, waits)| {
                let known = self.world.containers.get(*container);
                let is_ours = known.is_some_and(|known| {
                    known.state == ContainerState::Locked && matches!(known.holder, Holder::Ours(_))
                });
                is_ours
                    && self.waits_told.words.get(*container) != Some(&waits.words)
                    && !self.is_busy(container, now)
            })
            .collect();
        untold.sort_by_key(|(_, waits)| waits.in_vain_since.is_none());
        let mut tasks = Vec::new();
        for (container, waits) in untold {
            let Some(token) = self.tokens.get(container) else {
                continue;
            };
            if tasks.len() >= most || !self.waits_told.pace.take(now) {
                break;
            }
            tasks.push(Task::Tell {
                container: container.clone(),
                token: token.clone(),
                words: waits.words.clone(),
            });
        }
        tasks
    }

    /// The record says it now.
    pub(super) fn told(&mut self, container: ContainerUuid, words: Arc<str>) {
        self.waits_told.words.insert(container, words);
    }
}
