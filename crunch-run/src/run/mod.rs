//! One attempt at one container, from its record to its final state. `Attempt::run` calls the phases in order.

mod archive;
mod claim;
mod deliver;
mod failure;
mod gpus;
mod image;
mod insist;
mod instance;
mod left;
mod limits;
mod locked;
mod patient;
mod phases;
mod prepare;
mod refusals;
mod request;
mod reserve;
mod result;
mod resume;
mod running;
mod save_output;
mod server_facts;
mod settings;
mod spec;
mod watch;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arvados_client::Client;
use arvados_client::records::ContainerState;
use fail_points::fail_point;

pub use self::left::{Left, LeftError};
pub use self::resume::{Resumption, resume};
pub use self::settings::{Settings, SettingsError, cdi_dirs, default_cache, endpoint};

use self::claim::Claim;
use self::failure::Failure;
use self::phases::Phases;
use self::prepare::{Scratch, on_this_node};
use crate::engine::{Engine, choose};
use crate::exit::ExitCode;
use crate::flags::{GatewayChoice, MountMethod};
use crate::gateway::secret::GatewaySecret;
use crate::gateway::{Gateway, GatewayParts};
use crate::image::ImageStore;
use crate::job_dir::JobDir;
use crate::leavings::{self, Sweeper};
use crate::logs::{ARV_MOUNT, JOURNAL, Journal, LogDir, Saver};
use crate::mounts::arv_mount::{ArvMount, Request, Surroundings};
use crate::registry::Registered;
use crate::signals::{self, Signals};
use crate::status::Status;

/// Runs the container that the settings name, in a runtime of its own.
pub fn to_the_end(
    settings: &Settings,
    dir: &JobDir,
    registered: Option<&Registered>,
) -> io::Result<ExitCode> {
    in_runtime(|signals| run(settings, dir, registered, signals))
}

fn in_runtime<F: Future<Output = ExitCode>>(
    work: impl FnOnce(Signals) -> F,
) -> io::Result<ExitCode> {
    // A subscriber that is there already belongs to whoever calls this.
    let _ = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let code = runtime.block_on(async {
        let signals = signals::listen()?;
        io::Result::Ok(work(signals).await)
    });
    // Threads that may hang in a system call are not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

async fn run(
    settings: &Settings,
    dir: &JobDir,
    registered: Option<&Registered>,
    signals: Signals,
) -> ExitCode {
    let journal = LogDir::create(&dir.logs()).and_then(|logs| {
        dir.forget_undelivered()?;
        let journal = Journal::new(logs.open(JOURNAL)?, settings.uuid.clone());
        Ok((logs, journal))
    });
    let (logs, journal) = match journal {
        Ok(both) => both,
        Err(error) => {
            tracing::error!(container = %settings.uuid, "the log directory {} cannot be made: {error}", dir.logs().display());
            return ExitCode::NeverRan;
        }
    };
    let client = match Client::new(settings.endpoint.clone()) {
        // The dispatcher locked the container with this token a moment ago.
        Ok(client) => client.with_accepted_token(),
        Err(error) => {
            journal.say(error.to_string());
            return ExitCode::Configuration;
        }
    };
    let attempt = Attempt {
        settings,
        dir,
        registered,
        signals,
        logs,
        journal,
        client,
        phases: Phases::begin(),
    };
    attempt.run().await
}

struct Attempt<'a> {
    settings: &'a Settings,
    dir: &'a JobDir,
    /// Where others see what this run has on the node.
    registered: Option<&'a Registered>,
    signals: Signals,
    logs: LogDir,
    journal: Journal,
    client: Client,
    phases: Phases,
}

/// What every phase after the claim works with.
#[derive(Clone, Copy)]
struct Means<'a> {
    claim: &'a Claim,
    engine: &'a dyn Engine,
    scratch: &'a Scratch,
    tree: Option<&'a ArvMount>,
    saver: &'a Arc<Saver>,
    gateway: &'a Gateway,
}

