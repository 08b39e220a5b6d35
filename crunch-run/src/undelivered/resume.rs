//! Delivers the results of an earlier process: output, log and final state. Needs no engine.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::{Container as Record, ContainerState, RuntimeStatus};
use arvados_client::{Client, Endpoint};

use crate::attempt::claim::{self, Claim};
use crate::attempt::deliver::{Delivery, Undelivered};
use crate::attempt::failure::Failure;
use crate::attempt::limits_of_record;
use crate::attempt::retried_operation::{RetryError, RetryPolicy, RetryStopped};

use crate::attempt::runtime::in_runtime;
use crate::attempt::runtime_status::Status;
use crate::logs::{LogDir, LogUploader, RESULT, RUN_LOG, RunLog};
use crate::node::job_dir::JobDir;
use crate::node::signals::Signals;
use crate::own_record;
use crate::undelivered::record::UndeliveredRun;
use crate::verdict::{self, Ending, Output, Verdict};
use crunch_contract::ExitCode;
use crunch_contract::runtime_status::UNDELIVERED_SINCE;

/// What to deliver. The caller holds the lock of the job directory.
#[derive(Debug)]
pub struct ResumeRequest {
    pub dir: JobDir,
    pub undelivered_run: UndeliveredRun,
    pub endpoint: Endpoint,
    pub timeout: Duration,
}

/// Retries until the timeout. It may be called again, however it ends.
pub fn resume(resumption: ResumeRequest) -> io::Result<ExitCode> {
    let logs = LogDir::existing(&resumption.dir.logs())?;
    let run_log = RunLog::new(
        logs.open(RUN_LOG)?,
        resumption.undelivered_run.container.clone(),
    );
    let client = Client::new(resumption.endpoint.clone()).map_err(io::Error::other)?;
    // The attempt was claimed with this token.
    let client = client.with_accepted_token();
    in_runtime(|signals| {
        let resumed = ResumedDelivery {
            resumption,
            logs,
            run_log,
            client,
            signals,
        };
        resumed.run()
    })
}

struct ResumedDelivery {
    resumption: ResumeRequest,
    logs: LogDir,
    run_log: RunLog,
    client: Client,
    signals: Signals,
}

impl ResumedDelivery {
    async fn run(mut self) -> ExitCode {
        self.run_log.write(format!(
            "crunch-run {} (process {}) resumes the delivery from {}",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.resumption.dir.path().display(),
        ));
        let delivered = match self.claim().await {
            Ok(claim) => self.deliver(&claim).await,
            Err(Undelivered::NotOurs(_)) if self.is_recorded().await => {
                self.run_log
                    .write("The record already has this final state");
                Ok(())
            }
            Err(undelivered) => Err(undelivered),
        };
        match delivered {
            Ok(()) => ExitCode::Recorded,
            Err(undelivered) => {
                let dir = self.resumption.dir.path().display();
                let node = host_state::node_name();
                self.run_log.write(match &undelivered {
                    Undelivered::NotOurs(text) => format!(
                        "The container belongs to another attempt, so nothing was delivered; its results stay in {dir}: {text}"
                    ),
                    Undelivered::TimedOut(text) => format!(
                        "The results are still not delivered and stay in {dir} on {node}: {text}. Run `crunch-run resume {dir}` again later"
                    ),
                });
                undelivered.code()
            }
        }
    }

