//! Acting: each action is carried out by itself and answers with what it observed.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error, TokenUuid};
use fail_points::fail_point;
use futures_util::future::join_all;
use serde_json::json;

use crate::api::{Api, Row};
use crate::attempts::{AttemptToken, Attempts};
use crate::credentials::{Credentials, GatewayKey};
use crate::events::Event;
use crate::needs::Needs;
use crate::plan::{Action, Reason};
use crate::scheduler::{Order, Scheduler, SchedulerError, Urgency};
use crate::world::JobId;

mod holder;
mod put_away;
mod release;
mod start;
mod stop;
mod undelivered;

pub(crate) use start::is_no_such_call;
pub use stop::Stop;

/// What an action saw. The engine learns from it as from a look.
#[derive(Debug)]
pub enum Outcome {
    /// The lock is held by this attempt.
    Locked(AttemptToken),
    /// It was asked for the lock, and nobody knows whether it has it.
    LockUnclear(AttemptToken),
    /// The lock was not had.
    NotLocked,
    /// Nor is it known whether this token, made for it, is ended: it must not be used again.
    NotLockedWith(AttemptToken),
    /// There is no token to lock with, and will not be.
    MayNotMint,
    /// The scheduler has the job.
    Submitted,
    /// The scheduler may have the job.
    SubmitUnclear,
    /// The scheduler does not have it, and is to be asked again, for this one alone.
    NotTogether,
    /// The scheduler does not have it, and the record is not Locked by this attempt any more; its state now, and whether the attempt's
    /// token is ended.
    NotSubmitted(ContainerState, bool),
    /// This job was told to stop.
    Stopping(JobId),
    /// It could not be told.
    NotStopped(JobId),
    /// The job is gone and its results have been waiting on its node, for so long by now.
    Undelivered(Duration),
    /// The record left Locked or Running; its state now, and whether the attempt's token is ended.
    Released(ContainerState, bool),
    /// The attempt is over, but its token may not be ended yet.
    NotEnded,
    /// The attempt's token lives on.
    Renewed(AttemptToken),
    /// The attempt is over.
    Ended,
    /// A token of an earlier attempt is ended.
    Swept(TokenUuid),
    /// A left-over token is disabled, and held no lock then.
    Disabled(AttemptToken),
    /// A token of an earlier attempt holds the lock after all.
    Holds(AttemptToken),
    /// The record says what its job waits for.
    Told(Arc<str>),
    /// It is not certain that its job has ended, or how: the scheduler is to be asked again.
    Doubtful {
        /// It has ended; only of its results nothing is known.
        results: bool,
    },
    /// Nothing is known to have changed.
    Failed,
}

/// The hands of the engine.
#[derive(Debug)]
pub struct Hands<A, S> {
    /// The API server, as the dispatcher.
    pub api: A,
    /// The scheduler.
    pub scheduler: Arc<S>,
    /// Attempt tokens.
    pub attempts: Attempts<A>,
    /// What the secrets of container gateways are derived from, where the dispatcher has it.
    pub gateway: Option<GatewayKey>,
}

impl<A: Clone, S> Clone for Hands<A, S> {
    fn clone(&self) -> Self {
        Self {
            api: self.api.clone(),
            scheduler: self.scheduler.clone(),
            attempts: self.attempts.clone(),
            gateway: self.gateway.clone(),
        }
    }
}

/// What to do with what is left of a container's job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leavings {
    /// Another attempt may need it.
    Keep,
    /// Nobody needs it.
    Remove,
}

/// Something to carry out, with what it needs.
#[derive(Debug)]
pub enum Task {
    /// An action of the plan.
    Act {
        /// What to do.
        action: Action,
        /// The token of the attempt it is about, if there is one.
        token: Option<AttemptToken>,
        /// What the container needs.
        needs: Needs,
        /// It was asked in vain for so long whether its job left results that none are waited for any more.
        insists: bool,
        /// How it ended, where a look has shown that.
        end: Option<String>,
        /// Its job was listed at least once, or may have been: false after a submission that came to nothing.
        listed: bool,
    },
    /// Mint a token and lock with it, for many containers at once.
    Start(Vec<Start>),
    /// Hand attempts to the scheduler, all at once.
    Submit(Vec<Submission>),
    /// End jobs, all at once.
    Stop(Vec<Stop>, Urgency),
    /// Renew the token of an attempt that goes on.
    Renew(ContainerUuid, AttemptToken),
    /// Write into the record what its job waits for.
    Tell {
        /// The container.
        container: ContainerUuid,
        /// Its attempt's token.
        token: AttemptToken,
        /// What its users read.
        words: Arc<str>,
    },
    /// End a token that was left over from an earlier attempt.
    Sweep(LeftOver),
}

