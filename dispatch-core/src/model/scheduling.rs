//! What a dispatcher and its scheduler tell each other about containers and jobs, as plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::model::owner::KnownCharge;
use crate::model::resources::ResourceRequest;

/// What a scheduler can do, and what its commands cost. Read after each job listing, so a scheduler
/// may detect its capabilities while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Maximum number of attempts in one submission. Above 1 where one command for many jobs is
    /// cheaper than one command each.
    pub max_submit_batch: usize,
    /// Minimum size of a batch, where all of it must have equal resource requests. None: requests
    /// may differ, and any size is worth a batch.
    pub min_uniform_batch: Option<usize>,
    /// Maximum number of jobs in one cancel command.
    pub max_cancel_batch: usize,
    /// Whether the scheduler itself charges the commands that query job exits to the rate limit.
    /// True where one command answers for several jobs.
    pub charges_exit_queries: bool,
    /// Whether [`Admission::Later`](crate::model::resources::Admission::Later) means that the
    /// scheduler rejects such jobs. Users are told of that. If not, it means that there is no room.
    pub defers_rejected_jobs: bool,
    /// Minimum interval between two job listings, however many changes there are. Other users need
    /// the scheduler too. Without changes, jobs are listed once per poll interval.
    pub min_listing_interval: Duration,
}

impl Default for Capabilities {
    /// One job a command, and two seconds between listings.
    fn default() -> Self {
        Self {
            max_submit_batch: 1,
            min_uniform_batch: None,
            max_cancel_batch: 1,
            charges_exit_queries: false,
            defers_rejected_jobs: false,
            min_listing_interval: Duration::from_secs(2),
        }
    }
}

/// A container that may start or has started, as input of admission.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// UUID of the container.
    pub container: ContainerUuid,
    /// Resource request of the container.
    pub needs: ResourceRequest,
    /// Whether the container was locked before.
    pub was_locked: bool,
    /// The workflow runners that wait for it and run here: the one that asked for it, the one that
    /// asked for that one, and so on. They do not end before it does.
    pub runners: Vec<ContainerUuid>,
}

/// The way to stop a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopMode {
    /// Ask crunch-run to stop the container and to save its results.
    Graceful,
    /// Force the job to end: it was asked to stop, and its time for that is over.
    Force,
}

/// The reason for which a job is pending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingReason {
    /// Prospect of a start.
    pub outlook: PendingOutlook,
    /// Text for the user, with the expected start time where the scheduler reports it.
    pub text: String,
}

/// The prospect that a pending job starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingOutlook {
    /// The job starts when its turn comes.
    Transient,
    /// The job has started, and its container stands still or cannot be reached: it is suspended,
    /// or its node is lost. Users are told, because the record says Running.
    Paused,
    /// The job starts only after an administrator acts: releases it, raises a limit or repairs a
    /// node.
    NeedsAdmin,
    /// The job cannot start: no resources of this scheduler fit its request.
    Never,
}

/// A pending job in the order in which jobs should start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredPlace {
    /// UUID of the container.
    pub container: ContainerUuid,
    /// How its job is charged. Only jobs that are charged alike are put in order.
    pub charge: KnownCharge,
}

/// The jobs of each account, in order.
pub fn by_account(wanted: &[DesiredPlace]) -> BTreeMap<&KnownCharge, Vec<&ContainerUuid>> {
    let mut accounts: BTreeMap<&KnownCharge, Vec<&ContainerUuid>> = BTreeMap::new();
    for place in wanted {
        accounts
            .entry(&place.charge)
            .or_default()
            .push(&place.container);
    }
    accounts
}
