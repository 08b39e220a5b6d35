//! The loop: observe, plan, act. Level-triggered: events, ended jobs and finished actions only make the next look
//! come sooner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::{Client, ContainerUuid, TokenUuid};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::act::{Hands, Outcome, Task};
use crate::admission;
use crate::attempts::{AttemptToken, Attempts};
use crate::audit::Audit;
use crate::backoff::Backoff;
use crate::events::Event;
use crate::health::Health;
use crate::needs::Fit;
use crate::observe::{Interest, Look, look};
use crate::plan::{Action, Policy, plan};
use crate::presence::live;
use crate::scheduler::{Scheduler, Urgency};
use crate::stopping::Stopping;
use crate::wake::{follow_events, follow_jobs};
use crate::world::{Listing, Moment, Phase, World};

mod learn;
mod lives;

/// Actions under way at once.
const HANDS: usize = 8;
/// After an action failed, its container is left alone for so long.
const REST: Duration = Duration::from_secs(2);
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
    /// An attempt's token outlives the container's run time limit by this; one that is needed longer is renewed.
    pub token_margin: Duration,
    /// Names this dispatcher among those of the same user: same name after a restart, different name elsewhere.
    pub label: String,
}

/// A dispatcher.
pub struct Engine<S> {
    settings: Settings,
    hands: Hands<S>,
    health: Arc<Health>,
    audit: Option<Audit>,
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
    pub fn new(
        client: Client,
        scheduler: S,
        settings: Settings,
        health: Arc<Health>,
        audit: Option<Audit>,
    ) -> Self {
        let attempts = Attempts::new(
            client.clone(),
            format!("{}-{}", scheduler.name(), settings.label),
            settings.token_margin,
        );
        Self {
            settings,
            hands: Hands {
                client,
                scheduler: Arc::new(scheduler),
                attempts,
            },
            health,
            audit,
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
        self.world.now = self.now();
        let waiting = admission::waiting(&self.world);
        let started = admission::on_the_way(&self.world);
        let fits = self.hands.scheduler.admit(&waiting, &started);
        let mut events = Vec::new();
        self.steps = admission::steps(self.steps, self.more_queued, &fits);
        for (waiting, fit) in waiting.iter().zip(fits) {
            if let Fit::Never(reason) = &fit {
                events.extend(self.not_run(waiting.container.clone(), reason.clone()));
            }
            if let Some(known) = self.world.containers.get_mut(&waiting.container) {
                known.fit = fit;
            }
        }
        for uuid in self.world.retry_at.keys() {
            if let Some(known) = self.world.containers.get_mut(uuid) {
                known.fit = Fit::Later("waits a while after a failed attempt".into());
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
        self.renew(actions);
        self.health.view(&self.world, self.hands.scheduler.room());
    }

    /// Renews the tokens of attempts that go on, before they end: afterwards nobody could record a result.
    fn renew(&mut self, actions: &mut JoinSet<(ContainerUuid, Outcome, Vec<Event>)>) {
        for (container, token) in &self.tokens {
            if actions.len() >= HANDS {
                break;
            }
            if self.world.in_flight.contains(container)
                || self.resting.contains_key(container)
                || !self.hands.attempts.is_due(token)
            {
                continue;
            }
            self.world.in_flight.insert(container.clone());
            let (hands, container, token) = (self.hands.clone(), container.clone(), token.clone());
            actions.spawn(async move {
                let (outcome, events) = hands.renew(container.clone(), token).await;
                (container, outcome, events)
            });
        }
    }

    fn tell(&mut self, events: Vec<Event>, records: &mpsc::Sender<Event>) {
        for event in events {
            event.log();
            self.health.count(&event);
            if let Some(Err(error)) = self.audit.as_mut().map(|audit| audit.write(&event)) {
                tracing::error!(%error, "the audit file could not be written");
            }
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