/// A token of an earlier attempt.
#[derive(Debug)]
pub struct LeftOver {
    /// The container.
    pub container: ContainerUuid,
    /// The token.
    pub token: AttemptToken,
    /// What is left of its job goes too, where nothing of the container goes on.
    pub leavings: Leavings,
    /// A lock that was asked for with it may still be granted.
    pub may_lock: bool,
}

/// A container to be started together with others.
#[derive(Debug)]
pub struct Start {
    /// The container.
    pub container: ContainerUuid,
    /// The version seen.
    pub etag: String,
    /// Its run time limit in seconds.
    pub max_run_time: Option<u64>,
}

/// One attempt to be handed over.
#[derive(Debug)]
pub struct Submission {
    /// The container.
    pub container: ContainerUuid,
    /// The token of the attempt that holds its lock.
    pub token: AttemptToken,
    /// What the container needs.
    pub needs: Needs,
    /// Nodes to leave out.
    pub avoid: Vec<String>,
}

impl Submission {
    fn order(&self, gateway: Option<&GatewayKey>) -> Order {
        Order {
            container: self.container.clone(),
            attempt: self.token.uuid.clone(),
            credentials: Credentials {
                token: self.token.token.clone(),
                gateway_secret: gateway.map(|key| key.secret(&self.container)),
            },
            needs: self.needs.clone(),
            avoid: self.avoid.clone(),
        }
    }
}

impl Task {
    /// Whether it waits for the scheduler's answer.
    pub fn asks_scheduler(&self) -> bool {
        match self {
            Task::Submit(_) | Task::Stop(..) => true,
            Task::Act { action, .. } => action.asks_scheduler(),
            Task::Start(_) | Task::Renew(..) | Task::Tell { .. } | Task::Sweep(_) => false,
        }
    }

    /// The containers it is about: one, but for a batch.
    pub fn containers(&self) -> Vec<&ContainerUuid> {
        match self {
            Task::Act { action, .. } => vec![action.container()],
            Task::Start(batch) => batch.iter().map(|one| &one.container).collect(),
            Task::Submit(batch) => batch.iter().map(|one| &one.container).collect(),
            Task::Stop(batch, _) => batch.iter().map(|one| &one.container).collect(),
            Task::Renew(container, _) | Task::Tell { container, .. } => vec![container],
            Task::Sweep(left_over) => vec![&left_over.container],
        }
    }
}

/// What came of a task.
#[derive(Debug)]
pub struct Report {
    /// What was seen.
    pub outcome: Outcome,
    /// What is to be told, in order.
    pub events: Vec<Event>,
    /// What else is to be learnt from it.
    pub hints: Hints,
}

/// What an action shows besides its outcome.
#[derive(Debug, Default)]
pub struct Hints {
    /// The server asked for less.
    pub overloaded: bool,
    /// The server does not take many at once.
    pub one_by_one: bool,
    /// The container came to nothing on this node before it ran.
    pub failed_on: Option<String>,
}

impl Report {
    fn new(outcome: Outcome, events: Vec<Event>) -> Self {
        Self {
            outcome,
            events,
            hints: Hints::default(),
        }
    }

    /// Something failed that a later look will plan again.
    fn failed(container: &ContainerUuid, error: impl ToString) -> Self {
        let (container, error) = (container.clone(), error.to_string());
        Self::new(
            Outcome::Failed,
            vec![Event::ActionFailed { container, error }],
        )
    }

    fn after(mut self, error: &Error) -> Self {
        self.hints.overloaded |= error.is_overload();
        self
    }
}

impl<A: Api, S: Scheduler> Hands<A, S> {
    /// Carries out one task; what came of it for each of its containers.
    pub async fn carry_out(&self, task: Task) -> Vec<(ContainerUuid, Report)> {
        let (container, report) = match task {
            Task::Start(batch) => return self.start_all(batch).await,
            Task::Submit(batch) => return self.submit(batch).await,
            Task::Stop(batch, urgency) => return self.stop(batch, urgency).await,
            Task::Act {
                action,
                token,
                needs,
                insists,
                end,
                listed,
            } => {
                let container = action.container().clone();
                let report = match action {
                    Action::Unlock {
                        container,
                        attempt,
                        reason,
                    } => self.unlock(container, attempt, token, reason, listed).await,
                    Action::EndAttempt {
                        container,
                        attempt,
                        ended,
                    } => self.end_attempt(container, &attempt, ended, end).await,
                    action => self.act(action, token, needs, insists).await,
                };
                (container, report)
            }
            Task::Renew(container, token) => {
                let report = self.renew(&container, &token).await;
                (container, report)
            }
            Task::Tell {
                container,
                token,
                words,
            } => {
                let report = self.tell(&container, &token, words).await;
                (container, report)
            }
            Task::Sweep(left_over) => {
                let container = left_over.container.clone();
                (container, self.sweep(left_over).await)
            }
        };
        vec![(container, report)]
    }

