//! The state of the simulated world, and the checks that must hold at every moment.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid, scopes};
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::faults::{Faults, SeededBug};

/// Name of the simulated scheduler.
pub const SCHEDULER_NAME: &str = "simulated";
/// Maximum number of recorded violations; the first one is the important one.
const MAX_VIOLATIONS: usize = 20;

/// Maximum duration of an action whose calls are all slow and refused for a minute.
const MAX_ACTION_TIME: Duration = Duration::from_secs(420);

/// A container's record.
#[derive(Debug, Clone)]
pub struct Record {
    pub state: ContainerState,
    pub priority: i64,
    pub version: u64,
    pub locked_by: Option<TokenUuid>,
    pub lock_count: u32,
    pub modified_at: Timestamp,
    pub error: Option<String>,
    pub log: Option<String>,
    /// Run time of its command.
    pub work: Duration,
    /// Number of starts of its command. More than one is a violation.
    pub started: u32,
    /// Whether its priority was ever 0.
    pub was_held: bool,
}

/// A token. The dispatchers' own are in [`SimWorld::users`].
#[derive(Debug, Clone)]
pub struct TokenRecord {
    pub user: usize,
    pub scopes: Vec<String>,
    pub container: Option<ContainerUuid>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub jobs: u32,
    /// Whether a container was ever locked with it.
    pub has_locked: bool,
}

/// A job of a scheduler.
#[derive(Debug)]
pub struct Job {
    /// Index of its dispatcher.
    pub label: usize,
    pub container: ContainerUuid,
    pub attempt: TokenUuid,
    pub phase: JobPhase,
    /// Whether a dispatcher has cancelled the job.
    pub stopped: bool,
    /// When the dispatcher could first know of the job: its submission was answered, or it was
    /// listed.
    pub knowable_since: Option<Instant>,
    /// Whether the job was created after its submission was answered.
    pub late: bool,
    /// Notified when it is cancelled.
    pub term: Arc<Notify>,
    pub executor: Option<AbortHandle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPhase {
    Pending,
    Active,
    /// The job has ended, and is listed until this time.
    Ended(Instant),
}

/// Counters of a seed.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub api_calls: u64,
    /// The number of API calls by kind.
    pub calls: BTreeMap<&'static str, u64>,
    pub listings: u64,
    pub commands: u64,
    pub locks: u64,
    pub unlocks: u64,
    pub restarts: u64,
    pub kills: u64,
}

#[derive(Debug)]
pub struct SimWorld {
    pub rng: Rng,
    pub began: Instant,
    pub faults: Faults,
    /// Maximum number of records in one bulk call; 1: the server has no bulk calls.
    pub max_bulk: usize,
    /// Whether schedulers accept only equal jobs in one batch.
    pub equal_batches_only: bool,
    pub seeded_bug: Option<SeededBug>,
    pub containers: BTreeMap<ContainerUuid, Record>,
    /// Queued containers with a priority above 0, in the order of the queue.
    pub queue: BTreeSet<(Reverse<i64>, ContainerUuid)>,
    pub deleted: BTreeSet<ContainerUuid>,
    pub tokens: BTreeMap<TokenUuid, TokenRecord>,
    /// Index of the user whose dispatch token each dispatcher has, by the dispatcher's label.
    pub users: BTreeMap<usize, usize>,
    pub made_tokens: u64,
    pub jobs: BTreeMap<u64, Job>,
    /// Attempts that have a job directory, by the dispatcher's label and the container.
    pub directories: BTreeMap<(usize, ContainerUuid), TokenUuid>,
    pub made_jobs: u64,
    pub active: usize,
    pub slots: usize,
    pub api_away_until: Instant,
    /// A fault of the file storage: its begin and end, and whether the storage says it is full.
    pub storage_fault: Option<(Instant, Instant, bool)>,
    /// Until when the host of a dispatcher cannot submit, by the dispatcher's label.
    pub host_broken_until: BTreeMap<usize, Instant>,
    /// Until when valid tokens are refused as unknown, and the probability of it.
    pub refuses_tokens: (Instant, f64),
    pub violations: Vec<String>,
    pub tally: Tally,
    pub digest: DefaultHasher,
    pub trace: bool,
}

