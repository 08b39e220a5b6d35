//! The mind of a dispatcher: what it knows and decides. No I/O and no clock of its own: the loop ([`crate::engine`])
//! tells it what was seen and what became of its tasks, and carries out what it decides next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};

use crate::act::Task;
use crate::admission;
use crate::attempts::AttemptToken;
use crate::backoff::Backoff;
use crate::doubts::Doubts;
use crate::events::Event;
use crate::facts::Facts;
use crate::needs::{Fit, Needs};
use crate::news::Named;
use crate::nodes::Nodes;
use crate::observe::KnownNeeds;
use crate::pace::{Pace, Width};
use crate::plan::{Action, Policy, Reason};
use crate::scheduler::{Batching, Candidate, Wanted};
use crate::settings::Settings;
use crate::stopping::Stopping;
use crate::world::{Holder, Job, Known, Listing, Moment, Phase, World};

mod batches;
mod decide;
mod learn;
mod look;
mod upkeep;
mod waits;

use batches::Batches;

/// Actions under way at once, at most.
const HANDS: usize = 10;
/// Of them, those that the scheduler is never asked by: what needs only the API goes on while a scheduler hangs.
const API_HANDS: usize = 2;
/// Commands to the scheduler at once after a quiet time.
const BURST: u32 = 50;

/// What a dispatcher knows.
#[derive(Debug)]
pub struct Mind {
    settings: Settings,
    world: World,
    /// The tokens of the attempts in [`World::attempts`].
    tokens: BTreeMap<ContainerUuid, AttemptToken>,
    /// Tokens of ours that hold no lock as far as is known; the containers are those of [`World::left_over`]. A lock asked
    /// for with one may still be granted; then it is an attempt again.
    left_over: BTreeMap<ContainerUuid, Vec<AttemptToken>>,
    /// Left-over tokens that are disabled, since when. They bar no attempt. A lock that was asked for with one earlier
    /// may still be granted; then it is enabled again.
    disabled: BTreeMap<ContainerUuid, Vec<(AttemptToken, Moment)>>,
    /// Those of them that were granted the lock all the same: they are enabled again to give it back.
    granted_late: BTreeSet<TokenUuid>,
    backoff: Backoff,
    /// Submissions whose answer was lost, until a listing shows the job.
    unclear: BTreeSet<ContainerUuid>,
    stopping: Stopping,
    doubts: Doubts,
    /// Containers left alone until then, after an action failed.
    resting: BTreeMap<ContainerUuid, Moment>,
    told: BTreeMap<ContainerUuid, String>,
    /// Why the last attempts came to nothing, while the containers wait for the next.
    failures: BTreeMap<ContainerUuid, String>,
    /// How far into the queue to look.
    steps: u64,
    more_queued: bool,
    /// A container was locked since the last look began.
    locked: bool,
    /// When the look that is under way began, and the containers that had an action since: what it says of those may
    /// be older than what is known.
    looking: Moment,
    touched: BTreeSet<ContainerUuid>,
    /// The newest change seen at the server; none: the next look asks for everything.
    newest: Option<look::Newest>,
    looks: u64,
    /// Containers that the server did not find, since when no look has.
    missing: BTreeMap<ContainerUuid, Moment>,
    /// What was heard and has not been seen since.
    unseen: Named,
    /// The last look failed, and had asked for everything.
    failed: bool,
    /// The look under way does not ask for everything.
    partial: bool,
    /// The look under way asks only for these: little time has passed since one that asked for all.
    quick: Option<BTreeSet<ContainerUuid>>,
    /// When the last look began that listed the queue; none: the next one is to.
    queue_listed: Option<Moment>,
    /// What containers need: it is read once.
    needs: Arc<KnownNeeds>,
    nodes: Nodes,
    /// Containers that no node was left for: they may run anywhere.
    unplaceable: BTreeSet<ContainerUuid>,
    width: Width,
    pace: Pace,
    waits_told: waits::Told,
    batches: Batches,
    /// Containers with an action under way that asks the scheduler, by the number of the action.
    asking: BTreeMap<ContainerUuid, u64>,
    last_asking: u64,
}

impl Mind {
    /// One that knows nothing yet, of a scheduler that takes attempts together like this.
    pub fn new(settings: Settings, batching: Batching) -> Self {
        Self {
            batches: Batches::new(batching),
            backoff: Backoff::new(settings.retry_period),
            pace: Pace::new(settings.commands_per_second, BURST),
            settings,
            world: World::default(),
            tokens: BTreeMap::new(),
            left_over: BTreeMap::new(),
            disabled: BTreeMap::new(),
            granted_late: BTreeSet::new(),
            unclear: BTreeSet::new(),
            stopping: Stopping::default(),
            doubts: Doubts::default(),
            resting: BTreeMap::new(),
            told: BTreeMap::new(),
            failures: BTreeMap::new(),
            steps: 1,
            more_queued: false,
            locked: false,
            looking: Moment::default(),
            touched: BTreeSet::new(),
            newest: None,
            looks: 0,
            missing: BTreeMap::new(),
            unseen: Named::default(),
            failed: false,
            partial: false,
            quick: None,
            queue_listed: None,
            needs: Arc::default(),
            nodes: Nodes::default(),
            unplaceable: BTreeSet::new(),
            width: Width::new(HANDS),
            waits_told: waits::Told::default(),
            asking: BTreeMap::new(),
            last_asking: 0,
        }
    }

