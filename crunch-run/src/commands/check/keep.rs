//! Checks Keep: lists its services and stores and reads a small block.

use std::time::{Duration, Instant};

use arvados_client::Client;
use arvados_client::keep::{BlockSource, BlockStore, KeepClient, KeepOptions};
use bytes::Bytes;

use preflight::{Finding, Subject};

pub const KEEP: Subject = Subject("Keep");
/// Timeout of a stalled service.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// `client` has a token that the server accepts.
pub async fn run(client: &Client) -> Vec<Finding> {
    let options = match client.keep_options().await {
        Ok(options) => KeepOptions {
            retry_budget: Duration::ZERO,
            stall_timeout: STALL_TIMEOUT,
            ..options
        },
        Err(error) => return vec![unknown(&error.to_string())],
    };
    let copies = options.replicas;
    let keep = match client.keep(options).await {
        Ok(keep) => keep,
        Err(error) => return vec![unknown(&error.to_string())],
    };
    let services = keep.services().current();
    let count = services.len();
    if count == 0 {
        return vec![KEEP.fail("the API server lists no service for this token",
            "start one and list it in the cluster's configuration; this node may count as external, then a proxy is needed",
        )];
    }
    let names = services.iter().map(|service| service.root().to_string());
    let listed = KEEP.ok(format!(
        "{count} services: {}",
        names.collect::<Vec<_>>().join(", ")
    ));
    vec![listed, round_trip(&keep, copies).await]
}

fn unknown(reason: &str) -> Finding {
    KEEP.fail(
        format!("its services cannot be listed: {reason}"),
        "give a token that may read keep_services, or name the services in ARVADOS_KEEP_SERVICES",
    )
}

/// Random bytes, so that they must really be stored. No collection refers to them, so Keep removes
/// them later.
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
            return KEEP.fail(format!("a block cannot be stored: {error}"), advice);
        }
    };
    match keep.get(&locator).await {
        Ok(back) if back == data => KEEP.ok(format!(
            "a block was stored {copies} times and read again in {} ms",
            began.elapsed().as_millis()
        )),
        Ok(_) => KEEP.fail("a block came back with other content", advice),
        Err(error) => KEEP.fail(
            format!("a block was stored, and cannot be read again: {error}"),
            advice,
        ),
    }
}
