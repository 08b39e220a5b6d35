//! Fetches one snapshot of the API server: complete, or an error.
//!
//! Input: a [`SnapshotRequest`]. Output: an [`ApiSnapshot`] with records of the queue head, of
//! changed containers and of named containers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error, UserUuid};

use crate::api::Api;
use crate::model::container_record::{ContainerSnapshot, ListedRecord};
use crate::model::owner::Weight;
use crate::model::snapshot::{
    ApiSnapshot, MAX_NAMED_PER_QUERY, QueueCursor, QueueRead, SnapshotRequest,
};
use crate::model::turns::in_turns;
use crate::observe::owners::{OwnerNames, named_owners};

/// Number of queued containers requested per page, from the head of the queue.
pub const PAGE_SIZE: u64 = 500;

/// Minimum number of containers in a page that may be cut. Servers do not cut shorter ones.
const LONG_PAGE: usize = 100;
/// Maximum number of containers that one poll reads one by one because pages lack them.
const MAX_SINGLE_READS: usize = 50;
/// Maximum number of further pages that look for users whom the head of the queue does not show.
const MAX_OTHER_PAGES: usize = 20;

/// Fetches the head of the queue, the changes and the named containers.
pub async fn fetch_snapshot(
    api: &impl Api,
    names: &OwnerNames,
    request: &SnapshotRequest,
) -> Result<ApiSnapshot, Error> {
    let mut snapshot = ApiSnapshot::default();
    if request.queue != QueueRead::Nothing {
        let head_hides_others = read_page(api, None, &mut snapshot).await? >= LONG_PAGE;
        if head_hides_others {
            fetch_other_users(api, &mut snapshot).await?;
        }
    }
    if let (QueueRead::HeadAnd(start), true) = (&request.queue, snapshot.more_queued) {
        read_page(api, Some(start), &mut snapshot).await?;
    }
    // Changes are read after the queue. Of two versions of a record the later one counts.
    if let Some(since) = request.since {
        match api.changed(since).await? {
            Some(changes) => drop(snapshot.ingest(changes)),
            None => snapshot.missed_changes = true,
        }
    }
    let mut missing: Vec<ContainerUuid> = Vec::new();
    let named: Vec<ContainerUuid> = request.named.iter().cloned().collect();
    for batch in named.chunks(MAX_NAMED_PER_QUERY) {
        let mut rest = batch.to_vec();
        // Servers limit pages by size, too.
        while !rest.is_empty() {
            let asked = rest.len();
            let seen = snapshot.ingest(api.records(&rest).await?);
            rest.retain(|uuid| !seen.contains(uuid));
            if rest.len() == asked {
                break;
            }
        }
        missing.extend(rest);
    }
    // A token that lost its admin rights gets "not found" for every record of other users.
    if missing.len() > MAX_SINGLE_READS && !api.can_read_all().await? {
        missing.clear();
    }
    // A page without a record does not prove that it is gone. The others have later polls.
    for uuid in missing.into_iter().take(MAX_SINGLE_READS) {
        match api.record(None, &uuid).await {
            Ok(row) => drop(snapshot.ingest(vec![row])),
            Err(error) if error.is_not_found() => {
                snapshot.containers.remove(&uuid);
                snapshot.missing.insert(uuid);
            }
            Err(error) => return Err(error),
        }
    }
    fetch_needs(api, names, request, &mut snapshot).await?;
    if !snapshot.missing.is_empty() && !api.can_read_all().await? {
        snapshot.missing.clear();
    }
    Ok(snapshot)
}

/// Reads the page of the queue after `start`, or the first one. Returns its length.
async fn read_page(
    api: &impl Api,
    start: Option<&QueueCursor>,
    snapshot: &mut ApiSnapshot,
) -> Result<usize, Error> {
    let page = api.queued(start, &BTreeSet::new(), PAGE_SIZE).await?;
    let length = page.len();
    // A server may return a short page although more records follow. Only an empty page is the end.
    snapshot.more_queued = length > 0;
    snapshot.next_page = page.iter().rev().find_map(cursor_of);
    snapshot.ingest(page);
    Ok(length)
}

/// Reads the queued containers of users whom the pages read so far do not show, because others have
/// many containers of a higher priority.
async fn fetch_other_users(api: &impl Api, snapshot: &mut ApiSnapshot) -> Result<(), Error> {
    let mut seen: BTreeSet<UserUuid> = BTreeSet::new();
    for _ in 0..MAX_OTHER_PAGES {
        let before = seen.len();
        let users = snapshot.containers.values();
        seen.extend(users.filter_map(|record| record.user.clone()));
        if seen.len() == before || seen.len() > MAX_NAMED_PER_QUERY {
            break;
        }
        let page = api.queued(None, &seen, PAGE_SIZE).await?;
        if page.is_empty() {
            break;
        }
        snapshot.ingest(page);
    }
    Ok(())
}

/// Reads missing resource requests with the owners of their containers, by turns of users, for
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
    let mut unknown: Vec<&ContainerSnapshot> = unknown.collect();
    unknown.sort_by_key(|record| (Reverse(record.priority), &record.uuid));
    let nothing = BTreeMap::new();
    let unknown = in_turns(
        unknown,
        |record| (record.user.as_ref(), Weight::MIN),
        &nothing,
    );
    let mut uuids: Vec<ContainerUuid> = unknown.iter().map(|r| r.uuid.clone()).collect();
    let rest = uuids.split_off(uuids.len().min(PAGE_SIZE as usize));
    let mut unread: BTreeSet<ContainerUuid> = rest.into_iter().collect();
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
    if !unread.is_empty() {
        snapshot.more_queued = true;
        snapshot.next_page = match &request.queue {
            QueueRead::HeadAnd(start) => Some(start.clone()),
            QueueRead::Head | QueueRead::Nothing => None,
        };
    }
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
