//! Saves the output of the command: blocks first, then the collection.

use std::time::Duration;

use arvados_client::Error;
use arvados_client::keep::{BlockStore, Cause, Failure, KeepError};
use arvados_client::records::Container as Record;
use arvados_client::{ContainerUuid, Pdh};
use serde_json::{Value, json};

use super::create_container::format_progress;
use super::deliver::{Delivery, Undelivered};
use super::retried_operation::{RetryError, RetryStopped};
use super::retrying_store::{RetryingStore, is_transient};
use super::token_refusals::{TokenRefusals, is_refusal};
use crate::attempt::runtime_status::Status;
use crate::inputs::{Progress, Staged};
use crate::output::{self, BadEntries, Captured, OutputError};
use crate::verdict::Output;

/// Maximum number of entries in `runtime_status` that are not in the output. The log has more.
const MAX_IN_RECORD: usize = 10;

impl Delivery<'_> {
    pub async fn save_output(
        &self,
        staged: &Staged,
        bad_entries: BadEntries,
        status: &Status,
    ) -> Result<Output, Undelivered> {
        if self.claim.record.runtime_constraints.api
            && let Some(output) = self.set_output().await?
        {
            self.run_log
                .write(format!("The container set its output to {output}"));
            return Ok(Output::Saved(output));
        }
        let keep = RetryingStore::new(self.claim.container_keep.clone(), &self.retry);
        let record = &self.claim.record;
        let mut classes = record.output_storage_classes.as_slice();
        let capturing = self.capture(staged, &keep, bad_entries, status);
        let captured = match capturing.await {
            Ok(captured) => captured,
            Err(RetryStopped::Final(error)) if error.is_user_error() => {
                return Ok(Output::Invalid(error.to_string()));
            }
            Err(RetryStopped::TimedOut(error) | RetryStopped::Final(error))
                if wants_classes(record) && is_for_want_of_classes(&error) =>
            {
                classes = &[];
                self.capture_in_default_classes(staged, bad_entries, status, &error)
                    .await?
            }
            Err(RetryStopped::TimedOut(error)) => return Err(undelivered_from(&error)),
            Err(RetryStopped::Final(error @ OutputError::Keep(_))) if self.is_ours().await => {
                return Err(undelivered_from(&error));
            }
            Err(RetryStopped::Final(error)) => return Err(Undelivered::NotOurs(error.to_string())),
        };
        fail_points::fail_point("run.output-stored");
        self.tell_what_is_left_out(&captured, status);
        let collection = output_collection(record, classes, &captured.manifest.to_string());
        self.make_collection(&collection).await
    }

    /// Returns the output that the container set itself, if any.
    async fn set_output(&self) -> Result<Option<Pdh>, Undelivered> {
        let read = self
            .retry
            .run(
                "Reading the output that the container may have set",
                || async {
                    match self.read_once().await {
                        Ok(record) => Ok(record.output),
                        Err(error) if is_refusal(&error) && !self.may_be_ours().await => {
                            Err(RetryError::Final(error))
                        }
                        Err(error) => Err(RetryError::Transient(error)),
                    }
                },
            )
            .await;
        // The record was readable when the attempt began, so a refusal means that it belongs to
        // another attempt.
        match read {
            Ok(output) => Ok(output),
            Err(RetryStopped::TimedOut(error) | RetryStopped::Final(error)) => Err(self
                .undelivered_after("its output cannot be looked up", &error)
                .await),
        }
    }

    /// Stores the blocks of the output with retries.
    async fn capture<S: BlockStore + Clone + 'static>(
        &self,
        staged: &Staged,
        keep: &S,
        bad_entries: BadEntries,
        status: &Status,
    ) -> Result<Captured, RetryStopped<OutputError>> {
        self.retry
            .run("Saving the output", || async {
                match self.capture_once(staged, keep, bad_entries, status).await {
                    Ok(captured) => Ok(captured),
                    Err(error) if error.is_user_error() => Err(RetryError::Final(error)),
                    // The block was retried until the timeout.
                    Err(OutputError::Keep(error)) if is_transient(&error) => {
                        Err(RetryError::Final(OutputError::Keep(error)))
                    }
                    // Keep refuses the container's token when it is revoked.
                    Err(error) if !self.may_be_ours().await => Err(RetryError::Final(error)),
                    Err(error) => Err(RetryError::Transient(error)),
                }
            })
            .await
    }

    async fn capture_once<S: BlockStore + Clone + 'static>(
        &self,
        staged: &Staged,
        keep: &S,
        bad_entries: BadEntries,
        status: &Status,
    ) -> Result<Captured, OutputError> {
        let progress = |progress: Progress| {
            status.set_activity(Some(format_progress("saving output", progress)));
        };
        output::capture(staged, &self.claim.record, keep, bad_entries, &progress).await
    }

    /// Lists in the log, and as far as a person reads it in the record, what is not in the output.
    fn tell_what_is_left_out(&self, captured: &Captured, status: &Status) {
        let Captured {
            left_out, remarks, ..
        } = captured;
        for line in remarks.iter().cloned().chain(left_out.lines()) {
            self.run_log.write(line);
        }
        let count = left_out.count();
        if count == 0 {
            return;
        }
        let entries = if count == 1 {
            "entry is"
        } else {
            "entries are"
        };
        status.warn(format!("{count} {entries} not in its output"));
        for sentence in left_out.sentences().iter().take(MAX_IN_RECORD) {
            status.warn(sentence.clone());
        }
        if count > MAX_IN_RECORD {
            status.warn(format!("and {} more: see its log", count - MAX_IN_RECORD));
        }
    }

    /// Stores the output in the default storage classes. Otherwise a class that no volume has would
    /// keep the results on this node forever.
    async fn capture_in_default_classes(
        &self,
        staged: &Staged,
        bad_entries: BadEntries,
        status: &Status,
        error: &OutputError,
    ) -> Result<Captured, Undelivered> {
        let classes = self.claim.record.output_storage_classes.join(", ");
        self.run_log.write(format!(
            "The output cannot be stored in storage class {classes}; it is stored in the default one: {error}"
        ));
        let keep = &self.claim.default_keep;
        let captured = self.capture_once(staged, keep, bad_entries, status).await;
        let captured = captured.map_err(|_| undelivered_from(error))?;
        status.warn(format!(
            "its output is in the cluster's default storage class, because Keep could not store it in {classes}"
        ));
        Ok(captured)
    }

    async fn make_collection(&self, collection: &Value) -> Result<Output, Undelivered> {
        // Refusals of the container's token, which may be revoked before the attempt token.
        let window = self.claim.container_client.endpoint().refusal_window;
        let refusals = TokenRefusals::new(window, self.retry.stop);
        let client = self
            .claim
            .container_client
            .with_refusal_window(Duration::ZERO);
        let made = self
            .retry
            .run("Saving the output collection", || async {
                match client.create_collection(collection.clone()).await {
                    Err(error) if is_refusal(&error) && !self.may_be_ours().await => {
                        Err(RetryError::<Error>::Final(error))
                    }
                    answer => refusals.classify(answer),
                }
            })
            .await;
        match made {
            Ok(made) => match made.portable_data_hash {
                Some(pdh) => Ok(Output::Saved(pdh)),
                None => Ok(Output::Invalid(
                    "the API server gave its collection no portable data hash".to_owned(),
                )),
            },
            Err(RetryStopped::TimedOut(error)) => Err(Undelivered::TimedOut(format!(
                "its output collection cannot be saved: {error}"
            ))),
            Err(RetryStopped::Final(error)) if self.is_ours().await => Ok(Output::Invalid(
                format!("the API server refused its collection: {error}"),
            )),
            Err(RetryStopped::Final(error)) => Err(Undelivered::NotOurs(error.to_string())),
        }
    }
}

