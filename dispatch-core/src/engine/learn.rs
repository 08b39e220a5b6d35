//! What the engine makes of a finished action: an observation, newer than the last look.

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;

use super::{Engine, REST};
use crate::act::Outcome;
use crate::presence::live;
use crate::scheduler::Scheduler;
use crate::world::{Attempt, Holder, Moment, Phase};

impl<S: Scheduler> Engine<S> {
    /// Learns from a finished action.
    pub(super) fn learn(&mut self, container: ContainerUuid, outcome: Outcome) {
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
                self.world
                    .retry_at
                    .insert(container.clone(), Moment(now.0 + REST));
                self.tokens.insert(container, token);
            }
            Outcome::NotLocked => {
                self.over(&container);
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
            Outcome::Renewed(token) => drop(self.tokens.insert(container, token)),
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
}
