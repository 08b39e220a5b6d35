//! Saving what the command left at its output path: blocks first, then the collection.

use std::time::Duration;

use arvados_client::Error;
use arvados_client::Pdh;
use arvados_client::keep::{BlockStore, Cause, Failure, KeepError};
use arvados_client::manifest::Manifest;
use arvados_client::records::Container as Record;
use serde_json::{Value, json};

use super::deliver::{Delivery, Undelivered};
use super::insist::{GaveUp, Trouble};
use super::patient::{PatientStore, may_pass};
use super::prepare::transfer;
use super::refusals::{Refusals, is_refusal};
use crate::mounts::{Progress, Staged};
use crate::output::{self, OutputError};
use crate::status::Status;
use crate::verdict::Output;

impl Delivery<'_> {
    pub async fn save_output(
        &self,
        staged: &Staged,
        status: &Status,
    ) -> Result<Output, Undelivered> {
        if self.claim.record.runtime_constraints.api
            && let Some(output) = self.set_output().await?
        {
            self.journal
                .say(format!("The container set its output to {output}"));
            return Ok(Output::Saved(output));
        }
        let keep = PatientStore::new(self.claim.container_keep.clone(), &self.insistence);
        let record = &self.claim.record;
        let mut classes = record.output_storage_classes.as_slice();
        let manifest = match self.capture(staged, &keep, status).await {
            Ok(manifest) => manifest,
            Err(GaveUp::Final(error)) if error.is_users_mistake() => {
                return Ok(Output::Wrong(error.to_string()));
            }
            Err(GaveUp::TooLong(error) | GaveUp::Final(error))
                if wants_classes(record) && is_for_want_of_classes(&error) =>
            {
                classes = &[];
                self.capture_in_default_classes(staged, status, &error)
                    .await?
            }
            Err(GaveUp::TooLong(error)) => return Err(unsaved(&error)),
            Err(GaveUp::Final(error @ OutputError::Keep(_))) if self.is_ours().await => {
                return Err(unsaved(&error));
            }
            Err(GaveUp::Final(error)) => return Err(Undelivered::NotOurs(error.to_string())),
        };
        fail_points::fail_point("run.output-stored");
        let collection = output_collection(record, classes, &manifest.to_string());
        self.make_collection(&collection).await
    }

    /// The output that the container set itself, if it did.
    async fn set_output(&self) -> Result<Option<Pdh>, Undelivered> {
        let read = self
            .insistence
            .on(
                "Reading the output that the container may have set",
                || async {
                    match self.look().await {
                        Ok(record) => Ok(record.output),
                        Err(error) if is_refusal(&error) && !self.may_be_ours().await => {
                            Err(Trouble::Final(error))
                        }
                        Err(error) => Err(Trouble::Later(error)),
                    }
                },
            )
            .await;
        // It was read as ours when the attempt began, so a refusal means that it is not ours any
        // more.
        match read {
            Ok(output) => Ok(output),
            Err(GaveUp::TooLong(error) | GaveUp::Final(error)) => {
                Err(self.lost("its output cannot be looked up", &error).await)
            }
        }
    }

    /// Stores the output's blocks for as long as results are worth it.
    async fn capture<S: BlockStore + Clone + 'static>(
        &self,
        staged: &Staged,
        keep: &S,
        status: &Status,
    ) -> Result<Manifest, GaveUp<OutputError>> {
        self.insistence
            .on("Saving the output", || async {
                match self.capture_once(staged, keep, status).await {
                    Ok(manifest) => Ok(manifest),
                    Err(error) if error.is_users_mistake() => Err(Trouble::Final(error)),
                    // There was patience enough with this block.
                    Err(OutputError::Keep(error)) if may_pass(&error) => {
                        Err(Trouble::Final(OutputError::Keep(error)))
                    }
                    // Keep refuses us when the container's token has ended.
                    Err(error) if !self.may_be_ours().await => Err(Trouble::Final(error)),
                    Err(error) => Err(Trouble::Later(error)),
                }
            })
            .await
    }

    async fn capture_once<S: BlockStore + Clone + 'static>(
        &self,
        staged: &Staged,
        keep: &S,
        status: &Status,
    ) -> Result<Manifest, OutputError> {
        let progress = |progress: Progress| {
            status.activity(Some(transfer("saving output", progress)));
        };
        let say = |remark: &str| self.journal.say(remark);
        output::capture_saying(staged, &self.claim.record, keep, &progress, &say).await
    }

    /// An output elsewhere than asked for is better than none: otherwise a class that no volume has
    /// would keep the results on this node for ever.
    async fn capture_in_default_classes(
        &self,
        staged: &Staged,
        status: &Status,
        error: &OutputError,
    ) -> Result<Manifest, Undelivered> {
        let classes = self.claim.record.output_storage_classes.join(", ");
        self.journal.say(format!(
            "The output cannot be stored in storage class {classes}; it is stored in the default one: {error}"
        ));
        let keep = &self.claim.default_keep;
        let captured = self.capture_once(staged, keep, status).await;
        let manifest = captured.map_err(|_| unsaved(error))?;
        status.warn(format!(
            "its output is in the cluster's default storage class, because Keep could not store it in {classes}"
        ));
        Ok(manifest)
    }

    async fn make_collection(&self, collection: &Value) -> Result<Output, Undelivered> {
        // Of the container's token, which may end while the attempt's goes on.
        let window = self.claim.container_client.endpoint().refusal_window;
        let refusals = Refusals::new(window, self.insistence.stop);
        let client = self
            .claim
            .container_client
            .with_refusal_window(Duration::ZERO);
        let made = self
            .insistence
            .on("Saving the output collection", || async {
                match client.create_collection(collection.clone()).await {
                    Err(error) if is_refusal(&error) && !self.may_be_ours().await => {
                        Err(Trouble::<Error>::Final(error))
                    }
                    answer => refusals.sorted(answer),
                }
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
}

/// Whether the record asks for more than what every cluster has.
pub fn wants_classes(record: &Record) -> bool {
    record
        .output_storage_classes
        .iter()
        .any(|class| class != "default")
}

/// Whether the blocks might be stored if the storage class did not matter. A keepstore answers 507
/// for a class that none of its volumes has.
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

/// Made in the trash: the API server copies it from there for everybody who asked for the
/// container.
fn output_collection(record: &Record, classes: &[String], manifest: &str) -> Value {
    let mut collection = json!({
        "name": format!("output for {}", record.uuid),
        "manifest_text": manifest,
        "is_trashed": true,
    });
    if !classes.is_empty() {
        collection["storage_classes_desired"] = json!(classes);
    }
    collection
}

fn unsaved(error: &OutputError) -> Undelivered {
    Undelivered::TooLong(format!("its output cannot be saved: {error}"))
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
