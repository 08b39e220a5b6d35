//! The end of an attempt that its executor did not record: give the container back, or end it, and say why.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Token, TokenUuid};
use fail_points::fail_point;
use serde_json::json;

use super::{Hands, Outcome, Report};
use crate::api::{Api, Record, Row, UNDELIVERED_SINCE};
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

impl<A: Api, S: Scheduler> Hands<A, S> {
    pub(super) async fn unlock(
        &self,
        container: ContainerUuid,
        attempt: TokenUuid,
        token: Option<AttemptToken>,
        reason: Reason,
    ) -> Report {
        let Some(token) = token.filter(|t| t.uuid == attempt) else {
            return Report::new(Outcome::Failed, vec![]);
        };
        let mut failed_on = None;
        let mut story = None;
        if reason == Reason::JobGone {
            let ending = self.scheduler.ending(&container, &attempt).await;
            if let Some(why) = left_alone(&ending, false) {
                return doubtful(&container, &ending, why);
            }
            failed_on.clone_from(&ending.node);
            self.leave_word(&container, &token.token, &ending).await;
            story = Some(ending.story());
        }
        let told = |container, state| match story {
            Some(reason) => Event::CleanedUpExecutor {
                container,
                state,
                reason,
            },
            None => Event::GaveBack {
                container,
                state,
                reason,
            },
        };
        fail_point("dispatcher.before-unlock");
        let unlocked = self.api.unlock(&token.token, &container).await;
        fail_point("dispatcher.after-unlock");
        match unlocked {
            Err(error) if error.is_denied() => {
                let late = "the token of this attempt has expired before it could be given back";
                let ours = self.end_as_dispatcher(container.clone(), &attempt, late.to_owned());
                let (mut report, record) = ours.await;
                report.events.extend(record.and_then(|record| {
                    let is_free = record.locked_by.is_none();
                    match record.state {
                        // It was given back before, though that was not heard.
                        ContainerState::Queued if is_free => Some(told(container, record.state)),
                        // One that is given back at the end of the program may never have had the lock.
                        _ if reason != Reason::Draining => has_ended(container, &record),
                        _ => None,
                    }
                }));
                report
            }
            Ok(state) => {
                let ended = self.put_away(&container, &attempt).await.is_ok();
                let told = told(container, state.clone());
                let mut report = Report::new(Outcome::Released(state, ended), vec![told]);
                report.hints.failed_on = failed_on;
                report
            }
            Err(error) => Report::failed(&container, &error).after(&error),
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
                self.undelivered(&container, &token.token, &ending).await
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
        let cancelled = match token {
            Some(token) => {
                let log = self.last_log(&container, &ending).await;
                let mut change = json!({
                    "state": "Cancelled",
                    "runtime_status": {"error": reason, "errorDetail": ending.detail},
                });
                if let Some(log) = log {
                    change["log"] = log.into();
                }
                self.api
                    .update(Some(&token.token), &container, change)
                    .await
            }
            None => {
                let bare = json!({"state": "Cancelled"});
                self.api.update(None, &container, bare).await
            }
        };
        fail_point("dispatcher.after-cancel");
        match cancelled {
            Err(error) if error.is_denied() => {
                let ours = self.end_as_dispatcher(container.clone(), &attempt, reason.clone());
                let (mut report, record) = ours.await;
                report.events.extend(record.and_then(|record| {
                    let error = record.status.as_ref().and_then(|s| s.error.as_ref());
                    match error == Some(&reason) && record.state == ContainerState::Cancelled {
                        // It was cancelled before, though that was not heard.
                        true => Some(Event::CleanedUpExecutor {
                            container,
                            state: record.state,
                            reason,
                        }),
                        false => has_ended(container, &record),
                    }
                }));
                report
            }
            Ok(()) => self.cancelled(container, &attempt, reason).await,
            Err(error) => Report::failed(&container, &error).after(&error),
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

    /// Says in the record, once, why it stays as it is though nothing runs any more. Nobody else writes there.
    async fn tell_doubt(&self, container: &ContainerUuid, by: &Token, why: &str) {
        let Ok(Row::Container(record)) = self.api.record(None, container).await else {
            return;
        };
        let mut status = record.status.map(|status| *status).unwrap_or_default();
        if status.activity.as_deref() == Some(why) {
            return;
        }
        status.activity = Some(why.to_owned());
        let change = json!({"runtime_status": status});
        if let Err(error) = self.api.update(Some(by), container, change).await {
            tracing::debug!(%container, %error, "its record does not say what is in doubt");
        }
    }

    /// Results that are kept on the node may still be delivered, which takes the record as it is and the attempt's
    /// token. The record says so: a scheduler forgets its jobs, and a dispatcher may be restarted. None: there are no
    /// such results, or the attempt is over.
    async fn undelivered(
        &self,
        container: &ContainerUuid,
        by: &Token,
        ending: &Ending,
    ) -> Option<Report> {
        let now = self.api.now();
        let record = match self.api.record(None, container).await {
            Ok(Row::Container(record)) => record,
            // The cancel that follows would do no better.
            Ok(Row::Unreadable(_, why)) => return Some(Report::failed(container, why)),
            Err(error) => return Some(Report::failed(container, &error).after(&error)),
        };
        if let Some(since) = record.undelivered_since() {
            let waited = now.duration_since(since).unsigned_abs();
            return Some(Report::new(Outcome::Undelivered(waited), vec![]));
        }
        if !ending.undelivered {
            return None;
        }
        let place = ending.node.as_deref().unwrap_or("its node");
        let reason = ending.sentence();
        let mut status = record.status.map(|status| *status).unwrap_or_default();
        status.activity = Some(format!(
            "its results are on {place} and wait for an administrator to deliver them"
        ));
        status.warning = Some(reason.to_owned());
        status.warning_detail = Some(ending.detail.clone());
        let since = now.to_string().into();
        status.extra.insert(UNDELIVERED_SINCE.to_owned(), since);
        let noted = self
            .api
            .update(Some(by), container, json!({"runtime_status": status}))
            .await;
        match noted {
            Ok(()) => {
                let (container, reason) = (container.clone(), reason.to_owned());
                Some(Report::new(
                    Outcome::Undelivered(Duration::ZERO),
                    vec![Event::ResultsUndelivered { container, reason }],
                ))
            }
            Err(error) if error.is_denied() => None,
            Err(error) => Some(Report::failed(container, &error).after(&error)),
        }
    }

    /// The server does not let the attempt do this. If it still holds the lock, its token has ended, and nobody can
    /// give the container back any more, only end it, and only by the bare state. Else the container is not ours any
    /// more: an earlier request took effect though its answer was lost, and another may hold it by now; then its record
    /// tells what there is to be told.
    async fn end_as_dispatcher(
        &self,
        container: ContainerUuid,
        attempt: &TokenUuid,
        reason: String,
    ) -> (Report, Option<Box<Record>>) {
        match self.api.record(None, &container).await {
            Ok(Row::Container(record)) if record.locked_by.as_ref() == Some(attempt) => {}
            Ok(Row::Container(record)) => {
                let ended = self.put_away(&container, attempt).await.is_ok();
                let outcome = Outcome::Released(record.state.clone(), ended);
                return (Report::new(outcome, vec![]), Some(record));
            }
            Ok(Row::Unreadable(_, why)) => return (Report::failed(&container, why), None),
            Err(error) => return (Report::failed(&container, &error).after(&error), None),
        }
        let bare = json!({"state": "Cancelled"});
        let report = match self.api.update(None, &container, bare).await {
            Ok(()) => self.cancelled(container, attempt, reason).await,
            Err(error) => Report::failed(&container, &error).after(&error),
        };
        (report, None)
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
            let earlier = match self.api.record(None, container).await {
                Ok(Row::Container(record)) => record.log.map(|log| log.to_string()),
                _ => None,
            };
            let text = last_log::text(container, self.scheduler.name(), ending, self.api.now());
            fail_point("dispatcher.before-last-log");
            let saved = self.api.save_log(container, earlier, text.clone()).await;
            fail_point("dispatcher.after-last-log");
            match saved {
                // Better this alone than nothing.
                Err(_) => self.api.save_log(container, None, text).await,
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