    async fn renew(&self, container: &ContainerUuid, token: &AttemptToken) -> Report {
        match self.attempts.renew(token).await {
            Ok(token) => Report::new(Outcome::Renewed(token), vec![]),
            Err(error) => {
                let said = format!("the token of its attempt could not be renewed: {error}");
                Report::failed(container, said).after(&error)
            }
        }
    }

    async fn tell(&self, container: &ContainerUuid, by: &AttemptToken, words: Arc<str>) -> Report {
        // What became of an earlier attempt stays: an update replaces all of it.
        let record = match self.api.record(Some(&by.token), container).await {
            Ok(Row::Container(record)) if record.state == ContainerState::Locked => record,
            // It does not wait any more, or it is not known to.
            Ok(_) => return Report::new(Outcome::Told(words), vec![]),
            Err(error) => return Report::failed(container, &error).after(&error),
        };
        let mut status = record.status.map(|status| *status).unwrap_or_default();
        status.activity = Some(words.to_string());
        let change = json!({"runtime_status": status});
        match self.api.update(Some(&by.token), container, change).await {
            Ok(()) => Report::new(Outcome::Told(words), vec![]),
            Err(error) => Report::failed(container, &error).after(&error),
        }
    }

    async fn act(
        &self,
        action: Action,
        token: Option<AttemptToken>,
        needs: Needs,
        insists: bool,
    ) -> Report {
        match action {
            Action::Start { container, etag } => self.start(container, &etag, &needs, token).await,
            // These are tasks of their own.
            Action::Submit { .. }
            | Action::StopJob { .. }
            | Action::Unlock { .. }
            | Action::EndAttempt { .. }
            | Action::EndLeftOver { .. } => Report::new(Outcome::Failed, vec![]),
            Action::Cancel {
                container,
                attempt,
                reason,
            } => {
                self.cancel(container, attempt, token, reason, insists)
                    .await
            }
        }
    }

    async fn submit(&self, batch: Vec<Submission>) -> Vec<(ContainerUuid, Report)> {
        let gateway = self.gateway.as_ref();
        let orders = batch.iter().map(|one| one.order(gateway)).collect();
        fail_point("dispatcher.before-submit");
        let mut answers = self.scheduler.submit_all(orders).await.into_iter();
        fail_point("dispatcher.after-submit");
        let answered = batch.into_iter().map(|submission| {
            let container = submission.container.clone();
            // Of what was not answered nothing is known.
            let answer = answers.next().unwrap_or(Err(SchedulerError::Ambiguous {
                scheduler: self.scheduler.name(),
                container: container.clone(),
                detail: "it gave no answer for this one".into(),
            }));
            async move { (container, self.submitted(submission, answer).await) }
        });
        join_all(answered).await
    }

    /// What follows from the scheduler's answer.
    async fn submitted(
        &self,
        submission: Submission,
        answer: Result<JobId, SchedulerError>,
    ) -> Report {
        let Submission {
            container, token, ..
        } = submission;
        let error = match answer {
            Ok(job) => {
                return Report::new(
                    Outcome::Submitted,
                    vec![Event::Dispatched { container, job }],
                );
            }
            Err(error) => error,
        };
        if matches!(error, SchedulerError::NotTogether { .. }) {
            tracing::debug!(%container, %error, "it is submitted alone");
            return Report::new(Outcome::NotTogether, vec![]);
        }
        let told = Event::SubmitFailed {
            container: container.clone(),
            error: error.to_string(),
        };
        if !matches!(error, SchedulerError::Refused { .. }) {
            return Report::new(Outcome::SubmitUnclear, vec![told]);
        }
        let attempt = token.uuid.clone();
        let mut report = self
            .unlock(container, attempt, Some(token), Reason::Refused, false)
            .await;
        report.events.insert(0, told);
        report.outcome = match report.outcome {
            Outcome::Released(state, ended) => Outcome::NotSubmitted(state, ended),
            // Not unlocked: later listings will show no job, and the plan unlocks it then.
            _ => Outcome::SubmitUnclear,
        };
        report
    }
}
