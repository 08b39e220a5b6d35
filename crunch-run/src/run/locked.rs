//! While the record is Locked: a failure leaves it so, and a mistake in the request cancels it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arvados_client::Pdh;
use arvados_client::records::{Container, ContainerState, RuntimeStatus};
use fail_points::fail_point;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::claim::{self, Claim};
use super::failure::Failure;
use super::gpus::{self, Given};
use super::limits;
use super::prepare::{self, Created, Creation, Fetched, Pumps, Scratch, on_this_node};
use super::request;
use super::reserve::Reserve;
use super::spec;
use super::{Attempt, Means};
use crate::engine;
use crate::exit::ExitCode;
use crate::gateway::Gateway;
use crate::limits::Allowance;
use crate::logs::{CONTAINER, INSTANCE, NODE, SaveError, Saver, container_json, node_info};
use crate::own_record;
use crate::stats::Sampler;
use crate::status::Status;
use crate::verdict;

/// Telling why nothing was run is worth so much waiting, and no more.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// A container whose record says Running.
pub struct Running {
    pub allowance: Allowance,
    pub gpus: Given,
    pub fetched: Fetched,
    pub container: Arc<dyn engine::Container>,
    pub pumps: Pumps,
    pub unenforced: Vec<String>,
    pub first_log: Pdh,
    /// Statistics of this program itself.
    pub host: Option<Sampler>,
    pub reserve: Reserve,
    /// Keeps the record's `gateway_address` true.
    pub address_keeper: AbortOnDropHandle<()>,
}

impl Attempt<'_> {
    /// Fetches, creates and announces; when this returns well, the record is Running.
    pub async fn until_running(
        &self,
        means: Means<'_>,
        status: &Status,
        host: Option<Sampler>,
    ) -> Result<Running, Failure> {
        let Means {
            claim,
            engine,
            scratch,
            saver,
            gateway,
            ..
        } = means;
        self.describe(claim, scratch)
            .map_err(Failure::on_this_node)?;
        let reserve = Reserve::take(self.dir)
            .map_err(|error| on_this_node(self.dir.path(), &error).on_this_node())?;
        self.unless_stopped(request::check(&claim.record, &self.client, &self.journal))
            .await?;
        // Before anything is fetched: a node without the right ones need not be kept busy.
        let (access, gpus) = self
            .unless_stopped(gpus::find(
                &claim.record,
                self.settings,
                &self.logs,
                &self.journal,
            ))
            .await?;
        let (secret, image) = self.unless_stopped(claim::inputs(claim)).await?;
        self.phases.end("look up");
        fail_point("run.inputs-known");
        self.journal
            .say(format!("Fetching inputs and image {}", image.label()));
        let fetched = self
            .unless_stopped(prepare::fetch(means, self.settings, secret, &image, status))
            .await?;
        status.activity(None);
        self.phases.end("inputs and image");
        fail_point("run.image-ready");
        self.journal
            .say(format!("Image {} is ready", fetched.image.id));
        // What is said below can only be in a later version of the log.
        let (created, log) = tokio::join!(
            prepare::create(Creation {
                claim,
                settings: self.settings,
                engine,
                scratch,
                fetched: &fetched,
                gpus: access,
                logs: &self.logs,
                status,
                journal: &self.journal,
            }),
            self.unless_stopped(async {
                fail_point("run.before-first-log");
                let saved = saver.save().await;
                fail_point("run.after-first-log");
                saved.map_err(|error| Failure::NeverRan(error.to_string()))
            }),
        );
        let Created {
            container,
            pumps,
            unenforced,
        } = created?;
        fail_point("run.created");
        let announced = match log {
            Ok(log) => self.announce(log, claim, gateway, status).await,
            Err(failure) => Err(failure),
        };
        self.phases.end("create");
        match announced {
            Ok((first_log, address)) => Ok(Running {
                address_keeper: gateway.keep_address(
                    self.client.clone(),
                    self.settings.uuid.clone(),
                    address,
                ),
                allowance: limits::allowance(
                    &claim.record,
                    &self.settings.site,
                    spec::limits(&claim.record, self.settings).memory_bytes,
                    scratch.path(),
                    &fetched.staged,
                ),
                gpus,
                fetched,
                container,
                pumps,
                unenforced,
                first_log,
                host,
                reserve,
            }),
            Err(failure) => {
                self.remove(&*container).await;
                Err(failure)
            }
        }
    }

    /// Locked → Running: the guard against a second start.
    async fn announce(
        &self,
        log: Pdh,
        claim: &Claim,
        gateway: &Gateway,
        status: &Status,
    ) -> Result<(Pdh, Option<String>), Failure> {
        // The server takes it only together with Running, or later.
        let address = gateway.address().await;
        // Once it is sent it may have taken effect, so from there on a request to stop is for the run to hear.
        self.unless_stopped(async { Ok(()) }).await?;
        let mut update = announcement(&log, status.at_start(), Timestamp::now());
        if let Some(address) = &address {
            update["gateway_address"] = json!(address);
        }
        fail_point("run.before-running");
        let update = own_record::update(&self.settings.uuid, &update);
        if let Err(error) = self.client.send::<Value>(update).await {
            // Whose it is, only the record says: a server has other reasons to refuse.
            let still_ours = error.is_refused() && self.is_still_locked(claim).await;
            return Err(Failure::of_announcement(&error, still_ours));
        }
        fail_point("run.after-running");
        Ok((log, address))
    }

    async fn is_still_locked(&self, claim: &Claim) -> bool {
        let seen = self.client.send(own_record::read(&self.settings.uuid));
        let seen: Result<Container, _> = seen.await;
        seen.is_ok_and(|record| {
            record.state == ContainerState::Locked
                && record.locked_by_uuid.as_ref() == Some(&claim.own_token)
        })
    }

    /// What the log says about the container and this machine.
    fn describe(&self, claim: &Claim, scratch: &Scratch) -> Result<(), Failure> {
        let cache = self.settings.cache.as_path();
        self.logs
            .write(CONTAINER, &container_json(&claim.raw))
            .and_then(|()| {
                let text = node_info(&[Path::new("/"), scratch.path(), cache]);
                self.logs.write(NODE, text.as_bytes())
            })
            .and_then(|()| match &self.settings.instance {
                Some(instance) => self.logs.write(INSTANCE, instance.text().as_bytes()),
                None => Ok(()),
            })
            .map_err(|error| on_this_node(self.dir.path(), &error))
    }

    /// Ends an attempt whose record is Locked.
    pub async fn refuse(&self, failure: Failure, status: Status, saver: &Saver) -> ExitCode {
        let Failure::Mistake(reason) = failure else {
            if let Failure::BrokenNode(reason) = &failure {
                self.settings.alarm.raise(reason, &self.journal).await;
            }
            if let Failure::NeverRan(reason) | Failure::BrokenNode(reason) = &failure {
                self.tell_why(reason, saver).await;
            }
            return self.give_up(failure);
        };
        self.journal
            .say(format!("{}\n{}", reason.sentence, reason.detail));
        self.journal.close("Cancelled");
        let (log, words) = tokio::join!(
            tokio::time::timeout(self.settings.patience, saver.save()),
            status.finish()
        );
        // The reason is in the record itself; the log only tells the story.
        let log = log.ok().and_then(Result::ok);
        let update = verdict::refusal(&reason, words, log.as_ref());
        let update = own_record::update(&self.settings.uuid, &update);
        match self.client.send::<Value>(update).await {
            Ok(_) => ExitCode::Recorded,
            Err(error) => self.give_up(Failure::of_refusal(&error)),
        }
    }

    /// The log of an attempt that ran nothing helps whoever asks why; it outlives the unlock.
    async fn tell_why(&self, reason: &str, saver: &Saver) {
        self.journal.say(format!("Nothing was run here: {reason}"));
        let telling = async {
            let log = saver.save().await?;
            let update = own_record::update(&self.settings.uuid, &json!({"log": log}));
            self.client.send::<Value>(update).await?;
            Ok::<_, SaveError>(())
        };
        let patience = LAST_WORDS.min(self.settings.patience);
        if !matches!(tokio::time::timeout(patience, telling).await, Ok(Ok(()))) {
            self.journal.say("The log could not be saved");
        }
    }
}

