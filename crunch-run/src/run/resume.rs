//! Delivering what an earlier process left: its output, its log, and the record's final state. No engine is needed.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::{Container as Record, ContainerState, RuntimeStatus};
use arvados_client::{Client, Endpoint};

use super::claim::{self, Claim};
use super::deliver::{Delivery, Undelivered};
use super::failure::Failure;
use super::in_runtime;
use super::insist::{GaveUp, Insistence, Trouble};
use super::left::Left;
use super::limits;
use super::running::this_node;
use crate::exit::ExitCode;
use crate::job_dir::JobDir;
use crate::logs::{JOURNAL, Journal, LogDir, RESULT, Saver};
use crate::own_record;
use crate::signals::Signals;
use crate::status::Status;
use crate::verdict::{self, Ending, Output, Verdict};

/// The key of `runtime_status` under which a dispatcher notes since when results wait.
const UNDELIVERED_SINCE: &str = "undeliveredSince";

/// What is to be delivered, and how. Whoever calls holds the lock of the job directory.
#[derive(Debug)]
pub struct Resumption {
    pub dir: JobDir,
    pub left: Left,
    pub endpoint: Endpoint,
    pub patience: Duration,
}

/// Tries for as long as the patience lasts. However it ends, it may be called again.
pub fn resume(resumption: Resumption) -> io::Result<ExitCode> {
    let logs = LogDir::existing(&resumption.dir.logs())?;
    let journal = Journal::new(logs.open(JOURNAL)?, resumption.left.container.clone());
    let client = Client::new(resumption.endpoint.clone()).map_err(io::Error::other)?;
    // The attempt was claimed with it.
    let client = client.with_accepted_token();
    in_runtime(|signals| {
        let resumed = Resumed {
            resumption,
            logs,
            journal,
            client,
            signals,
        };
        resumed.run()
    })
}

struct Resumed {
    resumption: Resumption,
    logs: LogDir,
    journal: Journal,
    client: Client,
    signals: Signals,
}

impl Resumed {
    async fn run(mut self) -> ExitCode {
        self.journal.say(format!(
            "crunch-run {} (process {}) resumes the delivery from {}",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.resumption.dir.path().display(),
        ));
        let delivered = match self.claim().await {
            Ok(claim) => self.deliver(&claim).await,
            Err(Undelivered::NotOurs(_)) if self.is_recorded().await => {
                self.journal
                    .say("The record has its final state from us already");
                Ok(())
            }
            Err(undelivered) => Err(undelivered),
        };
        match delivered {
            Ok(()) => ExitCode::Recorded,
            Err(undelivered) => {
                let dir = self.resumption.dir.path().display();
                let node = this_node();
                self.journal.say(match &undelivered {
                    Undelivered::NotOurs(text) => format!(
                        "The container is not this attempt's any more, so nothing was delivered; its results stay in {dir}: {text}"
                    ),
                    Undelivered::TooLong(text) => format!(
                        "The results are still not delivered and stay in {dir} on {node}: {text}. `crunch-run resume {dir}` may be tried again"
                    ),
                });
                undelivered.code()
            }
        }
    }

