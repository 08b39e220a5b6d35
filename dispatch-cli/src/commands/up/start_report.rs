//! What `dispatch up` says at its start: the jobs from before, and what containers can have.

use std::time::Duration;

use arvados_client::Client;
use tokio::time::sleep;

use super::Ready;
use crate::commands::info;
use crate::error::CliError;
use crate::local_status::{self, StatusReply};
use crate::printer::eprint_note;
use crate::state_dir::StateDir;
use crate::text::plural;
use units::format_duration;

/// Maximum number of queries for the capacity, which is not known at the first moment.
const MAX_CAPACITY_QUERIES: u32 = 40;
const CAPACITY_QUERY_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of the query for jobs from before.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Prints how many jobs have not ended, before their dispatcher runs.
pub async fn print_found(state: &StateDir, ready: &Ready) {
    let counts = async {
        let (host, certificate) = (&ready.host, &ready.certificate);
        let endpoint = state.endpoint_with(host, certificate, &ready.tokens.root)?;
        let client = Client::new(endpoint)?;
        let count = |name| info::number_of(&client, name);
        let (running, locked) = (count("Running").await?, count("Locked").await?);
        Ok::<_, CliError>((running + locked, count("Queued").await?))
    };
    match tokio::time::timeout(COUNT_TIMEOUT, counts).await {
        Ok(Ok((0, 0))) => {}
        Ok(Ok((begun, waiting))) => eprint_note(&format!(
            "dispatch: {} from before had begun, and {waiting} waited; see them with: dispatch list",
            plural(begun, "job")
        )),
        Ok(Err(error)) => eprint_note(&format!("dispatch: jobs from before: {error}")),
        Err(_) => eprint_note(&format!(
            "dispatch: jobs from before: the server does not answer within {}",
            format_duration(COUNT_TIMEOUT)
        )),
    }
}

/// Prints what containers can have together.
pub async fn print_capacity(state: &StateDir) -> Result<(), CliError> {
    let client = Client::new(state.endpoint()?)?;
    for _ in 0..MAX_CAPACITY_QUERIES {
        // Without a reply, `dispatch info` says why.
        let StatusReply::Reply(status) = local_status::fetch_from(&client, state).await else {
            break;
        };
        if let Some(capacity) = status.capacity {
            let capacity = capacity.description();
            eprint_note(&format!("dispatch: containers can have {capacity}"));
            break;
        }
        // The dispatcher has not looked at the machine yet.
        sleep(CAPACITY_QUERY_INTERVAL).await;
    }
    Ok(())
}
