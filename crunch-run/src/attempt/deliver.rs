//! Delivers results after the command: saves output and logs, then records the final state.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::{Container as Record, ContainerState, RuntimeStatus};
use arvados_client::{Client, Error, Pdh};
use exp_backoff::Backoff;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::claim::Claim;
use super::retried_operation::{RetryError, RetryPolicy, RetryStopped};
use super::token_refusals::{TokenRefusals, is_final, is_refusal};
use crate::attempt::runtime_status::Status;
use crate::inputs::Staged;
use crate::logs::{LogUploader, RunLog, SaveError};
use crate::output::BadEntries;
use crate::own_record;
use crate::verdict::{Cause, Output, Verdict};
use container_engine::Exit;
use crunch_contract::ExitCode;

/// Retry budget of one read of the record.
const RECORD_RETRY_BUDGET: Duration = Duration::from_secs(20);
/// Timeout of the read of the record after a signal. The sender may soon send KILL.
const PRIORITY_READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Time after which the exit code is recorded although the output is still being saved.
const EXIT_CODE_DELAY: Duration = Duration::from_secs(3);

/// Initial interval between two reads of a record that is refused; it doubles.
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);

/// The parts of every delivery.
pub struct Delivery<'a> {
    /// API client that returns refusals at once; the delivery decides when to believe them.
    client: Client,
    pub claim: &'a Claim,
    pub retry: RetryPolicy<'a>,
    /// Refusals of the attempt token.
    refusals: TokenRefusals,
    pub run_log: &'a RunLog,
}

/// Why the results could not be delivered.
#[derive(Debug)]
pub enum Undelivered {
    NotOurs(String),
    TimedOut(String),
}

impl Undelivered {
    pub fn code(&self) -> ExitCode {
        match self {
            Self::NotOurs(_) => ExitCode::NotOurs,
            Self::TimedOut(_) => ExitCode::Undelivered,
        }
    }
}

impl std::fmt::Display for Undelivered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NotOurs(text) | Self::TimedOut(text)) = self;
        f.write_str(text)
    }
}

impl<'a> Delivery<'a> {
    pub fn new(client: &Client, claim: &'a Claim, retry: RetryPolicy<'a>) -> Self {
        let window = client.endpoint().refusal_window;
        Self {
            client: client.with_refusal_window(Duration::ZERO),
            claim,
            refusals: TokenRefusals::new(window, retry.stop),
            run_log: retry.run_log,
            retry,
        }
    }

    /// Saves the command's output as a collection.
    pub async fn output(
        &self,
        staged: &Staged,
        exit: &Exit,
        bad_entries: BadEntries,
        status: &Status,
    ) -> Result<Output, Undelivered> {
        let _told = self.report_exit_code_early(exit.status.code());
        tokio::select! {
            saved = self.save_output(staged, bad_entries, status) => saved,
            request = self.retry.stop.requested() => {
                Ok(Output::Interrupted(if self.priority_is_zero().await { Cause::PriorityZero } else { Cause::Signal(request.by) }))
            }
        }
    }

    /// Whether the priority of the container is 0, so that the dispatcher sent the signal.
    async fn priority_is_zero(&self) -> bool {
        let read = own_record::read(&self.claim.record.uuid).budget(PRIORITY_READ_TIMEOUT);
        let record = tokio::time::timeout(PRIORITY_READ_TIMEOUT, self.client.send::<Record>(read));
        matches!(record.await, Ok(Ok(record)) if record.priority <= 0)
    }

