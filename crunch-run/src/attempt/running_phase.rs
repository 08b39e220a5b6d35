//! The phase in which the record is Running: runs the command, delivers its results and records
//! the final state.

use std::path::Path;

use arvados_client::records::RuntimeStatus;
use crunch_contract::{ExitCode, StatusLine};
use fail_points::fail_point;

use super::claim::Claim;
use super::context::{Attempt, PhaseContext};

use super::deliver::{Delivery, Undelivered};
use super::disk_reserve::{self, DiskReserve};
use super::failure::Failure;
use super::limits_of_record;
use super::locked_phase::{Companions, Running};
use super::retried_operation::RetryPolicy;
use super::runtime_status::Status;
use super::spec;
use super::wait_for_command::MonitorEnd;

use crate::inputs::PersistedMounts;
use crate::limits::LimitExceeded;
use crate::logs::Checkpoints;
use crate::output::BadEntries;
use crate::stats::Summary;
use crate::status_line;
use crate::undelivered::record::{self, UndeliveredRun};
use crate::verdict::result::ResultInput;
use crate::verdict::{self, Ending, Evidence, Output, Responsibility, Verdict};

/// What is known of a command that ended.
struct CommandRun {
    ending: Ending,
    usage: Summary,
    /// A limit on disk space that was exceeded at the end.
    exceeded: Option<LimitExceeded>,
    evidence: Evidence,
    /// The verdict if no output is saved.
    without_output: Verdict,
    running: Running,
}

impl CommandRun {
    async fn save_output(
        &self,
        delivery: &Delivery<'_>,
        limit: Option<u64>,
        bad_entries: BadEntries,
        status: &Status,
    ) -> Result<Output, Undelivered> {
        let Ending::Exited(exit) = &self.ending else {
            return Ok(Output::NotNeeded);
        };
        if let Some(exceeded) = &self.exceeded {
            return Ok(Output::TooLarge(exceeded.clone()));
        }
        let staged = &self.running.fetched.staged;
        match limits_of_record::output_limit_exceeded(limit, staged).await {
            Some(exceeded) => Ok(Output::TooLarge(exceeded)),
            None => delivery.output(staged, exit, bad_entries, status).await,
        }
    }
}

