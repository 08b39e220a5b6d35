//! What is made of a finished action: an observation, newer than the last look.

use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use super::{Mind, seconds};
use crate::act::{Hints, Outcome};
use crate::attempts::AttemptToken;
use crate::events::Event;
use crate::world::{Attempt, Holder, Moment, Phase};

/// After an action failed, its container is left alone for so long.
const REST: Duration = Duration::from_secs(2);

impl Mind {
    /// Learns from a finished action; what follows from it is to be told.
    pub fn learn(
        &mut self,
        now: Moment,
        container: ContainerUuid,
        outcome: Outcome,
        hints: Hints,
    ) -> Option<Event> {
        self.width.learn(hints.overloaded);
        if let Some(node) = hints.failed_on
            && self.nodes.failed(node.clone(), &container, now)
        {
            tracing::warn!(
                node,
                "several containers came to nothing on this node before they ran: it gets no new ones for an hour"
            );
        }
        if hints.one_by_one {
            self.takes_at_once(1);
        }
        self.world.in_flight.remove(&container);
        self.batches.end(&container);
        self.asking.remove(&container);
        match outcome {
            Outcome::Locked(token) => {
                self.locked = true;
                if let Some(known) = self.world.containers.get_mut(&container) {
                    known.state = ContainerState::Locked;
                    known.holder = Holder::Ours(token.uuid.clone());
                    known.seen = now;
                }
                self.has(&container, token, Phase::Locked);
            }
            Outcome::LockUnclear(token) => {
                self.has(&container, token, Phase::Unclear(now));
                self.world.containers.remove(&container);
                self.wait(container, now, REST);
            }
            Outcome::NotLocked => {
                // Another was quicker, and may have been so with others.
                self.queue_listed = None;
                self.over(&container);
                self.wait(container, now, self.settings.shortest_interval * 10);
            }
            Outcome::NotLockedWith(token) => {
                self.over(&container);
                self.leave(container.clone(), token, now);
                self.wait(container, now, self.settings.shortest_interval * 10);
            }
            Outcome::MayNotMint => {
                self.refused(now);
                return self.failed(container, now);
            }
            Outcome::Submitted => {
                self.backoff.accepted();
                self.submitted(&container, now);
            }
            Outcome::SubmitUnclear => {
                self.submitted(&container, now);
                self.unclear.insert(container);
            }
            Outcome::NotTogether => {
                if let Some(attempt) = self.world.attempts.get_mut(&container)
                    && attempt.phase == Phase::Submitting
                {
                    attempt.phase = Phase::Locked;
                }
                self.batches.goes_alone(container);
            }
            Outcome::NotSubmitted(state, ended) => {
                self.refused(now);
                self.place_anywhere(&container, now);
                return self.released(container, state, ended, now);
            }
            Outcome::Released(state, ended) => {
                // Its submission failed without saying so clearly.
                if self.unclear.contains(&container) {
                    self.refused(now);
                    self.place_anywhere(&container, now);
                }
                return self.released(container, state, ended, now);
            }
            Outcome::NotEnded => {
                if let Some(attempt) = self.world.attempts.get_mut(&container) {
                    attempt.phase = Phase::Ending;
                }
                self.resting.insert(container, Moment(now.0 + REST));
            }
            Outcome::Renewed(token) => drop(self.tokens.insert(container, token)),
            Outcome::Told(words) => self.told(container, words),
            Outcome::Swept(token) => {
                self.clear_left_over(&container, &token);
                self.clear_disabled(&container, &token);
            }
            Outcome::Disabled(token) => self.keep_disabled(container, token, now),
            Outcome::Holds(token) => {
                // The next look shows by whom it is held.
                self.world.containers.remove(&container);
                self.clear_disabled(&container, &token.uuid);
                self.adopt(&container, token, now);
            }
            Outcome::Ended => self.over(&container),
            Outcome::Stopping(job) => self.stopping.told(&job, now),
            Outcome::NotStopped(job) => {
                self.resting.insert(container, Moment(now.0 + REST));
                self.stopping.failed(&job);
            }
            Outcome::Undelivered(waited) => {
                self.doubts.end(&container);
                let left = self.settings.undelivered_wait.saturating_sub(waited);
                if let Some(attempt) = self.world.attempts.get_mut(&container) {
                    attempt.phase = Phase::Undelivered(Moment(now.0 + left));
                }
            }
            Outcome::Doubtful { results } => {
                let rest = self.doubts.again(&container, results, now);
                self.resting.insert(container, Moment(now.0 + rest));
            }
            Outcome::Failed => {
                self.resting.insert(container.clone(), Moment(now.0 + REST));
                self.submitted(&container, now);
            }
        }
        None
    }

