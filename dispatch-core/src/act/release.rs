//! The end of an attempt that its executor did not record: give the container back, or end it, and say why.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Token, TokenUuid};
use fail_points::fail_point;
use serde_json::json;

use super::holder::HolderError;
use super::{Hands, Outcome, Report};
use crate::api::{Api, Record};
use crate::attempts::AttemptToken;
use crate::events::Event;
use crate::last_log;
use crate::plan::Reason;
use crate::scheduler::{Doubt, Ending, Scheduler};

/// How long an action's API call may be repeated: the next look plans it again anyway.
const BUDGET: Duration = Duration::from_secs(15);

/// Why a container is left alone although two listings did not show its job: they can be wrong in the same way.
fn left_alone(ending: &Ending, results_count: bool) -> Option<String> {
    let missed = "two listings did not show its job";
    match ending.doubt.as_ref()? {
        Doubt::Alive => Some(format!(
            "{missed}, but the scheduler knows it: it is left alone"
        )),
        Doubt::MayBeAlive(why) => Some(format!(
            "{missed}, and asked for it by name the scheduler did not answer: {why}"
        )),
        Doubt::MayHaveResults(why) if results_count => Some(format!(
            "it cannot be told whether its job left results on its node: {why}"
        )),
        Doubt::MayHaveResults(_) => None,
    }
}

/// Of a record that somebody else has brought to its end.
fn has_ended(container: ContainerUuid, record: &Record) -> Option<Event> {
    let how = record.state.is_final().then(|| record.end())?;
    Some(Event::Ended { container, how })
}

fn doubtful(container: &ContainerUuid, ending: &Ending, why: String) -> Report {
    let mut report = Report::failed(container, why);
    let results = matches!(ending.doubt, Some(Doubt::MayHaveResults(_)));
    report.outcome = Outcome::Doubtful { results };
    report
}

/// What is told once the lock was given back: an executor that ran is gone, or there was none.
struct GivenBack {
    reason: Reason,
    /// How its job ended, and whether it is certain that it never began; none: the scheduler was not asked.
    job: Option<(String, bool)>,
}

impl GivenBack {
    fn event(self, container: ContainerUuid, state: ContainerState) -> Event {
        match self.job {
            Some((reason, false)) => Event::CleanedUpExecutor {
                container,
                state,
                reason,
            },
            job => Event::GaveBack {
                container,
                state,
                reason: self.reason,
                job: job.map(|(story, _)| story),
            },
        }
    }
}

impl<A: Api, S: Scheduler> Hands<A, S> {
    /// `listed`: the scheduler showed the attempt's job at least once, or may have.
    pub(super) async fn unlock(
        &self,
        container: ContainerUuid,
        attempt: TokenUuid,
        token: Option<AttemptToken>,
        reason: Reason,
        listed: bool,
    ) -> Report {
        let Some(token) = token.filter(|t| t.uuid == attempt) else {
            return Report::new(Outcome::Failed, vec![]);
        };
        let mut failed_on = None;
        let mut job = None;
        if reason == Reason::JobGone {
            let ending = self.scheduler.ending(&container, &attempt).await;
            if let Some(why) = left_alone(&ending, false) {
                return doubtful(&container, &ending, why);
            }
            failed_on.clone_from(&ending.node);
            self.leave_word(&container, &token.token, &ending).await;
            job = Some((ending.story(), ending.never_began || !listed));
        }
        let told = GivenBack { reason, job };
        fail_point("dispatcher.before-unlock");
        let call = || self.api.unlock(&token.token, &container);
        let unlocked = self.as_holder(&container, &token, call).await;
        fail_point("dispatcher.after-unlock");
        match unlocked {
            Ok(state) => {
                let ended = self.put_away(&container, &attempt).await.is_ok();
                let told = told.event(container, state.clone());
                let mut report = Report::new(Outcome::Released(state, ended), vec![told]);
                report.hints.failed_on = failed_on;
                report
            }
            Err(HolderError::NotHolder(record)) => {
                let is_free = record.locked_by.is_none();
                let event = match &record.state {
                    // It was given back before, though that was not heard.
                    ContainerState::Queued if is_free => {
                        Some(told.event(container.clone(), record.state.clone()))
                    }
                    // One that is given back at the end of the program may never have had the lock.
                    _ if reason != Reason::Draining => has_ended(container.clone(), &record),
                    _ => None,
                };
                self.not_ours(&container, &attempt, record, event).await
            }
            Err(HolderError::Expired) => {
                let late = "the token of this attempt has expired before it could be given back";
                self.cancel_as_dispatcher(container, &attempt, late.to_owned())
                    .await
            }
            Err(HolderError::Unreadable(why)) => Report::failed(&container, why),
            Err(HolderError::Api(error)) => Report::failed(&container, &error).after(&error),
        }
    }

