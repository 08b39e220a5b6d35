//! Fetches one snapshot of the API server: complete, or an error.
//!
//! Input: a [`SnapshotRequest`]. Output: an [`ApiSnapshot`] with records of the queue head, of
//! changed containers and of named containers.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error};

use crate::api::{Api, QueueCursor};
use crate::model::container_record::{ContainerSnapshot, ListedRecord};
use crate::model::snapshot::{ApiSnapshot, MAX_NAMED_PER_QUERY, SnapshotRequest};
use crate::observe::owners::{OwnerNames, named_owners};

/// Number of queued containers requested per page, from the head of the queue.
pub const PAGE_SIZE: u64 = 500;

/// Fetches the head of the queue, the changes and the named containers.
pub async fn fetch_snapshot(
    api: &impl Api,
    names: &OwnerNames,
    request: &SnapshotRequest,
) -> Result<ApiSnapshot, Error> {
    let mut snapshot = ApiSnapshot::default();
    let mut cursor: Option<QueueCursor> = None;
    for _ in 0..request.pages {
        let page = api.queued(cursor.as_ref(), PAGE_SIZE).await?;
        // A server may return a short page although more records follow. Only an empty page is the
        // end.
        snapshot.more_queued = !page.is_empty();
        cursor = page.iter().rev().find_map(cursor_of).or(cursor);
        snapshot.ingest(page);
        if !snapshot.more_queued {
            break;
        }
    }
    // Changes are read after the queue. Of two versions of a record the later one counts.
    if let Some(since) = request.since {
        match api.changed(since).await? {
            Some(changes) => drop(snapshot.ingest(changes)),
            None => snapshot.missed_changes = true,
        }
    }
    let mut missing: Vec<&ContainerUuid> = Vec::new();
    let named: Vec<&ContainerUuid> = request.named.iter().collect();
    for batch in named.chunks(MAX_NAMED_PER_QUERY) {
        let names: Vec<ContainerUuid> = batch.iter().map(|uuid| (*uuid).clone()).collect();
        let seen = snapshot.ingest(api.records(&names).await?);
        missing.extend(batch.iter().filter(|uuid| !seen.contains(**uuid)));
    }
    // A short page does not prove that a record is gone: servers also limit pages by size.
    for uuid in missing {
        match api.record(None, uuid).await {
            Ok(row) => drop(snapshot.ingest(vec![row])),
            Err(error) if error.is_not_found() => {
                snapshot.containers.remove(uuid);
                snapshot.missing.insert(uuid.clone());
            }
            Err(error) => return Err(error),
        }
    }
    fetch_needs(api, names, request, &mut snapshot).await?;
    // A token that lost its admin rights gets "not found" for every record of other users.
    if !snapshot.missing.is_empty() && !api.can_read_all().await? {
        snapshot.missing.clear();
    }
    Ok(snapshot)
}

/// Reads missing resource requests with the owners of their containers, highest priority first, for
/// at most [`PAGE_SIZE`] containers.
async fn fetch_needs(
    api: &impl Api,
    names: &OwnerNames,
    request: &SnapshotRequest,
    snapshot: &mut ApiSnapshot,
) -> Result<(), Error> {
    let is_unknown = |record: &&ContainerSnapshot| {
        let queued = record.state == ContainerState::Queued;
        let may_start = queued && record.priority > 0;
        let matters = may_start || request.named.contains(&record.uuid);
        let known = request.needs.get(&record.uuid);
        let fresh = known.is_some_and(|known| !queued || known.modified_at == record.modified_at);
        matters && record.needs.is_none() && !record.state.is_final() && !fresh
    };
    let unknown = snapshot.containers.values().filter(is_unknown);
    let mut unknown: Vec<(Reverse<i64>, ContainerUuid)> = unknown
        .map(|record| (Reverse(record.priority), record.uuid.clone()))
        .collect();
    unknown.sort();
    let rest = unknown.split_off(unknown.len().min(PAGE_SIZE as usize));
    let uuids: Vec<ContainerUuid> = unknown.into_iter().map(|(_, uuid)| uuid).collect();
    let mut unread: BTreeSet<ContainerUuid> = rest.into_iter().map(|(_, uuid)| uuid).collect();
    for batch in uuids.chunks(MAX_NAMED_PER_QUERY) {
        let (unread_batch, mut facts) = tokio::try_join!(
            fetch_full_records(api, batch, snapshot),
            api.request_facts(batch)
        )?;
        unread.extend(unread_batch);
        let user = |uuid: &ContainerUuid| snapshot.containers.get(uuid)?.user.clone();
        let owned = batch.iter().map(|uuid| {
            let facts = facts.remove(uuid).unwrap_or_default();
            let owned = (uuid.clone(), user(uuid), facts.project);
            (owned, facts.requested_by.map(|asked| (uuid.clone(), asked)))
        });
        let (owned, asked): (Vec<_>, Vec<_>) = owned.unzip();
        snapshot.requested_by.extend(asked.into_iter().flatten());
        let owners = named_owners(api, names, owned).await?;
        snapshot.owners.extend(owners);
    }
    for uuid in snapshot.malformed.keys() {
        snapshot.containers.remove(uuid);
    }
    // Queued containers without a resource request wait for a later snapshot. Locked and running
    // containers are kept in any case.
    snapshot.more_queued |= !unread.is_empty();
    let containers = &mut snapshot.containers;
    containers
        .retain(|uuid, record| record.state != ContainerState::Queued || !unread.contains(uuid));
    Ok(())
}

/// Reads the records of one batch. Returns the containers whose records the server did not give.
async fn fetch_full_records(
    api: &impl Api,
    batch: &[ContainerUuid],
    snapshot: &mut ApiSnapshot,
) -> Result<Vec<ContainerUuid>, Error> {
    let mut unread = batch.to_vec();
    while !unread.is_empty() {
        let seen = snapshot.ingest(api.full_records(&unread).await?);
        let before = unread.len();
        // A server may limit a page by its size.
        unread.retain(|uuid| !seen.contains(uuid));
        if unread.len() == before {
            break;
        }
    }
    Ok(unread)
}

fn cursor_of(row: &ListedRecord) -> Option<QueueCursor> {
    match row {
        ListedRecord::Parsed(record) => Some(QueueCursor {
            priority: record.priority,
            uuid: record.uuid.clone(),
        }),
        ListedRecord::Malformed(..) => None,
    }
}

#[cfg(test)]
mod tests;