    /// Records the exit code early, because saving a large output takes long.
    fn report_exit_code_early(&self, exit_code: i32) -> AbortOnDropHandle<()> {
        let (client, uuid) = (self.client.clone(), self.claim.record.uuid.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(EXIT_CODE_DELAY).await;
            let attributes = json!({"exit_code": exit_code});
            if let Err(error) = client.update_container(&uuid, attributes).await {
                // The final update has the exit code as well.
                tracing::debug!(container = %uuid, %error, "could not record the exit code early");
            }
        }))
    }

    /// Saves the complete log. The record gets its final state even if this fails.
    async fn log(&self, uploader: &Arc<LogUploader>) -> Result<Pdh, String> {
        let saved = self
            .retry
            .run("Saving the log", || async {
                match uploader.save_once().await {
                    Ok(pdh) => {
                        self.refusals.accepted();
                        Ok(pdh)
                    }
                    Err(error) if self.is_log_refused(&error) => Err(RetryError::Final(error)),
                    Err(error) => Err(RetryError::Transient(error)),
                }
            })
            .await;
        saved.map_err(
            |(RetryStopped::TimedOut(error) | RetryStopped::Final(error))| error.to_string(),
        )
    }

    /// Saves the complete log. Returns it, or the first log if that failed, and the final
    /// `runtime_status` without the verdict.
    pub async fn last_log(
        &self,
        uploader: &Arc<LogUploader>,
        status: Status,
        first_log: &Pdh,
    ) -> (Pdh, RuntimeStatus) {
        let log = self.log(uploader).await;
        // Until then the record tells what the run waits for.
        let mut runtime_status = status.finish().await;
        let log = log.unwrap_or_else(|error| {
            self.run_log
                .write(format!("Could not save the end of the log: {error}"));
            runtime_status
                .warning
                .get_or_insert_with(|| format!("the end of its log could not be saved: {error}"));
            first_log.clone()
        });
        (log, runtime_status)
    }

    /// Records the final state. If the server refuses the update, cancels the record with that
    /// reason.
    pub async fn record(
        &self,
        verdict: &Verdict,
        update: Value,
    ) -> Result<ContainerState, Undelivered> {
        match self.update(&update).await {
            Ok(()) => Ok(verdict.state.clone()),
            Err(RetryStopped::TimedOut(error)) => Err(unrecorded(&error)),
            // A repeated update is refused if the first one was applied and its reply was lost.
            Err(RetryStopped::Final(_)) if self.was_applied(&update).await => {
                Ok(verdict.state.clone())
            }
            Err(RetryStopped::Final(error)) if !self.is_ours().await => Err(Undelivered::NotOurs(
                format!("the final update was refused: {error}"),
            )),
            Err(RetryStopped::Final(error)) => {
                self.run_log
                    .write(format!("The final update was refused: {error}"));
                if let Some(update) = self.update_without_output(&update, &error).await {
                    match self.update(&update).await {
                        Ok(()) => return Ok(verdict.state.clone()),
                        Err(RetryStopped::TimedOut(error)) => return Err(unrecorded(&error)),
                        Err(RetryStopped::Final(_)) if self.was_applied(&update).await => {
                            return Ok(verdict.state.clone());
                        }
                        // Without its output it is refused as well.
                        Err(RetryStopped::Final(_)) => {}
                    }
                }
                let sentence = format!("the API server refused its results: {error}");
                let cancel = json!({
                    "state": "Cancelled",
                    "runtime_status": {"error": sentence, "errorDetail": update.to_string()},
                });
                match self.update(&cancel).await {
                    Ok(()) => Ok(ContainerState::Cancelled),
                    Err(RetryStopped::TimedOut(error) | RetryStopped::Final(error)) => Err(self
                        .undelivered_after("the record cannot be cancelled", &error)
                        .await),
                }
            }
        }
    }

    fn is_log_refused(&self, error: &SaveError) -> bool {
        match error {
            SaveError::Api(api) if is_refusal(api) => self.refusals.are_believed(),
            SaveError::Keep(keep) if keep.is_token_refused() => self.refusals.are_believed(),
            SaveError::Api(api) => is_final(api),
            _ => false,
        }
    }

    async fn update(&self, attributes: &Value) -> Result<(), RetryStopped<Error>> {
        let uuid = &self.claim.record.uuid;
        self.retry
            .run("The final update", || async {
                let update = own_record::update(uuid, attributes);
                let answer = self.client.send::<Value>(update).await;
                self.refusals.classify(answer).map(drop)
            })
            .await
    }

    pub async fn undelivered_after(&self, what: &str, error: &Error) -> Undelivered {
        let text = format!("{what}: {error}");
        if error.status().is_some() && !self.is_ours().await {
            Undelivered::NotOurs(text)
        } else {
            Undelivered::TimedOut(text)
        }
    }

    async fn was_applied(&self, update: &Value) -> bool {
        let record = self.read_until_believed().await;
        record.is_ok_and(|record| {
            json!(record.state) == update["state"]
                && record.state.is_final()
                && json!(record.log) == update["log"]
        })
    }

    /// Whether the record is Running and locked by this attempt, as far as is known.
    pub async fn is_ours(&self) -> bool {
        match self.read_until_believed().await {
            Ok(record) => self.is_held(&record),
            Err(error) => !is_refusal(&error),
        }
    }

    /// The same with one read: false if certainly not, true if perhaps.
    pub async fn may_be_ours(&self) -> bool {
        match self.read_once().await {
            Ok(record) => self.is_held(&record),
            Err(error) => !is_refusal(&error) || !self.refusals.are_believed(),
        }
    }

    fn is_held(&self, record: &Record) -> bool {
        record.state == ContainerState::Running
            && record.locked_by_uuid.as_ref() == Some(&self.claim.own_token)
    }

    /// Reads the record, and retries while a refusal is not believed yet.
    async fn read_until_believed(&self) -> Result<Record, Error> {
        let mut backoff = Backoff::new(INITIAL_BACKOFF, Duration::MAX);
        loop {
            match self.read_once().await {
                Err(error) if is_refusal(&error) && !self.refusals.are_believed() => {
                    tokio::select! {
                        () = tokio::time::sleep(backoff.next_delay()) => {}
                        _ = self.retry.stop.second_request() => return Err(error),
                    }
                }
                reply => return reply,
            }
        }
    }

    /// Reads the record once.
    pub async fn read_once(&self) -> Result<Record, Error> {
        let call = own_record::read(&self.claim.record.uuid);
        let reply = self.client.send(call.budget(RECORD_RETRY_BUDGET)).await;
        if reply.is_ok() {
            self.refusals.accepted();
        }
        reply
    }
}

fn unrecorded(error: &Error) -> Undelivered {
    Undelivered::TimedOut(format!(
        "the record cannot be given its final state: {error}"
    ))
}
