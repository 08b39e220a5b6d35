//! The phase in which the record is Locked: fetches inputs and image, creates the container and
//! sets the record to Running. A failure leaves the record Locked; a user error cancels it.

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
use super::context::{Attempt, PhaseContext};
use super::create_container::{
    self, CreateRequest, CreatedContainer, FetchedInputs, Pumps, node_failure,
};
use super::disk_reserve::DiskReserve;
use super::failure::Failure;
use super::limits_of_record;
use super::scratch_dir::ScratchDir;
use super::spec;
use super::unsatisfiable_request;
use crate::attempt::runtime_status::Status;
use crate::gateway::Gateway;
use crate::gpu::{PreparedGpus, prepare as prepare_gpus};
use crate::limits::UsageMonitor;
use crate::logs::{CONTAINER, INSTANCE, LogUploader, NODE, SaveError, container_json, node_info};
use crate::own_record;
use crate::stats::Sampler;
use crate::verdict;
use container_engine as engine;
use container_engine::gpu::GpuAccess;
use crunch_contract::ExitCode;

/// Timeout of saving the log of an attempt without results.
const FAILURE_LOG_TIMEOUT: Duration = Duration::from_secs(20);

/// A container whose record is Running.
pub struct Running {
    pub usage_limits: UsageMonitor,
    pub gpus: PreparedGpus,
    pub fetched: FetchedInputs,
    pub container: Arc<dyn engine::Container>,
    pub unenforced: Vec<String>,
    pub first_log: Pdh,
}

/// What runs or is held beside the container.
pub struct Companions {
    pub pumps: Pumps,
    /// Resource use of crunch-run itself.
    pub host: Option<Sampler>,
    pub reserve: DiskReserve,
    /// Task that updates the record's `gateway_address`.
    pub address_updates: AbortOnDropHandle<()>,
}

