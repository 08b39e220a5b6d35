//! Keep: which services there are, and whether a small block comes back as it was stored.

use std::time::{Duration, Instant};

use arvados_client::Client;
use arvados_client::keep::{BlockSource, BlockStore, KeepClient, KeepOptions};
use bytes::Bytes;

use super::finding::Finding;

const WHAT: &str = "Keep";
/// A service that does not move for so long is out of order.
const PATIENCE: Duration = Duration::from_secs(5);

/// With a token that the server accepts.
pub async fn look(client: &Client) -> Vec<Finding> {
    let options = match client.keep_options().await {
        Ok(options) => KeepOptions {
            retry_budget: Duration::ZERO,
            stall_timeout: PATIENCE,
            ..options
        },
        Err(error) => return vec![unknown(&error.to_string())],
    };
    let copies = options.replicas;
    let keep = match client.keep(options).await {
        Ok(keep) => keep,
        Err(error) => return vec![unknown(&error.to_string())],
    };
    let services = keep.services().known();
    let count = services.len();
    if count == 0 {
        return vec![Finding::fail(
            WHAT,
            "the API server lists no service for this token",
            "start one and list it in the cluster's configuration; this node may count as external, then a proxy is needed",
        )];
    }
    let names = services.iter().map(|service| service.root().to_string());
    let listed = Finding::ok(
        WHAT,
        format!("{count} services: {}", names.collect::<Vec<_>>().join(", ")),
    );
    vec![listed, round_trip(&keep, copies).await]
}

fn unknown(reason: &str) -> Finding {
    Finding::fail(
        WHAT,
        format!("it cannot be known where it is: {reason}"),
        "give a token that may read keep_services, or name the services in ARVADOS_KEEP_SERVICES",
    )
}

/// Other bytes every time, so that they must really be stored. No collection has them; Keep removes them in time.
async fn round_trip(keep: &KeepClient, copies: u32) -> Finding {
    let began = Instant::now();
    let data = Bytes::from(format!(
        "crunch-run check {:016x}{:016x}\n",
        fastrand::u64(..),
        fastrand::u64(..)
    ));
    let advice =
        "check the services' health, their disks, and the way from this node to their ports";
    let locator = match keep.put(data.clone()).await {
        Ok(locator) => locator,
        Err(error) => {
            return Finding::fail(WHAT, format!("a block cannot be stored: {error}"), advice);
        }
    };
    match keep.get(&locator).await {
        Ok(back) if back == data => Finding::ok(
            WHAT,
            format!(
                "a block was stored {copies} times and read again in {} ms",
                began.elapsed().as_millis()
            ),
        ),
        Ok(_) => Finding::fail(WHAT, "a block came back with other content", advice),
        Err(error) => Finding::fail(
            WHAT,
            format!("a block was stored, and cannot be read again: {error}"),
            advice,
        ),
    }
}
