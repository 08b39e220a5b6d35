//! One attempt at one container, from its record to its final state. The phases are called in `attempt`, in order.

mod archive;
mod claim;
mod deliver;
mod failure;
mod image;
mod insist;
mod phases;
mod prepare;
mod result;
mod settings;
mod spec;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use arvados_client::{Client, Pdh};
use serde_json::json;

pub use self::settings::{Settings, SettingsError};

use self::claim::Claim;
use self::deliver::{Delivery, Undelivered};
use self::failure::Failure;
use self::insist::Insistence;
use self::phases::Phases;
use self::prepare::{Created, Fetched, Pumps, Scratch, on_this_node};
use self::result::RunResult;
use self::watch::{Watch, Watched};
use crate::engine::builtin::{BuiltinEngine, Settings as BuiltinSettings};
use crate::engine::{Container, Engine, Exit};
use crate::exit::ExitCode;
use crate::image::ImageStore;
use crate::job_dir::JobDir;
use crate::logs::{
    CONTAINER, Checkpoints, JOURNAL, Journal, LogDir, NODE, Pump, RESULT, STATISTICS, Saver,
    container_json, node_info,
};
use crate::signals::Signals;
use crate::stats::{Sampler, Subject, Summary};
use crate::status::Status;
use crate::verdict::{self, Ending, Output};