    pub(super) async fn cancel(
        &self,
        container: ContainerUuid,
        attempt: TokenUuid,
        token: Option<AttemptToken>,
        reason: Reason,
        insists: bool,
    ) -> Report {
        let ending = self.scheduler.ending(&container, &attempt).await;
        let token = token.filter(|t| t.uuid == attempt);
        let may_have_ended = !matches!(ending.doubt, Some(Doubt::Alive | Doubt::MayBeAlive(_)));
        // What an earlier life of this dispatcher noted is in the record.
        let noted = match (reason, &token) {
            (Reason::JobGone, Some(token)) if may_have_ended => {
                self.undelivered(&container, token, &ending).await
            }
            _ => None,
        };
        if let Some(report) = noted {
            return report;
        }
        if let Some(why) = left_alone(&ending, reason == Reason::JobGone && !insists) {
            if let (Some(Doubt::MayHaveResults(_)), Some(token)) = (&ending.doubt, &token) {
                self.tell_doubt(&container, &token.token, &why).await;
            }
            return doubtful(&container, &ending, why);
        }
        let reason = match reason {
            Reason::Undelivered => format!("{}; and nobody did so in time", ending.sentence()),
            _ => ending.sentence().to_owned(),
        };
        fail_point("dispatcher.before-cancel");
        let cancelled = match &token {
            Some(token) => {
                let log = self.last_log(&container, &ending).await;
                let mut change = json!({
                    "state": "Cancelled",
                    "runtime_status": {"error": reason, "errorDetail": ending.detail},
                });
                if let Some(log) = log {
                    change["log"] = log.into();
                }
                let by = Some(&token.token);
                let call = || self.api.update(by, &container, change.clone());
                self.as_holder(&container, token, call).await
            }
            None => {
                let bare = json!({"state": "Cancelled"});
                let cancelled = self.api.update(None, &container, bare).await;
                cancelled.map_err(HolderError::Api)
            }
        };
        fail_point("dispatcher.after-cancel");
        match cancelled {
            Ok(()) => self.cancelled(container, &attempt, reason).await,
            Err(HolderError::NotHolder(record)) => {
                let error = record.status.as_ref().and_then(|s| s.error.as_ref());
                let event =
                    match error == Some(&reason) && record.state == ContainerState::Cancelled {
                        // It was cancelled before, though that was not heard.
                        true => Some(Event::CleanedUpExecutor {
                            container: container.clone(),
                            state: record.state.clone(),
                            reason,
                        }),
                        false => has_ended(container.clone(), &record),
                    };
                self.not_ours(&container, &attempt, record, event).await
            }
            Err(HolderError::Expired) => {
                self.cancel_as_dispatcher(container, &attempt, reason).await
            }
            Err(HolderError::Unreadable(why)) => Report::failed(&container, why),
            Err(HolderError::Api(error)) => Report::failed(&container, &error).after(&error),
        }
    }

    /// Its record is Cancelled now.
    async fn cancelled(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        reason: String,
    ) -> Report {
        let ended = self.put_away(&container, attempt).await.is_ok();
        let state = ContainerState::Cancelled;
        let told = Event::CleanedUpExecutor {
            container,
            state: state.clone(),
            reason,
        };
        Report::new(Outcome::Released(state, ended), vec![told])
    }

