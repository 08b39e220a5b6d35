//! The input of the plan as plain values: observed containers, jobs, attempts and timers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::ContainerState;

use arvados_client::{ContainerUuid, TokenUuid, UserUuid};
use jiff::Timestamp;

use crate::model::container_record::ContainerEnd;
use crate::model::owner::{KnownOwner, Weight};
use crate::model::resources::{Admission, ResourceRequest};

/// A point on the controller's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct MonotonicTime(pub Duration);

impl MonotonicTime {
    /// Time from `earlier` to `self`; zero if `earlier` is not earlier.
    pub fn since(self, earlier: MonotonicTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The scheduler's id of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub String);

/// The owner of the token that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockHolder {
    /// The container is not locked.
    Nobody,
    /// An attempt token that this dispatcher minted, now or before a restart.
    Ours(TokenUuid),
    /// A token that is not known as one of this dispatcher. It must not act on the container.
    Other,
}

/// A container as the API last returned it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedContainer {
    /// State of the container.
    pub state: ContainerState,
    /// Priority of the container; 0 means on hold or to be stopped.
    pub priority: i64,
    /// Version of the record, for `If-Match`.
    pub etag: String,
    /// Holder of the lock.
    pub holder: LockHolder,
    /// Resources that the container requests.
    pub needs: ResourceRequest,
    /// User and project of the container, if they are known.
    pub owner: KnownOwner,
    /// The container of the workflow that asked for it, if nobody else did.
    pub requested_by: Option<ContainerUuid>,
    /// Creation time of the container, by the server's clock.
    pub created_at: Option<Timestamp>,
    /// Number of its locks so far. The server allows few.
    pub locks: u32,
    /// Whether the scheduler lets the container start now.
    pub fit: Admission,
    /// Start of the API poll that returned the record.
    pub seen: MonotonicTime,
    /// How the container ended, if the poll asked for that.
    pub end: Option<ContainerEnd>,
}

impl ObservedContainer {
    /// The user as whom it acts, if it is known.
    pub fn user(&self) -> Option<&UserUuid> {
        self.owner.as_ref()?.user.as_ref()
    }

    /// Its share in what all owners use.
    pub fn weight(&self) -> Weight {
        let charge = self.needs.charged_to.as_ref();
        charge.map_or(Weight::MIN, |charge| charge.weight)
    }
}

/// A job of this dispatcher in the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The scheduler's id of the job.
    pub id: JobId,
    /// Container that the job runs.
    pub container: ContainerUuid,
    /// Attempt that the job runs, if the scheduler shows it.
    pub attempt: Option<TokenUuid>,
    /// The job has ended and the scheduler still lists it.
    pub ended: bool,
    /// Node on which the job runs, if the scheduler shows it.
    pub node: Option<String>,
}

/// One complete listing of the scheduler's jobs. A failed or partial answer never becomes a
/// listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobListing {
    /// Time of the query. The listing proves nothing about jobs submitted later.
    pub began: MonotonicTime,
    /// Every job of this dispatcher, sorted by container.
    jobs: Vec<Job>,
}

impl JobListing {
    /// The answer to a query sent at `began`.
    pub fn new(began: MonotonicTime, mut jobs: Vec<Job>) -> Self {
        // The sort is stable, so jobs of one container keep the scheduler's order.
        jobs.sort_by(|one, other| one.container.cmp(&other.container));
        Self { began, jobs }
    }

    /// The jobs of a container, ended or not.
    pub fn of(&self, container: &ContainerUuid) -> &[Job] {
        let before = self.jobs.partition_point(|job| job.container < *container);
        let rest = &self.jobs[before..];
        &rest[..rest.partition_point(|job| job.container == *container)]
    }

    /// The jobs of a container that have not ended.
    pub fn live(&self, container: &ContainerUuid) -> impl Iterator<Item = &Job> {
        self.of(container).iter().filter(|job| !job.ended)
    }

    /// The containers that have jobs, ordered by uuid, each with its jobs, ended or not.
    pub fn by_container(&self) -> impl Iterator<Item = (&ContainerUuid, &[Job])> {
        let same = |one: &Job, other: &Job| one.container == other.container;
        self.jobs
            .chunk_by(same)
            .map(|jobs| (&jobs[0].container, jobs))
    }

    /// Whether a container has a job, ended or not.
    pub fn has(&self, container: &ContainerUuid) -> bool {
        !self.of(container).is_empty()
    }

    /// Every job.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter()
    }

    /// The containers that have jobs.
    pub fn containers(&self) -> impl Iterator<Item = &ContainerUuid> {
        self.by_container().map(|(container, _)| container)
    }
}

/// Progress of an attempt, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The attempt holds the lock; nothing was submitted.
    Locked,
    /// The submission was sent to the scheduler, which has not answered.
    Submitting,
    /// The scheduler answered at this time with success or with an unclear failure. In both cases
    /// only later listings show whether there is a job.
    Submitted(MonotonicTime),
    /// The lock was requested at this time, and the answer was lost.
    LockUnknown(MonotonicTime),
    /// The attempt is over, and the server has not confirmed that its token is revoked. The token
    /// must not be used again, because the revocation may still take effect.
    Revoking,
    /// The job ended with the results on its node. They may be delivered from there until this
    /// time.
    Undelivered(MonotonicTime),
    /// The attempt was found at this time after a restart. It may or may not have been submitted.
    Adopted(MonotonicTime),
}

/// One attempt at a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Uuid of its token.
    pub token: TokenUuid,
    /// Progress of the attempt.
    pub phase: Phase,
}

/// The reason for which a job is pending in the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingSince {
    /// The reason, in words for the user.
    pub text: Arc<str>,
    /// Time since which the job is known not to start by itself.
    pub blocked_since: Option<MonotonicTime>,
}

/// Everything known at the moment of planning.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Time of the planning pass.
    pub now: MonotonicTime,
    /// Containers, as the last complete API poll returned them.
    pub containers: BTreeMap<ContainerUuid, ObservedContainer>,
    /// Containers that were requested by uuid and do not exist any more.
    pub deleted: BTreeSet<ContainerUuid>,
    /// The newest complete listing of the scheduler.
    pub listing: Option<JobListing>,
    /// The complete listing before that.
    pub previous: Option<JobListing>,
    /// Pending reasons of the jobs in the newest listing, if the scheduler shows them.
    pub pending: BTreeMap<ContainerUuid, PendingSince>,
    /// Attempts that have a token.
    pub attempts: BTreeMap<ContainerUuid, Attempt>,
    /// Containers with an orphaned token of an earlier attempt, and the time it became known. The
    /// server may still accept that token.
    pub orphan_since: BTreeMap<ContainerUuid, MonotonicTime>,
    /// Whether the tokens of earlier runs of this dispatcher were listed once. Before that, a token
    /// of an earlier attempt at any container may be valid and unknown.
    pub tokens_listed: bool,
    /// Containers with a token of an earlier run that may still be read.
    pub unread_tokens: BTreeSet<ContainerUuid>,
    /// Containers that must not be locked again before this time, after a failure.
    pub retry_at: BTreeMap<ContainerUuid, MonotonicTime>,
    /// Containers with an action under way. The plan gives them no other action.
    pub in_flight: BTreeSet<ContainerUuid>,
}

impl World {
    /// Whether a token of an earlier attempt at this container may be valid and unknown.
    pub fn may_have_unread_token(&self, uuid: &ContainerUuid, known: &ObservedContainer) -> bool {
        known.locks > 0 && (!self.tokens_listed || self.unread_tokens.contains(uuid))
    }
}
