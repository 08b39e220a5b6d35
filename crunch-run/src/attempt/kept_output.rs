//! Keeps an output that the API server did not take with the final update: an Arvados server
//! refuses the update of a container if, for example, `output_name` of its request has a slash.
//!
//! The output is a collection in the trash by then, from which the server would have copied it. It
//! is taken out of the trash, where its owner finds it, and the record names it in a warning.

use std::time::Duration;

use arvados_client::Error;
use arvados_client::client::Call;
use arvados_client::filter::Query;
use arvados_client::records::RuntimeStatus;
use serde::Deserialize;
use serde_json::{Value, json};

use super::deliver::Delivery;
use super::save_output::output_name;

/// Retry budget of one call.
const RETRY_BUDGET: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
struct Outputs {
    items: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    uuid: String,
    is_trashed: bool,
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

    /// Returns the uuid of the collection. A server refuses to take a collection out of the trash
    /// twice, so the answer to that call does not matter.
    async fn take_out_of_trash(&self, output: &str) -> Result<Option<String>, Error> {
        let mut refusal = None;
        for _ in 0..2 {
            let Some(found) = self.find_output(output).await? else {
                return Ok(None);
            };
            if !found.is_trashed {
                return Ok(Some(found.uuid));
            }
            let untrash = format!("collections/{}/untrash", found.uuid);
            let untrash = Call::post(untrash, json!({})).budget(RETRY_BUDGET);
            let client = &self.claim.container_client;
            refusal = client.send::<Value>(untrash).await.err();
        }
        match (refusal, self.find_output(output).await?) {
            (_, Some(found)) if !found.is_trashed => Ok(Some(found.uuid)),
            (Some(refusal), _) => Err(refusal),
            (None, _) => Ok(None),
        }
    }

    async fn find_output(&self, output: &str) -> Result<Option<Output>, Error> {
        let query = Query::new()
            .filter("portable_data_hash", "=", output)
            .filter("name", "=", output_name(&self.claim.record.uuid))
            .select(&["uuid", "is_trashed"])
            .include_trash()
            .limit(1);
        let list = Call::get("collections").query(&query).budget(RETRY_BUDGET);
        let found: Outputs = self.claim.container_client.send(list).await?;
        Ok(found.items.into_iter().next())
    }
}
