//! One poll of the API server as values: its request, its result, and changes reported between
//! polls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, GroupUuid};
use jiff::Timestamp;

use crate::model::container_record::{ContainerSnapshot, ListedRecord};
use crate::model::owner::{Charge, KnownOwner};
use crate::model::resources::ResourceRequest;

/// Maximum number of UUIDs in one query.
pub const MAX_NAMED_PER_QUERY: usize = 250;
/// Maximum number of changed containers that are kept by name. Beyond it, everything is polled.
pub const MAX_NAMED_CHANGES: usize = 5000;

/// What a snapshot covers besides the head of the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotRequest {
    /// Containers to read in any state.
    pub named: BTreeSet<ContainerUuid>,
    /// Time from which all changes are listed. None: changes are not listed.
    pub since: Option<Timestamp>,
    /// What to read of the queue.
    pub queue: QueueRead,
    /// Resource requests that were read earlier.
    pub needs: Arc<KnownNeeds>,
}

/// A position in the queue: the last container that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueCursor {
    /// Priority of that container.
    pub priority: i64,
    /// UUID of that container.
    pub uuid: ContainerUuid,
}

/// What a poll reads of the queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum QueueRead {
    /// Nothing: it was listed a short time ago.
    #[default]
    Nothing,
    /// The first page, and the first of users whom that does not show.
    Head,
    /// The same, and the page after this position.
    HeadAnd(QueueCursor),
}

/// What was read once of each container.
pub type KnownNeeds = BTreeMap<ContainerUuid, Known>;

/// What is read once of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// `modified_at` of the record it was read from.
    pub modified_at: Option<Timestamp>,
    /// Resource request of the container.
    pub needs: ResourceRequest,
    /// User and project of the container.
    pub owner: KnownOwner,
    /// The workflow that asked for it, if nobody else did.
    pub requested_by: Option<ContainerUuid>,
}

/// What the requests of a container say of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// The project of the request. None: it is in a home project.
    pub project: Option<GroupUuid>,
    /// The container that made the request: a workflow runner. None if a user made one, too.
    pub requested_by: Option<ContainerUuid>,
}

/// The result of one complete snapshot.
#[derive(Debug, Default)]
pub struct ApiSnapshot {
    /// Records of the queue head, of changed containers and of named containers.
    pub containers: BTreeMap<ContainerUuid, ContainerSnapshot>,
    /// Owners of the containers whose resource requests were read.
    pub owners: BTreeMap<ContainerUuid, KnownOwner>,
    /// How the jobs of these containers are charged, where that depends on their owners.
    pub charges: BTreeMap<ContainerUuid, Arc<Charge>>,
    /// For those of them that a workflow asked for, its container.
    pub requested_by: BTreeMap<ContainerUuid, ContainerUuid>,
    /// Named containers that do not exist, according to the server.
    pub missing: BTreeSet<ContainerUuid>,
    /// Records that cannot be parsed, with the error. The dispatcher does not touch these
    /// containers.
    pub malformed: BTreeMap<ContainerUuid, String>,
    /// Whether the queue continues after the part that was read.
    pub more_queued: bool,
    /// Where the next page of the queue begins. None: the queue was read to its end.
    pub next_page: Option<QueueCursor>,
    /// Whether there were too many changes to list. Any container that was not named may have
    /// changed.
    pub missed_changes: bool,
}

impl ApiSnapshot {
    /// Adds parsed and malformed records. Returns the UUIDs of all of them.
    pub(crate) fn ingest(&mut self, rows: Vec<ListedRecord>) -> BTreeSet<ContainerUuid> {
        let mut seen = BTreeSet::new();
        for row in rows {
            seen.insert(row.uuid().clone());
            match row {
                ListedRecord::Parsed(record) => {
                    self.containers.insert(record.uuid.clone(), *record);
                }
                ListedRecord::Malformed(uuid, why) => drop(self.malformed.insert(uuid, why)),
            }
        }
        seen
    }

    /// Whether a container waits for a start.
    pub fn has_queued(&self) -> bool {
        let mut records = self.containers.values();
        records.any(|c| c.state == ContainerState::Queued && c.priority > 0)
    }

    /// The latest `modified_at` of all records, by the server's clock.
    pub fn newest_change(&self) -> Option<Timestamp> {
        self.containers.values().filter_map(|c| c.modified_at).max()
    }
}

/// Changes that the next poll must read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PendingChanges {
    /// Containers that changed.
    pub containers: BTreeSet<ContainerUuid>,
    /// Whether any other container may have changed.
    pub everything: bool,
}

impl PendingChanges {
    /// Adds a changed container.
    pub fn add(&mut self, container: ContainerUuid) {
        match self.containers.len() < MAX_NAMED_CHANGES || self.containers.contains(&container) {
            true => drop(self.containers.insert(container)),
            false => self.everything = true,
        }
    }

    /// Adds the changes of `more`.
    pub fn merge(&mut self, more: PendingChanges) {
        self.everything |= more.everything;
        more.containers.into_iter().for_each(|one| self.add(one));
    }
}