    fn retry_policy(&self) -> RetryPolicy<'_> {
        RetryPolicy {
            timeout: self.resumption.timeout,
            stop: &self.signals.stop,
            run_log: &self.run_log,
        }
    }

    /// Claims the record if it is Running and locked by this attempt.
    async fn claim(&self) -> Result<Claim, Undelivered> {
        let ResumeRequest {
            undelivered_run,
            timeout,
            ..
        } = &self.resumption;
        let retry = self.retry_policy();
        let claiming = retry.run("Reading the record", || async {
            let claim = claim::claim(
                &self.client,
                &undelivered_run.container,
                ContainerState::Running,
                *timeout,
                None,
            );
            match claim.await {
                Ok(claim) if claim.own_token == undelivered_run.attempt => Ok(claim),
                Ok(claim) => Err(RetryError::Final(format!(
                    "the token is {}, and these are the results of {}",
                    claim.own_token, undelivered_run.attempt
                ))),
                Err(Failure::NotOurs(text)) => Err(RetryError::Final(text)),
                Err(
                    Failure::NeverRan(text)
                    | Failure::BrokenNode(text)
                    | Failure::StorageFailed(text),
                ) => Err(RetryError::Transient(text)),
                Err(Failure::UserError(reason)) => Err(RetryError::Transient(reason.sentence)),
            }
        });
        let claimed = tokio::select! {
            claimed = claiming => claimed,
            request = self.signals.stop.requested() => return Err(stopped(request.by)),
        };
        claimed.map_err(|gave_up| match gave_up {
            RetryStopped::Final(text) => Undelivered::NotOurs(text),
            RetryStopped::TimedOut(text) => Undelivered::TimedOut(text),
        })
    }

    /// Whether the record already has this verdict, because an earlier process ended just after
    /// recording it.
    async fn is_recorded(&self) -> bool {
        let undelivered_run = &self.resumption.undelivered_run;
        let (Some(verdict), Some(log)) = (&undelivered_run.verdict, &undelivered_run.log) else {
            return false;
        };
        // The refusal window has passed already.
        let client = self.client.with_refusal_window(Duration::ZERO);
        let record: Result<Record, _> = client
            .send(own_record::read(&undelivered_run.container))
            .await;
        record.is_ok_and(|record| record.state == verdict.state && record.log.as_ref() == Some(log))
    }

    async fn deliver(&mut self, claim: &Claim) -> Result<(), Undelivered> {
        let mut record = claim.record.clone();
        record.runtime_status = restore_status(
            record.runtime_status,
            &self.resumption.undelivered_run.status,
        );
        let status = Status::start(self.client.clone(), &record);
        let uploader = Arc::new(LogUploader::new(
            self.client.clone(),
            claim.keep.clone(),
            claim.record.uuid.clone(),
            self.logs.clone(),
        ));
        let mut undelivered_run = self.resumption.undelivered_run.clone();
        let delivery = Delivery::new(&self.client, claim, self.retry_policy());
        let verdict = match &undelivered_run.verdict {
            Some(verdict) => verdict.clone(),
            None => {
                self.reach_verdict(&undelivered_run, claim, &delivery, &status)
                    .await?
            }
        };
        undelivered_run.verdict = Some(verdict.clone());
        self.write_record(&undelivered_run)?;
        self.write_result(&undelivered_run, &verdict);
        for reason in verdict.error.iter().chain(&verdict.warning) {
            self.run_log
                .write(format!("{}\n{}", reason.sentence, reason.detail));
        }
        self.run_log.close(verdict.state.as_str());
        let (log, runtime_status) = delivery
            .last_log(&uploader, status, &undelivered_run.first_log)
            .await;
        undelivered_run.log = Some(log.clone());
        self.write_record(&undelivered_run)?;
        let update = verdict.update(runtime_status, Some(&log), undelivered_run.cost);
        let state = delivery.record(&verdict, update).await?;
        undelivered_run.recorded = Some(state.clone());
        // The file is removed soon, unless this process is killed.
        let _ = undelivered_run.write(&self.resumption.dir);
        self.run_log.write(format!("The record says {state}"));
        Ok(())
    }

    /// Saves the output of a command that ended by itself, and returns the verdict.
    async fn reach_verdict(
        &self,
        undelivered_run: &UndeliveredRun,
        claim: &Claim,
        delivery: &Delivery<'_>,
        status: &Status,
    ) -> Result<Verdict, Undelivered> {
        let damaged = |what: &str| {
            let path = self.resumption.dir.undelivered();
            Undelivered::TimedOut(format!("{} is damaged: {what}", path.display()))
        };
        let exit = undelivered_run
            .exit
            .ok_or_else(|| damaged("it has neither exit nor verdict"))?;
        let staged = undelivered_run
            .mounts
            .restore(self.resumption.dir.path(), claim.container_client.clone())
            .map_err(|problem| damaged(&problem.to_string()))?;
        // A missing directory is not an empty output.
        if !staged.output_dir.exists() {
            let path = staged.output_dir.display();
            return Err(Undelivered::TimedOut(format!(
                "the output directory {path} does not exist any more on this node"
            )));
        }
        let saving = async {
            match limits_of_record::output_limit_exceeded(undelivered_run.output_limit, &staged)
                .await
            {
                Some(exceeded) => Ok(Output::TooLarge(exceeded)),
                None => {
                    let bad_entries = undelivered_run.bad_entries;
                    delivery.save_output(&staged, bad_entries, status).await
                }
            }
        };
        let output = tokio::select! {
            saved = saving => saved?,
            // The results stay for the next delivery.
            request = self.signals.stop.requested() => return Err(stopped(request.by)),
        };
        let ending = Ending::Exited(exit);
        Ok(verdict::judge(&ending, output, undelivered_run.evidence))
    }

    fn write_record(&self, undelivered_run: &UndeliveredRun) -> Result<(), Undelivered> {
        let written = undelivered_run.write(&self.resumption.dir);
        written.map_err(|error| {
            let path = self.resumption.dir.undelivered();
            Undelivered::TimedOut(format!("{} cannot be written: {error}", path.display()))
        })
    }

    fn write_result(&self, undelivered_run: &UndeliveredRun, verdict: &Verdict) {
        // An earlier process may have written the file.
        let _ = fs::remove_file(self.logs.file(RESULT));
        if let Err(error) = self.logs.write(RESULT, &undelivered_run.result(verdict)) {
            self.run_log
                .write(format!("{RESULT} cannot be written: {error}"));
        }
    }
}

/// Removes the dispatcher's notice of waiting results and restores what it replaced.
fn restore_status(mut there: RuntimeStatus, undelivered_run: &RuntimeStatus) -> RuntimeStatus {
    if there.extra.remove(UNDELIVERED_SINCE).is_some() {
        there.activity = None;
        there.warning.clone_from(&undelivered_run.warning);
        there
            .warning_detail
            .clone_from(&undelivered_run.warning_detail);
    }
    there
}

fn stopped(signal: &str) -> Undelivered {
    Undelivered::TimedOut(format!("it was stopped on request (signal {signal})"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_earlier_warning_takes_the_place_of_that_of_waiting_results() {
        let status = |value| -> RuntimeStatus { serde_json::from_value(value).unwrap() };
        let undelivered_run = status(json!({"warning": "w", "warningDetail": "d"}));
        // there, what it becomes
        for (there, expected) in [
            (
                json!({
                    "warning": "its results are kept", "warningDetail": "x", "activity": "they wait",
                    "undeliveredSince": "2026-01-02T03:04:05Z", "progress": 3,
                }),
                json!({"warning": "w", "warningDetail": "d", "progress": 3}),
            ),
            (json!({"warning": "other"}), json!({"warning": "other"})),
        ] {
            let now = restore_status(status(there), &undelivered_run);
            assert_eq!(serde_json::to_value(now).unwrap(), expected);
        }
    }
}
