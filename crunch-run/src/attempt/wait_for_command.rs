//! Monitors a running command: waits for its end and for every reason to stop it.

use std::convert::Infallible;
use std::pin::pin;
use std::time::{Duration, Instant};

use arvados_client::records::{Container as Record, ContainerState};
use arvados_client::retry::RefusalTimer;
use arvados_client::{Client, ContainerUuid, Error, TokenUuid};
use fail_points::fail_point;

use crate::attempt::runtime_status::Status;
use crate::inputs::arv_mount::ArvMount;
use crate::limits::{LimitExceeded, Resource, UsageMonitor};
use crate::logs::RunLog;
use crate::node::signals::Signals;
use crate::own_record;
use crate::stats::UsageSource;
use crate::verdict::{Cause, Ending};
use container_engine::{Container, Exit};

/// Interval between two reads of the record. The dispatcher's TERM arrives sooner, but the
/// dispatcher may be gone.
const RECORD_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Retry budget of one read.
const RECORD_RETRY_BUDGET: Duration = Duration::from_secs(20);
/// Minimum retry budget of the read that tells whether the priority is 0.
const PRIORITY_RETRY_BUDGET: Duration = Duration::from_secs(3);

/// Exit code of a command that KILL ended.
const KILLED: i32 = 137;
/// Share of the maximum run time after which a warning is written.
const RUN_TIME_WARNING_SHARE: f64 = 0.9;

/// How the monitoring ended.
#[derive(Debug)]
pub enum MonitorEnd {
    Ended(Ending),
    /// The record belongs to another attempt; the command was stopped.
    NotOurs(String),
}

/// What is monitored.
pub struct Monitor<'a> {
    pub container: &'a dyn Container,
    pub client: &'a Client,
    pub uuid: &'a ContainerUuid,
    pub own_token: &'a TokenUuid,
    /// `None` is no limit.
    pub max_run_time: Option<Duration>,
    pub grace: Duration,
    pub usage_limits: &'a UsageMonitor,
    /// The arv-mount that serves the inputs, if any.
    pub tree: Option<&'a ArvMount>,
    pub signals: &'a Signals,
    pub status: &'a Status,
    pub run_log: &'a RunLog,
}

enum StopReason {
    Stop(Cause),
    NotOurs(String),
}

