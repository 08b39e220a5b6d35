//! The loop: observe, plan, act. Level-triggered: events, ended jobs and finished actions only make the next look
//! come sooner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::records::ContainerState;
use arvados_client::{Client, ContainerUuid, Error, TokenUuid};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::act::{Hands, Outcome, Task};
use crate::attempts::{AttemptToken, Attempts};
use crate::backoff::Backoff;
use crate::events::Event;
use crate::health::Health;
use crate::needs::Fit;
use crate::observe::{Interest, Look, look};
use crate::plan::{Action, Policy, Reason, plan};
use crate::presence::live;
use crate::scheduler::{Candidate, Scheduler, Urgency};
use crate::stopping::Stopping;
use crate::wake::{follow_events, follow_jobs};
use crate::world::{Attempt, Holder, Listing, Moment, Phase, World};

/// Actions under way at once.
const HANDS: usize = 8;
/// After an action failed, its container is left alone for so long.
const REST: Duration = Duration::from_secs(2);
/// Most steps of the queue in one look.
const DEEPEST: u64 = 64;
/// How long giving back what was not submitted may take at the end.
const FAREWELL: Duration = Duration::from_secs(10);
/// Log records waiting to be written; more are dropped, they are for people only.
const RECORDS: usize = 256;

/// What an admin may set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Between looks, when nothing says to look sooner.
    pub poll_interval: Duration,
    /// Between looks, at least.
    pub shortest_interval: Duration,
    /// Bytes of memory for crunch-run itself, added to each container's.
    pub reserve_ram: u64,
    /// Containers that may wait in the scheduler at once.
    pub max_pending: usize,
    /// How long crunch-run may take to end when asked, before it is forced.
    pub stop_grace: Duration,
    /// Names this dispatcher among those of the same user: same name after a restart, different name elsewhere.
    pub label: String,
}

/// A dispatcher.
pub struct Engine<S> {
    settings: Settings,
    hands: Hands<S>,
    health: Arc<Health>,
    started: Instant,
    world: World,
    tokens: BTreeMap<ContainerUuid, AttemptToken>,
    backoff: Backoff,
    /// Submissions whose answer was lost, until a listing shows the job.
    unclear: BTreeSet<ContainerUuid>,
    stopping: Stopping,
    /// Containers left alone until then, after an action failed.
    resting: BTreeMap<ContainerUuid, Moment>,
    told: BTreeMap<ContainerUuid, String>,
    /// How far into the queue to look.
    steps: u64,
    more_queued: bool,
    draining: bool,
}

impl<S: Scheduler> Engine<S> {
    /// A dispatcher that has not looked yet.
    pub fn new(client: Client, scheduler: S, settings: Settings, health: Arc<Health>) -> Self {
        let attempts = Attempts::new(
            client.clone(),
            format!("{}-{}", scheduler.name(), settings.label),
        );
        Self {
            settings,
            hands: Hands {
                client,
                scheduler: Arc::new(scheduler),
                attempts,
            },
            health,
            started: Instant::now(),
            world: World::default(),
            tokens: BTreeMap::new(),
            backoff: Backoff::default(),
            unclear: BTreeSet::new(),
            stopping: Stopping::default(),
            resting: BTreeMap::new(),
            told: BTreeMap::new(),
            steps: 1,
            more_queued: false,
            draining: false,
        }
    }

    fn now(&self) -> Moment {
        Moment(self.started.elapsed())
    }

