//! Looking: at the API, complete or not at all.

use std::collections::{BTreeMap, BTreeSet};

use arvados_client::filter::Query;
use arvados_client::records::Container;
use arvados_client::{Client, ContainerUuid, Error, TokenUuid};

use crate::needs::{Fit, Needs};
use crate::world::{Holder, Known};

/// The columns a dispatcher needs.
const COLUMNS: [&str; 8] = [
    "uuid",
    "state",
    "priority",
    "locked_by_uuid",
    "runtime_constraints",
    "scheduling_parameters",
    "mounts",
    "created_at",
];
/// How many of the queue's head are looked at: more could not start before the next look.
const HEAD: u64 = 500;
/// How many uuids one query asks for.
const BATCH: usize = 100;

/// What one complete look at the API saw.
#[derive(Debug, Default)]
pub struct Look {
    /// The head of the queue, and every container asked for.
    pub containers: BTreeMap<ContainerUuid, Known>,
    /// Those asked for that are not there.
    pub deleted: BTreeSet<ContainerUuid>,
}

/// Looks at the head of the queue and at the containers in `followed`.
pub async fn look(
    client: &Client,
    followed: BTreeSet<ContainerUuid>,
    ours: &BTreeMap<ContainerUuid, TokenUuid>,
    reserve: u64,
) -> Result<Look, Error> {
    let head = Query::new()
        .filter("state", "=", "Queued")
        .filter("priority", ">", 0)
        .order("priority desc")
        .select(&COLUMNS)
        .limit(HEAD);
    let queued = client.page::<Container>("containers", &head).await?.items;
    // Asked for after the queue: of two views of one container the later one counts.
    let mut records = queued;
    let wanted: Vec<&ContainerUuid> = followed.iter().collect();
    for batch in wanted.chunks(BATCH) {
        let query = Query::new()
            .filter("uuid", "in", batch)
            .select(&COLUMNS)
            .limit(BATCH as u64);
        records.extend(client.page::<Container>("containers", &query).await?.items);
    }
    let mut look = Look::default();
    for record in &records {
        look.containers
            .insert(record.uuid.clone(), known(record, ours, reserve));
    }
    look.deleted = followed
        .into_iter()
        .filter(|uuid| !look.containers.contains_key(uuid))
        .collect();
    Ok(look)
}

fn known(record: &Container, ours: &BTreeMap<ContainerUuid, TokenUuid>, reserve: u64) -> Known {
    let holder = match &record.locked_by_uuid {
        None => Holder::Nobody,
        Some(token) if ours.get(&record.uuid) == Some(token) => Holder::Ours(token.clone()),
        Some(_) => Holder::Other,
    };
    Known {
        state: record.state.clone(),
        priority: record.priority,
        etag: record.etag.clone(),
        holder,
        needs: Needs::of(record, reserve),
        fit: Fit::Later("not looked at yet".into()),
    }
}
