//! Looking at the API: complete or not at all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error};
use jiff::Timestamp;

use crate::api::{Api, Place, Record, Row};
use crate::needs::Needs;

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
    /// How many steps of the queue; none of it, where little time has passed since it was last listed.
    pub steps: u64,
    /// What containers need, as far as that was read before.
    pub needs: Arc<KnownNeeds>,
}

/// What containers need, and when their records had changed by then.
pub type KnownNeeds = BTreeMap<ContainerUuid, (Option<Timestamp>, Needs)>;

/// What one complete look at the API saw.
#[derive(Debug, Default)]
pub struct Look {
    /// The head of the queue, what changed, and every container asked for.
    pub containers: BTreeMap<ContainerUuid, Record>,
    /// Those asked for that the server says are not there.
    pub missing: BTreeSet<ContainerUuid>,
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
                look.missing.insert(uuid.clone());
            }
            Err(error) => return Err(error),
        }
    }
    complete(api, interest, &mut look).await?;
    // To a token that lost its rights every record of others is "not found".
    if !look.missing.is_empty() && !api.sees_all().await? {
        look.missing.clear();
    }
    Ok(look)
}

/// Reads what containers need, where that is not known: of the highest priorities, as many as one step has.
async fn complete(api: &impl Api, interest: &Interest, look: &mut Look) -> Result<(), Error> {
    let is_unknown = |record: &&Record| {
        let queued = record.state == ContainerState::Queued;
        let may_start = queued && record.priority > 0;
        let matters = may_start || interest.asked.contains(&record.uuid);
        let known = interest.needs.get(&record.uuid);
        let fresh = known.is_some_and(|(at, _)| !queued || *at == record.modified_at);
        matters && record.needs.is_none() && !record.state.is_final() && !fresh
    };
    let unknown = look.containers.values().filter(is_unknown);
    let mut unknown: Vec<(Reverse<i64>, ContainerUuid)> = unknown
        .map(|record| (Reverse(record.priority), record.uuid.clone()))
        .collect();
    unknown.sort();
    let rest = unknown.split_off(unknown.len().min(STEP as usize));
    let names: Vec<ContainerUuid> = unknown.into_iter().map(|(_, uuid)| uuid).collect();
    let mut unread: BTreeSet<ContainerUuid> = rest.into_iter().map(|(_, uuid)| uuid).collect();
    for batch in names.chunks(BATCH) {
        let mut wanted = batch.to_vec();
        while !wanted.is_empty() {
            let seen = look.take(api.whole_records(&wanted).await?);
            let before = wanted.len();
            // A server may cut a page by its size.
            wanted.retain(|uuid| !seen.contains(uuid));
            if wanted.len() == before {
                break;
            }
        }
        unread.extend(wanted);
    }
    for uuid in look.unreadable.keys() {
        look.containers.remove(uuid);
    }
    // The others of the queue come with a later look; what we hold is followed whatever it needs.
    look.more_queued |= !unread.is_empty();
    let containers = &mut look.containers;
    containers
        .retain(|uuid, record| record.state != ContainerState::Queued || !unread.contains(uuid));
    Ok(())
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