    /// What is known of containers and jobs.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The scheduler takes attempts together like this from now on.
    pub fn hands_over(&mut self, batching: Batching) {
        self.batches.take_rule(batching);
    }

    /// The API server takes so many in one call; 1: each by itself.
    pub fn takes_at_once(&mut self, most: usize) {
        self.batches.take_locks(most);
    }

    /// Whether new containers are let through; false while submissions keep coming to nothing.
    pub fn may_start(&self, now: Moment) -> bool {
        self.backoff.is_closed(now)
    }

    /// Nodes that swallowed several containers, to be left out of new submissions.
    pub fn shunned(&self, now: Moment) -> Vec<String> {
        self.nodes.shunned(now).map(str::to_owned).collect()
    }

    /// Tokens of this dispatcher that the server has. What holds a lock is told by the next look.
    pub fn recovered(&mut self, now: Moment, found: Vec<(ContainerUuid, AttemptToken)>) {
        for (container, token) in found {
            let known = self.tokens.get(&container).map(|t| &t.uuid) == Some(&token.uuid);
            // One that is being made at this moment is not left over.
            if !known && !self.world.in_flight.contains(&container) {
                self.leave(container, token, now);
            }
        }
    }

    /// A complete answer of the scheduler to a question asked at `began`.
    pub fn listed(&mut self, began: Moment, jobs: Vec<Job>) {
        self.pace.spend(began);
        for job in jobs.iter().filter(|job| !job.ended) {
            if self.unclear.remove(&job.container) {
                self.backoff.accepted();
            }
        }
        self.stopping.listed(&jobs, began);
        for container in self.doubts.listed(&jobs) {
            self.resting.remove(&container);
        }
        let listing = Listing::new(began, jobs);
        self.world.previous = self.world.listing.replace(listing);
    }

    /// The decision not to run a container, once for each reason.
    fn not_run(&mut self, container: ContainerUuid, reason: String) -> Option<Event> {
        let known = self.told.insert(container.clone(), reason.clone());
        (known.as_ref() != Some(&reason)).then_some(Event::DecidedNotToRun { container, reason })
    }

    /// The containers that wait for the scheduler's word, and those that are on their way to it.
    pub fn candidates(&mut self, now: Moment) -> (Vec<Candidate>, Vec<Candidate>) {
        self.world.now = now;
        self.world.retry_at.retain(|_, at| *at > now);
        let retries = &self.world.retry_at;
        self.failures
            .retain(|container, _| retries.contains_key(container));
        self.resting.retain(|_, until| *until > now);
        let waiting = admission::waiting(&self.world, &self.policy());
        (waiting, admission::on_the_way(&self.world))
    }

    /// The scheduler's word on each of the `waiting`.
    pub fn admitted(&mut self, waiting: &[Candidate], fits: Vec<Fit>) -> Vec<Event> {
        self.backoff.prune(self.world.now);
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
        for (uuid, at) in &self.world.retry_at {
            if let Some(known) = self.world.containers.get_mut(uuid) {
                let seconds = seconds(*at, self.world.now);
                known.fit = Fit::Later(match self.failures.get(uuid) {
                    Some(why) => format!(
                        "is tried again in {seconds} s; the last attempt came to nothing: {why}"
                    ),
                    None => format!("is tried again in {seconds} s"),
                });
            }
        }
        events
    }

    /// What came of an attempt, before [`Self::learn`] hears how it goes on.
    pub fn last_attempt(&mut self, container: &ContainerUuid, came_to_nothing: Option<&str>) {
        if let Some(why) = came_to_nothing {
            self.failures.insert(container.clone(), why.to_owned());
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            max_pending: self.settings.max_pending,
            max_supervisors: self.settings.max_supervisors,
            start_timeout: self.settings.start_timeout,
            may_start: self.backoff.is_closed(self.world.now),
        }
    }

