//! From one life of a dispatcher to the next: taking up the attempts of the last, giving back what this one leaves.

use arvados_client::{ContainerUuid, Error, TokenUuid};
use tokio::sync::mpsc;

use super::Engine;
use crate::act::Task;
use crate::events::Event;
use crate::needs::Needs;
use crate::plan::{Action, Reason};
use crate::scheduler::{Scheduler, Urgency};
use crate::world::{Attempt, Phase};

impl<S: Scheduler> Engine<S> {
    /// Finds the attempts of an earlier life of this dispatcher.
    pub(super) async fn recover(&mut self) -> bool {
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

    /// Unlocks what was locked and not submitted: nobody else may take it while it is locked.
    pub(super) async fn give_back(&mut self, records: &mpsc::Sender<Event>) {
        let locked: Vec<(ContainerUuid, TokenUuid)> = self
            .world
            .attempts
            .iter()
            .filter(|(_, attempt)| matches!(attempt.phase, Phase::Locked | Phase::Unclear(_)))
            .map(|(container, attempt)| (container.clone(), attempt.token.clone()))
            .collect();
        for (container, attempt) in locked {
            let task = Task {
                token: self.tokens.get(&container).cloned(),
                needs: Needs::default(),
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
}