impl Attempt<'_> {
    /// Prepares the container. If it succeeds, the record is Running.
    pub async fn start_container(
        &self,
        context: PhaseContext<'_>,
        status: &Status,
        host: Option<Sampler>,
    ) -> Result<(Running, Companions), Failure> {
        let PhaseContext {
            claim,
            engine,
            scratch,
            uploader,
            gateway,
            ..
        } = context;
        self.write_node_files(claim, scratch)
            .map_err(Failure::check_node)?;
        let reserve = DiskReserve::allocate(self.dir)
            .map_err(|error| node_failure(self.dir.path(), &error).check_node())?;
        let (access, gpus, fetched) = self.fetch(context, status).await?;
        // Later log lines are part of a later version of the log.
        let (created, log) = tokio::join!(
            create_container::create(CreateRequest {
                claim,
                settings: self.settings,
                engine,
                scratch,
                fetched: &fetched,
                gpus: access,
                logs: &self.logs,
                status,
                run_log: &self.run_log,
            }),
            self.or_stopped(async {
                fail_point("run.before-first-log");
                status.set_activity(Some("storing its log in Keep".to_owned()));
                let saved = uploader.save().await;
                status.set_activity(None);
                fail_point("run.after-first-log");
                saved.map_err(|error| Failure::NeverRan(error.to_string()))
            }),
        );
        let CreatedContainer {
            container,
            pumps,
            unenforced,
            watches_memory,
        } = created?;
        fail_point("run.created");
        let memory = spec::limits(&claim.record, self.settings).memory_bytes;
        let usage_limits = limits_of_record::usage_limits(
            &claim.record,
            &self.settings.site,
            (memory, watches_memory),
            scratch.path(),
            container.writable_layers(),
            &fetched.staged,
        );
        let announced = match log {
            Ok(log) => {
                let announcing = self.set_running(log, claim, gateway, status);
                tokio::join!(announcing, usage_limits.measure_start()).0
            }
            Err(failure) => Err(failure),
        };
        self.timings.end("create");
        match announced {
            Ok((first_log, address)) => {
                let (client, uuid) = (self.client.clone(), self.settings.uuid.clone());
                let companions = Companions {
                    pumps,
                    host,
                    reserve,
                    address_updates: gateway.update_address(client, uuid, address),
                };
                let running = Running {
                    usage_limits,
                    gpus,
                    fetched,
                    container,
                    unenforced,
                    first_log,
                };
                Ok((running, companions))
            }
            Err(failure) => {
                self.remove(&*container, context.scratch).await;
                Err(failure)
            }
        }
    }

    /// Checks the request and the GPUs, then fetches inputs and image.
    async fn fetch(
        &self,
        context: PhaseContext<'_>,
        status: &Status,
    ) -> Result<(Option<GpuAccess>, PreparedGpus, FetchedInputs), Failure> {
        let claim = context.claim;
        self.or_stopped(unsatisfiable_request::check(
            &claim.record,
            &self.client,
            &self.run_log,
        ))
        .await?;
        // Checked before anything is fetched, so that an unsuitable node is not kept busy.
        let (access, gpus) = self
            .or_stopped(prepare_gpus::prepare(
                &claim.record,
                self.settings,
                &self.logs,
                &self.run_log,
            ))
            .await?;
        let (secret, image) = self.or_stopped(claim::inputs(claim)).await?;
        self.timings.end("look up");
        fail_point("run.inputs-known");
        self.log(format!("Fetching inputs and image {}", image.label()));
        let fetched = self
            .or_stopped(create_container::fetch(
                context,
                self.settings,
                secret,
                &image,
                status,
            ))
            .await?;
        status.set_activity(None);
        self.timings.end("inputs and image");
        fail_point("run.image-ready");
        self.log(format!("Image {} is ready", fetched.image.id));
        Ok((access, gpus, fetched))
    }

    /// Sets the record from Locked to Running, which guards against a second start.
    async fn set_running(
        &self,
        log: Pdh,
        claim: &Claim,
        gateway: &Gateway,
        status: &Status,
    ) -> Result<(Pdh, Option<String>), Failure> {
        // The server accepts the address only together with Running, or later.
        let address = gateway.address().await;
        // From here on the update may take effect, so the running phase handles stop requests.
        self.or_stopped(async { Ok(()) }).await?;
        let mut update = running_update(&log, status.initial_status(), Timestamp::now());
        if let Some(address) = &address {
            update["gateway_address"] = json!(address);
        }
        fail_point("run.before-running");
        let update = own_record::update(&self.settings.uuid, &update);
        if let Err(error) = self.client.send::<Value>(update).await {
            // Only the record tells whose it is: a server has other reasons to refuse.
            let still_ours = error.is_refused() && self.is_still_locked(claim).await;
            return Err(Failure::of_set_running(&error, still_ours));
        }
        fail_point("run.after-running");
        Ok((log, address))
    }

    async fn is_still_locked(&self, claim: &Claim) -> bool {
        let reply = self.client.send(own_record::read(&self.settings.uuid));
        let reply: Result<Container, _> = reply.await;
        reply.is_ok_and(|record| {
            record.state == ContainerState::Locked
                && record.locked_by_uuid.as_ref() == Some(&claim.own_token)
        })
    }

    /// Writes the log files that describe the container and this node.
    fn write_node_files(&self, claim: &Claim, scratch: &ScratchDir) -> Result<(), Failure> {
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
            .map_err(|error| node_failure(self.dir.path(), &error))
    }

    /// Ends an attempt while the record is Locked.
    pub async fn end_while_locked(
        &self,
        failure: Failure,
        claim: &Claim,
        status: Status,
        uploader: &LogUploader,
    ) -> ExitCode {
        let Failure::UserError(reason) = failure else {
            if let Failure::BrokenNode(reason) = &failure {
                self.settings
                    .broken_node_hook
                    .run(reason, &self.run_log)
                    .await;
            }
            let mut failure = failure;
            if let Failure::NeverRan(reason) | Failure::BrokenNode(reason) = &failure {
                let is_stored = self.save_failure_log(reason, uploader).await;
                failure = match failure {
                    Failure::NeverRan(reason) if !is_stored => Failure::StorageFailed(reason),
                    failure => failure,
                };
            }
            return self.fail_before_running(failure);
        };
        self.log(format!("{}\n{}", reason.sentence, reason.detail));
        self.run_log.close("Cancelled");
        let (log, runtime_status) = tokio::join!(
            tokio::time::timeout(self.settings.delivery_timeout, uploader.save()),
            status.finish()
        );
        // The reason is in the record; the log has only details.
        let log = log.ok().and_then(Result::ok);
        let verdict = verdict::refusal(reason);
        let left = self.leave_permanent(claim, &verdict, &runtime_status, log.as_ref(), None);
        if let Some(code) = left.await {
            return code;
        }
        let update = verdict.update(runtime_status, log.as_ref(), None);
        let update = own_record::update(&self.settings.uuid, &update);
        match self.client.send::<Value>(update).await {
            Ok(_) => ExitCode::Recorded,
            Err(error) => self.fail_before_running(Failure::of_cancellation(&error)),
        }
    }

    /// Saves the log of an attempt that ran nothing, for users and admins. It outlives the unlock.
    /// False if the storage failed.
    async fn save_failure_log(&self, reason: &str, uploader: &LogUploader) -> bool {
        self.log(format!("Nothing was run here: {reason}"));
        self.save_log_in_time(uploader).await
    }

    /// Saves the log and adds it to the record, if that does not take long. False if the file
    /// storage does not even take a few bytes.
    pub async fn save_log_in_time(&self, uploader: &LogUploader) -> bool {
        let telling = async {
            let log = uploader.save().await?;
            let update = own_record::update(&self.settings.uuid, &json!({"log": log}));
            self.client.send::<Value>(update).await?;
            Ok::<_, SaveError>(())
        };
        let delivery_timeout = FAILURE_LOG_TIMEOUT.min(self.settings.delivery_timeout);
        let saved = tokio::time::timeout(delivery_timeout, telling).await;
        if !matches!(saved, Ok(Ok(()))) {
            self.log("Could not save the log");
        }
        match saved {
            Err(_) | Ok(Err(SaveError::Keep(_))) => uploader.can_store().await,
            Ok(_) => true,
        }
    }
}

