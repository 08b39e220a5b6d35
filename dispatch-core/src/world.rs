//! Everything a plan is made from, as values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::ContainerState;

use crate::needs::{Fit, Needs};
use arvados_client::{ContainerUuid, TokenUuid};

/// A point on the engine's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// How long ago `earlier` was; zero if it is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The scheduler's own name of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub String);

/// Whose token holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// An attempt token that this dispatcher minted, now or before a restart.
    Ours(TokenUuid),
    /// Another dispatcher. Its containers are none of our business.
    Other,
}

/// What the API last said of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Its state.
    pub state: ContainerState,
    /// Its priority; 0 is on hold or to be stopped.
    pub priority: i64,
    /// The record's version, for `If-Match`.
    pub etag: String,
    /// Who holds the lock.
    pub holder: Holder,
    /// What it needs.
    pub needs: Needs,
    /// Whether it may start now, by the scheduler's judgement.
    pub fit: Fit,
    /// When the look that saw it began.
    pub seen: Moment,
    /// How it ended, in a few words, where that was asked for.
    pub end: Option<String>,
}

/// A job of ours in the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The scheduler's name for it.
    pub id: JobId,
    /// Which container it runs.
    pub container: ContainerUuid,
    /// Which attempt, where the scheduler tells.
    pub attempt: Option<TokenUuid>,
    /// It has ended and is only still shown.
    pub ended: bool,
    /// The node it runs on, where the scheduler tells.
    pub node: Option<String>,
}

/// One complete answer of the scheduler. A failed or partial one never becomes a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// When it was asked for: it knows nothing of what was submitted later.
    pub began: Moment,
    /// Every job of ours, in the order of their containers.
    jobs: Vec<Job>,
}

impl Listing {
    /// What was answered to a question asked at `began`.
    pub fn new(began: Moment, mut jobs: Vec<Job>) -> Self {
        // Stable: jobs of one container stay as the scheduler lists them.
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

    /// The containers that have jobs, in the order of their uuids, each with its jobs, ended or not.
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

/// How far an attempt is, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It holds the lock; nothing was submitted.
    Locked,
    /// The scheduler was asked and has not answered.
    Submitting,
    /// The scheduler answered at this moment: with yes, or with something that is neither yes nor a clear no.
    /// Either way only later listings can tell whether there is a job.
    Submitted(Moment),
    /// Asked for its lock at this moment, and whether it has it is not known.
    Unclear(Moment),
    /// It is over, and the server was asked to end its token, without a clear yes so far: it must not be used again,
    /// for that request may still take effect.
    Ending,
    /// Its job ended with the results on its node; until this moment somebody may deliver them from there.
    Undelivered(Moment),
    /// Found at this moment after a restart: it may or may not have been submitted before.
    Adopted(Moment),
}

/// One attempt at a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its token.
    pub token: TokenUuid,
    /// How far it is.
    pub phase: Phase,
}

/// What a job waits for in its scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// In words for the user.
    pub words: Arc<str>,
    /// Since when it is known that it will not start by itself.
    pub in_vain_since: Option<Moment>,
}

/// What is known at the moment of planning.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Now.
    pub now: Moment,
    /// Containers by the last complete look at the API.
    pub containers: BTreeMap<ContainerUuid, Known>,
    /// Containers that the API was asked for by uuid and that are not there any more.
    pub deleted: BTreeSet<ContainerUuid>,
    /// The newest complete listing of the scheduler.
    pub listing: Option<Listing>,
    /// The complete listing before that.
    pub previous: Option<Listing>,
    /// What the jobs of the newest listing wait for, where the scheduler tells.
    pub waiting: BTreeMap<ContainerUuid, Waits>,
    /// Attempts that have a token.
    pub attempts: BTreeMap<ContainerUuid, Attempt>,
    /// Containers with a token of an earlier attempt that the server may still accept, and since when that is known.
    pub left_over: BTreeMap<ContainerUuid, Moment>,
    /// Containers not to be locked again before this moment, after a failure.
    pub retry_at: BTreeMap<ContainerUuid, Moment>,
    /// Containers with an action under way: nothing more is planned for them.
    pub in_flight: BTreeSet<ContainerUuid>,
}
