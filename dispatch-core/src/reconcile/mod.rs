//! The reconciler. Input: snapshots of API and scheduler, and the outcomes of tasks. Output: the
//! next tasks to run and the decisions to emit.
//!
//! It does no I/O and reads no clock. The loop in `controller.rs` passes in the observations and
//! runs the tasks.

use std::collections::BTreeMap;
use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use crate::config::settings::Settings;
use crate::model::attempt_token::AttemptToken;
use crate::model::charge_class::UserClass;
use crate::model::container_view::ContainerView;
use crate::model::owner::Owner;
use crate::model::pending_order::{PendingJob, PendingOrder};
use crate::model::reason::Reason;
use crate::model::resources::ResourceRequest;
use crate::model::scheduling::{Capabilities, DesiredPlace};
use crate::model::task::{Task, Unlock};
use crate::model::world::{
    Attempt, Job, JobId, JobListing, LockHolder, MonotonicTime, ObservedContainer, Phase, World,
};
use crate::plan::{Policy, start_order};

mod admission;
pub mod apply_outcome;
pub mod apply_snapshot;
pub mod batcher;
pub mod circuit_breaker;
pub mod concurrency;
mod newest_change;
pub mod node_health;
pub mod pending_reasons;
mod poll_state;
pub mod rate_limit;
mod reports;
pub mod retry_backoff;
pub mod stop_escalation;
mod submit_state;
mod task_limits;
pub mod tasks;
mod token_store;
mod unread_tokens;
pub mod unresolved_exits;

use poll_state::PollState;
use reports::Reports;
use stop_escalation::StopEscalation;
use submit_state::SubmitState;
use task_limits::TaskLimits;
use token_store::TokenStore;
use unresolved_exits::UnresolvedExits;

/// The state of a dispatcher.
#[derive(Debug)]
pub struct Reconciler {
    settings: Settings,
    world: World,
    tokens: TokenStore,
    poll: PollState,
    limits: TaskLimits,
    submits: SubmitState,
    stop_escalation: StopEscalation,
    unresolved_exits: UnresolvedExits,
    /// Containers that get no task until this time, because one failed.
    cooldown_until: BTreeMap<ContainerUuid, MonotonicTime>,
    reports: Reports,
    pending_order: PendingOrder,
    /// The last known job of each attempt, also after the scheduler stopped listing it.
    last_jobs: BTreeMap<ContainerUuid, Job>,
}

impl Reconciler {
    /// A reconciler without observations.
    pub fn new(settings: Settings, capabilities: Capabilities) -> Self {
        Self {
            limits: TaskLimits::new(settings.command_rate, capabilities),
            submits: SubmitState::new(settings.retry_period),
            settings,
            world: World::default(),
            tokens: TokenStore::default(),
            poll: PollState::default(),
            stop_escalation: StopEscalation::default(),
            unresolved_exits: UnresolvedExits::default(),
            cooldown_until: BTreeMap::new(),
            reports: Reports::default(),
            pending_order: PendingOrder::default(),
            last_jobs: BTreeMap::new(),
        }
    }

    /// The last known job of the container's attempt, and the container's owner.
    pub fn job_and_owner(&self, container: &ContainerUuid) -> (Option<&Job>, Option<&Owner>) {
        let known = self.world.containers.get(container);
        let owner = known.and_then(|known| known.owner.as_deref());
        (self.last_jobs.get(container), owner)
    }

    /// Records a job that no listing shows yet, and may never show if it is short.
    pub fn record_dispatched(&mut self, container: &ContainerUuid, id: &JobId) {
        let job = Job {
            id: id.clone(),
            container: container.clone(),
            attempt: None,
            ended: false,
            node: None,
        };
        self.last_jobs.insert(container.clone(), job);
    }

    /// The observed containers and jobs.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Counts an attempt that could store nothing against its node.
    pub fn record_failed_attempt(
        &mut self,
        now: MonotonicTime,
        container: &ContainerUuid,
        node: String,
    ) {
        self.submits.record_node_failure(node, container, now);
    }

    /// Replaces the scheduler's capabilities.
    pub fn set_capabilities(&mut self, capabilities: Capabilities) {
        self.limits.batcher.set_capabilities(capabilities);
    }

    /// Sets the number of locks that the API server accepts in one call; 1 means single calls.
    pub fn set_lock_batch_size(&mut self, size: usize) {
        self.limits.batcher.set_lock_batch_size(size);
    }

    /// Whether a circuit breaker is open for each container that waits, so that nothing is started.
    pub fn is_breaker_open(&self, now: MonotonicTime) -> bool {
        let breakers = &self.submits.breakers;
        let waits = |known: &&ObservedContainer| {
            known.state == ContainerState::Queued && known.priority > 0
        };
        let mut waiting = self.world.containers.values().filter(waits).peekable();
        let is_open = |known: &ObservedContainer| {
            let class = UserClass::of(&known.needs);
            breakers.opened_for(&class, now).is_some()
        };
        !breakers.is_closed(now) || (waiting.peek().is_some() && waiting.all(is_open))
    }