    fn insistence(&self) -> Insistence<'_> {
        Insistence {
            patience: self.resumption.patience,
            stop: &self.signals.stop,
            journal: &self.journal,
        }
    }

    /// The record, if it is still Running under this attempt's lock.
    async fn claim(&self) -> Result<Claim, Undelivered> {
        let Resumption { left, patience, .. } = &self.resumption;
        let insistence = self.insistence();
        let claiming = insistence.on("Reading the record", || async {
            let claim = claim::claim(
                &self.client,
                &left.container,
                ContainerState::Running,
                *patience,
                None,
            );
            match claim.await {
                Ok(claim) if claim.own_token == left.attempt => Ok(claim),
                Ok(claim) => Err(Trouble::Final(format!(
                    "the token is {}, and these are the results of {}",
                    claim.own_token, left.attempt
                ))),
                Err(Failure::NotOurs(text)) => Err(Trouble::Final(text)),
                Err(Failure::NeverRan(text) | Failure::BrokenNode(text)) => {
                    Err(Trouble::Later(text))
                }
                Err(Failure::Mistake(reason)) => Err(Trouble::Later(reason.sentence)),
            }
        });
        let claimed = tokio::select! {
            claimed = claiming => claimed,
            asked = self.signals.stop.asked() => return Err(stopped(asked.by)),
        };
        claimed.map_err(|gave_up| match gave_up {
            GaveUp::Final(text) => Undelivered::NotOurs(text),
            GaveUp::TooLong(text) => Undelivered::TooLong(text),
        })
    }

    /// Whether what we would say is what the record says: an earlier process ended just after it had said it.
    async fn is_recorded(&self) -> bool {
        let left = &self.resumption.left;
        let (Some(verdict), Some(log)) = (&left.verdict, &left.log) else {
            return false;
        };
        // It was refused for long enough.
        let client = self.client.with_refusal_window(Duration::ZERO);
        let record: Result<Record, _> = client.send(own_record::read(&left.container)).await;
        record.is_ok_and(|record| record.state == verdict.state && record.log.as_ref() == Some(log))
    }

    async fn deliver(&mut self, claim: &Claim) -> Result<(), Undelivered> {
        let mut record = claim.record.clone();
        record.runtime_status = as_before(record.runtime_status, &self.resumption.left.status);
        let status = Status::start(self.client.clone(), &record);
        let saver = Arc::new(Saver::new(
            self.client.clone(),
            claim.keep.clone(),
            claim.record.uuid.clone(),
            self.logs.clone(),
        ));
        let mut left = self.resumption.left.clone();
        let delivery = Delivery::new(&self.client, claim, self.insistence());
        let verdict = match &left.verdict {
            Some(verdict) => verdict.clone(),
            None => self.judge(&left, claim, &delivery, &status).await?,
        };
        left.verdict = Some(verdict.clone());
        self.write_down(&left)?;
        self.write_result(&left, &verdict);
        for reason in verdict.error.iter().chain(&verdict.warning) {
            self.journal
                .say(format!("{}\n{}", reason.sentence, reason.detail));
        }
        self.journal.close(verdict.state.as_str());
        let (log, words) = delivery.last_log(&saver, status, &left.first_log).await;
        left.log = Some(log.clone());
        self.write_down(&left)?;
        let update = verdict.update(words, Some(&log), left.cost);
        let state = delivery.record(&verdict, update).await?;
        left.recorded = Some(state.clone());
        // It is removed in a moment, unless this process is killed.
        let _ = left.write(&self.resumption.dir);
        self.journal.say(format!("The record says {state}"));
        Ok(())
    }

    /// Saves the output of a command that ended by itself.
    async fn judge(
        &self,
        left: &Left,
        claim: &Claim,
        delivery: &Delivery<'_>,
        status: &Status,
    ) -> Result<Verdict, Undelivered> {
        let damaged = |what: &str| {
            let path = self.resumption.dir.undelivered();
            Undelivered::TooLong(format!("{} is damaged: {what}", path.display()))
        };
        let exit = left
            .exit
            .ok_or_else(|| damaged("it has neither exit nor verdict"))?;
        let staged = left
            .mounts
            .restore(self.resumption.dir.path(), claim.container_client.clone())
            .map_err(|problem| damaged(&problem.to_string()))?;
        // Not to be mistaken for an output without files.
        if !staged.output_dir.exists() {
            let place = staged.output_dir.display();
            return Err(Undelivered::TooLong(format!(
                "the output directory {place} is gone from this node"
            )));
        }
        let saving = async {
            match limits::output_overrun(left.output_limit, &staged).await {
                Some(overrun) => Ok(Output::TooLarge(overrun)),
                None => delivery.save_output(&staged, status).await,
            }
        };
        let output = tokio::select! {
            saved = saving => saved?,
            // Nothing is lost by this.
            asked = self.signals.stop.asked() => return Err(stopped(asked.by)),
        };
        let ending = Ending::Exited(exit);
        Ok(verdict::judge(&ending, output, left.evidence))
    }

    fn write_down(&self, left: &Left) -> Result<(), Undelivered> {
        let written = left.write(&self.resumption.dir);
        written.map_err(|error| {
            let path = self.resumption.dir.undelivered();
            Undelivered::TooLong(format!("{} cannot be written: {error}", path.display()))
        })
    }

    fn write_result(&self, left: &Left, verdict: &Verdict) {
        // An earlier process may have written it.
        let _ = fs::remove_file(self.logs.file(RESULT));
        if let Err(error) = self.logs.write(RESULT, &left.result(verdict)) {
            self.journal
                .say(format!("{RESULT} cannot be written: {error}"));
        }
    }
}

/// What a dispatcher said of waiting results is over, and what it replaced comes back.
fn as_before(mut there: RuntimeStatus, left: &RuntimeStatus) -> RuntimeStatus {
    if there.extra.remove(UNDELIVERED_SINCE).is_some() {
        there.activity = None;
        there.warning.clone_from(&left.warning);
        there.warning_detail.clone_from(&left.warning_detail);
    }
    there
}

fn stopped(signal: &str) -> Undelivered {
    Undelivered::TooLong(format!("it was stopped on request (signal {signal})"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_earlier_warning_takes_the_place_of_that_of_waiting_results() {
        let status = |value| -> RuntimeStatus { serde_json::from_value(value).unwrap() };
        let left = status(json!({"warning": "w", "warningDetail": "d"}));
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
            let now = as_before(status(there), &left);
            assert_eq!(serde_json::to_value(now).unwrap(), expected);
        }
    }
}
