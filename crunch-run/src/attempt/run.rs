//! Runs one attempt: claims the container, prepares engine and scratch directory, and calls the
//! phases. In: settings, job directory. Out: the exit code.

use std::io;
use std::sync::Arc;

use arvados_client::Client;
use arvados_client::records::ContainerState;
use fail_points::fail_point;

use super::claim::{self, Claim};
use super::context::{Attempt, PhaseContext};
use super::create_container::node_failure;
use super::failure::Failure;
use super::runtime::in_runtime;
use super::runtime_status::Status;
use super::scratch_dir::ScratchDir;
use super::settings::Settings;
use super::timings::PhaseTimings;
use crate::flags::{GatewayChoice, MountMethod};
use crate::gateway::secret::GatewaySecret;
use crate::gateway::{Gateway, GatewayParts};
use crate::inputs::arv_mount::{ArvMount, MountEnvironment, Request};
use crate::logs::{ARV_MOUNT, LogDir, LogUploader, RUN_LOG, RunLog};
use crate::node::job_dir::JobDir;
use crate::node::orphans::{self, OrphanCleaner};
use crate::node::registry::RunGuard;
use crate::node::signals::Signals;
use crate::status_line;
use container_engine::{Engine, EngineError, select};
use crunch_contract::{ExitCode, StatusLine};
use node_cache::image::ImageStore;

/// Runs the container that the settings name, in a runtime of its own.
pub fn run_attempt(
    settings: &Settings,
    dir: &JobDir,
    registered: Option<&RunGuard>,
) -> io::Result<ExitCode> {
    in_runtime(|signals| run(settings, dir, registered, signals))
}

async fn run(
    settings: &Settings,
    dir: &JobDir,
    registered: Option<&RunGuard>,
    signals: Signals,
) -> ExitCode {
    let run_log = LogDir::create(&dir.logs()).and_then(|logs| {
        dir.remove_undelivered()?;
        let run_log = RunLog::new(logs.open(RUN_LOG)?, settings.uuid.clone());
        Ok((logs, run_log))
    });
    let (logs, run_log) = match run_log {
        Ok(both) => both,
        Err(error) => {
            let logs = dir.logs();
            let reason = format!(
                "the log directory {} cannot be made: {error}",
                logs.display()
            );
            tracing::error!(container = %settings.uuid, "{reason}");
            status_line::print(&StatusLine::NeverRan { reason });
            return ExitCode::NeverRan;
        }
    };
    let client = match Client::new(settings.endpoint.clone()) {
        // The dispatcher has just locked the container with this token.
        Ok(client) => client.with_accepted_token(),
        Err(error) => {
            let reason = error.to_string();
            run_log.write(&reason);
            status_line::print(&StatusLine::Misconfigured { reason });
            return ExitCode::Misconfigured;
        }
    };
    let attempt = Attempt {
        settings,
        dir,
        registered,
        signals,
        logs,
        run_log,
        client,
        timings: PhaseTimings::begin(),
    };
    attempt.run().await
}