    /// What to begin now, as far as hands are free and the scheduler may be asked. Everything returned counts as
    /// under way until [`Self::learn`] hears of it. `due` tells whether a token is to be renewed.
    pub fn decide(&mut self, now: Moment, due: impl Fn(&AttemptToken) -> bool) -> Vec<Task> {
        self.world.now = now;
        let hands = self.width.hands();
        let free = hands.saturating_sub(self.batches.hands(self.world.in_flight.len()));
        let tasks = self.planned(now, free);
        for task in &tasks {
            self.begin(task);
        }
        let mut tasks = tasks;
        for task in self.upkeep(now, due) {
            if self.batches.hands(self.world.in_flight.len()) >= hands {
                break;
            }
            self.begin(&task);
            tasks.push(task);
        }
        let free = hands.saturating_sub(self.batches.hands(self.world.in_flight.len()));
        for task in self.untold(now, free) {
            self.begin(&task);
            tasks.push(task);
        }
        tasks
    }

    /// The containers whose jobs should be in the order of their priorities.
    pub fn wanted(&self) -> Vec<Wanted> {
        let ours = |known: &Known| {
            known.state == ContainerState::Locked && matches!(known.holder, Holder::Ours(_))
        };
        Facts::of_all(&self.world)
            .filter(|(known, facts)| {
                known.priority > 0 && ours(known) && facts.live().next().is_some()
            })
            .map(|(known, facts)| Wanted {
                container: facts.uuid.clone(),
                priority: known.priority,
            })
            .collect()
    }

    fn begin(&mut self, task: &Task) {
        let containers = &self.world.containers;
        let shape = |container: &ContainerUuid| containers.get(container).map(|k| &k.needs);
        self.batches.begin(task, shape);
        if task.asks_scheduler() {
            self.last_asking += 1;
            let asking = task.containers().into_iter().cloned();
            self.asking
                .extend(asking.map(|uuid| (uuid, self.last_asking)));
        }
        for container in task.containers() {
            self.touched.insert(container.clone());
            self.world.in_flight.insert(container.clone());
            let submits = matches!(task, Task::Submit(_));
            if let (true, Some(attempt)) = (submits, self.world.attempts.get_mut(container)) {
                attempt.phase = Phase::Submitting;
            }
        }
    }

    /// How many more actions may ask the scheduler.
    fn free_to_ask(&self) -> usize {
        let under_way: BTreeSet<&u64> = self.asking.values().collect();
        let most = self.width.hands().saturating_sub(API_HANDS).max(1);
        most.saturating_sub(under_way.len())
    }

    fn is_busy(&self, container: &ContainerUuid, now: Moment) -> bool {
        let rests = self
            .resting
            .get(container)
            .is_some_and(|until| *until > now);
        rests || self.world.in_flight.contains(container)
    }

    /// What to give back at the end: what was locked and not submitted, for nobody else may take it.
    pub fn farewell(&self) -> Vec<Task> {
        let unsubmitted = self
            .world
            .attempts
            .iter()
            .filter(|(_, attempt)| matches!(attempt.phase, Phase::Locked | Phase::Unclear(_)));
        unsubmitted
            .map(|(container, attempt)| Task::Act {
                token: self.tokens.get(container).cloned(),
                needs: Needs::default(),
                insists: false,
                end: None,
                listed: false,
                action: Action::Unlock {
                    container: container.clone(),
                    attempt: attempt.token.clone(),
                    reason: Reason::Draining,
                },
            })
            .collect()
    }

    /// Whether something waits to be confirmed by the scheduler's listings.
    pub fn is_unsettled(&self) -> bool {
        let (Some(listing), Some(_)) = (&self.world.listing, &self.world.previous) else {
            return true;
        };
        self.world.attempts.iter().any(|(uuid, attempt)| {
            let waits = matches!(attempt.phase, Phase::Submitted(_) | Phase::Adopted(_));
            waits && listing.live(uuid).next().is_none() && !self.doubts.has(uuid)
        })
    }

    /// Whether all that can start of what was seen of the queue is taken, and there was more of it. What waits for room
    /// here is not taken: a machine whose slots are full needs no longer queue.
    pub fn has_used_up_the_queue(&self) -> bool {
        let can_start = |(uuid, known): (&ContainerUuid, &Known)| {
            known.state == ContainerState::Queued
                && known.priority > 0
                && !matches!(known.fit, Fit::Never(_))
                && !self.world.retry_at.contains_key(uuid)
        };
        self.locked && self.more_queued && !self.world.containers.iter().any(can_start)
    }

    /// Whether something was heard of a container that no look has shown yet, as an action was under way.
    pub fn is_unseen(&self, container: &ContainerUuid) -> bool {
        self.unseen.containers.contains(container)
    }

    /// How long to wait between two decisions: a large world takes longer to think about.
    pub fn breath(&self, now: Moment) -> Duration {
        let thought = Duration::from_micros(10 * self.world.containers.len() as u64);
        thought.max(self.pace.wait(now).min(Duration::from_secs(1)))
    }
}

/// How long until `at`, in whole seconds.
fn seconds(at: Moment, now: Moment) -> u128 {
    at.since(now).as_millis().div_ceil(1000)
}
