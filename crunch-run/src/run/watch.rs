//! While the command runs: wait for its end, and for every reason to end it sooner.

use std::convert::Infallible;
use std::pin::pin;
use std::time::{Duration, Instant};

use arvados_client::records::{Container as Record, ContainerState};
use arvados_client::retry::RefusalTimer;
use arvados_client::{Client, ContainerUuid, Error, TokenUuid};
use fail_points::fail_point;

use crate::engine::{Container, Exit};
use crate::limits::{Allowance, Overrun};
use crate::logs::Journal;
use crate::mounts::arv_mount::ArvMount;
use crate::own_record;
use crate::signals::Signals;
use crate::stats::Source;
use crate::status::Status;
use crate::verdict::{Cause, Ending};

/// Between two looks at the record; the dispatcher's TERM comes sooner, but it may be gone.
const LOOK: Duration = Duration::from_secs(10);
/// How long one look may take.
const LOOK_BUDGET: Duration = Duration::from_secs(20);
/// The last look, at why we were asked to stop, may take as long as the stopping does, and this at least.
const REASON_BUDGET: Duration = Duration::from_secs(3);

/// The part of the maximum run time after which its end is announced.
const WARN_AT: f64 = 0.9;

/// How the watch ended.
#[derive(Debug)]
pub enum Watched {
    Ended(Ending),
    /// The record is not ours any more; the command was stopped.
    NotOurs(String),
}

/// What to watch.
pub struct Watch<'a> {
    pub container: &'a dyn Container,
    pub client: &'a Client,
    pub uuid: &'a ContainerUuid,
    pub own_token: &'a TokenUuid,
    /// `None` is no limit.
    pub max_run_time: Option<Duration>,
    pub grace: Duration,
    pub allowance: &'a Allowance,
    /// What serves the inputs, where that is a program.
    pub tree: Option<&'a ArvMount>,
    pub signals: &'a Signals,
    pub status: &'a Status,
    pub journal: &'a Journal,
}

enum Reason {
    Stop(Cause),
    NotOurs(String),
}

impl Watch<'_> {
    /// Returns when the command does not run any more.
    pub async fn to_the_end(&self) -> Watched {
        let reason = tokio::select! {
            // An end that is there already is the truth, whatever else happened meanwhile.
            biased;
            exit = self.container.wait() => {
                return Watched::Ended(match exit {
                    Ok(exit) => Ending::Exited(exit),
                    Err(error) => Ending::Lost { reason: error.to_string() },
                });
            }
            asked = self.signals.stop.asked() => Reason::Stop(Cause::Signal(asked.by)),
            limit = self.time_is_over() => Reason::Stop(Cause::MaxRunTime(limit)),
            over = self.too_much_is_used() => Reason::Stop(Cause::Limit(over)),
            how = self.inputs_are_lost() => Reason::Stop(Cause::InputsLost(how)),
            reason = self.record_says_no() => reason,
            never = self.preemption_notices() => match never {},
            never = self.trouble_with_inputs() => match never {},
        };
        match reason {
            Reason::Stop(Cause::Signal(name)) => {
                self.journal.say(format!("caught signal: {name}"));
                // Whoever sent it may soon send KILL.
                self.signals.save.notify_one();
                let (exit, on_hold) = self.end_and_learn_why().await;
                let cause = if on_hold {
                    Cause::PriorityZero
                } else {
                    Cause::Signal(name)
                };
                Watched::Ended(Ending::Stopped { cause, exit })
            }
            Reason::Stop(cause) => {
                self.journal.say(match &cause {
                    Cause::MaxRunTime(_) => {
                        "maximum run time exceeded. Stopping container.".to_owned()
                    }
                    Cause::Limit(overrun) => {
                        format!("The container uses {overrun}. Stopping container.")
                    }
                    Cause::InputsLost(_) => {
                        "arv-mount exited while container is still running. Stopping container."
                            .to_owned()
                    }
                    _ => "The container's priority is 0. Stopping container.".to_owned(),
                });
                let exit = self.end().await;
                Watched::Ended(Ending::Stopped { cause, exit })
            }
            Reason::NotOurs(text) => {
                self.journal.say(format!("{text}. Stopping container."));
                self.end().await;
                Watched::NotOurs(text)
            }
        }
    }

    async fn end(&self) -> Option<Exit> {
        self.journal.say("stopping container");
        fail_point("run.stopping");
        // Whoever asks twice does not want to wait for the grace to be over.
        let gently = self.container.stop(self.grace);
        let stopped = tokio::select! {
            stopped = gently => stopped,
            _ = self.signals.stop.asked_again() => self.container.stop(Duration::ZERO).await,
        };
        fail_point("run.stopped");
        if let Err(error) = stopped {
            self.journal.say(format!("Stopping failed: {error}"));
            return None;
        }
        self.container.wait().await.ok()
    }

    /// How it ended, and whether that was wanted because its priority is 0.
    async fn end_and_learn_why(&self) -> (Option<Exit>, bool) {
        let begun = Instant::now();
        let (mut ending, mut asking) = (pin!(self.end()), pin!(self.is_on_hold()));
        tokio::select! {
            exit = &mut ending => {
                let rest = REASON_BUDGET.saturating_sub(begun.elapsed());
                (exit, tokio::time::timeout(rest, asking).await.unwrap_or(false))
            }
            on_hold = &mut asking => (ending.await, on_hold),
        }
    }

    async fn time_is_over(&self) -> Duration {
        match self.max_run_time {
            Some(limit) => {
                let near = limit.mul_f64(WARN_AT);
                tokio::time::sleep(near).await;
                self.warn(format!(
                    "it is near its limit: it runs for {:.1} s, and its maximum run time is {} s",
                    near.as_secs_f64(),
                    limit.as_secs()
                ));
                tokio::time::sleep(limit - near).await;
                limit
            }
            None => std::future::pending().await,
        }
    }

    fn warn(&self, sentence: String) {
        self.journal.say(format!("Warning: {sentence}"));
        self.status.warn(sentence);
    }

    async fn inputs_are_lost(&self) -> String {
        match self.tree {
            Some(tree) => tree.died().await,
            None => std::future::pending().await,
        }
    }

    /// The container may go on without what it could not have.
    async fn trouble_with_inputs(&self) -> Infallible {
        if let Some(tree) = self.tree {
            self.warn(format!("arv-mount: {}", tree.trouble().await));
        }
        std::future::pending().await
    }

    async fn too_much_is_used(&self) -> Overrun {
        let source = Source::of(self.container);
        self.allowance
            .until_over(source, &|sentence| self.warn(sentence))
            .await
    }

    /// The command goes on as long as it is let; its log so far is safe.
    async fn preemption_notices(&self) -> Infallible {
        loop {
            self.signals.preemption.notified().await;
            let notice = "crunch-run was told by signal USR2 that its node will be taken away";
            self.journal.say(format!("caught signal: USR2; {notice}"));
            self.status.preemption(notice.to_owned());
            self.signals.save.notify_one();
        }
    }

    async fn record_says_no(&self) -> Reason {
        // The timer here decides, not each call.
        let client = self.client.with_refusal_window(Duration::ZERO);
        let mut refusals = RefusalTimer::new(self.client.endpoint().refusal_window);
        loop {
            // Many crunch-runs began together; they need not look together.
            tokio::time::sleep(LOOK.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
            let seen = self.look(&client, LOOK_BUDGET).await;
            let refused = refusals.is_over(&seen, Instant::now());
            if let Some(reason) = judge(&seen, refused, self.own_token) {
                return reason;
            }
        }
    }

    async fn look(&self, client: &Client, budget: Duration) -> Result<Record, Error> {
        client
            .send(own_record::read(self.uuid).budget(budget))
            .await
    }

    /// Why the dispatcher sent its signal, as far as that can be known.
    async fn is_on_hold(&self) -> bool {
        let budget = self.grace.saturating_add(REASON_BUDGET);
        let look = self.look(self.client, budget).await;
        look.is_ok_and(|record| record.priority <= 0)
    }
}