impl Attempt<'_> {
    async fn run(self) -> ExitCode {
        self.log(format!(
            "crunch-run {} (process {}, uid {}) on host '{}'",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            rustix::process::geteuid().as_raw(),
            rustix::system::uname().nodename().to_string_lossy(),
        ));
        self.log(format!("Executing container: {}", self.settings.uuid));
        fail_point("run.before-claim");
        let claimed = self.or_stopped(claim::claim(
            &self.client,
            &self.settings.uuid,
            ContainerState::Locked,
            self.settings.delivery_timeout,
            Some(&self.settings.cache),
        ));
        let claim = match claimed.await {
            Ok(claim) => claim,
            // The record belongs to another attempt.
            Err(failure) => return self.fail_before_running(failure),
        };
        self.timings.end("claim");
        fail_point("run.claimed");
        let status = Status::start(self.client.clone(), &claim.record);
        let uploader = Arc::new(LogUploader::new(
            self.client.clone(),
            claim.keep.clone(),
            claim.record.uuid.clone(),
            self.logs.clone(),
        ));
        // Lives while the record can be Running.
        let gateway = self.gateway(&claim);
        let prepared = async {
            let engines = self.engines()?;
            let engine = self.engine(&engines).await?;
            let scratch = self.scratch(&*engine, &engines).await?;
            Ok::<_, Failure>((engine, scratch))
        };
        let (engine, scratch) = match prepared.await {
            Ok(prepared) => prepared,
            Err(failure) => {
                return self
                    .end_while_locked(failure.check_node(), &claim, status, &uploader)
                    .await;
            }
        };
        let code = match self.start_arv_mount(&claim, &*engine, &scratch).await {
            Ok(tree) => {
                let context = PhaseContext {
                    claim: &claim,
                    engine: &*engine,
                    scratch: &scratch,
                    tree: tree.as_ref(),
                    uploader: &uploader,
                    gateway: &gateway,
                };
                let code = self.run_phases(context, status).await;
                if let Some(tree) = tree {
                    tree.end().await;
                }
                code
            }
            Err(failure) => {
                self.end_while_locked(failure, &claim, status, &uploader)
                    .await
            }
        };
        fail_point("run.before-scratch-removed");
        if code != ExitCode::Undelivered {
            self.discard_scratch(&*engine, &scratch).await;
        }
        code
    }

    async fn run_phases(&self, context: PhaseContext<'_>, status: Status) -> ExitCode {
        let host = self.host_statistics(context.scratch.path());
        match self.start_container(context, &status, host).await {
            Ok((running, companions)) => self.finish(running, companions, context, status).await,
            Err(failure) => {
                self.end_while_locked(failure, context.claim, status, context.uploader)
                    .await
            }
        }
    }

    /// Starts the gateway, which serves the log of a running container. Nothing depends on it.
    fn gateway(&self, claim: &Claim) -> Gateway {
        if self.settings.gateway == GatewayChoice::Off {
            return Gateway::off();
        }
        let takes_any = claim.server.takes_any_gateway_secret;
        let own = || takes_any.then(GatewaySecret::random).flatten();
        let Some(secret) = self.settings.gateway_secret.clone().or_else(own) else {
            self.log(
                "Live logs are not served: the dispatcher gave no gateway secret (GatewayAuthSecret)",
            );
            return Gateway::off();
        };
        let parts = GatewayParts {
            client: self.client.clone(),
            uuid: self.settings.uuid.clone(),
            secret,
            logs: self.logs.clone(),
            run_log: self.run_log.clone(),
        };
        Gateway::start(parts).unwrap_or_else(|error| {
            self.log(format!("Live logs are not served: {error}"));
            Gateway::off()
        })
    }

    /// Starts arv-mount, if the flags ask for it. Its mount point is outside the scratch directory,
    /// whose files are counted.
    async fn start_arv_mount(
        &self,
        claim: &Claim,
        engine: &dyn Engine,
        scratch: &ScratchDir,
    ) -> Result<Option<ArvMount>, Failure> {
        if self.settings.mount_method == MountMethod::Copy {
            self.note_inputs_are_copied();
            return Ok(None);
        }
        let is_service = matches!(engine.name(), "docker" | "podman");
        let request = Request {
            storage_classes: &claim.record.output_storage_classes,
            constraints: &claim.record.runtime_constraints,
            statistics_period: self.settings.statistics_period,
            // Without a user namespace, users of the image are users of the node.
            allow_other: is_service || rustix::process::geteuid().is_root(),
            cache_dir: &scratch.path().join("keepcache"),
        };
        let mount_point = self.dir.arv_mount_point();
        let surroundings = MountEnvironment {
            tree: &mount_point,
            logs: &self.logs,
            log_limit: self.settings.log_limit,
            endpoint: claim.container_client.endpoint(),
        };
        let starting = async {
            let tree = ArvMount::start(&request, surroundings).await;
            tree.map_err(|error| Failure::NeverRan(error.to_string()))
        };
        let tree = self.or_stopped(starting).await?;
        self.timings.end("arv-mount");
        Ok(Some(tree))
    }

    /// Notes in the log that arv-mount is not used.
    fn note_inputs_are_copied(&self) {
        self.log("Inputs are copied to this node before the command starts; arv-mount is not used");
        // Empty, because crunchstat-summary complains about lines it cannot count.
        if let Err(error) = self.logs.write(ARV_MOUNT, b"") {
            self.log(format!("{ARV_MOUNT} cannot be written: {error}"));
        }
    }

    fn engines(&self) -> Result<select::EngineFactory, Failure> {
        let store = ImageStore::open(&self.settings.cache)
            .map_err(|error| Failure::NeverRan(error.to_string()))?;
        let user_namespace = self.settings.user_namespace;
        Ok(self.settings.node.engines(store, user_namespace))
    }

    async fn engine(&self, engines: &select::EngineFactory) -> Result<Box<dyn Engine>, Failure> {
        let chosen =
            select::select(self.settings.node.runtime_engine, engines, self.dir.path()).await;
        let not_used = match &chosen {
            Ok(chosen) => chosen.skipped.as_slice(),
            Err(EngineError::None { reasons }) => reasons.as_slice(),
            Err(_) => &[],
        };
        for reason in not_used {
            self.log(format!("Not used: {reason}"));
        }
        let chosen = chosen.map_err(|error| Failure::NeverRan(error.to_string()))?;
        self.log(format!("Using container runtime: {}", chosen.engine.name()));
        Ok(chosen.engine)
    }

    /// Cleans up after earlier attempts and creates an empty scratch directory.
    async fn scratch(
        &self,
        engine: &dyn Engine,
        engines: &select::EngineFactory,
    ) -> Result<ScratchDir, Failure> {
        let noted = self
            .registered
            .map(|run| run.record_engine(engine.engine_ref()));
        if let Some(Err(error)) = noted {
            self.log(format!(
                "Could not record the engine of this run: if it is killed, only a run with the same engine cleans up: {error}"
            ));
        }
        let recovered = engine
            .recover(self.settings.uuid.as_str())
            .await
            .map_err(|error| Failure::NeverRan(error.to_string()))?;
        for what in recovered.removed {
            self.log(format!("Removed {what}, left by an earlier attempt"));
        }
        let cleaner = OrphanCleaner { engine, engines };
        let earlier = cleaner.clean_earlier_attempts(&self.settings.uuid).await;
        for sentence in earlier.into_iter().chain(orphans::clean_all(cleaner).await) {
            self.log(sentence);
        }
        let created = ScratchDir::create(self.settings, self.dir).map_err(|error| {
            node_failure(
                self.settings
                    .node
                    .scratch_dir
                    .as_deref()
                    .unwrap_or(self.dir.path()),
                &error,
            )
        });
        let paths = self
            .dir
            .run_paths(self.settings.node.scratch_dir.as_deref());
        orphans::empty_trash_in_background(&paths, &self.settings.cache);
        created
    }
}
