//! Looking: at the API, complete or not at all.

use std::collections::{BTreeMap, BTreeSet};

use arvados_client::client::Call;
use arvados_client::filter::Query;
use arvados_client::records::Container;
use arvados_client::{Client, ContainerUuid, Error, TokenUuid};
use serde_json::Value;

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
/// The queue is looked at in steps of so many, from its head.
pub const STEP: u64 = 500;
/// How many uuids one query asks for.
const BATCH: usize = 100;

/// What one complete look at the API saw.
#[derive(Debug, Default)]
pub struct Look {
    /// The head of the queue, and every container asked for.
    pub containers: BTreeMap<ContainerUuid, Known>,
    /// Those asked for that are not there, for certain.
    pub deleted: BTreeSet<ContainerUuid>,
    /// Records that are not what a container's record should be, and why. They are left alone.
    pub unreadable: BTreeMap<ContainerUuid, String>,
    /// Behind the part of the queue that was seen there is more.
    pub more_queued: bool,
}

/// What to look for.
#[derive(Debug)]
pub struct Interest<'a> {
    /// Containers whose record is wanted wherever they are.
    pub followed: BTreeSet<ContainerUuid>,
    /// Our attempts.
    pub ours: &'a BTreeMap<ContainerUuid, TokenUuid>,
    /// Memory for crunch-run itself.
    pub reserve: u64,
    /// How many steps of the queue.
    pub steps: u64,
}

/// Looks at the head of the queue and at the containers that are followed.
pub async fn look(client: &Client, interest: Interest<'_>) -> Result<Look, Error> {
    let mut look = Look::default();
    let head = Query::new()
        .filter("state", "=", "Queued")
        .filter("priority", ">", 0)
        .order("priority desc")
        .order("uuid asc")
        .select(&COLUMNS)
        .limit(STEP);
    for step in 0..interest.steps {
        let page = client
            .page::<Value>("containers", &head.clone().offset(step * STEP))
            .await?;
        // A server may give fewer than asked for though there are more; nothing at all is the end.
        look.more_queued = !page.items.is_empty();
        look.take(page.items, &interest);
        if !look.more_queued {
            break;
        }
    }
    // Asked for after the queue: of two views of one container the later one counts.
    let mut missing: Vec<ContainerUuid> = Vec::new();
    let wanted: Vec<&ContainerUuid> = interest.followed.iter().collect();
    for batch in wanted.chunks(BATCH) {
        let query = Query::new()
            .filter("uuid", "in", batch)
            .select(&COLUMNS)
            .limit(BATCH as u64);
        let page = client.page::<Value>("containers", &query).await?;
        let seen = look.take(page.items, &interest);
        let unseen = batch.iter().filter(|uuid| !seen.contains(**uuid));
        missing.extend(unseen.map(|uuid| (*uuid).clone()));
    }
    // A short page is no proof that a record is gone: servers cut pages by size too.
    for uuid in missing {
        match client
            .send::<Value>(Call::get(format!("containers/{uuid}")))
            .await
        {
            Ok(record) => {
                look.take(vec![record], &interest);
            }
            Err(error) if error.is_not_found() => {
                look.containers.remove(&uuid);
                look.deleted.insert(uuid);
            }
            Err(error) => return Err(error),
        }
    }
    // To a token that lost its rights every record of others is "not found".
    if !look.deleted.is_empty() && !client.current_user().await?.is_admin {
        look.deleted.clear();
    }
    Ok(look)
}

impl Look {
    /// Adds what can be read; which containers these records are.
    fn take(&mut self, records: Vec<Value>, interest: &Interest<'_>) -> BTreeSet<ContainerUuid> {
        let mut seen = BTreeSet::new();
        for record in records {
            let uuid = record["uuid"]
                .as_str()
                .and_then(|u| ContainerUuid::parse(u).ok());
            let Some(uuid) = uuid else {
                tracing::warn!(uuid = %record["uuid"], "the API listed a container without a container's uuid");
                continue;
            };
            match serde_json::from_value::<Container>(record) {
                Ok(record) => {
                    let known = known(&record, interest.ours, interest.reserve);
                    self.containers.insert(uuid.clone(), known);
                }
                Err(error) => {
                    self.unreadable.insert(uuid.clone(), error.to_string());
                }
            }
            seen.insert(uuid);
        }
        seen
    }
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

#[cfg(test)]
mod tests;