    /// Runs until `shutdown`, then lets the actions under way finish and leaves the jobs running.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let wake = Arc::new(Notify::new());
        let helpers = CancellationToken::new();
        let _stop_helpers = helpers.clone().drop_guard();
        tokio::spawn(
            helpers
                .clone()
                .run_until_cancelled_owned(follow_events(self.hands.client.clone(), wake.clone())),
        );
        tokio::spawn(
            helpers
                .clone()
                .run_until_cancelled_owned(follow_jobs(self.hands.scheduler.clone(), wake.clone())),
        );
        let (records, inbox) = mpsc::channel(RECORDS);
        let writer = tokio::spawn(write_records(self.hands.clone(), inbox));
        let mut actions = JoinSet::new();
        let mut recovered = false;
        let mut next = Instant::now();
        loop {
            tokio::select! {
                _ = shutdown.cancelled(), if !self.draining => {
                    self.draining = true;
                    tracing::info!("draining: nothing new is started, jobs are left running");
                }
                () = wake.notified() => next = next.min(Instant::now() + self.settings.shortest_interval),
                Some(done) = actions.join_next(), if !actions.is_empty() => {
                    if let Ok((container, outcome, events)) = done {
                        self.tell(events, &records);
                        self.learn(container, outcome);
                    }
                }
                () = tokio::time::sleep_until(next.into()) => {
                    // An API that does not answer must not hold up the end of this program.
                    let look = async {
                        recovered = recovered || self.recover().await;
                        if recovered {
                            self.observe(&records).await;
                        }
                    };
                    shutdown.run_until_cancelled(look).await;
                    next = Instant::now() + self.pause();
                }
            }
            if self.draining {
                if actions.is_empty() {
                    break;
                }
                continue;
            }
            if recovered {
                self.act(&mut actions);
            }
        }
        let _ = tokio::time::timeout(FAREWELL, self.give_back(&records)).await;
        drop(records);
        let _ = tokio::time::timeout(Duration::from_secs(5), writer).await;
    }

    /// Unlocks what was locked and not submitted: nobody else may take it while it is locked.
    async fn give_back(&mut self, records: &mpsc::Sender<Event>) {
        let locked: Vec<(ContainerUuid, TokenUuid)> = self
            .world
            .attempts
            .iter()
            .filter(|(_, attempt)| attempt.phase == Phase::Locked)
            .map(|(container, attempt)| (container.clone(), attempt.token.clone()))
            .collect();
        for (container, attempt) in locked {
            let task = Task {
                token: self.tokens.get(&container).cloned(),
                needs: Default::default(),
                urgency: Urgency::Ask,
                action: Action::Unlock {
                    container,
                    attempt,
                    reason: Reason::Draining,
                },
            };
            let (_, events) = self.hands.carry_out(task).await;
            self.tell(events, records);
        }
    }

    /// Sooner while something waits to be confirmed.
    fn pause(&self) -> Duration {
        let unsettled = self.world.attempts.iter().any(|(uuid, attempt)| {
            let job = self
                .world
                .listing
                .as_ref()
                .is_some_and(|l| live(l, uuid).next().is_some());
            !job && matches!(attempt.phase, Phase::Submitted(_) | Phase::Adopted(_))
        });
        let settling = self.world.listing.is_none() || self.world.previous.is_none();
        match unsettled || settling {
            true => (self.settings.shortest_interval * 4).min(self.settings.poll_interval),
            false => self.settings.poll_interval,
        }
    }

    /// Finds the attempts of an earlier life of this dispatcher.
    async fn recover(&mut self) -> bool {
        match self.try_recover().await {
            Ok(count) => {
                tracing::info!(attempts = count, "took up the attempts of an earlier run");
                true
            }
            Err(error) => {
                self.health.api_failed(&error);
                tracing::warn!(%error, "cannot look for attempts of an earlier run; nothing is started before that");
                false
            }
        }
    }

    async fn try_recover(&mut self) -> Result<usize, Error> {
        let found = self.hands.attempts.recover().await?;
        for (container, tokens) in found {
            let holder = match self.hands.client.container(&container).await {
                Ok(record) => record.locked_by_uuid,
                Err(error) if error.is_not_found() => None,
                Err(error) => return Err(error),
            };
            for token in tokens {
                if holder.as_ref() == Some(&token.uuid) {
                    let phase = Phase::Adopted(self.now());
                    self.world.attempts.insert(
                        container.clone(),
                        Attempt {
                            token: token.uuid.clone(),
                            phase,
                        },
                    );
                    self.tokens.insert(container.clone(), token);
                } else {
                    // A lock that was never had, or one that was lost.
                    self.hands.attempts.end(&token.uuid).await?;
                }
            }
        }
        Ok(self.tokens.len())
    }

    /// One look at the scheduler and one at the API. What fails changes nothing.
    async fn observe(&mut self, records: &mpsc::Sender<Event>) {
        let began = self.now();
        match self.hands.scheduler.list().await {
            Ok(jobs) => {
                self.health.scheduler_answered();
                for job in jobs.iter().filter(|job| !job.ended) {
                    if self.unclear.remove(&job.container) {
                        self.backoff.accepted();
                    }
                }
                self.stopping.prune(&jobs);
                self.world.previous = self.world.listing.replace(Listing { began, jobs });
            }
            Err(error) => {
                self.health.scheduler_failed(&error);
                tracing::warn!(%error, "the scheduler's listing failed; nothing is concluded from it");
            }
        }
        let jobs = self
            .world
            .listing
            .iter()
            .flat_map(|l| &l.jobs)
            .map(|j| j.container.clone());
        let followed: BTreeSet<ContainerUuid> =
            self.world.attempts.keys().cloned().chain(jobs).collect();
        let ours: BTreeMap<ContainerUuid, TokenUuid> = self
            .world
            .attempts
            .iter()
            .map(|(c, a)| (c.clone(), a.token.clone()))
            .collect();
        let interest = Interest {
            followed,
            ours: &ours,
            reserve: self.settings.reserve_ram,
            steps: self.steps,
        };
        match look(&self.hands.client, interest).await {
            Ok(seen) => self.adopt(seen, records),
            Err(error) => {
                self.health.api_failed(&error);
                tracing::warn!(%error, "the look at the API failed; nothing is concluded from it");
            }
        }
        self.admit(records);
        self.backoff.prune(self.now());
    }

    /// Takes over a complete look, but for containers with an action under way: its outcome is newer.
    fn adopt(&mut self, mut seen: Look, records: &mpsc::Sender<Event>) {
        self.health.api_answered();
        self.more_queued = seen.more_queued;
        for uuid in &self.world.in_flight {
            seen.deleted.remove(uuid);
            match self.world.containers.remove(uuid) {
                Some(known) => seen.containers.insert(uuid.clone(), known),
                None => seen.containers.remove(uuid),
            };
        }
        self.world.containers = seen.containers;
        self.world.deleted = seen.deleted;
        self.told.retain(|uuid, _| {
            self.world.containers.contains_key(uuid) || seen.unreadable.contains_key(uuid)
        });
        let refused = seen.unreadable.into_iter().filter_map(|(uuid, why)| {
            self.not_run(uuid, format!("its record cannot be read: {why}"))
        });
        let events = refused.collect();
        self.tell(events, records);
    }

    /// The decision not to run a container, once for each reason.
    fn not_run(&mut self, container: ContainerUuid, reason: String) -> Option<Event> {
        let known = self.told.insert(container.clone(), reason.clone());
        (known.as_ref() != Some(&reason)).then_some(Event::DecidedNotToRun { container, reason })
    }

    /// Asks the scheduler what may start, and tells why the rest may not.
    fn admit(&mut self, records: &mpsc::Sender<Event>) {
        let now = self.now();
        let candidate = |uuid: &ContainerUuid, known: &crate::world::Known| Candidate {
            container: uuid.clone(),
            needs: known.needs.clone(),
        };
        let mut queue: Vec<_> = self
            .world
            .containers
            .iter()
            .filter(|(uuid, k)| {
                k.state == ContainerState::Queued
                    && k.priority > 0
                    && !self.world.in_flight.contains(*uuid)
                    // What may not start yet must not stand in the way of others.
                    && !self.world.attempts.contains_key(*uuid)
                    && self.world.retry_at.get(*uuid).is_none_or(|at| *at <= now)
            })
            .collect();
        queue.sort_by_key(|(uuid, k)| (std::cmp::Reverse(k.priority), (*uuid).clone()));
        let waiting: Vec<Candidate> = queue
            .into_iter()
            .map(|(uuid, k)| candidate(uuid, k))
            .collect();
        let started: Vec<Candidate> = self
            .world
            .containers
            .iter()
            // On their way to the scheduler, which does not know them yet.
            .filter(|(uuid, k)| {
                let phase = self.world.attempts.get(*uuid).map(|a| a.phase);
                matches!(phase, Some(Phase::Locked | Phase::Submitting))
                    || (k.state == ContainerState::Queued && self.world.in_flight.contains(*uuid))
            })
            .map(|(uuid, k)| candidate(uuid, k))
            .collect();
        let fits = self.hands.scheduler.admit(&waiting, &started);
        let mut events = Vec::new();
        // A head of the queue that can never run here must not hide what is behind it.
        let hopeless = fits.iter().all(|fit| matches!(fit, Fit::Never(_)));
        self.steps = match hopeless && self.more_queued {
            true => (self.steps * 2).min(DEEPEST),
            false if hopeless => self.steps,
            false => self.steps.div_ceil(2),
        };
        for (waiting, fit) in waiting.iter().zip(fits) {
            if let Fit::Never(reason) = &fit {
                events.extend(self.not_run(waiting.container.clone(), reason.clone()));
            }
            if let Some(known) = self.world.containers.get_mut(&waiting.container) {
                known.fit = fit;
            }
        }
        self.tell(events, records);
    }

    /// Plans, and starts what was planned as far as hands are free.
    fn act(&mut self, actions: &mut JoinSet<(ContainerUuid, Outcome, Vec<Event>)>) {
        self.world.now = self.now();
        let policy = Policy {
            max_pending: self.settings.max_pending,
            may_start: self.backoff.is_closed(self.world.now),
        };
        for action in plan(&self.world, &policy) {
            let container = action.container().clone();
            if actions.len() >= HANDS {
                break;
            }
            if self.world.in_flight.contains(&container)
                || self
                    .resting
                    .get(&container)
                    .is_some_and(|until| *until > self.world.now)
            {
                continue;
            }
            let urgency = match &action {
                Action::StopJob { job, reason, .. } => {
                    let grace = self.settings.stop_grace;
                    self.stopping.next(job, *reason, grace, self.world.now)
                }
                _ => Some(Urgency::Ask),
            };
            let Some(urgency) = urgency else {
                continue;
            };
            if let Action::Submit { .. } = action
                && let Some(attempt) = self.world.attempts.get_mut(&container)
            {
                attempt.phase = Phase::Submitting;
            }
            let needs = self
                .world
                .containers
                .get(&container)
                .map(|k| k.needs.clone())
                .unwrap_or_default();
            let task = Task {
                action,
                token: self.tokens.get(&container).cloned(),
                needs,
                urgency,
            };
            self.world.in_flight.insert(container.clone());
            let hands = self.hands.clone();
            actions.spawn(async move {
                let (outcome, events) = hands.carry_out(task).await;
                (container, outcome, events)
            });
        }
        self.health.view(&self.world, self.hands.scheduler.room());
    }

    /// Learns from a finished action.
    fn learn(&mut self, container: ContainerUuid, outcome: Outcome) {
        self.world.in_flight.remove(&container);
        let now = self.now();
        match outcome {
            Outcome::Locked(token) => {
                self.world.attempts.insert(
                    container.clone(),
                    Attempt {
                        token: token.uuid.clone(),
                        phase: Phase::Locked,
                    },
                );
                if let Some(known) = self.world.containers.get_mut(&container) {
                    known.state = ContainerState::Locked;
                    known.holder = Holder::Ours(token.uuid.clone());
                }
                self.tokens.insert(container, token);
            }
            Outcome::LockUnclear(token) => {
                let attempt = Attempt {
                    token: token.uuid.clone(),
                    phase: Phase::Unclear(now),
                };
                self.world.attempts.insert(container.clone(), attempt);
                self.world.containers.remove(&container);
                self.tokens.insert(container, token);
            }
            Outcome::NotLocked => {
                self.world.containers.remove(&container);
                let at = Moment(now.0 + self.settings.shortest_interval * 10);
                self.world.retry_at.insert(container, at);
            }
            outcome @ (Outcome::Submitted | Outcome::SubmitUnclear) => {
                match outcome {
                    Outcome::Submitted => self.backoff.accepted(),
                    _ => drop(self.unclear.insert(container.clone())),
                }
                if let Some(attempt) = self.world.attempts.get_mut(&container) {
                    attempt.phase = Phase::Submitted(now);
                }
            }
            Outcome::NotSubmitted => {
                self.refused(now);
                self.over(&container);
                let at = self.backoff.failed(&container, now);
                self.world.retry_at.insert(container, at);
            }
            Outcome::Released(state) => {
                // Its submission failed without saying so clearly.
                if self.unclear.contains(&container) {
                    self.refused(now);
                }
                self.over(&container);
                if state == ContainerState::Queued {
                    let at = self.backoff.failed(&container, now);
                    self.world.retry_at.insert(container, at);
                }
            }
            Outcome::Ended => self.over(&container),
            Outcome::Stopping => {}
            Outcome::Failed => {
                let rest = Moment(now.0 + REST);
                self.resting.insert(container.clone(), rest);
                let listing = self.world.listing.iter();
                for job in listing.flat_map(|listing| live(listing, &container)) {
                    self.stopping.failed(&job.id);
                }
                if let Some(attempt) = self.world.attempts.get_mut(&container)
                    && attempt.phase == Phase::Submitting
                {
                    attempt.phase = Phase::Submitted(now);
                }
            }
        }
        self.world.retry_at.retain(|_, at| *at > now);
        self.resting.retain(|_, at| *at > now);
    }

    fn refused(&mut self, now: Moment) {
        if self.backoff.refused(now) {
            tracing::error!(
                "several submissions in a row came to nothing: nothing new is started for a while"
            );
        }
    }

    /// The attempt is over; the next look tells the rest.
    fn over(&mut self, container: &ContainerUuid) {
        self.world.attempts.remove(container);
        self.tokens.remove(container);
        self.world.containers.remove(container);
        self.unclear.remove(container);
    }

    fn tell(&self, events: Vec<Event>, records: &mpsc::Sender<Event>) {
        for event in events {
            event.log();
            self.health.count(&event);
            if event.is_for_the_record() {
                let _ = records.try_send(event);
            }
        }
    }
}

/// Writes the decisions to the API's `logs`, one after the other.
async fn write_records<S: Scheduler>(hands: Hands<S>, mut inbox: mpsc::Receiver<Event>) {
    while let Some(event) = inbox.recv().await {
        hands.record(&event).await;
    }
}
