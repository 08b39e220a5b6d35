//! Turns planned actions into tasks: batches them where possible, and respects the free slots and
//! the scheduler's rate limit.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};

use crate::config::settings::Settings;
use crate::model::charge_class::UserClass;
use crate::model::scheduling::StopMode;
use crate::model::task::{AttemptEnd, Cancellation, Start, Stop, Submission, Task, Unlock};
use crate::model::world::{MonotonicTime, ObservedContainer, World};
use crate::plan::{Action, plan};
use crate::reconcile::Reconciler;
use crate::reconcile::batcher::BatchKey;
use crate::reconcile::stop_escalation::StopEscalation;
use crate::reconcile::submit_state::SubmitState;
use crate::reconcile::task_limits::TaskLimits;
use crate::reconcile::token_store::TokenStore;
use crate::reconcile::unresolved_exits::UnresolvedExits;

/// Maximum number of batched lock calls under way. The server locks one container after the other,
/// and slots must be free for containers already locked.
const MAX_CONCURRENT_LOCK_CALLS: usize = 2;
/// Minimum time for which the results of a job are queried, even if results are waited for less
/// long.
const MIN_RESULT_QUERY_TIME: Duration = Duration::from_secs(60);
/// Divisor of the number of slots: this part is reserved for containers already locked. It applies
/// if each lock takes a call of its own.
const RESERVED_SLOT_DIVISOR: usize = 4;

/// The tasks of one pass through the plan, and what it takes to build them.
struct TaskBuilder<'a> {
    now: MonotonicTime,
    settings: &'a Settings,
    world: &'a World,
    tokens: &'a TokenStore,
    /// Start of the last API poll.
    poll_began: MonotonicTime,
    submits: &'a SubmitState,
    unresolved_exits: &'a UnresolvedExits,
    stop_escalation: &'a mut StopEscalation,
    limits: &'a mut TaskLimits,
    budget: Budget,
    tasks: Vec<Task>,
    /// Containers that already have a task.
    claimed: BTreeSet<ContainerUuid>,
    /// Containers to be locked together.
    lock_batch: Vec<Start>,
    /// Batch keys of the containers that are about to be locked.
    locking_keys: BTreeSet<BatchKey>,
    /// Index of the newest stop task of each mode. It may take further jobs.
    open_stops: BTreeMap<StopMode, usize>,
    /// Containers to be submitted, by batch key.
    submissions: BTreeMap<BatchKey, Vec<(ContainerUuid, TokenUuid)>>,
}

/// Number of tasks of each kind that a pass may add. Of these numbers, only the locks are counted
/// down.
struct Budget {
    /// Tasks in all.
    tasks: usize,
    /// Tasks that ask the API server. An overloaded one holds up no submission and no cancellation.
    api_tasks: usize,
    /// Tasks that ask the scheduler.
    scheduler_tasks: usize,
    /// Batched lock calls.
    lock_calls: usize,
    /// Lock calls for one container.
    single_locks: usize,
}

impl Budget {
    fn new(limits: &TaskLimits, in_flight: usize) -> Self {
        let slots = limits.concurrency.limit();
        let max_locks = (slots - slots.div_ceil(RESERVED_SLOT_DIVISOR)).max(1);
        let batcher = &limits.batcher;
        Self {
            tasks: limits.free_slots(in_flight),
            api_tasks: limits.free_api_slots(in_flight),
            scheduler_tasks: limits.free_scheduler_slots(),
            lock_calls: MAX_CONCURRENT_LOCK_CALLS.saturating_sub(batcher.running_lock_calls()),
            single_locks: max_locks.saturating_sub(batcher.running_single_locks()),
        }
    }
}

impl Reconciler {
    /// The tasks of the plan, within the free slots and the rate limit.
    pub(crate) fn tasks_from_plan(&mut self, now: MonotonicTime) -> Vec<Task> {
        let policy = self.policy();
        let mut builder = TaskBuilder {
            now,
            settings: &self.settings,
            world: &self.world,
            tokens: &self.tokens,
            poll_began: self.poll.began,
            submits: &self.submits,
            unresolved_exits: &self.unresolved_exits,
            stop_escalation: &mut self.stop_escalation,
            budget: Budget::new(&self.limits, self.world.in_flight.len()),
            limits: &mut self.limits,
            tasks: Vec::new(),
            claimed: BTreeSet::new(),
            lock_batch: Vec::new(),
            locking_keys: BTreeSet::new(),
            open_stops: BTreeMap::new(),
            submissions: BTreeMap::new(),
        };
        for action in plan(&self.world, &policy) {
            if builder.is_full() && !builder.can_join_stop() {
                break;
            }
            let cooldown = self.cooldown_until.get(action.container());
            if cooldown.is_none_or(|until| *until <= now) {
                builder.add(action);
            }
        }
        builder.finish()
    }
}