/// The simulated world, shared by its tasks.
#[derive(Debug, Clone)]
pub struct SharedWorld(Arc<Mutex<SimWorld>>);

impl SharedWorld {
    pub fn new(world: SimWorld) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub fn get(&self) -> MutexGuard<'_, SimWorld> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimWorld {
    pub fn new(mut rng: Rng, seeded_bug: Option<SeededBug>, trace: bool) -> Self {
        let faults = Faults::draw(&mut rng);
        let max_bulk = [1, 3, 100][rng.usize(..3)];
        let equal_batches_only = rng.bool();
        Self {
            max_bulk,
            equal_batches_only,
            rng,
            began: Instant::now(),
            faults,
            seeded_bug,
            containers: BTreeMap::new(),
            queue: BTreeSet::new(),
            deleted: BTreeSet::new(),
            tokens: BTreeMap::new(),
            users: BTreeMap::new(),
            made_tokens: 0,
            jobs: BTreeMap::new(),
            directories: BTreeMap::new(),
            made_jobs: 0,
            active: 0,
            slots: 1,
            api_away_until: Instant::now(),
            storage_fault: None,
            host_broken_until: BTreeMap::new(),
            refuses_tokens: (Instant::now(), 0.0),
            violations: Vec::new(),
            tally: Tally::default(),
            digest: DefaultHasher::new(),
            trace,
        }
    }