/// The update to Running.
///
/// It has a new log, because stock servers check the lock's holder only then. It has `started_at`,
/// which can only change on the way to Running, so a second run with the same token is refused.
///
/// Repeating the same update after a lost reply has no effect. For that, its time is rounded to
/// microseconds, as in the server.
fn running_update(log: &Pdh, status: Option<RuntimeStatus>, now: Timestamp) -> Value {
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
    use crate::attempt::claim::tests::locked;

    #[tokio::test]
    async fn of_two_that_hold_one_token_one_may_run() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path().join("state"));
        let server = Server::start(&options).await.unwrap();
        let (client, record) = locked(&server, "http://127.0.0.1:9", json!({})).await;
        let now: Timestamp = "2026-01-02T03:04:05.123456789Z".parse().unwrap();
        let log: Pdh = "d41d8cd98f00b204e9800998ecf8427e+0".parse().unwrap();
        let first = running_update(&log, None, now);
        assert_eq!(first["started_at"], "2026-01-02T03:04:05.123457Z");
        let tell =
            async |update: &Value| client.update_container(&record.uuid, update.clone()).await;
        tell(&first).await.unwrap();
        tell(&first).await.expect("its answer may have been lost");
        let later = now + Duration::from_millis(1);
        let refused = tell(&running_update(&log, None, later)).await.unwrap_err();
        assert!(refused.is_refused(), "{refused}");
        assert!(matches!(
            Failure::of_set_running(&refused, false),
            Failure::NotOurs(_)
        ));
        server.stop().await;
    }
}
