//! The state of the simulated world, and what must hold in it at every moment.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};
use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::faults::{Broken, Faults};

/// Violations that are kept; the first one tells the story.
const KEPT: usize = 20;

/// Time that an action takes at most, with every call of it slow, and refused for a minute.
const ACTION: Duration = Duration::from_secs(420);

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
    /// How long its command runs.
    pub work: Duration,
    /// How often its command was started. The world's first rule: at most once.
    pub started: u32,
}

/// A token. The dispatchers' own are in [`World::users`].
#[derive(Debug, Clone)]
pub struct TokenRecord {
    pub user: usize,
    pub scopes: Vec<String>,
    pub container: Option<ContainerUuid>,
    pub expires_at: Timestamp,
    pub jobs: u32,
    /// It has held a lock.
    pub held: bool,
}

/// A job of a scheduler.
#[derive(Debug)]
pub struct Job {
    /// Which dispatcher's.
    pub label: usize,
    pub container: ContainerUuid,
    pub attempt: TokenUuid,
    pub phase: JobPhase,
    /// A dispatcher asked for its end.
    pub stopped: bool,
    /// Since when it can be known: since its submission was answered, or it was listed.
    pub known: Option<Instant>,
    /// It came into being after its submission was answered.
    pub late: bool,
    /// Rings when it is asked to end.
    pub term: Arc<Notify>,
    pub executor: Option<AbortHandle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPhase {
    Pending,
    Active,
    /// Shown until then.
    Ended(Instant),
}

/// What was counted.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub api_calls: u64,
    /// The same by what was asked.
    pub calls: BTreeMap<&'static str, u64>,
    pub listings: u64,
    pub commands: u64,
    pub locks: u64,
    pub unlocks: u64,
    pub restarts: u64,
    pub kills: u64,
}

#[derive(Debug)]
pub struct World {
    pub rng: Rng,
    pub began: Instant,
    pub faults: Faults,
    /// The server takes so many in one call; 1: it has no such calls.
    pub bulk: usize,
    /// Schedulers take only equal ones together.
    pub alike: bool,
    pub broken: Option<Broken>,
    pub containers: BTreeMap<ContainerUuid, Record>,
    /// Queued containers with a priority above 0, in the order of the queue.
    pub queue: BTreeSet<(Reverse<i64>, ContainerUuid)>,
    pub deleted: BTreeSet<ContainerUuid>,
    pub tokens: BTreeMap<TokenUuid, TokenRecord>,
    pub made_tokens: u64,
    pub jobs: BTreeMap<u64, Job>,
    pub made_jobs: u64,
    pub active: usize,
    pub slots: usize,
    pub api_away_until: Instant,
    /// Until then a call is refused as if its token were unknown, so often.
    pub refuses_tokens: (Instant, f64),
    pub violations: Vec<String>,
    pub tally: Tally,
    pub digest: DefaultHasher,
    pub trace: bool,
}

/// The world, shared by all who live in it.
#[derive(Debug, Clone)]
pub struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub fn get(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    pub fn new(mut rng: Rng, broken: Option<Broken>, trace: bool) -> Self {
        let faults = Faults::draw(&mut rng);
        let bulk = [1, 3, 100][rng.usize(..3)];
        let alike = rng.bool();
        Self {
            bulk,
            alike,
            rng,
            began: Instant::now(),
            faults,
            broken,
            containers: BTreeMap::new(),
            queue: BTreeSet::new(),
            deleted: BTreeSet::new(),
            tokens: BTreeMap::new(),
            made_tokens: 0,
            jobs: BTreeMap::new(),
            made_jobs: 0,
            active: 0,
            slots: 1,
            api_away_until: Instant::now(),
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

    /// Draws whether something with this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.rng.f64() < probability
    }

    /// A time up to `most`.
    pub fn upto(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.rng.f64())
    }

    /// Everything that happens goes through here: into the digest, by which two runs of a seed are compared.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
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

    /// Something happened that must never happen.
    pub fn violation(&mut self, what: String) {
        self.note(|| format!("VIOLATION {what}"));
        if self.violations.len() < KEPT {
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
        let place = (Reverse(record.priority), uuid.clone());
        let (before, was) = (record.state.clone(), record.priority);
        change(record);
        record.version += 1;
        // As a priority cascade at the real server, which leaves the time of change alone.
        if record.state != before || record.priority == was {
            record.modified_at = now;
        }
        let (after, priority) = (record.state.clone(), record.priority);
        self.queue.remove(&place);
        if after == ContainerState::Queued && priority > 0 {
            self.queue.insert((Reverse(priority), uuid.clone()));
        }
        if before != after {
            self.note(|| format!("{uuid} {before} -> {after}"));
            if before.is_final() {
                self.violation(format!("{uuid} left {before} for {after}"));
            }
        }
    }

    /// No token of an earlier attempt may be good for anything once the container is locked again.
    pub fn only_this_token(&mut self, uuid: &ContainerUuid, token: &TokenUuid) {
        let now = self.now();
        let Some(scopes) = self.tokens.get(token).map(|known| known.scopes.clone()) else {
            return;
        };
        let is_other = |(name, known): &(&TokenUuid, &TokenRecord)| {
            // The label is one of the scopes.
            *name != token && known.held && known.scopes == scopes && known.expires_at > now
        };
        let other = self
            .tokens
            .iter()
            .find(is_other)
            .map(|(name, _)| name.clone());
        if let Some(other) = other {
            self.violation(format!(
                "{uuid} was locked while {other} of an earlier attempt still worked"
            ));
        }
        if let Some(known) = self.tokens.get_mut(token) {
            known.held = true;
        }
    }

    /// A container's command starts.
    pub fn start(&mut self, uuid: &ContainerUuid) {
        self.note(|| format!("{uuid} starts"));
        let started = self.containers.get_mut(uuid).map_or(0, |record| {
            record.started += 1;
            record.started
        });
        if started > 1 {
            self.violation(format!("{uuid} was started {started} times"));
        }
    }

    /// The jobs of an attempt that can be known, have not ended, and that nobody asked to. A late one must be known for
    /// longer than an action takes.
    pub fn healthy_jobs<'a>(&'a self, attempt: &'a TokenUuid) -> impl Iterator<Item = &'a Job> {
        self.jobs.values().filter(move |job| {
            let patience = if job.late { ACTION } else { Duration::ZERO };
            let known = job.known.is_some_and(|at| at.elapsed() >= patience);
            let well = !job.stopped && !matches!(job.phase, JobPhase::Ended(_));
            job.attempt == *attempt && known && well
        })
    }
}