impl TaskBuilder<'_> {
    /// Adds the task of an action, if the budget and the rate limit allow it now.
    fn add(&mut self, action: Action) {
        if self.claimed.contains(action.container()) || self.waits_for_token(&action) {
            return;
        }
        match action {
            // A stop may join a task that was already added.
            Action::StopJob {
                container,
                job,
                reason,
            } => self.add_stop(Stop {
                container,
                job,
                reason,
            }),
            Action::Submit { container, attempt } => self.add_submission(container, attempt),
            _ if self.is_api_full() => {}
            Action::Start { container, etag } => self.add_start(container, etag),
            Action::RevokeOrphan { container } => self.add_orphan(&container),
            Action::CancelQueued { container, reason } => {
                self.push(Task::CancelQueued(container, reason));
            }
            Action::Unlock {
                container,
                attempt,
                reason,
            } => {
                let unlock = Unlock {
                    token: self.tokens.of(&container).cloned(),
                    was_listed: !self.submits.unknown.contains_key(&container),
                    container,
                    attempt,
                    reason,
                };
                self.add_exit_task(Task::Unlock(unlock));
            }
            Action::Cancel {
                container,
                attempt,
                reason,
            } => {
                let cancellation = Cancellation {
                    token: self.tokens.of(&container).cloned(),
                    ignores_results: self.ignores_results(&container),
                    container,
                    attempt,
                    reason,
                };
                self.add_exit_task(Task::Cancel(cancellation));
            }
            Action::EndAttempt {
                container,
                attempt,
                ended,
            } => {
                let description = self
                    .observed(&container)
                    .and_then(|known| known.end.clone());
                self.push(Task::EndAttempt(AttemptEnd {
                    container,
                    attempt,
                    final_state: ended,
                    description,
                }));
            }
        }
    }

    /// All tasks, with the last batch of locks and the submissions that are due.
    fn finish(mut self) -> Vec<Task> {
        if !self.is_api_full() && !self.lock_batch.is_empty() {
            self.flush_locks();
        }
        self.add_submissions();
        self.tasks
    }

    fn observed(&self, container: &ContainerUuid) -> Option<&ObservedContainer> {
        self.world.containers.get(container)
    }

    /// Whether the action needs a token that is about to be read.
    fn waits_for_token(&self, action: &Action) -> bool {
        match action {
            Action::Unlock {
                container, attempt, ..
            }
            | Action::Cancel {
                container, attempt, ..
            } => self.tokens.is_unread(container, attempt),
            _ => false,
        }
    }

    fn is_full(&self) -> bool {
        self.tasks.len() >= self.budget.tasks
    }

    /// Whether no further task may ask the API server.
    fn is_api_full(&self) -> bool {
        let asking = self.tasks.iter().filter(|task| task.asks_api());
        self.is_full() || asking.count() >= self.budget.api_tasks
    }

    /// Whether no further task may ask the scheduler.
    fn is_scheduler_full(&self) -> bool {
        let asking = self.tasks.iter().filter(|task| task.asks_scheduler());
        asking.count() >= self.budget.scheduler_tasks
    }

    fn push(&mut self, task: Task) {
        self.claimed.extend(task.containers().into_iter().cloned());
        self.tasks.push(task);
    }

    fn batch_key(&self, container: &ContainerUuid) -> BatchKey {
        self.observed(container)
            .map_or(0, |known| self.limits.batcher.key(container, &known.needs))
    }

    /// Adds a lock, to the next batch if the server takes batches.
    fn add_start(&mut self, container: ContainerUuid, etag: String) {
        let class = self
            .observed(&container)
            .map(|known| UserClass::of(&known.needs));
        let breakers = &self.submits.breakers;
        if class.is_some_and(|class| breakers.opened_for(&class, self.now).is_some()) {
            return;
        }
        self.locking_keys.insert(self.batch_key(&container));
        let known = self.observed(&container);
        let start = Start {
            etag,
            token: self.tokens.of(&container).cloned(),
            max_run_time: known.and_then(|known| known.needs.max_run_time),
            container,
        };
        let max_batch = self.limits.batcher.max_lock_batch();
        // A container with a token repeats its lost lock request alone, with that token.
        if max_batch == 1 || start.token.is_some() {
            if self.budget.single_locks > 0 {
                self.budget.single_locks -= 1;
                self.push(Task::Start(vec![start]));
            }
        } else if self.budget.lock_calls > 0 {
            self.claimed.insert(start.container.clone());
            self.lock_batch.push(start);
            if self.lock_batch.len() >= max_batch {
                self.budget.lock_calls -= 1;
                self.flush_locks();
            }
        }
    }

    fn flush_locks(&mut self) {
        let batch = std::mem::take(&mut self.lock_batch);
        self.push(Task::Start(batch));
    }

    /// Adds the revocation of an orphaned token. It takes the place of a lock.
    fn add_orphan(&mut self, container: &ContainerUuid) {
        if self.budget.single_locks == 0 {
            return;
        }
        let orphan = self
            .tokens
            .orphan_to_revoke(self.world, self.poll_began, container);
        if let Some(orphan) = orphan {
            self.budget.single_locks -= 1;
            self.push(Task::RevokeOrphan(orphan));
        }
    }

    fn add_submission(&mut self, container: ContainerUuid, attempt: TokenUuid) {
        if self.tokens.matching(&container, &attempt).is_some() {
            let batch = self.submissions.entry(self.batch_key(&container));
            batch.or_default().push((container.clone(), attempt));
            self.claimed.insert(container);
        }
    }

    /// Adds an unlock or a cancellation, within the rate limit of the scheduler: the scheduler is
    /// asked once more how the job ended.
    fn add_exit_task(&mut self, task: Task) {
        if task.asks_scheduler() && self.is_scheduler_full() {
            return;
        }
        let rate = &mut self.limits.command_rate;
        let is_allowed = match self.limits.batcher.charges_exit_queries() {
            true => rate.is_available(self.now),
            false => rate.try_acquire(self.now),
        };
        if is_allowed {
            self.push(task);
        }
    }

    /// Whether queries for the results of the container's job have failed for too long.
    fn ignores_results(&self, container: &ContainerUuid) -> bool {
        let unknown_for = self
            .unresolved_exits
            .results_unknown_for(container, self.now);
        unknown_for >= self.settings.undelivered_wait.max(MIN_RESULT_QUERY_TIME)
    }

    /// Whether a stop task that was already added can take one more job.
    fn can_join_stop(&self) -> bool {
        let max_batch = self.limits.batcher.max_stop_batch();
        let mut open = self.open_stops.values().map(|index| &self.tasks[*index]);
        open.any(|task| matches!(task, Task::Stop(batch, _) if batch.len() < max_batch))
    }

    /// Adds a stop if it is due and the rate limit allows it. A stop joins a command with others
    /// only if repeating it does no harm. So the graceful stop of a running job gets a command of
    /// its own.
    fn add_stop(&mut self, stop: Stop) {
        let (now, grace) = (self.now, self.settings.stop_grace);
        let Some(mode) = self.stop_escalation.next_step(&stop, grace, now) else {
            return;
        };
        let is_pending = self.world.pending.contains_key(&stop.container);
        let can_join = is_pending || mode == StopMode::Force;
        let has_slot = !self.is_full() && !self.is_scheduler_full();
        let max_batch = self.limits.batcher.max_stop_batch();
        let (job, container) = (stop.job.clone(), stop.container.clone());
        let open = self.open_stops.get(&mode).filter(|_| can_join);
        match open.and_then(|index| self.tasks.get_mut(*index)) {
            Some(Task::Stop(batch, _)) if batch.len() < max_batch => batch.push(stop),
            _ => {
                if !has_slot || !self.limits.cancel_rate.try_acquire(now) {
                    return;
                }
                if can_join {
                    self.open_stops.insert(mode, self.tasks.len());
                }
                self.tasks.push(Task::Stop(vec![stop], mode));
            }
        }
        self.stop_escalation.mark_sent(&job, mode, now);
        self.claimed.insert(container);
    }

    /// Adds the submissions that are due, highest priority first, and batched where that is worth
    /// it.
    fn add_submissions(&mut self) {
        let batches = std::mem::take(&mut self.submissions);
        self.limits.batcher.retain_pending(batches.keys());
        let rank = |container: &ContainerUuid| {
            let known = self.observed(container);
            Reverse(known.map_or(0, |known| known.priority))
        };
        let mut batches: Vec<_> = batches.into_iter().collect();
        for (_, batch) in &mut batches {
            batch.sort_by_cached_key(|(container, _)| (rank(container), container.clone()));
        }
        batches.sort_by_key(|(_, batch)| batch.first().map(|(container, _)| rank(container)));
        for (key, batch) in batches {
            let batcher = &mut self.limits.batcher;
            let max_batch = batcher.max_batch();
            let (whole, rest) = batch.split_at(batch.len() - batch.len() % max_batch);
            let more_come = self.locking_keys.contains(&key);
            let flushes =
                !rest.is_empty() && batcher.should_flush(self.now, rest.len(), key, more_come);
            let is_batch = batcher.should_batch(rest.len());
            let rest = rest.chunks(if is_batch { max_batch } else { 1 });
            for part in whole.chunks(max_batch).chain(rest.filter(|_| flushes)) {
                if self.is_full() || self.is_scheduler_full() {
                    return;
                }
                if !self.limits.command_rate.try_acquire(self.now) {
                    return;
                }
                if self.limits.batcher.needs_second_command(part.len()) {
                    self.limits.command_rate.charge(self.now);
                }
                let submissions = part
                    .iter()
                    .filter_map(|(container, attempt)| self.submission(container, attempt));
                let task = Task::Submit(submissions.collect());
                self.tasks.push(task);
                self.limits.batcher.flushed(key);
            }
        }
    }

    /// The submission of one attempt.
    fn submission(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Option<Submission> {
        let token = self.tokens.matching(container, attempt)?;
        let known = self.observed(container);
        Some(Submission {
            needs: known.map(|known| known.needs.clone()).unwrap_or_default(),
            token: token.clone(),
            avoid: self.submits.nodes_to_avoid(container, self.now),
            failed_on: self.submits.failed_nodes(container, self.now),
            owner: known.and_then(|known| known.owner.clone()),
            container: container.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
