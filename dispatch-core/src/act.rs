//! Acting: each action is carried out by itself and answers with what it observed.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{Client, ContainerUuid, Error, TokenUuid};
use serde_json::json;

use crate::attempts::{AttemptToken, Attempts};
use crate::events::Event;
use crate::needs::Needs;
use crate::plan::{Action, Reason};
use crate::scheduler::{Order, Scheduler, SchedulerError, Urgency};

/// How long an action's API call may be repeated: the next look plans it again anyway.
const BUDGET: Duration = Duration::from_secs(15);

/// What an action saw. The engine learns from it as from a look.
#[derive(Debug)]
pub enum Outcome {
    /// The lock is held by this attempt.
    Locked(AttemptToken),
    /// It was asked for the lock, and nobody knows whether it has it.
    LockUnclear(AttemptToken),
    /// The lock was not had.
    NotLocked,
    /// The scheduler has the job.
    Submitted,
    /// The scheduler may have the job.
    SubmitUnclear,
    /// The scheduler does not have it, and the container is Queued again.
    NotSubmitted,
    /// A job was told to stop.
    Stopping,
    /// The record left Locked or Running; this is its state now.
    Released(ContainerState),
    /// The attempt's token lives on.
    Renewed(AttemptToken),
    /// The attempt is over.
    Ended,
    /// Nothing is known to have changed.
    Failed,
}

/// The hands of the engine.
#[derive(Debug)]
pub struct Hands<S> {
    /// As the dispatcher.
    pub client: Client,
    /// The scheduler.
    pub scheduler: Arc<S>,
    /// Attempt tokens.
    pub attempts: Attempts,
}

impl<S> Clone for Hands<S> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            scheduler: self.scheduler.clone(),
            attempts: self.attempts.clone(),
        }
    }
}

/// An action with what it needs besides the plan.
#[derive(Debug)]
pub struct Task {
    /// What to do.
    pub action: Action,
    /// The token of the attempt it is about, if there is one.
    pub token: Option<AttemptToken>,
    /// What the container needs.
    pub needs: Needs,
    /// How a stop is meant.
    pub urgency: Urgency,
}

impl<S: Scheduler> Hands<S> {
    /// Carries out one task. The events are told in order.
    pub async fn carry_out(&self, task: Task) -> (Outcome, Vec<Event>) {
        let Task {
            action,
            token,
            needs,
            urgency,
        } = task;
        match action {
            Action::Start { container, etag } => self.start(container, &etag, &needs, token).await,
            Action::Submit { container, attempt } => match token {
                Some(token) if token.uuid == attempt => self.submit(container, token, needs).await,
                _ => (Outcome::Failed, vec![]),
            },
            Action::StopJob {
                container,
                job,
                reason,
            } => match self.scheduler.stop(&job, urgency).await {
                Ok(()) => (
                    Outcome::Stopping,
                    vec![Event::CleanedUpContainer { container, reason }],
                ),
                Err(error) => (
                    Outcome::Failed,
                    vec![Event::ActionFailed {
                        container,
                        error: error.to_string(),
                    }],
                ),
            },
            Action::Unlock {
                container,
                attempt,
                reason,
            } => self.unlock(container, attempt, token, reason).await,
            Action::Cancel {
                container, attempt, ..
            } => self.cancel(container, attempt, token).await,
            Action::EndAttempt { container, attempt } => match self.attempts.end(&attempt).await {
                Ok(()) => {
                    self.scheduler.forget(&container).await;
                    (Outcome::Ended, vec![])
                }
                Err(error) => (
                    Outcome::Failed,
                    vec![Event::ActionFailed {
                        container,
                        error: error.to_string(),
                    }],
                ),
            },
        }
    }

    /// Renews the token of an attempt that goes on.
    pub async fn renew(
        &self,
        container: ContainerUuid,
        token: AttemptToken,
    ) -> (Outcome, Vec<Event>) {
        match self.attempts.renew(&token).await {
            Ok(token) => (Outcome::Renewed(token), vec![]),
            Err(error) => (
                Outcome::Failed,
                vec![Event::ActionFailed {
                    container,
                    error: format!("the token of its attempt could not be renewed: {error}"),
                }],
            ),
        }
    }

    async fn start(
        &self,
        container: ContainerUuid,
        etag: &str,
        needs: &Needs,
        earlier: Option<AttemptToken>,
    ) -> (Outcome, Vec<Event>) {
        let again = earlier.is_some();
        let token = match earlier {
            Some(token) => Ok(token),
            None => self.attempts.mint(&container, needs.max_run_time).await,
        };
        let token = match token {
            Ok(token) => token,
            Err(error) => {
                return (
                    Outcome::NotLocked,
                    vec![Event::LockFailed {
                        container,
                        error: error.to_string(),
                    }],
                );
            }
        };
        let as_attempt = self.client.with_token(token.token.clone());
        let mut locked = as_attempt.lock_container(&container, etag).await.map(drop);
        let mut pending = locked.as_ref().is_err_and(Error::is_ambiguous);
        if locked.is_err() && (pending || again) {
            // This request, or an earlier one with the same token, may have taken effect: the record tells. While it
            // is Queued a lost request may still be on its way.
            match as_attempt.container(&container).await {
                Ok(record) if record.locked_by_uuid.as_ref() == Some(&token.uuid) => {
                    locked = Ok(())
                }
                Ok(record) => pending = record.state == ContainerState::Queued,
                Err(_) => pending = true,
            }
        }
        match locked {
            Ok(()) => {
                let event = Event::DecidedToRun {
                    container,
                    attempt: token.uuid.clone(),
                };
                (Outcome::Locked(token), vec![event])
            }
            Err(error) => {
                let event = Event::LockFailed {
                    container,
                    error: error.to_string(),
                };
                // Should a lost request take effect after all, only this token can undo it: it must live until then.
                let over = !pending && self.attempts.end(&token.uuid).await.is_ok();
                match over {
                    true => (Outcome::NotLocked, vec![event]),
                    false => (Outcome::LockUnclear(token), vec![event]),
                }
            }
        }
    }

