//! Applies the [`Outcome`] of a finished task to the reconciler's state. An outcome is an
//! observation newer than the last poll. Output: the [`Decision`] to emit, if there is one.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, TokenUuid};

use crate::model::attempt_token::AttemptToken;
use crate::model::decision::Decision;
use crate::model::outcome::{Feedback, Outcome};
use crate::model::world::{Attempt, LockHolder, MonotonicTime, Phase};
use crate::reconcile::{Reconciler, seconds_until};

/// Time for which a container gets no new task after a failed one.
const TASK_COOLDOWN: Duration = Duration::from_secs(2);
/// The same after one that was to cancel it before any attempt.
const CANCEL_COOLDOWN: Duration = Duration::from_secs(60);

impl Reconciler {
    /// Applies the outcome of a task. Returns the decision that the outcome leads to.
    pub fn apply_outcome(
        &mut self,
        now: MonotonicTime,
        container: ContainerUuid,
        outcome: Outcome,
        feedback: Feedback,
    ) -> Option<Decision> {
        self.apply_feedback(now, &container, feedback);
        self.world.in_flight.remove(&container);
        self.limits.task_finished(&container);
        match outcome {
            Outcome::Locked(token) => self.record_lock(&container, token, now),
            Outcome::LockUnknown(token) => {
                self.set_attempt(&container, token, Phase::LockUnknown(now));
                self.world.containers.remove(&container);
                self.delay_retry(container, now, TASK_COOLDOWN);
            }
            Outcome::NotLocked => {
                // Another dispatcher locked the container first, and maybe others too. List the
                // queue again.
                self.poll.queue.listed_at = None;
                self.clear_attempt(&container);
                self.delay_retry(container, now, self.settings.min_poll_interval * 10);
            }
            Outcome::NotLockedTokenLive(token) => {
                self.clear_attempt(&container);
                self.add_orphan(container.clone(), token, now);
                self.delay_retry(container, now, self.settings.min_poll_interval * 10);
            }
            Outcome::MintDenied => {
                self.submits.record_rejection(now);
                return self.schedule_retry(container, now);
            }
            Outcome::Submitted => {
                let class = self.charge_class(&container);
                self.submits.breakers.record_success(&class);
                self.end_submission(&container, Phase::Submitted(now));
            }
            Outcome::SubmitUnknown { is_held } => {
                self.end_submission(&container, Phase::Submitted(now));
                self.submits.unknown.insert(container, is_held);
            }
            Outcome::NeverSubmitted(token) => self.set_attempt(&container, token, Phase::Locked),
            Outcome::RetryAlone => {
                self.end_submission(&container, Phase::Locked);
                self.limits.batcher.submit_alone(container);
            }
            Outcome::NotTried => {
                self.end_submission(&container, Phase::Locked);
                self.start_cooldown(container, now, TASK_COOLDOWN);
            }
            Outcome::NoJobDirectory => {
                self.end_submission(&container, Phase::Locked);
                let until = self.retry_after_failure(&container, now);
                self.cooldown_until.insert(container, until);
            }
            Outcome::NotSubmitted(state, is_revoked) => {
                let class = self.charge_class(&container);
                self.submits.record_rejection_of(&container, class, now);
                return self.apply_release(container, state, is_revoked, now);
            }
            Outcome::Released(state, is_revoked) => {
                // The submission had failed with an unclear answer.
                if self.submits.unknown.get(&container) == Some(&false) {
                    let class = self.charge_class(&container);
                    self.submits.record_rejection_of(&container, class, now);
                }
                return self.apply_release(container, state, is_revoked, now);
            }
            Outcome::NotRevoked => {
                if let Some(attempt) = self.world.attempts.get_mut(&container) {
                    attempt.phase = Phase::Revoking;
                }
                self.start_cooldown(container, now, TASK_COOLDOWN);
            }
            // The next poll reads its end.
            Outcome::QueuedCancelled => drop(self.world.containers.remove(&container)),
            Outcome::NotCancelled => self.start_cooldown(container, now, CANCEL_COOLDOWN),
            Outcome::Renewed(token) => drop(self.tokens.insert(container, token)),
            Outcome::Reported(text) => self.reports.pending.mark(container, text),
            Outcome::OrphanRevoked(token) => {
                self.remove_orphan(&container, &token);
                self.tokens.remove_disabled(&container, &token);
                self.forget_unread(&container, &token);
            }
            Outcome::Disabled(token) => self.add_disabled(container, token, now),
            Outcome::LockGranted(token) => {
                // The next poll shows which token holds the lock.
                self.world.containers.remove(&container);
                self.tokens.remove_disabled(&container, &token.uuid);
                self.adopt_token(&container, token, now);
            }
            Outcome::AttemptEnded => self.clear_attempt(&container),
            Outcome::Stopping(job) => self.stop_escalation.acknowledged(&job, now),
            Outcome::NotStopped(job) => {
                self.start_cooldown(container, now, TASK_COOLDOWN);
                self.stop_escalation.mark_failed(&job);
            }
            Outcome::Undelivered(waited) => {
                self.unresolved_exits.resolve(&container);
                let left = self.settings.undelivered_wait.saturating_sub(waited);
                if let Some(attempt) = self.world.attempts.get_mut(&container) {
                    attempt.phase = Phase::Undelivered(MonotonicTime(now.0 + left));
                }
            }
            Outcome::ExitUnknown { results } => {
                let delay = self
                    .unresolved_exits
                    .record_failed_query(&container, results, now);
                self.start_cooldown(container, now, delay);
            }
            Outcome::Failed => {
                self.start_cooldown(container.clone(), now, TASK_COOLDOWN);
                self.end_submission(&container, Phase::Submitted(now));
            }
        }
        None
    }

