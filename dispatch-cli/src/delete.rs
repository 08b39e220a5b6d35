//! Deletes a record of the server.

use arvados_client::Client;
use arvados_client::client::Call;
use serde_json::Value;

use crate::error::CliError;

/// Deletes a record, unless it is gone already.
pub async fn delete(client: &Client, path: &str) -> Result<(), CliError> {
    match client.send::<Value>(Call::delete(path)).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}
