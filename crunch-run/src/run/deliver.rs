//! After the command: save the output and the logs, and give the record its final state.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::{Container as Record, ContainerState, RuntimeStatus};
use arvados_client::{Client, Error, Pdh};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::claim::Claim;
use super::insist::{GaveUp, Insistence, Trouble};
use super::refusals::{Refusals, is_final, is_keep_refusal, is_refusal};
use crate::engine::Exit;
use crate::exit::ExitCode;
use crate::logs::{Journal, SaveError, Saver};
use crate::mounts::Staged;
use crate::own_record;
use crate::status::Status;
use crate::verdict::{Cause, Output, Verdict};

/// How long one look at the record may take.
const LOOK_BUDGET: Duration = Duration::from_secs(20);
/// When the exit code is told before the output is saved.
const OUTPUT_IS_LONG: Duration = Duration::from_secs(3);

/// The first pause between two looks at a record that is refused; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The parts that every delivery needs.
pub struct Delivery<'a> {
    /// Returns refusals at once: the delivery itself decides when they are believed.
    client: Client,
    pub claim: &'a Claim,
    pub insistence: Insistence<'a>,
    /// Of the attempt's own token.
    refusals: Refusals,
    pub journal: &'a Journal,
}

/// Why nothing could be delivered.
#[derive(Debug)]
pub enum Undelivered {
    NotOurs(String),
    TooLong(String),
}

impl Undelivered {
    pub fn code(&self) -> ExitCode {
        match self {
            Self::NotOurs(_) => ExitCode::NotOurs,
            Self::TooLong(_) => ExitCode::Undelivered,
        }
    }
}

impl std::fmt::Display for Undelivered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NotOurs(text) | Self::TooLong(text)) = self;
        f.write_str(text)
    }
}

impl<'a> Delivery<'a> {
    pub fn new(client: &Client, claim: &'a Claim, insistence: Insistence<'a>) -> Self {
        let window = client.endpoint().refusal_window;
        Self {
            client: client.with_refusal_window(Duration::ZERO),
            claim,
            refusals: Refusals::new(window, insistence.stop),
            journal: insistence.journal,
            insistence,
        }
    }

    /// What the command left, as a collection.
    pub async fn output(
        &self,
        staged: &Staged,
        exit: &Exit,
        status: &Status,
    ) -> Result<Output, Undelivered> {
        let _told = self.tell_exit_code(exit.status.code());
        tokio::select! {
            saved = self.save_output(staged, status) => saved,
            asked = self.insistence.stop.asked() => {
                Ok(Output::Interrupted(Cause::Signal(asked.by)))
            }
        }
    }