    /// Whether new containers may be started.
    fn may_start(&self, now: MonotonicTime) -> bool {
        self.submits.obstacle().is_none() && self.submits.breakers.is_closed(now)
    }

    /// The class for which a submission of the container counts.
    fn charge_class(&self, container: &ContainerUuid) -> UserClass {
        let known = self.world.containers.get(container);
        known.map_or_else(UserClass::default, |known| UserClass::of(&known.needs))
    }

    /// Nodes on which several containers failed. New submissions exclude them.
    pub fn excluded_nodes(&self, now: MonotonicTime) -> Vec<String> {
        let excluded = self.submits.node_health.excluded(now);
        excluded.map(str::to_owned).collect()
    }

    /// Applies a complete listing whose query was sent at `began`.
    pub fn apply_listing(&mut self, began: MonotonicTime, jobs: Vec<Job>) {
        for job in jobs.iter().filter(|job| !job.ended) {
            if self.submits.unknown.remove(&job.container).is_some() {
                let class = self.charge_class(&job.container);
                self.submits.breakers.record_success(&class);
            }
        }
        self.stop_escalation.apply_listing(&jobs, began);
        for container in self.unresolved_exits.apply_listing(&jobs) {
            self.cooldown_until.remove(&container);
        }
        let listing = JobListing::new(began, jobs);
        self.world.previous = self.world.listing.replace(listing);
    }

    /// Records why an attempt failed. Must be called before [`Self::apply_outcome`].
    pub fn record_failure(&mut self, container: &ContainerUuid, reason: &str) {
        self.reports.record_failure(container, reason);
    }

    fn policy(&self) -> Policy {
        Policy {
            max_pending: self.settings.max_pending,
            max_supervisors: self.settings.max_supervisors,
            max_supervisor_ram: self.settings.max_supervisor_ram,
            start_timeout: self.settings.start_timeout,
            counts_running: !self.limits.batcher.defers_rejected_jobs(),
            may_start: self.may_start(self.world.now),
        }
    }

    /// The tasks to begin now, within the free slots and the scheduler's rate limit. Each returned
    /// task is under way until [`Self::apply_outcome`] gets its outcome. `needs_renewal` says
    /// whether a token expires soon.
    pub fn next_tasks(
        &mut self,
        now: MonotonicTime,
        needs_renewal: impl Fn(&AttemptToken) -> bool,
    ) -> Vec<Task> {
        self.world.now = now;
        let mut tasks = self.tasks_from_plan(now);
        tasks.iter().for_each(|task| self.mark_started(task));
        for task in self.token_tasks(now, needs_renewal) {
            if self.free_slots() == 0 {
                break;
            }
            self.mark_started(&task);
            tasks.push(task);
        }
        for task in self.unreported(now, self.free_slots()) {
            self.mark_started(&task);
            tasks.push(task);
        }
        tasks
    }

    fn free_slots(&self) -> usize {
        self.limits.free_slots(self.world.in_flight.len())
    }

    /// The place of each container that waits for its start, from 1.
    pub fn places(&self) -> BTreeMap<&ContainerUuid, usize> {
        let policy = self.policy();
        let waiting = start_order::waiting_in_order(&self.world, &policy);
        waiting.zip(1..).collect()
    }

    /// The jobs that wait in the scheduler, in the order in which they should start.
    pub fn desired_order(&mut self) -> Vec<DesiredPlace> {
        let ours = |known: &ObservedContainer| {
            known.state == ContainerState::Locked && matches!(known.holder, LockHolder::Ours(_))
        };
        let is_blocked = |uuid: &ContainerUuid| {
            let pending = self.world.pending.get(uuid);
            pending.is_some_and(|pending| pending.blocked_since.is_some())
        };
        let jobs = ContainerView::all(&self.world)
            .filter(|(known, view)| {
                known.priority > 0 && ours(known) && view.live().next().is_some()
            })
            .map(|(known, view)| PendingJob {
                container: view.uuid.clone(),
                user: known.user().cloned(),
                charge: known.needs.charged_to.clone(),
                priority: known.priority,
                is_blocked: is_blocked(view.uuid),
            })
            .collect();
        self.pending_order.arrange(jobs)
    }

    fn mark_started(&mut self, task: &Task) {
        let containers = &self.world.containers;
        let needs = |container: &ContainerUuid| -> Option<&ResourceRequest> {
            containers.get(container).map(|known| &known.needs)
        };
        self.limits.task_started(task, needs);
        let is_submission = matches!(task, Task::Submit(_));
        for container in task.containers() {
            self.poll.acted_since.insert(container.clone());
            self.world.in_flight.insert(container.clone());
            if is_submission && let Some(attempt) = self.world.attempts.get_mut(container) {
                attempt.phase = Phase::Submitting;
            }
        }
    }

