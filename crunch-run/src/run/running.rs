//! From Running on: whatever happens now, the record gets a final state.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fail_points::fail_point;

use super::claim::Claim;
use super::deliver::{Delivery, Undelivered};
use super::failure::Failure;
use super::insist::Insistence;
use super::left::{Left, Remains};
use super::limits;
use super::locked::Running;
use super::prepare::Scratch;
use super::reserve;
use super::result::{self, Facts};
use super::spec;
use super::watch::{Watch, Watched};
use super::{Attempt, Means};
use crate::engine::{Container, Engine, Exit};
use crate::exit::ExitCode;
use crate::image::Image;
use crate::limits::Watchdog;
use crate::logs::{Checkpoints, HOST_STATISTICS, Pump, RESULT, STATISTICS, Saver};
use crate::mounts::NotedMounts;
use crate::mounts::arv_mount::ArvMount;
use crate::stats::{Sampler, Source, Subject, Summary};
use crate::status::Status;
use crate::verdict::{self, Cause, Ending, Evidence, Kind, Output, Verdict};

/// How long a pipe may stay open after the container's end.
const PIPE_PATIENCE: Duration = Duration::from_secs(60);

/// A command that does not run any more.
struct Ended {
    ending: Ending,
    usage: Summary,
    running: Running,
    checkpoints: Checkpoints,
}