    /// Saving much output takes long; people see the exit code meanwhile.
    fn tell_exit_code(&self, exit_code: i32) -> AbortOnDropHandle<()> {
        let (client, uuid) = (self.client.clone(), self.claim.record.uuid.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(OUTPUT_IS_LONG).await;
            let attributes = json!({"exit_code": exit_code});
            if let Err(error) = client.update_container(&uuid, attributes).await {
                // The final update carries it again.
                tracing::debug!(container = %uuid, %error, "the exit code is not told early");
            }
        }))
    }

    /// The whole log. Without it the record still gets its final state.
    async fn log(&self, saver: &Arc<Saver>) -> Result<Pdh, String> {
        let saved = self
            .insistence
            .on("Saving the log", || async {
                match saver.save_once().await {
                    Ok(pdh) => {
                        self.refusals.accepted();
                        Ok(pdh)
                    }
                    Err(error) if self.is_log_refused(&error) => Err(Trouble::Final(error)),
                    Err(error) => Err(Trouble::Later(error)),
                }
            })
            .await;
        saved.map_err(|(GaveUp::TooLong(error) | GaveUp::Final(error))| error.to_string())
    }

    /// The whole log, or the one the record has already, and what the record's `runtime_status` is to be but for the
    /// verdict.
    pub async fn last_log(
        &self,
        saver: &Arc<Saver>,
        status: Status,
        first_log: &Pdh,
    ) -> (Pdh, RuntimeStatus) {
        let (log, mut words) = tokio::join!(self.log(saver), status.finish());
        let log = log.unwrap_or_else(|error| {
            self.journal
                .say(format!("The end of the log is not saved: {error}"));
            words
                .warning
                .get_or_insert_with(|| format!("the end of its log could not be saved: {error}"));
            first_log.clone()
        });
        (log, words)
    }

    /// The final update. If the server refuses what the record would say, it is cancelled with that reason.
    pub async fn record(
        &self,
        verdict: &Verdict,
        update: Value,
    ) -> Result<ContainerState, Undelivered> {
        match self.update(&update).await {
            Ok(()) => Ok(verdict.state.clone()),
            Err(GaveUp::TooLong(error)) => Err(Undelivered::TooLong(format!(
                "the record cannot be given its final state: {error}"
            ))),
            // An update whose answer was lost is refused when it comes again.
            Err(GaveUp::Final(_)) if self.has_landed(&update).await => Ok(verdict.state.clone()),
            Err(GaveUp::Final(error)) if !self.is_ours().await => Err(Undelivered::NotOurs(
                format!("the final update was refused: {error}"),
            )),
            Err(GaveUp::Final(error)) => {
                self.journal
                    .say(format!("The final update was refused: {error}"));
                let sentence = format!("the API server refused its results: {error}");
                let cancel = json!({
                    "state": "Cancelled",
                    "runtime_status": {"error": sentence, "errorDetail": update.to_string()},
                });
                match self.update(&cancel).await {
                    Ok(()) => Ok(ContainerState::Cancelled),
                    Err(GaveUp::TooLong(error) | GaveUp::Final(error)) => {
                        Err(self.lost("the record cannot be cancelled", &error).await)
                    }
                }
            }
        }
    }

    fn is_log_refused(&self, error: &SaveError) -> bool {
        match error {
            SaveError::Api(api) if is_refusal(api) => self.refusals.are_believed(),
            SaveError::Keep(keep) if is_keep_refusal(keep) => self.refusals.are_believed(),
            SaveError::Api(api) => is_final(api),
            _ => false,
        }
    }

    async fn update(&self, attributes: &Value) -> Result<(), GaveUp<Error>> {
        let uuid = &self.claim.record.uuid;
        self.insistence
            .on("The final update", || async {
                let update = own_record::update(uuid, attributes);
                let answer = self.client.send::<Value>(update).await;
                self.refusals.sorted(answer).map(drop)
            })
            .await
    }

    pub async fn lost(&self, what: &str, error: &Error) -> Undelivered {
        let text = format!("{what}: {error}");
        if error.status().is_some() && !self.is_ours().await {
            Undelivered::NotOurs(text)
        } else {
            Undelivered::TooLong(text)
        }
    }

    async fn has_landed(&self, update: &Value) -> bool {
        let record = self.read().await;
        record.is_ok_and(|record| {
            json!(record.state) == update["state"]
                && record.state.is_final()
                && json!(record.log) == update["log"]
        })
    }

    /// Whether the record is still Running under this attempt's lock, as far as can be known.
    pub async fn is_ours(&self) -> bool {
        match self.read().await {
            Ok(record) => self.is_held(&record),
            Err(error) => !is_refusal(&error),
        }
    }

    /// The same by one look: certainly not ours, or perhaps.
    pub async fn may_be_ours(&self) -> bool {
        match self.look().await {
            Ok(record) => self.is_held(&record),
            Err(error) => !is_refusal(&error) || !self.refusals.are_believed(),
        }
    }

    fn is_held(&self, record: &Record) -> bool {
        record.state == ContainerState::Running
            && record.locked_by_uuid.as_ref() == Some(&self.claim.own_token)
    }

    /// The record, asked for again as long as a refusal is not believed.
    async fn read(&self) -> Result<Record, Error> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.look().await {
                Err(error) if is_refusal(&error) && !self.refusals.are_believed() => {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        _ = self.insistence.stop.asked_again() => return Err(error),
                    }
                    pause *= 2;
                }
                seen => return seen,
            }
        }
    }

    /// One look at the record.
    pub async fn look(&self) -> Result<Record, Error> {
        let call = own_record::read(&self.claim.record.uuid);
        let seen = self.client.send(call.budget(LOOK_BUDGET)).await;
        if seen.is_ok() {
            self.refusals.accepted();
        }
        seen
    }
}