impl Monitor<'_> {
    /// Runs until the command has ended.
    pub async fn run(&self) -> MonitorEnd {
        let reason = tokio::select! {
            // The command's own end takes precedence over other events.
            biased;
            exit = self.container.wait() => {
                return MonitorEnd::Ended(match exit {
                    Ok(exit) => Ending::Exited(exit),
                    Err(error) => Ending::Lost { reason: error.to_string() },
                });
            }
            request = self.signals.stop.requested() => StopReason::Stop(Cause::Signal(request.by)),
            limit = self.max_run_time_reached() => StopReason::Stop(Cause::MaxRunTime(limit)),
            over = self.limit_exceeded() => StopReason::Stop(Cause::Limit(over)),
            how = self.arv_mount_exited() => StopReason::Stop(Cause::InputsLost(how)),
            reason = self.lock_lost() => reason,
            never = self.forward_preemption_notices() => match never {},
            never = self.forward_arv_mount_warnings() => match never {},
        };
        match reason {
            StopReason::Stop(Cause::Signal(name)) => {
                self.run_log.write(format!("caught signal: {name}"));
                // The sender may soon send KILL.
                self.signals.save.notify_one();
                let (exit, on_hold) = self.stop_and_read_priority().await;
                let cause = if on_hold {
                    Cause::PriorityZero
                } else {
                    Cause::Signal(name)
                };
                MonitorEnd::Ended(Ending::Stopped { cause, exit })
            }
            StopReason::Stop(cause) => {
                self.run_log.write(match &cause {
                    Cause::MaxRunTime(_) => {
                        "maximum run time exceeded. Stopping container.".to_owned()
                    }
                    Cause::Limit(exceeded) => {
                        format!("The container uses {exceeded}. Stopping container.")
                    }
                    Cause::InputsLost(_) => {
                        "arv-mount exited while container is still running. Stopping container."
                            .to_owned()
                    }
                    _ => "The container's priority is 0. Stopping container.".to_owned(),
                });
                if let Cause::Limit(exceeded) = &cause
                    && exceeded.resource == Resource::WatchedMemory
                    && let Some(exit) = self.kill_for_memory(exceeded).await
                {
                    return MonitorEnd::Ended(Ending::Exited(exit));
                }
                let exit = match &cause {
                    Cause::Limit(exceeded) if exceeded.resource.kills_at_once() => {
                        self.stop_within(Duration::ZERO).await
                    }
                    _ => self.stop_container().await,
                };
                MonitorEnd::Ended(Ending::Stopped { cause, exit })
            }
            StopReason::NotOurs(text) => {
                self.run_log.write(format!("{text}. Stopping container."));
                self.stop_container().await;
                MonitorEnd::NotOurs(text)
            }
        }
    }

    /// Kills the container at once, as the kernel does where it enforces the limit.
    async fn kill_for_memory(&self, exceeded: &LimitExceeded) -> Option<Exit> {
        if let Err(error) = self.container.stop(Duration::ZERO).await {
            self.run_log.write(format!("Stopping failed: {error}"));
            return None;
        }
        let exit = self.container.wait().await.ok()?;
        // It may have ended by itself just before.
        if exit.status.code() != KILLED {
            return Some(exit);
        }
        Some(Exit {
            oom_killed: true,
            killed_for_memory: true,
            peak_memory: exit.peak_memory.max(Some(exceeded.used)),
            ..exit
        })
    }

    async fn stop_container(&self) -> Option<Exit> {
        self.stop_within(self.grace).await
    }

    /// KILL follows TERM after this time; without it, there is no TERM.
    async fn stop_within(&self, grace: Duration) -> Option<Exit> {
        self.run_log.write("stopping container");
        fail_point("run.stopping");
        // A second stop request skips the grace period.
        let gently = self.container.stop(grace);
        let stopped = tokio::select! {
            stopped = gently => stopped,
            _ = self.signals.stop.second_request() => self.container.stop(Duration::ZERO).await,
        };
        fail_point("run.stopped");
        if let Err(error) = stopped {
            self.run_log.write(format!("Stopping failed: {error}"));
            return None;
        }
        self.container.wait().await.ok()
    }

    /// Stops the container. Returns how it ended and whether its priority is 0.
    async fn stop_and_read_priority(&self) -> (Option<Exit>, bool) {
        let started = Instant::now();
        let (mut ending, mut asking) = (pin!(self.stop_container()), pin!(self.priority_is_zero()));
        tokio::select! {
            exit = &mut ending => {
                let rest = PRIORITY_RETRY_BUDGET.saturating_sub(started.elapsed());
                (exit, tokio::time::timeout(rest, asking).await.unwrap_or(false))
            }
            on_hold = &mut asking => (ending.await, on_hold),
        }
    }

    async fn max_run_time_reached(&self) -> Duration {
        match self.max_run_time {
            Some(limit) => {
                let near = limit.mul_f64(RUN_TIME_WARNING_SHARE);
                tokio::time::sleep(near).await;
                self.warn_near_limit(format!(
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
        self.run_log.write(format!("Warning: {sentence}"));
        self.status.warn(sentence);
    }

    fn warn_near_limit(&self, sentence: String) {
        self.run_log.write(format!("Warning: {sentence}"));
        self.status.warn_near_limit(sentence);
    }

    async fn arv_mount_exited(&self) -> String {
        match self.tree {
            Some(tree) => tree.wait_for_exit().await,
            None => std::future::pending().await,
        }
    }

    /// Forwards warnings of arv-mount; the container continues.
    async fn forward_arv_mount_warnings(&self) -> Infallible {
        if let Some(tree) = self.tree {
            self.warn(format!("arv-mount: {}", tree.wait_for_warning().await));
        }
        std::future::pending().await
    }

    async fn limit_exceeded(&self) -> LimitExceeded {
        let source = match self.usage_limits.watches_memory {
            // A control group without the controller for memory has no figures of it.
            true => UsageSource::processes(self.container),
            false => UsageSource::of(self.container),
        };
        self.usage_limits
            .wait_for_excess(source, &|sentence| self.warn_near_limit(sentence))
            .await
    }

    /// Reports preemption notices and saves the log; the command continues.
    async fn forward_preemption_notices(&self) -> Infallible {
        loop {
            self.signals.preemption.notified().await;
            let notice = "crunch-run was told by signal USR2 that its node will be taken away";
            self.run_log.write(format!("caught signal: USR2; {notice}"));
            self.status.set_preemption_notice(notice.to_owned());
            self.signals.save.notify_one();
        }
    }

    async fn lock_lost(&self) -> StopReason {
        // The timer here decides when a refusal is believed, not each call.
        let client = self.client.with_refusal_window(Duration::ZERO);
        let mut refusals = RefusalTimer::new(self.client.endpoint().refusal_window);
        loop {
            // Spread the reads of crunch-runs that started together.
            tokio::time::sleep(RECORD_POLL_INTERVAL.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
            let reply = self.read_once(&client, RECORD_RETRY_BUDGET).await;
            let refused = refusals.record(&reply, Instant::now());
            if let Some(reason) = stop_reason(&reply, refused, self.own_token) {
                return reason;
            }
        }
    }

    async fn read_once(&self, client: &Client, budget: Duration) -> Result<Record, Error> {
        client
            .send(own_record::read(self.uuid).budget(budget))
            .await
    }

    /// Whether the dispatcher stopped the container because of priority 0.
    async fn priority_is_zero(&self) -> bool {
        let budget = self.grace.saturating_add(PRIORITY_RETRY_BUDGET);
        let record = self.read_once(self.client, budget).await;
        record.is_ok_and(|record| record.priority <= 0)
    }
}

/// Returns a reason to stop, if the record has one. A failed read is none, nor is a refusal before
/// `refused`.
fn stop_reason(
    reply: &Result<Record, Error>,
    refused: bool,
    own: &TokenUuid,
) -> Option<StopReason> {
    match reply {
        Ok(record) if record.state != ContainerState::Running => Some(StopReason::NotOurs(
            format!("The record is {} although its command runs", record.state),
        )),
        Ok(record) if record.locked_by_uuid.as_ref() != Some(own) => Some(StopReason::NotOurs(
            "The record is locked by another attempt".to_owned(),
        )),
        Ok(record) if record.priority <= 0 => Some(StopReason::Stop(Cause::PriorityZero)),
        Ok(_) => None,
        Err(error) if refused => Some(StopReason::NotOurs(format!(
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
        for (reply, is_over, expected) in cases {
            let found = match stop_reason(&reply, is_over, &own) {
                None => "go on",
                Some(StopReason::Stop(Cause::PriorityZero)) => "stop",
                Some(StopReason::NotOurs(_)) => "not ours",
                Some(StopReason::Stop(_)) => "another cause",
            };
            assert_eq!(found, expected, "{reply:?}");
        }
    }
}