/// Whether what was seen is a reason to stop. Not to see anything is none, and neither is a refusal before it was
/// `refused` for long enough to be believed.
fn judge(seen: &Result<Record, Error>, refused: bool, own: &TokenUuid) -> Option<Reason> {
    match seen {
        Ok(record) if record.state != ContainerState::Running => Some(Reason::NotOurs(format!(
            "The record is {} although its command runs",
            record.state
        ))),
        Ok(record) if record.locked_by_uuid.as_ref() != Some(own) => Some(Reason::NotOurs(
            "The record is locked by another attempt".to_owned(),
        )),
        Ok(record) if record.priority <= 0 => Some(Reason::Stop(Cause::PriorityZero)),
        Ok(_) => None,
        Err(error) if refused => Some(Reason::NotOurs(format!(
            "The record cannot be read with this attempt's token any more ({error})"
        ))),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arvados_client::error::{ApiError, StatusCode};

    #[test]
    fn the_record_s_reasons_to_stop() {
        let own = TokenUuid::generate("zzzzz");
        let other = TokenUuid::generate("zzzzz");
        let record = |state: &str, holder: &TokenUuid, priority: i64| -> Result<Record, Error> {
            Ok(serde_json::from_value(serde_json::json!({
                "uuid": ContainerUuid::generate("zzzzz"), "state": state, "locked_by_uuid": holder, "priority": priority
            }))
            .unwrap())
        };
        let refused = |status: u16| -> Result<Record, Error> {
            Err(Error::Api(ApiError {
                status: StatusCode::from_u16(status).unwrap(),
                messages: vec![],
                request_id: String::new(),
                retry_after: None,
            }))
        };
        let cases = [
            (record("Running", &own, 5), false, "go on"),
            (record("Running", &own, 0), false, "stop"),
            (record("Running", &other, 5), false, "not ours"),
            (record("Cancelled", &own, 5), false, "not ours"),
            (record("Queued", &own, 5), false, "not ours"),
            (refused(401), false, "go on"),
            (refused(401), true, "not ours"),
            (refused(502), false, "go on"),
        ];
        for (seen, is_over, expected) in cases {
            let said = match judge(&seen, is_over, &own) {
                None => "go on",
                Some(Reason::Stop(Cause::PriorityZero)) => "stop",
                Some(Reason::NotOurs(_)) => "not ours",
                Some(Reason::Stop(_)) => "another cause",
            };
            assert_eq!(said, expected, "{seen:?}");
        }
    }
}