impl Attempt<'_> {
    /// Runs the command to its end and delivers what came of it.
    pub async fn to_final_state(
        &self,
        running: Running,
        means: Means<'_>,
        status: Status,
    ) -> ExitCode {
        let Means {
            claim,
            engine,
            scratch,
            tree,
            saver,
            ..
        } = means;
        let checkpoints = Checkpoints::start(
            saver.clone(),
            self.client.clone(),
            self.settings.uuid.clone(),
            self.signals.save.clone(),
            self.settings.log_pace,
            self.journal.clone(),
        );
        let (watched, usage) = self.command(&running, claim, tree, &status).await;
        self.phases.end("command");
        fail_point("run.command-ended");
        let container = running.container.clone();
        // The end of a first process is the end of all others of its container: nothing changes its output any
        // more, and what the kernel takes to tidy up need not be waited for.
        let has_ended = match &watched {
            Watched::Ended(ending) => ending.exit().is_some(),
            Watched::NotOurs(_) => false,
        };
        if !has_ended {
            self.remove(&*container).await;
        }
        let ending = match watched {
            Watched::Ended(ending) => ending,
            Watched::NotOurs(reason) => return self.give_up(Failure::NotOurs(reason)),
        };
        let ended = Ended {
            ending,
            usage,
            running,
            checkpoints,
        };
        let conclusion = self.conclude(ended, claim, engine, scratch, status, saver);
        if !has_ended {
            return conclusion.await;
        }
        let ((), code) = tokio::join!(self.remove(&*container), conclusion);
        code
    }

    /// From the end of the command to the end of the record.
    async fn conclude(
        &self,
        ended: Ended,
        claim: &Claim,
        engine: &dyn Engine,
        scratch: &Scratch,
        status: Status,
        saver: &Arc<Saver>,
    ) -> ExitCode {
        let Ended {
            ending,
            mut usage,
            running,
            checkpoints,
        } = ended;
        usage.largest_process(ending.exit().and_then(|exit| exit.largest_process));
        if let Some(sentence) = reserve::full(scratch.path()) {
            self.journal.say(format!("Warning: {sentence}"));
            status.warn(sentence);
        }
        drop(running.reserve);
        let staged = &running.fetched.staged;
        if let Err(error) = staged.forget_secrets() {
            self.journal.say(format!(
                "A secret cannot be removed from this node: {error}"
            ));
        }
        let memory_limit = spec::limits(&claim.record, self.settings).memory_bytes;
        let at_the_end = ending.exit().map(|exit| exit.processes);
        let processes = usage.process_limit().or(at_the_end.unwrap_or_default());
        let evidence = Evidence {
            memory_limit,
            processes,
        };
        let without_output = verdict::judge(&ending, Output::Unwanted, evidence);
        let mut facts = Facts {
            verdict: &without_output,
            exit: ending.exit(),
            usage: &usage,
            refused_processes: processes.refused,
            memory_limit,
            scratch_peak: running.allowance.scratch_so_far(),
            phases: &self.phases,
            engine: engine.name(),
            gpus: &running.gpus,
            unenforced: &running.unenforced,
        };
        // Only of a command that ended by itself the output is still to be seen.
        let (exit, verdict) = match &ending {
            Ending::Exited(exit) => (Some(*exit), None),
            _ => (None, Some(without_output.clone())),
        };
        let mut left = Left::new(Remains {
            container: &self.settings.uuid,
            attempt: &claim.own_token,
            token_file: self.settings.token_file.as_deref(),
            endpoint: &self.settings.endpoint,
            scratch: below(self.dir.path(), scratch.path()),
            mounts: NotedMounts::of(staged, self.dir.path()),
            evidence,
            output_limit: self.settings.site.output,
            exit,
            verdict,
            first_log: &running.first_log,
            result: facts.value(),
        });
        left.status = status.at_end();
        // Before all that may take its time.
        self.note(&left);
        self.drain("stdout", running.pumps.stdout).await;
        self.drain("stderr", running.pumps.stderr).await;
        self.say_usage(ending.exit(), &usage, claim);
        self.give_files(engine, Some(&running.fetched.image), scratch)
            .await;
        let insistence = Insistence {
            patience: self.settings.patience,
            stop: &self.signals.stop,
            journal: &self.journal,
        };
        let delivery = Delivery::new(&self.client, claim, insistence);
        facts.scratch_peak = running.allowance.scratch_at_most().await;
        left.measured(facts.value());
        left.status = status.at_end();
        self.note(&left);
        fail_point("run.before-output");
        let output = match &ending {
            Ending::Exited(exit) => match limits::output_overrun(left.output_limit, staged).await {
                Some(overrun) => Ok(Output::TooLarge(overrun)),
                None => delivery.output(staged, exit, &status).await,
            },
            _ => Ok(Output::Unwanted),
        };
        self.phases.end("output");
        fail_point("run.after-output");
        drop(running.address_keeper);
        let verdict = match output {
            Ok(output) => verdict::judge(&ending, output, evidence),
            Err(undelivered) => return self.keep(&undelivered),
        };
        self.write_result(&Facts {
            verdict: &verdict,
            ..facts
        });
        if verdict.kind == Kind::BrokenNode
            && let Some(error) = &verdict.error
        {
            self.settings
                .alarm
                .raise(&error.sentence, &self.journal)
                .await;
        }
        if let Some(host) = running.host {
            for line in host.finish().await.process_lines() {
                self.journal.say(line);
            }
        }
        checkpoints.end().await;
        left.verdict = Some(verdict.clone());
        self.note(&left);
        self.last_lines(&verdict);
        let (log, words) = delivery.last_log(saver, status, &running.first_log).await;
        self.phases.end("logs");
        left.log = Some(log.clone());
        let instance = self.settings.instance.as_ref();
        left.cost = instance.and_then(|instance| instance.cost(self.phases.elapsed()));
        self.note(&left);
        fail_point("run.after-last-log");
        let update = verdict.update(words, Some(&log), left.cost);
        fail_point("run.before-final");
        let recorded = delivery.record(&verdict, update).await;
        self.phases.end("record");
        fail_point("run.after-final");
        match recorded {
            Ok(state) => {
                // The attempt's token has ended with that, so nobody could ask any more.
                left.recorded = Some(state.clone());
                self.note(&left);
                self.journal
                    .say(format!("The record says {state}. {}", self.phases.line()));
                ExitCode::Recorded
            }
            Err(undelivered) => self.keep(&undelivered),
        }
    }

    /// Starts the command and follows it to its end.
    async fn command(
        &self,
        running: &Running,
        claim: &Claim,
        tree: Option<&ArvMount>,
        status: &Status,
    ) -> (Watched, Summary) {
        let container = &*running.container;
        self.journal.say("Starting container");
        if let Err(error) = container.start().await {
            let ending = Ending::NotStarted {
                reason: error.to_string(),
                by_request: error.is_users(),
            };
            return (Watched::Ended(ending), Summary::default());
        }
        let max_run_time = claim.record.scheduling_parameters.max_run_time;
        let max_run_time = (max_run_time > 0).then(|| Duration::from_secs(max_run_time));
        let watchdog = max_run_time.and_then(|time| self.watchdog(container, time));
        fail_point("run.started");
        let sampler = self.sampler(running, claim);
        let watch = Watch {
            container,
            client: &self.client,
            uuid: &self.settings.uuid,
            own_token: &claim.own_token,
            max_run_time,
            grace: self.settings.grace,
            allowance: &running.allowance,
            tree,
            signals: &self.signals,
            status,
            journal: &self.journal,
        };
        let mut watched = watch.to_the_end().await;
        if let (Watched::Ended(Ending::Exited(exit)), Some(limit)) = (&watched, max_run_time)
            && watchdog.is_some_and(|watchdog| watchdog.has_bitten())
        {
            watched = Watched::Ended(Ending::Stopped {
                cause: Cause::MaxRunTime(limit),
                exit: Some(*exit),
            });
        }
        let usage = match sampler {
            Some(sampler) => sampler.finish().await,
            None => Summary::default(),
        };
        (watched, usage)
    }

    /// Should all of this hang, the container still ends some time.
    fn watchdog(&self, container: &dyn Container, max_run_time: Duration) -> Option<Watchdog> {
        let after = Watchdog::patience(max_run_time, self.settings.grace, self.settings.overdue);
        let journal = self.journal.clone();
        Watchdog::start(container.cgroup()?, after, move |text| journal.say(text))
    }

    fn sampler(&self, running: &Running, claim: &Claim) -> Option<Sampler> {
        let log = match self.logs.open(STATISTICS) {
            Ok(log) => log,
            Err(error) => {
                self.journal
                    .say(format!("There are no statistics: {error}"));
                return None;
            }
        };
        let source = Source::of(&*running.container)?;
        let subject = Subject {
            source,
            pid: running.container.pid(),
            scratch: running.fetched.staged.output_dir.clone(),
            memory_limit: claim.record.runtime_constraints.ram,
            processes: vec![],
        };
        let period = self.settings.statistics_period;
        Some(Sampler::start(subject, log, self.journal.clone(), period))
    }

    /// What this program itself needs. Nobody misses it when it cannot be had.
    pub fn host_statistics(&self, scratch: &Path) -> Option<Sampler> {
        let log = self.logs.open(HOST_STATISTICS).ok()?;
        let subject = Subject::this_program(scratch.to_owned()).ok()?;
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
            let whose = match exit.is_some_and(|exit| exit.job_group.is_some()) {
                true => "memory of its job's control group, with cache",
                false => "container memory with cache",
            };
            self.journal.say(format!(
                "Maximum {whose}, as the kernel counted it, was {peak} bytes"
            ));
        }
    }

    /// Files that the container made as another user: else they could be neither saved nor removed.
    pub async fn give_files(&self, engine: &dyn Engine, image: Option<&Image>, scratch: &Scratch) {
        let uuid = self.settings.uuid.as_str();
        match engine.give_files(uuid, image, scratch.path()).await {
            Ok(true) => self
                .journal
                .say("The container made files as another user; they belong to this user now"),
            Ok(false) => {}
            Err(error) => self.journal.say(format!(
                "Files that the container made as another user stay that user's: {error}"
            )),
        }
    }

    pub async fn remove(&self, container: &dyn Container) {
        if let Err(error) = container.remove().await {
            self.journal.say(format!(
                "Something of the container is left on this node: {error}"
            ));
        }
    }

    fn write_result(&self, result: &Facts<'_>) {
        if let Err(error) = self.logs.write(RESULT, &result::text(&result.value())) {
            self.journal
                .say(format!("{RESULT} cannot be written: {error}"));
        }
    }

    fn last_lines(&self, verdict: &Verdict) {
        for reason in verdict.error.iter().chain(&verdict.warning) {
            self.journal
                .say(format!("{}\n{}", reason.sentence, reason.detail));
        }
        self.journal.say(self.phases.line());
        self.journal.close(verdict.state.as_str());
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

    /// Should this process not live to deliver it.
    fn note(&self, left: &Left) {
        if let Err(error) = left.write(self.dir) {
            self.journal.say(format!(
                "What is left to deliver cannot be noted, so another process could not go on: {error}"
            ));
        }
    }

    fn keep(&self, undelivered: &Undelivered) -> ExitCode {
        let code = undelivered.code();
        self.journal.say(match undelivered {
            Undelivered::NotOurs(_) => {
                format!("The container is not ours any more: {undelivered}")
            }
            Undelivered::TooLong(_) => format!(
                "The results are not delivered and stay in {dir} on {node}: {undelivered}. `crunch-run resume {dir}` on this node delivers them later",
                dir = self.dir.path().display(),
                node = this_node(),
            ),
        });
        code
    }
}

/// The name of this machine.
pub fn this_node() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Relative to the job directory where it is in it: that may be moved.
fn below<'a>(dir: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(dir).unwrap_or(path)
}