    fn is_busy(&self, container: &ContainerUuid, now: MonotonicTime) -> bool {
        let cooldown = self.cooldown_until.get(container);
        cooldown.is_some_and(|until| *until > now) || self.world.in_flight.contains(container)
    }

    /// The unlock tasks of a shutdown: containers that are locked and not submitted. No other
    /// dispatcher could take them otherwise. The next start unlocks those of a task under way.
    pub fn drain_tasks(&self) -> Vec<Task> {
        let unsubmitted = self.world.attempts.iter().filter(|(container, attempt)| {
            matches!(attempt.phase, Phase::Locked | Phase::LockUnknown(_))
                && !self.world.in_flight.contains(*container)
        });
        let unlock = |(container, attempt): (&ContainerUuid, &Attempt)| Unlock {
            container: container.clone(),
            attempt: attempt.token.clone(),
            token: self.tokens.of(container).cloned(),
            reason: Reason::Draining,
            was_listed: false,
        };
        unsubmitted.map(unlock).map(Task::Unlock).collect()
    }

    /// Whether an attempt still needs to be confirmed by a job listing. A submission under way
    /// does, too: if the scheduler does not answer, the listing tells how long that lasts.
    pub fn awaiting_confirmation(&self) -> bool {
        let (Some(listing), Some(_)) = (&self.world.listing, &self.world.previous) else {
            return true;
        };
        self.world.attempts.iter().any(|(uuid, attempt)| {
            let waits = matches!(
                attempt.phase,
                Phase::Submitting | Phase::Submitted(_) | Phase::Adopted(_)
            );
            waits && listing.live(uuid).next().is_none() && !self.unresolved_exits.contains(uuid)
        })
    }

    /// Whether the newest listing shows a job of a container that has ended.
    pub fn has_ending_jobs(&self) -> bool {
        let has_ended = |uuid| {
            let known = self.world.containers.get(uuid);
            known.is_some_and(|known| known.state.is_final())
        };
        let is_listed = |uuid| {
            let listing = self.world.listing.as_ref();
            listing.is_some_and(|listing| listing.live(uuid).next().is_some())
        };
        let mut attempts = self.world.attempts.keys();
        attempts.any(|uuid| has_ended(uuid) && is_listed(uuid))
    }

    /// Whether every startable container of the known queue pages is taken and the queue has more.
    /// A container that waits for room here is not taken: a full machine needs no further pages.
    /// Behind many that can never run here, pages have times of their own (`may_sweep`).
    pub fn needs_next_page(&self, now: MonotonicTime) -> bool {
        let can_start = |(uuid, known): (&ContainerUuid, &ObservedContainer)| {
            known.state == ContainerState::Queued
                && known.priority > 0
                && known.fit.never().is_none()
                && !self.world.retry_at.contains_key(uuid)
        };
        let queue = &self.poll.queue;
        (!queue.sweep.is_slow() || self.may_sweep(now))
            && queue.locked_since_listing
            && queue.has_more
            && !self.world.containers.iter().any(can_start)
    }

    /// Whether a poll is to come before the next poll interval: for a page of the queue,
    /// because a container went back to it, or to admit one whose time to wait is over.
    pub fn needs_poll(&self, now: MonotonicTime) -> bool {
        self.poll.queue.listed_at.is_none()
            || self.needs_next_page(now)
            || self.is_sweep_due(now)
            || self.world.retry_at.values().any(|at| *at <= now)
    }

    /// Whether a change of the container was reported that no poll has shown yet. A poll does not
    /// count if an action was under way.
    pub fn has_pending_change(&self, container: &ContainerUuid) -> bool {
        self.poll.pending_changes.containers.contains(container)
    }

    /// Charges commands that the scheduler ran on its own to the rate limit.
    pub fn charge_commands(&mut self, now: MonotonicTime, commands: u32) {
        (0..commands).for_each(|_| self.limits.command_rate.charge(now));
    }

    /// Minimum time between two decision passes. It grows with the number of containers, because a
    /// pass takes longer.
    pub fn decision_interval(&self, now: MonotonicTime) -> Duration {
        let pass_time = Duration::from_micros(10 * self.world.containers.len() as u64);
        let until_command = self.limits.command_rate.time_until_available(now);
        pass_time.max(until_command.min(Duration::from_secs(1)))
    }
}

/// Seconds until `at`, rounded up.
fn seconds_until(at: MonotonicTime, now: MonotonicTime) -> u128 {
    at.since(now).as_millis().div_ceil(1000)
}