    /// The attempt does not hold the container any more: an earlier request took effect though its answer was lost, and
    /// another may hold it by now.
    async fn not_ours(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
        record: Box<Record>,
        event: Option<Event>,
    ) -> Report {
        let ended = self.put_away(container, attempt).await.is_ok();
        let outcome = Outcome::Released(record.state.clone(), ended);
        Report::new(outcome, event.into_iter().collect())
    }

    /// The attempt holds the lock, and its token has ended: nobody can give the container back any more, only end it, and
    /// only by the bare state.
    async fn cancel_as_dispatcher(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        reason: String,
    ) -> Report {
        let bare = json!({"state": "Cancelled"});
        match self.api.update(None, &container, bare).await {
            Ok(()) => self.cancelled(container, attempt, reason).await,
            Err(error) => Report::failed(&container, &error).after(&error),
        }
    }

    /// Says in the record what became of an attempt that never ran, so that nothing ends without a word when the
    /// server gives the container up.
    async fn leave_word(&self, container: &ContainerUuid, by: &Token, ending: &Ending) {
        let Some(log) = self.last_log(container, ending).await else {
            return;
        };
        let status = json!({"warning": ending.sentence(), "warningDetail": ending.detail});
        let change = json!({"log": log, "runtime_status": status});
        let update = self.api.update(Some(by), container, change);
        if let Ok(Err(error)) = tokio::time::timeout(BUDGET, update).await {
            tracing::warn!(%container, %error, "its record did not take what became of its job");
        }
    }

    /// Saves a log with what is known of the end of the container's executor, beside what that saved itself. Nothing
    /// else waits for it for long.
    async fn last_log(&self, container: &ContainerUuid, ending: &Ending) -> Option<String> {
        let save = async {
            let text = last_log::text(container, self.scheduler.name(), ending, self.api.now());
            fail_point("dispatcher.before-last-log");
            let saved = self.api.save_log(container, true, text.clone()).await;
            fail_point("dispatcher.after-last-log");
            match saved {
                // Better this alone than nothing.
                Err(_) => self.api.save_log(container, false, text).await,
                saved => saved,
            }
        };
        match tokio::time::timeout(BUDGET, save).await {
            Ok(Ok(log)) => Some(log),
            Ok(Err(error)) => {
                tracing::warn!(%container, %error, "no log could be saved for it");
                None
            }
            Err(_) => {
                tracing::warn!(%container, "no log could be saved for it in time");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only an executor that ran can have crashed.
    #[test]
    fn a_job_that_never_began_is_no_crashed_executor() {
        let gone = |reason, job| GivenBack { reason, job };
        let story = |never_began| Some(("its job is gone".to_owned(), never_began));
        let (crashed, abandoned) = (
            "cleaned_up_crashed_executor",
            "cleaned_up_abandoned_container",
        );
        for (what, given_back, name) in [
            ("never submitted", gone(Reason::Refused, None), abandoned),
            (
                "cancelled while it waited",
                gone(Reason::JobGone, story(true)),
                abandoned,
            ),
            (
                "ran and crashed",
                gone(Reason::JobGone, story(false)),
                crashed,
            ),
        ] {
            let container = ContainerUuid::generate("zzzzz");
            let event = given_back.event(container, ContainerState::Queued);
            assert_eq!(event.name(), name, "{what}");
        }
    }

    #[test]
    fn what_is_not_certain_is_left_alone() {
        let why = || "timed out".to_owned();
        for (doubt, unlocked, cancelled) in [
            (None, true, true),
            (Some(Doubt::Alive), false, false),
            (Some(Doubt::MayBeAlive(why())), false, false),
            (Some(Doubt::MayHaveResults(why())), true, false),
        ] {
            let ending = Ending {
                doubt,
                ..Ending::default()
            };
            for (results_count, acted) in [(false, unlocked), (true, cancelled)] {
                let left = left_alone(&ending, results_count);
                assert_eq!(left.is_none(), acted, "{ending:?}: {left:?}");
            }
        }
    }
}