impl Attempt<'_> {
    async fn run(self) -> ExitCode {
        self.journal.say(format!(
            "crunch-run {} (process {}, uid {}) on host '{}'",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            rustix::process::geteuid().as_raw(),
            rustix::system::uname().nodename().to_string_lossy(),
        ));
        self.journal
            .say(format!("Executing container: {}", self.settings.uuid));
        fail_point("run.before-claim");
        let claimed = self.unless_stopped(claim::claim(
            &self.client,
            &self.settings.uuid,
            ContainerState::Locked,
            self.settings.patience,
            Some(&self.settings.cache),
        ));
        let claim = match claimed.await {
            Ok(claim) => claim,
            // Nothing of it is ours to write to.
            Err(failure) => return self.give_up(failure),
        };
        self.phases.end("claim");
        fail_point("run.claimed");
        let status = Status::start(self.client.clone(), &claim.record);
        let saver = Arc::new(Saver::new(
            self.client.clone(),
            claim.keep.clone(),
            claim.record.uuid.clone(),
            self.logs.clone(),
        ));
        // It lives as long as the record can say Running.
        let gateway = self.gateway(&claim);
        let prepared = async {
            let makers = self.makers()?;
            let engine = self.engine(&makers).await?;
            let scratch = self.scratch(&*engine, &makers).await?;
            Ok::<_, Failure>((engine, scratch))
        };
        let (engine, scratch) = match prepared.await {
            Ok(prepared) => prepared,
            Err(failure) => {
                return self.refuse(failure.on_this_node(), status, &saver).await;
            }
        };
        let code = match self.tree(&claim, &*engine, &scratch).await {
            Ok(tree) => {
                let means = Means {
                    claim: &claim,
                    engine: &*engine,
                    scratch: &scratch,
                    tree: tree.as_ref(),
                    saver: &saver,
                    gateway: &gateway,
                };
                let code = self.with_means(means, status).await;
                if let Some(tree) = tree {
                    tree.end().await;
                }
                code
            }
            Err(failure) => self.refuse(failure, status, &saver).await,
        };
        fail_point("run.before-scratch-removed");
        if code != ExitCode::Undelivered {
            self.remove_scratch(&*engine, &scratch).await;
        }
        code
    }

    async fn remove_scratch(&self, engine: &dyn Engine, scratch: &Scratch) {
        let mut removed = scratch.remove();
        if removed
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
        {
            self.give_files(engine, None, scratch).await;
            removed = scratch.remove();
        }
        if let Err(error) = removed {
            self.journal.say(format!(
                "{} cannot be removed and stays on this node: {error}",
                scratch.path().display()
            ));
        }
    }

    async fn with_means(&self, means: Means<'_>, status: Status) -> ExitCode {
        let host = self.host_statistics(means.scratch.path());
        match self.until_running(means, &status, host).await {
            Ok(running) => self.to_final_state(running, means, status).await,
            Err(failure) => self.refuse(failure, status, means.saver).await,
        }
    }

    /// What serves the log while the container runs. Nothing depends on it.
    fn gateway(&self, claim: &Claim) -> Gateway {
        if self.settings.gateway == GatewayChoice::Off {
            return Gateway::off();
        }
        let takes_any = claim.server.takes_any_gateway_secret;
        let own = || takes_any.then(GatewaySecret::random).flatten();
        let Some(secret) = self.settings.gateway_secret.clone().or_else(own) else {
            self.journal.say(
                "Live logs are not served: the dispatcher gave no gateway secret (GatewayAuthSecret)",
            );
            return Gateway::off();
        };
        let parts = GatewayParts {
            client: self.client.clone(),
            uuid: self.settings.uuid.clone(),
            secret,
            logs: self.logs.clone(),
            journal: self.journal.clone(),
        };
        Gateway::start(parts).unwrap_or_else(|error| {
            self.journal
                .say(format!("Live logs are not served: {error}"));
            Gateway::off()
        })
    }

    /// What serves collections, where the flags want that. It is beside the scratch directory, whose files are counted.
    async fn tree(
        &self,
        claim: &Claim,
        engine: &dyn Engine,
        scratch: &Scratch,
    ) -> Result<Option<ArvMount>, Failure> {
        if self.settings.mount_method == MountMethod::Copy {
            self.say_that_inputs_are_copied();
            return Ok(None);
        }
        let is_service = matches!(engine.name(), "docker" | "podman");
        let request = Request {
            storage_classes: &claim.record.output_storage_classes,
            constraints: &claim.record.runtime_constraints,
            statistics_period: self.settings.statistics_period,
            // Another user of the image is another user of the node where no user namespace is between.
            allow_other: is_service || rustix::process::geteuid().is_root(),
            cache_dir: &scratch.path().join("keepcache"),
        };
        let place = self.dir.keep();
        let surroundings = Surroundings {
            tree: &place,
            logs: &self.logs,
            log_limit: self.settings.log_limit,
            endpoint: claim.container_client.endpoint(),
        };
        let starting = async {
            let tree = ArvMount::start(&request, surroundings).await;
            tree.map_err(|error| Failure::NeverRan(error.to_string()))
        };
        let tree = self.unless_stopped(starting).await?;
        self.phases.end("arv-mount");
        Ok(Some(tree))
    }

    /// Readers of the log miss the file of arv-mount where there is none.
    fn say_that_inputs_are_copied(&self) {
        self.journal
            .say("Inputs are copied to this node before the command starts; arv-mount is not used");
        // Empty: crunchstat-summary complains of each line that it cannot count.
        if let Err(error) = self.logs.write(ARV_MOUNT, b"") {
            self.journal
                .say(format!("{ARV_MOUNT} cannot be written: {error}"));
        }
    }

    fn makers(&self) -> Result<choose::Makers, Failure> {
        let store = ImageStore::open(&self.settings.cache)
            .map_err(|error| Failure::NeverRan(error.to_string()))?;
        Ok(choose::Makers {
            store,
            oci_runtime: self.settings.oci_runtime.clone(),
            docker_socket: self.settings.docker_socket.clone(),
        })
    }

    async fn engine(&self, makers: &choose::Makers) -> Result<Box<dyn Engine>, Failure> {
        let chosen = choose::choose(self.settings.engine, makers, self.dir.path())
            .await
            .map_err(|error| Failure::NeverRan(error.to_string()))?;
        for reason in chosen.passed_over {
            self.journal.say(format!("Not used: {reason}"));
        }
        self.journal
            .say(format!("Using container runtime: {}", chosen.engine.name()));
        Ok(chosen.engine)
    }

    /// A clean place; whatever an earlier attempt left on this node is gone.
    async fn scratch(
        &self,
        engine: &dyn Engine,
        makers: &choose::Makers,
    ) -> Result<Scratch, Failure> {
        let noted = self.registered.map(|run| run.note_engine(engine.note()));
        if let Some(Err(error)) = noted {
            self.journal.say(format!(
                "Should this run be killed, only one with the same engine tidies up after it: {error}"
            ));
        }
        let recovered = engine
            .recover(self.settings.uuid.as_str())
            .await
            .map_err(|error| Failure::NeverRan(error.to_string()))?;
        for what in recovered.removed {
            self.journal
                .say(format!("An earlier attempt left {what}; it is removed"));
        }
        let sweeper = Sweeper { engine, makers };
        let earlier = sweeper.earlier_attempts(&self.settings.uuid).await;
        for sentence in earlier.into_iter().chain(leavings::sweep(sweeper).await) {
            self.journal.say(sentence);
        }
        Scratch::create(self.settings, self.dir).map_err(|error| {
            on_this_node(
                self.settings.scratch.as_deref().unwrap_or(self.dir.path()),
                &error,
            )
        })
    }

    /// A phase before Running ends when we are asked to stop: nothing is lost.
    async fn unless_stopped<T>(
        &self,
        phase: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            asked = self.signals.stop.asked() => Err(Failure::NeverRan(format!(
                "caught signal {} before the container was started",
                asked.by
            ))),
            done = phase => done,
        }
    }

    fn give_up(&self, failure: Failure) -> ExitCode {
        match failure {
            Failure::NotOurs(reason) => {
                self.journal
                    .say(format!("The container is not ours to run: {reason}"));
                ExitCode::NotOurs
            }
            Failure::NeverRan(reason) | Failure::BrokenNode(reason) => {
                server_facts::forget(&self.settings.cache, &self.settings.endpoint);
                self.journal.say(format!("Ending without a run: {reason}"));
                ExitCode::NeverRan
            }
            Failure::Mistake(reason) => {
                self.journal.say(reason.sentence);
                ExitCode::NeverRan
            }
        }
    }
}