/// It carries a new log, because stock servers check who holds the lock only then. And it carries the time: Running
/// may be said again to a record that says so already, but `started_at` can only be changed on the way to Running, so
/// a second run with the same token is refused. The same update once more, after an answer that was lost, changes
/// nothing and passes, for which its time must be as exact as the server's and no more: it keeps microseconds.
fn announcement(log: &Pdh, status: Option<RuntimeStatus>, now: Timestamp) -> Value {
    let now = now.round(jiff::Unit::Microsecond).unwrap_or(now);
    let mut update = json!({"state": "Running", "log": log, "started_at": now});
    if let Some(status) = status {
        update["runtime_status"] = json!(status);
    }
    update
}

#[cfg(test)]
mod tests {
    use dispatch_api::{Options, Server};

    use super::*;
    use crate::run::claim::tests::locked;

    #[tokio::test]
    async fn of_two_that_hold_one_token_one_may_run() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path().join("state"));
        let server = Server::start(&options).await.unwrap();
        let (client, record) = locked(&server, "http://127.0.0.1:9", json!({})).await;
        let now: Timestamp = "2026-01-02T03:04:05.123456789Z".parse().unwrap();
        let log: Pdh = "d41d8cd98f00b204e9800998ecf8427e+0".parse().unwrap();
        let first = announcement(&log, None, now);
        assert_eq!(first["started_at"], "2026-01-02T03:04:05.123457Z");
        let tell =
            async |update: &Value| client.update_container(&record.uuid, update.clone()).await;
        tell(&first).await.unwrap();
        tell(&first).await.expect("its answer may have been lost");
        let later = now + Duration::from_millis(1);
        let refused = tell(&announcement(&log, None, later)).await.unwrap_err();
        assert!(refused.is_refused(), "{refused}");
        assert!(matches!(
            Failure::of_announcement(&refused, false),
            Failure::NotOurs(_)
        ));
        server.stop().await;
    }
}