    async fn submit(
        &self,
        container: ContainerUuid,
        token: AttemptToken,
        needs: Needs,
    ) -> (Outcome, Vec<Event>) {
        let order = Order {
            container: container.clone(),
            attempt: token.uuid.clone(),
            token: token.token.clone(),
            needs,
        };
        match self.scheduler.submit(order).await {
            Ok(job) => (
                Outcome::Submitted,
                vec![Event::Dispatched { container, job }],
            ),
            Err(error @ SchedulerError::Refused { .. }) => {
                let failed = Event::SubmitFailed {
                    container: container.clone(),
                    error: error.to_string(),
                };
                let attempt = token.uuid.clone();
                let (outcome, mut events) = self
                    .unlock(container, attempt, Some(token), Reason::JobGone)
                    .await;
                events.insert(0, failed);
                match outcome {
                    Outcome::Released(_) => (Outcome::NotSubmitted, events),
                    // Not unlocked: later listings will show no job, and the plan unlocks it then.
                    _ => (Outcome::SubmitUnclear, events),
                }
            }
            Err(error) => (
                Outcome::SubmitUnclear,
                vec![Event::SubmitFailed {
                    container,
                    error: error.to_string(),
                }],
            ),
        }
    }

    async fn unlock(
        &self,
        container: ContainerUuid,
        attempt: TokenUuid,
        token: Option<AttemptToken>,
        reason: Reason,
    ) -> (Outcome, Vec<Event>) {
        let Some(token) = token.filter(|t| t.uuid == attempt) else {
            return (Outcome::Failed, vec![]);
        };
        let ending = self.scheduler.ending(&container).await;
        let unlocked = self
            .client
            .with_token(token.token.clone())
            .unlock_container(&container)
            .await;
        match unlocked {
            // The attempt's token has expired: nobody can give the container back any more, only end it.
            Err(error) if error.is_denied() => {
                let reason = "the token of this attempt has expired before it could be given back";
                self.end_as_dispatcher(container, reason.to_owned()).await
            }
            Ok(reply) => {
                let event = match reason {
                    Reason::JobGone => Event::CleanedUpExecutor {
                        container: container.clone(),
                        reason: sentence(&ending.reason),
                    },
                    reason => Event::CleanedUpContainer {
                        container: container.clone(),
                        reason,
                    },
                };
                // The token goes before anybody can lock the container again with another of ours.
                let _ = self.attempts.end(&token.uuid).await;
                self.scheduler.forget(&container).await;
                (Outcome::Released(reply.state), vec![event])
            }
            Err(error) => (
                Outcome::Failed,
                vec![Event::ActionFailed {
                    container,
                    error: error.to_string(),
                }],
            ),
        }
    }

    async fn cancel(
        &self,
        container: ContainerUuid,
        attempt: TokenUuid,
        token: Option<AttemptToken>,
    ) -> (Outcome, Vec<Event>) {
        let ending = self.scheduler.ending(&container).await;
        let reason = sentence(&ending.reason);
        let status = json!({"state": "Cancelled", "runtime_status": {"error": reason, "errorDetail": ending.detail}});
        let by_attempt = match token.filter(|t| t.uuid == attempt) {
            Some(token) => {
                self.client
                    .with_token(token.token)
                    .update_container(&container, status)
                    .await
            }
            None => {
                self.client
                    .update_container(&container, json!({"state": "Cancelled"}))
                    .await
            }
        };
        match by_attempt {
            Err(error) if error.is_denied() => self.end_as_dispatcher(container, reason).await,
            Ok(()) => {
                // Where the server does not end it by itself. One that stays behind is found after a restart.
                let _ = self.attempts.end(&attempt).await;
                self.scheduler.forget(&container).await;
                (
                    Outcome::Released(ContainerState::Cancelled),
                    vec![Event::CleanedUpExecutor { container, reason }],
                )
            }
            Err(error) => (
                Outcome::Failed,
                vec![Event::ActionFailed {
                    container,
                    error: error.to_string(),
                }],
            ),
        }
    }

    /// Without the attempt's token only the bare state can be set.
    async fn end_as_dispatcher(
        &self,
        container: ContainerUuid,
        reason: String,
    ) -> (Outcome, Vec<Event>) {
        let bare = json!({"state": "Cancelled"});
        match self.client.update_container(&container, bare).await {
            Ok(()) => {
                self.scheduler.forget(&container).await;
                (
                    Outcome::Released(ContainerState::Cancelled),
                    vec![Event::CleanedUpExecutor { container, reason }],
                )
            }
            Err(error) => (
                Outcome::Failed,
                vec![Event::ActionFailed {
                    container,
                    error: error.to_string(),
                }],
            ),
        }
    }

    /// Writes an event to the API's `logs`; nothing depends on it.
    pub async fn record(&self, event: &Event) {
        let properties = json!({"text": event.sentence(), "dispatch_event": event.name()});
        let write = self
            .client
            .create_log(event.container().as_str(), "dispatch", properties);
        if let Ok(Err(error)) = tokio::time::timeout(BUDGET, write).await {
            tracing::debug!(container = %event.container(), %error, "the API did not take a log record");
        }
    }
}

fn sentence(reason: &str) -> String {
    match reason.is_empty() {
        true => {
            "crunch-run ended without recording a final state, and the scheduler does not tell why"
                .into()
        }
        false => reason.to_owned(),
    }
}