    fn has(&mut self, container: &ContainerUuid, token: AttemptToken, phase: Phase) {
        let attempt = Attempt {
            token: token.uuid.clone(),
            phase,
        };
        self.world.attempts.insert(container.clone(), attempt);
        self.tokens.insert(container.clone(), token);
    }

    /// The attempt is over; its token must be ended before another begins.
    fn ended(&mut self, container: &ContainerUuid, token: Option<AttemptToken>, ended: bool) {
        if let (Some(token), false) = (token, ended) {
            self.has(container, token, Phase::Ending);
        }
    }

    /// Whatever the scheduler said: from now on its listings tell.
    fn submitted(&mut self, container: &ContainerUuid, now: Moment) {
        if let Some(attempt) = self.world.attempts.get_mut(container)
            && attempt.phase == Phase::Submitting
        {
            attempt.phase = Phase::Submitted(now);
        }
    }

    /// It may be that the nodes left out were the only ones for it.
    fn place_anywhere(&mut self, container: &ContainerUuid, now: Moment) {
        if self.nodes.shunned(now).next().is_some() {
            self.unplaceable.insert(container.clone());
        }
    }

    fn refused(&mut self, now: Moment) {
        if self.backoff.refused(now) {
            tracing::error!(
                "several attempts in a row came to nothing before they ran: nothing new is started for a while"
            );
        }
    }

    fn wait(&mut self, container: ContainerUuid, now: Moment, time: Duration) {
        self.world.retry_at.insert(container, Moment(now.0 + time));
    }

    /// The attempt is over, and its record in this state.
    fn released(
        &mut self,
        container: ContainerUuid,
        state: ContainerState,
        ended: bool,
        now: Moment,
    ) -> Option<Event> {
        let token = self.tokens.get(&container).cloned();
        let next = match state {
            ContainerState::Queued => self.failed(container.clone(), now),
            _ => {
                self.over(&container);
                None
            }
        };
        self.ended(&container, token, ended);
        next
    }

    /// The attempt is over and came to nothing. When the next begins, if there is one: other programs can tell it from
    /// the record alone.
    fn failed(&mut self, container: ContainerUuid, now: Moment) -> Option<Event> {
        let known = self.world.containers.get(&container);
        let is_wanted = known.is_some_and(|known| known.priority > 0);
        self.over(&container);
        let at = self.backoff.failed(&container, now);
        self.world.retry_at.insert(container.clone(), at);
        let seconds = seconds(at, now);
        let reason = format!("the next attempt begins in {seconds} s, or later");
        is_wanted.then_some(Event::DecidedNotToRun { container, reason })
    }

    /// The attempt is over; the next look tells the rest.
    fn over(&mut self, container: &ContainerUuid) {
        self.world.attempts.remove(container);
        self.tokens.remove(container);
        let known = self.world.containers.remove(container);
        if known.is_none_or(|known| !known.state.is_final()) {
            // The next look is to show it again.
            self.queue_listed = None;
        }
        self.unclear.remove(container);
        self.batches.forget(container);
        self.doubts.end(container);
    }
}