/// Whether the record requests storage classes other than the default.
pub fn wants_classes(record: &Record) -> bool {
    record
        .output_storage_classes
        .iter()
        .any(|class| class != "default")
}

/// Whether the blocks could be stored in other storage classes. A keepstore replies 507 for a class
/// that none of its volumes has.
fn is_for_want_of_classes(error: &OutputError) -> bool {
    let is_full = |failure: &Failure| matches!(failure.cause, Cause::Status { status: 507, .. });
    match error {
        OutputError::Keep(KeepError::ClassesUnconfirmed { .. }) => true,
        OutputError::Keep(
            KeepError::Refused { failure, .. } | KeepError::Unavailable { failure, .. },
        ) => is_full(failure),
        OutputError::Keep(KeepError::InsufficientReplicas { failure, .. }) => {
            failure.as_deref().is_some_and(is_full)
        }
        _ => false,
    }
}

/// The name of the collection with the output of a container, from which the server copies it.
pub fn output_name(container: &ContainerUuid) -> String {
    format!("output for {container}")
}

/// The collection is created in the trash; the API server copies it for everyone who requested the
/// container.
fn output_collection(record: &Record, classes: &[String], manifest: &str) -> Value {
    let mut collection = json!({
        "name": output_name(&record.uuid),
        "manifest_text": manifest,
        "is_trashed": true,
    });
    if !classes.is_empty() {
        collection["storage_classes_desired"] = json!(classes);
    }
    collection
}

fn undelivered_from(error: &OutputError) -> Undelivered {
    Undelivered::TimedOut(format!("its output cannot be saved: {error}"))
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
        let collection = output_collection(&record, &record.output_storage_classes, "");
        assert_eq!(
            collection["storage_classes_desired"],
            json!(["hot", "archive"])
        );
        assert_eq!(collection["name"], "output for zzzzz-dz642-0123456789abcde");
        assert_eq!(collection["is_trashed"], true);
        let elsewhere = output_collection(&record, &[], "");
        assert_eq!(elsewhere.get("storage_classes_desired"), None);
    }
}