    fn apply_feedback(
        &mut self,
        now: MonotonicTime,
        container: &ContainerUuid,
        feedback: Feedback,
    ) {
        self.limits.concurrency.record(feedback.overloaded);
        if let Some(node) = feedback.failed_node {
            self.submits.record_node_failure(node, container, now);
        }
        if feedback.bulk_unsupported {
            self.set_lock_batch_size(1);
        }
    }

    /// Gives the container no task for a while.
    fn start_cooldown(&mut self, container: ContainerUuid, now: MonotonicTime, time: Duration) {
        let until = MonotonicTime(now.0 + time);
        self.cooldown_until.insert(container, until);
    }

    fn record_lock(&mut self, container: &ContainerUuid, token: AttemptToken, now: MonotonicTime) {
        self.poll.queue.locked_since_listing = true;
        if let Some(known) = self.world.containers.get_mut(container) {
            known.state = ContainerState::Locked;
            known.holder = LockHolder::Ours(token.uuid.clone());
            known.seen = now;
        }
        self.set_attempt(container, token, Phase::Locked);
        // It avoids other nodes than its neighbours in a batch.
        if !self.submits.failed_nodes(container, now).is_empty() {
            self.limits.batcher.submit_alone(container.clone());
        }
    }

    fn set_attempt(&mut self, container: &ContainerUuid, token: AttemptToken, phase: Phase) {
        let attempt = Attempt {
            token: token.uuid.clone(),
            phase,
        };
        self.world.attempts.insert(container.clone(), attempt);
        self.tokens.insert(container.clone(), token);
    }

    /// Keeps the token of an ended attempt until it is revoked. Another attempt may begin only
    /// then.
    fn keep_unrevoked(
        &mut self,
        container: &ContainerUuid,
        attempt: Option<TokenUuid>,
        token: Option<AttemptToken>,
        is_revoked: bool,
    ) {
        let Some(attempt) = attempt.filter(|_| !is_revoked) else {
            return;
        };
        let attempt = Attempt {
            token: attempt,
            phase: Phase::Revoking,
        };
        self.world.attempts.insert(container.clone(), attempt);
        if let Some(token) = token {
            self.tokens.insert(container.clone(), token);
        }
    }

    /// Sets the phase of an attempt whose submission has ended. Later listings show its job,
    /// whatever the scheduler answered.
    fn end_submission(&mut self, container: &ContainerUuid, phase: Phase) {
        if let Some(attempt) = self.world.attempts.get_mut(container)
            && attempt.phase == Phase::Submitting
        {
            attempt.phase = phase;
        }
    }

    fn delay_retry(&mut self, container: ContainerUuid, now: MonotonicTime, time: Duration) {
        self.world
            .retry_at
            .insert(container, MonotonicTime(now.0 + time));
    }

    /// Ends an attempt whose record is now in `state`.
    fn apply_release(
        &mut self,
        container: ContainerUuid,
        state: ContainerState,
        is_revoked: bool,
        now: MonotonicTime,
    ) -> Option<Decision> {
        let token = self.tokens.of(&container).cloned();
        let attempt = self.world.attempts.get(&container);
        let attempt = attempt.map(|attempt| attempt.token.clone());
        let next = match state {
            ContainerState::Queued => self.schedule_retry(container.clone(), now),
            _ => {
                self.clear_attempt(&container);
                None
            }
        };
        self.keep_unrevoked(&container, attempt, token, is_revoked);
        next
    }

    /// Ends a failed attempt and sets the time of the next. If there will be a next attempt,
    /// returns a decision with that time, so that other programs can read it from the log record.
    fn schedule_retry(&mut self, container: ContainerUuid, now: MonotonicTime) -> Option<Decision> {
        let known = self.world.containers.get(&container);
        let is_wanted = known.is_some_and(|known| known.priority > 0);
        let at = self.retry_after_failure(&container, now);
        self.clear_attempt(&container);
        self.world.retry_at.insert(container.clone(), at);
        let seconds = seconds_until(at, now);
        let reason = format!("the next attempt begins in {seconds} s, or later");
        is_wanted.then_some(Decision::DecidedNotToRun { container, reason })
    }

    /// Returns the time of the next attempt.
    fn retry_after_failure(
        &mut self,
        container: &ContainerUuid,
        now: MonotonicTime,
    ) -> MonotonicTime {
        let known = self.world.containers.get(container);
        let locks = known.map_or(0, |known| known.locks);
        self.submits.backoff.record_failure(container, locks, now)
    }

    /// Forgets the attempt. The next poll returns the container's record again.
    fn clear_attempt(&mut self, container: &ContainerUuid) {
        if let Some(ended) = self.world.attempts.remove(container) {
            self.forget_unread(container, &ended.token);
        }
        self.tokens.remove(container);
        let known = self.world.containers.remove(container);
        if known.is_none_or(|known| !known.state.is_final()) {
            // List the queue again, so that the next poll returns the container.
            self.poll.queue.listed_at = None;
        }
        self.submits.unknown.remove(container);
        self.limits.batcher.forget(container);
        self.unresolved_exits.resolve(container);
    }
}