    pub fn now(&self) -> Timestamp {
        let start = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_800_000_000);
        let gone = SignedDuration::try_from(self.began.elapsed()).unwrap_or_default();
        start + gone
    }

    /// Whether the host of this dispatcher cannot submit now.
    pub fn is_host_broken(&self, label: usize) -> bool {
        let until = self.host_broken_until.get(&label);
        until.is_some_and(|until| Instant::now() < *until)
    }

    /// Draws whether something with this probability happens.
    pub fn draw(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.f64() < probability
    }

    /// A time up to `most`.
    pub fn random_duration(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.rng.f64())
    }

    /// Adds an event to the digest, by which two runs of a seed are compared, and to the trace.
    pub fn record_event(&mut self, what: impl FnOnce() -> String) {
        let at = self.began.elapsed();
        at.as_nanos().hash(&mut self.digest);
        let what = what();
        what.hash(&mut self.digest);
        if self.trace {
            println!("{:12.3} {what}", at.as_secs_f64());
        }
    }

    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// Since when the file storage takes no data, and whether it says that it is full.
    pub fn storage_fault(&self) -> Option<(Instant, bool)> {
        let (began, until, is_full) = self.storage_fault?;
        (Instant::now() < until).then_some((began, is_full))
    }

    /// Records a violation.
    pub fn violation(&mut self, what: String) {
        self.record_event(|| format!("VIOLATION {what}"));
        if self.violations.len() < MAX_VIOLATIONS {
            let at = self.began.elapsed().as_secs_f64();
            self.violations.push(format!("at {at:.3} s: {what}"));
        }
    }

    /// Changes a record and all that follows from it.
    pub fn change(&mut self, uuid: &ContainerUuid, change: impl FnOnce(&mut Record)) {
        let now = self.now();
        let Some(record) = self.containers.get_mut(uuid) else {
            return;
        };
        let entry = (Reverse(record.priority), uuid.clone());
        let (before, was) = (record.state.clone(), record.priority);
        change(record);
        record.version += 1;
        // The real server does not change the time of change in a priority cascade either.
        if record.state != before || record.priority == was {
            record.modified_at = now;
        }
        record.was_held |= record.priority <= 0;
        let (after, priority) = (record.state.clone(), record.priority);
        self.queue.remove(&entry);
        if after == ContainerState::Queued && priority > 0 {
            self.queue.insert((Reverse(priority), uuid.clone()));
        }
        if before != after {
            self.record_event(|| format!("{uuid} {before} -> {after}"));
            if before.is_final() {
                self.violation(format!("{uuid} left {before} for {after}"));
            }
        }
    }

    /// Whether a dispatcher made the token with the dispatch token of another user than its present
    /// one. The server does not show it to the dispatcher.
    pub fn is_hidden(&self, token: &TokenRecord) -> bool {
        let mut dispatchers = self.users.iter();
        let maker = dispatchers.find(|(label, _)| {
            scopes::is_labelled(&token.scopes, &format!("{SCHEDULER_NAME}-d{label}"))
        });
        maker.is_some_and(|(_, user)| *user != token.user)
    }

    /// Whether the lock of the container is held by a token that its dispatcher cannot see, and no
    /// job names the token.
    pub fn is_hidden_lock(&self, record: &Record) -> bool {
        let Some(holder) = &record.locked_by else {
            return false;
        };
        let is_hidden = self
            .tokens
            .get(holder)
            .is_some_and(|token| self.is_hidden(token));
        is_hidden && !self.jobs.values().any(|job| job.attempt == *holder)
    }

    /// A job whose attempt holds the lock must not be stopped while the container is to run.
    pub fn check_stop(&mut self, id: u64) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let (container, attempt) = (job.container.clone(), job.attempt.clone());
        let is_only = self.healthy_jobs(&attempt).count() == 1;
        let holds = self
            .containers
            .get(&container)
            .is_some_and(|record| record.locked_by.as_ref() == Some(&attempt) && !record.was_held);
        if is_only && holds && !self.jobs[&id].stopped {
            self.violation(format!(
                "job {id} was stopped although its attempt holds the lock"
            ));
        }
    }

    /// No token of an earlier attempt may be valid once the container is locked again.
    pub fn check_no_other_token(&mut self, uuid: &ContainerUuid, token: &TokenUuid) {
        let now = self.now();
        let Some(scopes) = self.tokens.get(token).map(|known| known.scopes.clone()) else {
            return;
        };
        let is_other = |(name, known): &(&TokenUuid, &TokenRecord)| {
            // The label is one of the scopes.
            let is_same = known.scopes == scopes && !self.is_hidden(known);
            *name != token && known.has_locked && is_same && known.expires_at > now
        };
        let other = self
            .tokens
            .iter()
            .find(is_other)
            .map(|(name, _)| name.clone());
        if let Some(other) = other {
            self.violation(format!(
                "{uuid} was locked while {other} of an earlier attempt was still valid"
            ));
        }
        if let Some(known) = self.tokens.get_mut(token) {
            known.has_locked = true;
        }
    }

    /// A container's command starts.
    pub fn start(&mut self, uuid: &ContainerUuid) {
        self.record_event(|| format!("{uuid} starts"));
        let started = self.containers.get_mut(uuid).map_or(0, |record| {
            record.started += 1;
            record.started
        });
        if started > 1 {
            self.violation(format!("{uuid} was started {started} times"));
        }
    }

    /// The known jobs of an attempt that have not ended and were not cancelled. A late job counts
    /// only after the duration of an action.
    pub fn healthy_jobs<'a>(&'a self, attempt: &'a TokenUuid) -> impl Iterator<Item = &'a Job> {
        self.jobs.values().filter(move |job| {
            let min_age = if job.late {
                MAX_ACTION_TIME
            } else {
                Duration::ZERO
            };
            let known = job.knowable_since.is_some_and(|at| at.elapsed() >= min_age);
            let well = !job.stopped && !matches!(job.phase, JobPhase::Ended(_));
            job.attempt == *attempt && known && well
        })
    }
}