/// How long a pipe may stay open after the container's end.
const PIPE_PATIENCE: Duration = Duration::from_secs(60);
/// Telling why nothing was run is worth so much waiting, and no more.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// Runs the container that the settings name.
pub async fn run(settings: &Settings, dir: &JobDir, signals: Signals) -> ExitCode {
    let journal = LogDir::create(&dir.logs()).and_then(|logs| {
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
        Ok(client) => client,
        Err(error) => {
            journal.say(error.to_string());
            return ExitCode::Configuration;
        }
    };
    let attempt = Attempt {
        settings,
        dir,
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
    signals: Signals,
    logs: LogDir,
    journal: Journal,
    client: Client,
    phases: Phases,
}

/// A container whose record says Running.
struct Running {
    fetched: Fetched,
    container: Arc<dyn Container>,
    pumps: Pumps,
    first_log: Pdh,
}

impl Attempt<'_> {
    async fn run(mut self) -> ExitCode {
        self.journal.say(format!(
            "crunch-run {} (process {}, uid {}) on host '{}'",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            rustix::process::geteuid().as_raw(),
            rustix::system::uname().nodename().to_string_lossy(),
        ));
        self.journal
            .say(format!("Executing container: {}", self.settings.uuid));
        let claimed = self.unless_stopped(claim::claim(
            &self.client,
            &self.settings.uuid,
            self.settings.patience,
        ));
        let claim = match claimed.await {
            Ok(claim) => claim,
            // Nothing of it is ours to write to.
            Err(failure) => return self.give_up(failure),
        };
        self.phases.end("claim");
        let status = Status::start(self.client.clone(), &claim.record);
        let saver = Arc::new(Saver::new(
            self.client.clone(),
            claim.keep.clone(),
            claim.record.uuid.clone(),
            self.logs.clone(),
        ));
        let engine = match self.engine() {
            Ok(engine) => engine,
            Err(failure) => return self.refuse(failure, status, &saver).await,
        };
        let scratch = match self.scratch(&*engine).await {
            Ok(scratch) => scratch,
            Err(failure) => return self.refuse(failure, status, &saver).await,
        };
        let code = match self
            .until_running(&claim, &*engine, &scratch, &status, &saver)
            .await
        {
            Ok(running) => {
                self.from_running(running, &claim, &*engine, status, &saver)
                    .await
            }
            Err(failure) => self.refuse(failure, status, &saver).await,
        };
        if code != ExitCode::Undelivered
            && let Err(error) = scratch.remove()
        {
            tracing::warn!(container = %self.settings.uuid, "{} cannot be removed: {error}", scratch.path().display());
        }
        code
    }

    fn engine(&self) -> Result<Box<dyn Engine>, Failure> {
        let store = ImageStore::open(&self.settings.cache)
            .map_err(|error| Failure::NeverRan(error.to_string()))?;
        let engine = BuiltinEngine::new(store, BuiltinSettings::default());
        engine
            .check()
            .map_err(|error| Failure::NeverRan(error.to_string()))?;
        self.journal
            .say(format!("Using container runtime: {}", engine.name()));
        Ok(Box::new(engine))
    }

    /// A clean place; whatever an earlier attempt left on this node is gone.
    async fn scratch(&self, engine: &dyn Engine) -> Result<Scratch, Failure> {
        let recovered = engine
            .recover(self.settings.uuid.as_str())
            .await
            .map_err(|error| Failure::NeverRan(error.to_string()))?;
        for what in recovered.removed {
            self.journal
                .say(format!("An earlier attempt left {what}; it is removed"));
        }
        Scratch::create(self.settings, self.dir).map_err(|error| {
            on_this_node(
                self.settings.scratch.as_deref().unwrap_or(self.dir.path()),
                &error,
            )
        })
    }

    /// The phases in which a failure leaves the record Locked, and a mistake cancels it.
    async fn until_running(
        &mut self,
        claim: &Claim,
        engine: &dyn Engine,
        scratch: &Scratch,
        status: &Status,
        saver: &Saver,
    ) -> Result<Running, Failure> {
        self.describe(claim, scratch)?;
        let (secret, image) = self.unless_stopped(claim::inputs(claim)).await?;
        self.phases.end("look up");
        self.journal
            .say(format!("Fetching inputs and image {}", image.label()));
        let fetched = self
            .unless_stopped(prepare::fetch(
                claim, engine, scratch, secret, &image, status,
            ))
            .await?;
        status.activity(None);
        self.phases.end("inputs and image");
        self.journal
            .say(format!("Image {} is ready", fetched.image.id));
        // What is said below can only be in a later version of the log.
        let (created, log) = tokio::join!(
            prepare::create(
                claim,
                self.settings,
                engine,
                scratch,
                &fetched,
                &self.logs,
                status,
                &self.journal,
            ),
            self.unless_stopped(async {
                saver
                    .save(false)
                    .await
                    .map_err(|error| Failure::NeverRan(error.to_string()))
            }),
        );
        let Created { container, pumps } = created?;
        let announced = match log {
            Ok(log) => self.announce(log).await,
            Err(failure) => Err(failure),
        };
        self.phases.end("create");
        match announced {
            Ok(first_log) => Ok(Running {
                fetched,
                container,
                pumps,
                first_log,
            }),
            Err(failure) => {
                self.remove(&*container).await;
                Err(failure)
            }
        }
    }

    /// Locked → Running: the guard against a second start. It carries a new log, because stock servers check
    /// who holds the lock only then.
    async fn announce(&self, log: Pdh) -> Result<Pdh, Failure> {
        let attributes = json!({"state": "Running", "log": log});
        self.unless_stopped(async {
            self.client
                .update_container(&self.settings.uuid, attributes)
                .await
                .map_err(|error| Failure::of_announcement(&error))
        })
        .await?;
        Ok(log)
    }

    /// What the log says about the container and this machine.
    fn describe(&self, claim: &Claim, scratch: &Scratch) -> Result<(), Failure> {
        let cache = self.settings.cache.as_path();
        self.logs
            .write(CONTAINER, &container_json(&claim.raw))
            .and_then(|()| {
                let text = node_info(&[std::path::Path::new("/"), scratch.path(), cache]);
                self.logs.write(NODE, text.as_bytes())
            })
            .map_err(|error| on_this_node(self.dir.path(), &error))
    }

    /// The record is Running: whatever happens now, it gets a final state.
    async fn from_running(
        &mut self,
        running: Running,
        claim: &Claim,
        engine: &dyn Engine,
        status: Status,
        saver: &Arc<Saver>,
    ) -> ExitCode {
        let Running {
            fetched,
            container,
            pumps,
            first_log,
        } = running;
        let checkpoints = Checkpoints::start(
            saver.clone(),
            self.client.clone(),
            self.settings.uuid.clone(),
            self.signals.save.clone(),
            self.journal.clone(),
        );
        let (watched, usage) = self.command(&*container, claim).await;
        self.phases.end("command");
        self.remove(&*container).await;
        drop(container);
        for (name, pump) in [("stdout", pumps.stdout), ("stderr", pumps.stderr)] {
            self.drain(name, pump).await;
        }
        self.phases.end("remove");
        let ending = match watched {
            Watched::Ended(ending) => ending,
            Watched::NotOurs(reason) => return self.give_up(Failure::NotOurs(reason)),
        };
        let exit = match &ending {
            Ending::Exited(exit) => Some(*exit),
            Ending::Stopped { exit, .. } => *exit,
            _ => None,
        };
        self.say_usage(exit.as_ref(), &usage, claim);

        let client = self.client.clone();
        let journal = self.journal.clone();
        let stop = self.signals.stop.clone();
        let delivery = Delivery {
            client: &client,
            claim,
            insistence: Insistence {
                patience: self.settings.patience,
                stop: &stop,
                journal: &journal,
            },
            journal: &journal,
        };
        let output = match &ending {
            Ending::Exited(_) => delivery.output(&fetched.staged, &status).await,
            _ => Ok(Output::Unwanted),
        };
        drop(checkpoints);
        self.phases.end("output");
        let memory_limit = spec::limits(&claim.record, self.settings).memory_bytes;
        let verdict = match output {
            Ok(output) => verdict::judge(&ending, output, memory_limit),
            Err(undelivered) => return self.keep(&undelivered),
        };
        for reason in verdict.error.iter().chain(&verdict.warning) {
            self.journal
                .say(format!("{}\n{}", reason.sentence, reason.detail));
        }
        let result = RunResult::new(
            &verdict,
            exit.as_ref(),
            &usage,
            memory_limit,
            &self.phases,
            engine.name(),
        );
        if let Err(error) = self.logs.write(RESULT, &result.text()) {
            self.journal
                .say(format!("{RESULT} cannot be written: {error}"));
        }
        self.journal.say(self.phases.line());
        self.journal.close(verdict.state.as_str());
        let (log, mut words) = tokio::join!(delivery.log(saver), status.finish());
        let log = log.unwrap_or_else(|error| {
            self.journal
                .say(format!("The end of the log is not saved: {error}"));
            words
                .warning
                .get_or_insert_with(|| format!("the end of its log could not be saved: {error}"));
            first_log
        });
        self.phases.end("logs");
        let recorded = delivery
            .record(&verdict, verdict.update(words, Some(&log)))
            .await;
        self.phases.end("record");
        match recorded {
            Ok(state) => {
                self.journal
                    .say(format!("The record says {state}. {}", self.phases.line()));
                ExitCode::Recorded
            }
            Err(undelivered) => self.keep(&undelivered),
        }
    }

    /// Starts the command and follows it to its end.
    async fn command(&self, container: &dyn Container, claim: &Claim) -> (Watched, Summary) {
        self.journal.say("Starting container");
        if let Err(error) = container.start().await {
            let ending = Ending::NotStarted {
                reason: error.to_string(),
            };
            return (Watched::Ended(ending), Summary::default());
        }
        let sampler = self.sampler(container, claim);
        let max_run_time = claim.record.scheduling_parameters.max_run_time;
        let watch = Watch {
            container,
            client: &self.client,
            uuid: &self.settings.uuid,
            own_token: &claim.own_token,
            max_run_time: (max_run_time > 0).then(|| Duration::from_secs(max_run_time)),
            grace: self.settings.grace,
            stop: &self.signals.stop,
            journal: &self.journal,
        };
        let watched = watch.to_the_end().await;
        let usage = match sampler {
            Some(sampler) => sampler.finish().await,
            None => Summary::default(),
        };
        (watched, usage)
    }

    fn sampler(&self, container: &dyn Container, claim: &Claim) -> Option<Sampler> {
        let log = match self.logs.open(STATISTICS) {
            Ok(log) => log,
            Err(error) => {
                self.journal
                    .say(format!("There are no statistics: {error}"));
                return None;
            }
        };
        let subject = Subject {
            group: container.cgroup()?,
            pid: container.pid(),
            scratch: self.dir.path().to_owned(),
            memory_limit: claim.record.runtime_constraints.ram,
        };
        let period = self.settings.statistics_period;
        Some(Sampler::start(subject, log, self.journal.clone(), period))
    }

    fn say_usage(&self, exit: Option<&Exit>, usage: &Summary, claim: &Claim) {
        if let Some(exit) = exit {
            self.journal.say(verdict::how(exit));
        }
        for line in usage.lines(claim.record.runtime_constraints.ram) {
            self.journal.say(line);
        }
        if let Some(peak) = exit.and_then(|exit| exit.peak_memory) {
            self.journal.say(format!(
                "Maximum container memory with cache, as the kernel counted it, was {peak} bytes"
            ));
        }
    }

    async fn remove(&self, container: &dyn Container) {
        if let Err(error) = container.remove().await {
            self.journal.say(format!(
                "Something of the container is left on this node: {error}"
            ));
        }
    }

    async fn drain(&self, name: &str, pump: Option<Pump>) {
        let Some(pump) = pump else {
            return;
        };
        let pumped = pump.finish(PIPE_PATIENCE).await;
        if pumped.dropped > 0 {
            self.journal.say(format!(
                "The log of {name} is not complete: {} bytes are left out",
                pumped.dropped
            ));
        }
        if let Some(error) = pumped.error {
            self.journal
                .say(format!("The log of {name} is not complete: {error}"));
        }
    }

    /// A phase before Running ends when we are asked to stop: nothing is lost.
    async fn unless_stopped<T>(
        &self,
        phase: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            done = phase => done,
            asked = self.signals.stop.asked() => Err(Failure::NeverRan(format!(
                "caught signal {} before the container was started",
                asked.by
            ))),
        }
    }

    /// Ends an attempt whose record is Locked.
    async fn refuse(&self, failure: Failure, status: Status, saver: &Saver) -> ExitCode {
        let Failure::Mistake(reason) = failure else {
            if matches!(failure, Failure::NeverRan(_)) {
                self.tell_why(&failure, saver).await;
            }
            return self.give_up(failure);
        };
        self.journal
            .say(format!("{}\n{}", reason.sentence, reason.detail));
        self.journal.close("Cancelled");
        let (log, words) = tokio::join!(
            tokio::time::timeout(self.settings.patience, saver.save(true)),
            status.finish()
        );
        // The reason is in the record itself; the log only tells the story.
        let log = log.ok().and_then(Result::ok);
        let update = verdict::refusal(&reason, words, log.as_ref());
        let told = self
            .client
            .update_container(&self.settings.uuid, update)
            .await;
        match told {
            Ok(()) => ExitCode::Recorded,
            Err(error) => self.give_up(Failure::of_announcement(&error)),
        }
    }

    /// The log of an attempt that ran nothing helps whoever asks why; it outlives the unlock.
    async fn tell_why(&self, failure: &Failure, saver: &Saver) {
        if let Failure::NeverRan(reason) = failure {
            self.journal.say(format!("Nothing was run here: {reason}"));
        }
        let telling = async {
            let log = saver.save(false).await?;
            let attributes = json!({"log": log});
            self.client
                .update_container(&self.settings.uuid, attributes)
                .await?;
            Ok::<_, crate::logs::SaveError>(())
        };
        let patience = LAST_WORDS.min(self.settings.patience);
        if !matches!(tokio::time::timeout(patience, telling).await, Ok(Ok(()))) {
            self.journal.say("The log could not be saved");
        }
    }

    fn give_up(&self, failure: Failure) -> ExitCode {
        match failure {
            Failure::NotOurs(reason) => {
                self.journal
                    .say(format!("The container is not ours to run: {reason}"));
                ExitCode::NotOurs
            }
            Failure::NeverRan(reason) => {
                self.journal.say(format!("Ending without a run: {reason}"));
                ExitCode::NeverRan
            }
            Failure::Mistake(reason) => {
                self.journal.say(reason.sentence);
                ExitCode::NeverRan
            }
        }
    }

    fn keep(&self, undelivered: &Undelivered) -> ExitCode {
        let code = undelivered.code();
        self.journal.say(match undelivered {
            Undelivered::NotOurs(_) => {
                format!("The container is not ours any more: {undelivered}")
            }
            Undelivered::TooLong(_) => format!(
                "The results are not delivered and stay in {}: {undelivered}",
                self.dir.path().display()
            ),
        });
        code
    }
}
