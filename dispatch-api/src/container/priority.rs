//! Computes container priorities from requests, and propagates them to child requests.

use std::collections::HashSet;

use serde_json::Value;

use crate::auth::{Caller, Identity};
use crate::clock;
use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{CONTAINER_REQUESTS, CONTAINERS};
use crate::store::transaction::Tx;

/// The weight of a request: by priority, then by age. Needs 64 bits.
pub fn weight(request_priority: i64, created_at_ms: i64) -> i64 {
    if request_priority <= 0 {
        return 0;
    }
    request_priority
        .saturating_mul(1 << 50)
        .saturating_sub(created_at_ms)
}

/// Recomputes the priority of a container and then of its descendants.
pub fn refresh(tx: &Tx<'_>, container_uuid: &str) -> Result<()> {
    let system = Identity::system(tx.config.system_user());
    let mut seen = HashSet::new();
    let mut pending = vec![container_uuid.to_owned()];
    while let Some(uuid) = pending.pop() {
        // A container is never its own ancestor; without this check a cycle would loop forever.
        if !seen.insert(uuid.clone()) {
            continue;
        }
        if refresh_one(tx, &system, &uuid)? {
            pending.extend(children(tx, &uuid)?);
        }
    }
    Ok(())
}

/// Propagates a priority that was set by hand to the containers of child requests.
pub fn propagate_to_children(tx: &Tx<'_>, container_uuid: &str) -> Result<()> {
    for child in children(tx, container_uuid)? {
        refresh(tx, &child)?;
    }
    Ok(())
}

fn children(tx: &Tx<'_>, container_uuid: &str) -> Result<Vec<String>> {
    let clause = "requesting_container_uuid = ?1 AND state = 'Committed' \
                  AND container_uuid IS NOT NULL";
    let requests = rows::find(tx.conn, &CONTAINER_REQUESTS, clause, &[&container_uuid])?;
    let containers = requests
        .iter()
        .map(|request| request.text("container_uuid"));
    Ok(containers.map(str::to_owned).collect())
}

/// Returns true if the priority changed.
fn refresh_one(tx: &Tx<'_>, system: &Caller, uuid: &str) -> Result<bool> {
    let Some(container) = tx.fetch(&CONTAINERS, uuid)? else {
        return Ok(false);
    };
    if matches!(container.text("state"), "Complete" | "Cancelled") {
        return Ok(false);
    }
    let effective_priority = effective_priority(tx, uuid)?;
    if effective_priority == container.int("priority") {
        return Ok(false);
    }
    let new = container.clone().with("priority", effective_priority);
    tx.update_derived(&CONTAINERS, system, &container, &new)?;
    Ok(true)
}

/// The highest priority that a committed request gives this container.
pub fn effective_priority(tx: &Tx<'_>, container_uuid: &str) -> Result<i64> {
    let clause = "container_uuid = ?1 AND state = 'Committed' AND priority > 0";
    let requests = rows::find(tx.conn, &CONTAINER_REQUESTS, clause, &[&container_uuid])?;
    let mut highest = 0;
    for request in &requests {
        highest = highest.max(requested_priority(tx, request)?);
    }
    Ok(highest)
}

fn requested_priority(tx: &Tx<'_>, request: &Record) -> Result<i64> {
    let parent = tx.fetch(&CONTAINERS, request.text("requesting_container_uuid"))?;
    // A child runs at its parent's priority, so that a workflow does not starve itself.
    Ok(match parent.as_ref().map(|parent| parent.get("priority")) {
        Some(Value::Number(priority)) => priority.as_i64().unwrap_or(0),
        _ => weight(
            request.int("priority"),
            clock::millis(request.text("created_at")),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn no_age_outweighs_a_higher_request(
            priority in 1_i64..1000, early in 0_i64..4_000_000_000_000, late in 0_i64..4_000_000_000_000,
        ) {
            proptest::prop_assert!(weight(priority + 1, late) > weight(priority, early));
            proptest::prop_assert!(weight(priority, early) > 0);
            proptest::prop_assert_eq!(
                weight(priority, early).cmp(&weight(priority, late)),
                late.cmp(&early)
            );
        }
    }

    #[test]
    fn higher_requests_first_then_older_ones() {
        let now = 1_795_000_000_000;
        assert!(weight(2, now) > weight(1, now));
        assert!(weight(1, now) > weight(1, now + 1));
        assert_eq!(weight(0, now), 0);
        assert_eq!(weight(500, 1_795_227_947_206), 562_948_158_193_364_794);
        assert!(weight(1000, now) > 0);
    }
}
