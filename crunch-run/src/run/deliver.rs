//! After the command: save the output and the logs, and give the record its final state.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::client::Call;
use arvados_client::records::{Container as Record, ContainerState, RuntimeStatus};
use arvados_client::{Client, Error, Pdh};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::claim::Claim;
use super::insist::{GaveUp, Insistence, Trouble};
use super::patient::{PatientStore, may_pass};
use super::prepare::transfer;
use crate::engine::Exit;
use crate::exit::ExitCode;
use crate::logs::{Journal, SaveError, Saver};
use crate::mounts::{Progress, Staged};
use crate::output::{self, OutputError};
use crate::status::Status;
use crate::verdict::{Cause, Output, Verdict};

/// How long one look at the record may take.
const LOOK_BUDGET: Duration = Duration::from_secs(20);
/// When the exit code is told before the output is saved.
const OUTPUT_IS_LONG: Duration = Duration::from_secs(1);

/// The parts that every delivery needs.
pub struct Delivery<'a> {
    pub client: &'a Client,
    pub claim: &'a Claim,
    pub insistence: Insistence<'a>,
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

impl Delivery<'_> {
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

    pub async fn save_output(
        &self,
        staged: &Staged,
        status: &Status,
    ) -> Result<Output, Undelivered> {
        if self.claim.record.runtime_constraints.api {
            let set = self
                .insistence
                .on(
                    "Reading the output that the container may have set",
                    || async { self.look().await.map_err(Trouble::Later) },
                )
                .await;
            // It was read as ours when the attempt began, so a refusal means that it is not ours any more.
            match set {
                Ok(record) => {
                    if let Some(output) = record.output {
                        self.journal
                            .say(format!("The container set its output to {output}"));
                        return Ok(Output::Saved(output));
                    }
                }
                Err(GaveUp::TooLong(error) | GaveUp::Final(error)) => {
                    return Err(self.lost("its output cannot be looked up", &error).await);
                }
            }
        }
        let progress = |progress: Progress| {
            status.activity(Some(transfer("saving output", progress)));
        };
        let keep = PatientStore::new(self.claim.container_keep.clone(), &self.insistence);
        let say = |remark: &str| self.journal.say(remark);
        let captured = self
            .insistence
            .on("Saving the output", || async {
                let captured =
                    output::capture_saying(staged, &self.claim.record, &keep, &progress, &say);
                match captured.await {
                    Ok(manifest) => Ok(manifest),
                    Err(error) if error.is_users_mistake() => Err(Trouble::Final(error)),
                    // There was patience enough with this block.
                    Err(OutputError::Keep(error)) if may_pass(&error) => {
                        Err(Trouble::Final(OutputError::Keep(error)))
                    }
                    // Keep refuses us when the container's token has ended.
                    Err(error) if !self.is_ours().await => Err(Trouble::Final(error)),
                    Err(error) => Err(Trouble::Later(error)),
                }
            })
            .await;
        let manifest = match captured {
            Ok(manifest) => manifest,
            Err(GaveUp::Final(error)) if error.is_users_mistake() => {
                return Ok(Output::Wrong(error.to_string()));
            }
            Err(GaveUp::TooLong(error)) => return Err(unsaved(&error)),
            Err(GaveUp::Final(error @ OutputError::Keep(_))) if self.is_ours().await => {
                return Err(unsaved(&error));
            }
            Err(GaveUp::Final(error)) => return Err(Undelivered::NotOurs(error.to_string())),
        };
        fail_points::fail_point("run.output-stored");
        let collection = output_collection(&self.claim.record, &manifest.to_string());
        let made = self
            .insistence
            .on("Saving the output collection", || async {
                self.claim
                    .container_client
                    .create_collection(collection.clone())
                    .await
                    .map_err(sorted)
            })
            .await;
        match made {
            Ok(made) => match made.portable_data_hash {
                Some(pdh) => Ok(Output::Saved(pdh)),
                None => Ok(Output::Wrong(
                    "the API server gave its collection no portable data hash".to_owned(),
                )),
            },
            Err(GaveUp::TooLong(error)) => Err(Undelivered::TooLong(format!(
                "its output collection cannot be saved: {error}"
            ))),
            Err(GaveUp::Final(error)) if self.is_ours().await => Ok(Output::Wrong(format!(
                "the API server refused its collection: {error}"
            ))),
            Err(GaveUp::Final(error)) => Err(Undelivered::NotOurs(error.to_string())),
        }
    }

    /// The whole log. Without it the record still gets its final state.
    async fn log(&self, saver: &Arc<Saver>) -> Result<Pdh, String> {
        let saved = self
            .insistence
            .on("Saving the log", || async {
                saver.save(true).await.map_err(|error| match &error {
                    SaveError::Api(api) if is_final(api) => Trouble::Final(error),
                    _ => Trouble::Later(error),
                })
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

    async fn update(&self, attributes: &Value) -> Result<(), GaveUp<Error>> {
        self.insistence
            .on("The final update", || async {
                self.client
                    .update_container(&self.claim.record.uuid, attributes.clone())
                    .await
                    .map_err(sorted)
            })
            .await
    }

    async fn lost(&self, what: &str, error: &Error) -> Undelivered {
        let text = format!("{what}: {error}");
        if error.status().is_some() && !self.is_ours().await {
            Undelivered::NotOurs(text)
        } else {
            Undelivered::TooLong(text)
        }
    }

    async fn look(&self) -> Result<Record, Error> {
        let call = Call::get(format!("containers/{}", self.claim.record.uuid));
        self.client.send(call.budget(LOOK_BUDGET)).await
    }

    async fn has_landed(&self, update: &Value) -> bool {
        let record = self.look().await;
        record.is_ok_and(|record| {
            json!(record.state) == update["state"]
                && record.state.is_final()
                && json!(record.log) == update["log"]
        })
    }

    /// Whether the record is still Running under this attempt's lock, as far as can be known.
    async fn is_ours(&self) -> bool {
        match self.look().await {
            Ok(record) => {
                record.state == ContainerState::Running
                    && record.locked_by_uuid.as_ref() == Some(&self.claim.own_token)
            }
            Err(error) => !(error.is_denied() || error.is_not_found()),
        }
    }
}

/// Made in the trash: the API server copies it from there for everybody who asked for the container.
fn output_collection(record: &Record, manifest: &str) -> Value {
    json!({
        "name": format!("output for {}", record.uuid),
        "manifest_text": manifest,
        "is_trashed": true,
        "storage_classes_desired": record.output_storage_classes,
    })
}

fn unsaved(error: &OutputError) -> Undelivered {
    Undelivered::TooLong(format!("its output cannot be saved: {error}"))
}

/// A refusal of what was asked; it would be refused again.
fn is_final(error: &Error) -> bool {
    error.is_denied() || error.is_not_found() || error.is_refused() || error.is_stale()
}

fn sorted(error: Error) -> Trouble<Error> {
    if is_final(&error) {
        Trouble::Final(error)
    } else {
        Trouble::Later(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_to_be_kept_in_its_storage_classes() {
        let record: Record = serde_json::from_value(json!({
            "uuid": "zzzzz-dz642-0123456789abcde", "output_storage_classes": ["hot", "archive"],
        }))
        .unwrap();
        let collection = output_collection(&record, "");
        assert_eq!(
            collection["storage_classes_desired"],
            json!(["hot", "archive"])
        );
        assert_eq!(collection["name"], "output for zzzzz-dz642-0123456789abcde");
        assert_eq!(collection["is_trashed"], true);
    }
}
