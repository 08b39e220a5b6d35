//! Keeps an output that the API server did not take with the final update: an Arvados server
//! refuses the update of a container if, for example, `output_name` of its request has a slash.
//!
//! The output is a collection in the trash by then, from which the server would have copied it. It
//! is taken out of the trash, where its owner finds it, and the record names it in a warning.

use std::time::Duration;

use arvados_client::Error;
use arvados_client::client::Call;
use arvados_client::filter::Query;
use arvados_client::records::{Collection, RuntimeStatus};
use serde::Deserialize;
use serde_json::{Value, json};

use super::deliver::Delivery;
use super::save_output::output_name;

/// Retry budget of one call.
const RETRY_BUDGET: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
struct Collections {
    items: Vec<Collection>,
}

impl Delivery<'_> {
    /// The final update without the output that was refused with `refusal`, or `None` if there is
    /// no such output.
    pub async fn update_without_output(&self, update: &Value, refusal: &Error) -> Option<Value> {
        let output = update["output"].as_str()?;
        let kept = match self.take_out_of_trash(output).await {
            Ok(Some(kept)) => kept,
            Ok(None) => return None,
            Err(error) => {
                self.run_log
                    .write(format!("The output cannot be kept: {error}"));
                return None;
            }
        };
        let warning = format!(
            "its output is collection {kept}, and not in the record, because the API server refused the record with it: {refusal}"
        );
        self.run_log.write(format!("Warning: {warning}"));
        let mut update = update.clone();
        let status = serde_json::from_value(update["runtime_status"].clone());
        let mut status: RuntimeStatus = status.unwrap_or_default();
        let earlier = status.warning.replace(warning);
        let details = earlier.into_iter().chain(status.warning_detail.take());
        let details: Vec<String> = details.collect();
        status.warning_detail = (!details.is_empty()).then(|| details.join("\n"));
        let attributes = update.as_object_mut()?;
        attributes.remove("output");
        attributes.insert("runtime_status".to_owned(), json!(status));
        Some(update)
    }

    /// Returns the uuid of the collection.
    async fn take_out_of_trash(&self, output: &str) -> Result<Option<String>, Error> {
        let client = &self.claim.container_client;
        let query = Query::new()
            .filter("portable_data_hash", "=", output)
            .filter("name", "=", output_name(&self.claim.record.uuid))
            .select(&["uuid"])
            .include_trash()
            .limit(1);
        let list = Call::get("collections").query(&query).budget(RETRY_BUDGET);
        let found: Collections = client.send(list).await?;
        let Some(collection) = found.items.into_iter().next() else {
            return Ok(None);
        };
        let uuid = collection.uuid;
        let untrash = Call::post(format!("collections/{uuid}/untrash"), json!({}));
        client
            .send::<Value>(untrash.repeatable().budget(RETRY_BUDGET))
            .await?;
        Ok(Some(uuid))
    }
}
