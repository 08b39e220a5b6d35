//! Looking at the API: complete or not at all.

use std::collections::{BTreeMap, BTreeSet};

use arvados_client::{ContainerUuid, Error};
use jiff::Timestamp;

use crate::api::{Api, Place, Record, Row};

/// The queue is looked at in steps of so many, from its head.
pub const STEP: u64 = 500;
/// How many uuids one query asks for.
pub const BATCH: usize = 250;

/// What to look for, besides the head of the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interest {
    /// Containers whose record is wanted wherever they are.
    pub asked: BTreeSet<ContainerUuid>,
    /// Whatever changed from then on.
    pub since: Option<Timestamp>,
    /// How many steps of the queue.
    pub steps: u64,
}

/// What one complete look at the API saw.
#[derive(Debug, Default)]
pub struct Look {
    /// The head of the queue, what changed, and every container asked for.
    pub containers: BTreeMap<ContainerUuid, Record>,
    /// Those asked for that are not there, for certain.
    pub deleted: BTreeSet<ContainerUuid>,
    /// Records that are not what a container's record should be, and why. They are left alone.
    pub unreadable: BTreeMap<ContainerUuid, String>,
    /// Behind the part of the queue that was seen there is more.
    pub more_queued: bool,
    /// There were too many changes to list: what was not asked for may have changed.
    pub missed_changes: bool,
}

/// Looks at the head of the queue, at what changed, and at the containers asked for.
pub async fn look(api: &impl Api, interest: &Interest) -> Result<Look, Error> {
    let mut look = Look::default();
    let mut place: Option<Place> = None;
    for _ in 0..interest.steps {
        let page = api.queued(place.as_ref(), STEP).await?;
        // A server may give fewer than asked for though there are more; nothing at all is the end.
        look.more_queued = !page.is_empty();
        place = page.iter().rev().find_map(place_of).or(place);
        look.take(page);
        if !look.more_queued {
            break;
        }
    }
    // Asked for after the queue: of two views of one container the later one counts.
    if let Some(since) = interest.since {
        match api.changed(since).await? {
            Some(changes) => drop(look.take(changes)),
            None => look.missed_changes = true,
        }
    }
    let mut missing: Vec<&ContainerUuid> = Vec::new();
    let asked: Vec<&ContainerUuid> = interest.asked.iter().collect();
    for batch in asked.chunks(BATCH) {
        let names: Vec<ContainerUuid> = batch.iter().map(|uuid| (*uuid).clone()).collect();
        let seen = look.take(api.records(&names).await?);
        missing.extend(batch.iter().filter(|uuid| !seen.contains(**uuid)));
    }
    // A short page is no proof that a record is gone: servers cut pages by size too.
    for uuid in missing {
        match api.record(None, uuid).await {
            Ok(row) => drop(look.take(vec![row])),
            Err(error) if error.is_not_found() => {
                look.containers.remove(uuid);
                look.deleted.insert(uuid.clone());
            }
            Err(error) => return Err(error),
        }
    }
    // To a token that lost its rights every record of others is "not found".
    if !look.deleted.is_empty() && !api.sees_all().await? {
        look.deleted.clear();
    }
    Ok(look)
}

fn place_of(row: &Row) -> Option<Place> {
    match row {
        Row::Container(record) => Some(Place {
            priority: record.priority,
            uuid: record.uuid.clone(),
        }),
        Row::Unreadable(..) => None,
    }
}

impl Look {
    /// Adds what can be read; which containers these records are.
    pub(crate) fn take(&mut self, rows: Vec<Row>) -> BTreeSet<ContainerUuid> {
        let mut seen = BTreeSet::new();
        for row in rows {
            seen.insert(row.uuid().clone());
            match row {
                Row::Container(record) => {
                    self.containers.insert(record.uuid.clone(), *record);
                }
                Row::Unreadable(uuid, why) => drop(self.unreadable.insert(uuid, why)),
            }
        }
        seen
    }

    /// The newest change seen, by the server's clock.
    pub fn newest_change(&self) -> Option<Timestamp> {
        self.containers.values().filter_map(|c| c.modified_at).max()
    }
}

#[cfg(test)]
mod tests;
