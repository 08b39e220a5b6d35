//! The state of API polls: what the poll under way requested, what earlier ones covered, and how
//! far the queue was read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arvados_client::ContainerUuid;

use crate::model::snapshot::{KnownNeeds, PendingChanges, QueueCursor};
use crate::model::world::MonotonicTime;
use crate::plan::queue_sweep::QueueSweep;
use crate::reconcile::newest_change::NewestChange;

/// The state of API polls.
#[derive(Debug, Default)]
pub(crate) struct PollState {
    /// Position in the queue.
    pub(crate) queue: QueuePosition,
    /// Start of the poll under way.
    pub(crate) began: MonotonicTime,
    /// Containers with a task since the poll began. The poll's data on these containers may be
    /// older than the known state.
    pub(crate) acted_since: BTreeSet<ContainerUuid>,
    /// The newest change seen on the server; `None` makes the next poll request everything.
    pub(crate) newest_change: Option<NewestChange>,
    /// Number of polls that listed the queue.
    pub(crate) count: u64,
    /// Containers that the server did not find, and the start of the first poll that missed them.
    pub(crate) missing: BTreeMap<ContainerUuid, MonotonicTime>,
    /// Changes that were reported and that no poll has shown yet.
    pub(crate) pending_changes: PendingChanges,
    /// Whether the last poll failed and had requested everything.
    pub(crate) full_poll_failed: bool,
    /// Whether the poll under way requests only a part.
    pub(crate) is_partial: bool,
    /// Containers that the poll under way requests by name, because the last listing of the queue
    /// is recent. `None`: the poll lists the queue.
    pub(crate) only_named: Option<BTreeSet<ContainerUuid>>,
    /// Resource requests of containers, kept so that each is read once.
    pub(crate) known_needs: Arc<KnownNeeds>,
}

/// How much of the queue polls read.
#[derive(Debug, Default)]
pub(crate) struct QueuePosition {
    /// What the next poll reads.
    pub(crate) sweep: QueueSweep,
    /// Where the queue continues after what the last poll read of it, until its admission is known.
    pub(crate) read_to: Option<Option<QueueCursor>>,
    /// Whether the queue continues after the part that was read.
    pub(crate) has_more: bool,
    /// Start of the last poll that listed the queue; `None` makes the next one list it.
    pub(crate) listed_at: Option<MonotonicTime>,
    /// Whether a container was locked since the last listing of the queue began.
    pub(crate) locked_since_listing: bool,
}