impl Attempt<'_> {
    /// Runs the command and delivers its results.
    pub async fn finish(
        &self,
        running: Running,
        companions: Companions,
        context: PhaseContext<'_>,
        status: Status,
    ) -> ExitCode {
        let PhaseContext {
            claim,
            tree,
            uploader,
            ..
        } = context;
        let checkpoints = Checkpoints::start(
            uploader.clone(),
            self.client.clone(),
            self.settings.uuid.clone(),
            self.signals.save.clone(),
            self.settings.log_save_policy,
            self.run_log.clone(),
        );
        let (end, usage) = self.run_command(&running, claim, tree, &status).await;
        self.timings.end("command");
        status.set_activity(Some("saving results".to_owned()));
        fail_point("run.command-ended");
        if let Some(claim) = &self.settings.machine_claim {
            // It may be gone already, or another's: then only a dispatcher here can change that.
            let _ = std::fs::remove_file(claim);
        }
        // Before the container's root is removed, which counts.
        let exceeded = running.usage_limits.exceeded_at_end().await;
        let container = running.container.clone();
        // When the first process ends, the kernel ends all others of its container. Nothing changes
        // the output any more, so the removal runs in parallel.
        let has_ended = match &end {
            MonitorEnd::Ended(ending) => ending.exit().is_some(),
            MonitorEnd::NotOurs(_) => false,
        };
        if !has_ended {
            self.remove(&*container, context.scratch).await;
        }
        if let MonitorEnd::Ended(ending) = &end {
            let output_path = &claim.record.output_path;
            self.warn_of_files_outside(&running, ending, output_path, &status)
                .await;
        }
        let ending = match end {
            MonitorEnd::Ended(ending) => ending,
            MonitorEnd::NotOurs(reason) => {
                return self.fail_before_running(Failure::NotOurs(reason));
            }
        };
        let run = self.command_run(ending, usage, exceeded, running, claim);
        let conclusion = self.finalize(run, companions, checkpoints, context, status);
        if !has_ended {
            return conclusion.await;
        }
        let ((), code) = tokio::join!(self.remove(&*container, context.scratch), conclusion);
        code
    }

    /// Finalizes a container whose command ended: saves output and logs, then records the verdict.
    async fn finalize(
        &self,
        run: CommandRun,
        companions: Companions,
        checkpoints: Checkpoints,
        context: PhaseContext<'_>,
        status: Status,
    ) -> ExitCode {
        let PhaseContext {
            claim,
            engine,
            scratch,
            ..
        } = context;
        self.settle(&run, companions.reserve, scratch.path(), &status);
        let mut undelivered_run = self.undelivered_run(&run, context);
        undelivered_run.status = status.final_status();
        // Saved before every step that may take long.
        self.save_undelivered_record(&undelivered_run);
        self.drain("stdout", companions.pumps.stdout, &status).await;
        self.drain("stderr", companions.pumps.stderr, &status).await;
        self.log_usage(run.ending.exit(), &run.usage, claim);
        self.give_files(engine, Some(&run.running.fetched.image), scratch)
            .await;
        let retry = RetryPolicy {
            timeout: self.settings.delivery_timeout,
            stop: &self.signals.stop,
            run_log: &self.run_log,
        };
        let delivery = Delivery::new(&self.client, claim, retry);
        let scratch_peak = run.running.usage_limits.peak_scratch_bytes();
        let facts = self.result_input(&run, &run.without_output, engine.name(), scratch_peak);
        undelivered_run.result = facts.value();
        undelivered_run.status = status.final_status();
        self.save_undelivered_record(&undelivered_run);
        fail_point("run.before-output");
        let (limit, bad_entries) = (self.settings.site.output, undelivered_run.bad_entries);
        let output = run
            .save_output(&delivery, limit, bad_entries, &status)
            .await;
        self.timings.end("output");
        fail_point("run.after-output");
        drop(companions.address_updates);
        let verdict = match output {
            Ok(output) => verdict::judge(&run.ending, output, run.evidence),
            Err(undelivered) => return self.leave_undelivered(&undelivered),
        };
        if verdict.kind.class() == Responsibility::Limit {
            status.note_ended_by_limit();
        }
        self.write_result(&ResultInput {
            verdict: &verdict,
            ..facts
        });
        self.report_broken_node(&verdict).await;
        self.log_host_usage(companions.host).await;
        checkpoints.stop().await;
        if self.is_stop_left_to_dispatcher(&verdict) {
            return self.leave_stopped(&verdict, context.uploader).await;
        }
        undelivered_run.verdict = Some(verdict.clone());
        self.save_undelivered_record(&undelivered_run);
        self.log_verdict(&verdict);
        let last = delivery.last_log(context.uploader, status, &run.running.first_log);
        let (log, runtime_status) = last.await;
        self.timings.end("logs");
        let cost = self.cost();
        let left = self.leave_permanent(claim, &verdict, &runtime_status, Some(&log), cost);
        if let Some(code) = left.await {
            return code;
        }
        undelivered_run.log = Some(log);
        self.record_verdict(&delivery, &verdict, runtime_status, undelivered_run)
            .await
    }

    /// What a flag says, else what the server announces.
    fn bad_entries(&self, claim: &Claim) -> BadEntries {
        let is_strict = self.settings.strict_output;
        match is_strict.unwrap_or(!claim.server.takes_partial_outputs) {
            true => BadEntries::Refuse,
            false => BadEntries::LeaveOut,
        }
    }

    /// What is known of a command that ended.
    fn command_run(
        &self,
        ending: Ending,
        mut usage: Summary,
        exceeded: Option<LimitExceeded>,
        running: Running,
        claim: &Claim,
    ) -> CommandRun {
        usage.largest_process(ending.exit().and_then(|exit| exit.largest_process));
        let at_the_end = ending.exit().map(|exit| exit.processes);
        let evidence = Evidence {
            memory_limit: spec::limits(&claim.record, self.settings).memory_bytes,
            processes: usage.process_limit().or(at_the_end.unwrap_or_default()),
        };
        CommandRun {
            without_output: verdict::judge(&ending, Output::NotNeeded, evidence),
            ending,
            usage,
            exceeded,
            evidence,
            running,
        }
    }

    /// Removes secrets and frees the disk reserve.
    fn settle(&self, run: &CommandRun, reserve: DiskReserve, scratch: &Path, status: &Status) {
        if let Some(sentence) = disk_reserve::disk_full_warning(scratch) {
            self.warn(status, sentence);
        }
        drop(reserve);
        if let Err(error) = run.running.fetched.staged.remove_secrets() {
            self.log(format!("Could not remove a secret from this node: {error}"));
        }
    }

    fn result_input<'r>(
        &'r self,
        run: &'r CommandRun,
        verdict: &'r Verdict,
        engine: &'r str,
        scratch_peak: u64,
    ) -> ResultInput<'r> {
        ResultInput {
            verdict,
            exit: run.ending.exit(),
            usage: &run.usage,
            refused_processes: run.evidence.processes.refused,
            memory_limit: run.evidence.memory_limit,
            scratch_peak,
            timings: &self.timings,
            engine,
            gpu_ids: &run.running.gpus.ids,
            gpu_models: &run.running.gpus.models,
            unenforced: &run.running.unenforced,
        }
    }

    /// The record from which `crunch-run resume` can deliver this run.
    fn undelivered_run(&self, run: &CommandRun, context: PhaseContext<'_>) -> UndeliveredRun {
        // An output is saved only if the command ended by itself.
        let (exit, verdict) = match &run.ending {
            Ending::Exited(exit) => (Some(*exit), None),
            _ => (None, Some(run.without_output.clone())),
        };
        let scratch_peak = run.running.usage_limits.peak_scratch_bytes();
        let engine = context.engine.name();
        let facts = self.result_input(run, &run.without_output, engine, scratch_peak);
        UndeliveredRun {
            version: record::VERSION,
            container: self.settings.uuid.clone(),
            attempt: context.claim.own_token.clone(),
            token_file: self.settings.token_file.clone(),
            environment: record::variables(&self.settings.endpoint),
            scratch: below(self.dir.path(), context.scratch.path()).to_owned(),
            mounts: PersistedMounts::of(&run.running.fetched.staged, self.dir.path()),
            evidence: run.evidence,
            output_limit: self.settings.site.output,
            bad_entries: self.bad_entries(context.claim),
            exit,
            verdict,
            first_log: run.running.first_log.clone(),
            log: None,
            recorded: None,
            cost: None,
            status: RuntimeStatus::default(),
            result: facts.value(),
        }
    }

    /// Gives the container record its final state.
    async fn record_verdict(
        &self,
        delivery: &Delivery<'_>,
        verdict: &Verdict,
        status: RuntimeStatus,
        mut undelivered_run: UndeliveredRun,
    ) -> ExitCode {
        undelivered_run.cost = self.cost();
        self.save_undelivered_record(&undelivered_run);
        fail_point("run.after-last-log");
        let update = verdict.update(status, undelivered_run.log.as_ref(), undelivered_run.cost);
        fail_point("run.before-final");
        let recorded = delivery.record(verdict, update).await;
        self.timings.end("record");
        fail_point("run.after-final");
        match recorded {
            Ok(state) => {
                // The final state revoked the attempt's token, so the record cannot be read again.
                undelivered_run.recorded = Some(state.clone());
                self.save_undelivered_record(&undelivered_run);
                self.log(format!("The record says {state}. {}", self.timings.line()));
                ExitCode::Recorded
            }
            Err(undelivered) => self.leave_undelivered(&undelivered),
        }
    }

    /// Cost of this run so far, if the price of the node is known.
    fn cost(&self) -> Option<f64> {
        let instance = self.settings.instance.as_ref()?;
        instance.cost(self.timings.elapsed())
    }

    /// Saves undelivered.json, in case this process is killed before delivery.
    fn save_undelivered_record(&self, undelivered_run: &UndeliveredRun) {
        let verdict = undelivered_run.verdict.as_ref();
        if verdict.is_some_and(|verdict| self.is_stop_left_to_dispatcher(verdict)) {
            return;
        }
        if let Err(error) = undelivered_run.write(self.dir) {
            self.log(format!(
                "Could not write undelivered.json, so `crunch-run resume` could not deliver the results: {error}"
            ));
        }
    }

    fn leave_undelivered(&self, undelivered: &Undelivered) -> ExitCode {
        let code = undelivered.code();
        self.log(match undelivered {
            Undelivered::NotOurs(_) => {
                format!("The container now belongs to another attempt: {undelivered}")
            }
            Undelivered::TimedOut(_) => format!(
                "The results are not delivered and stay in {dir} on {node}: {undelivered}. `crunch-run resume {dir}` on this node delivers them later",
                dir = self.dir.path().display(),
                node = host_state::node_name(),
            ),
        });
        // Last: dispatchers read only the end of the output, and the error above may be long.
        if code == ExitCode::Undelivered {
            let directory = self.dir.path().display().to_string();
            status_line::print(&StatusLine::Undelivered { directory });
        }
        code
    }
}

/// Relative to the job directory, which may be moved, if the path is inside it.
fn below<'a>(dir: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(dir).unwrap_or(path)
}
