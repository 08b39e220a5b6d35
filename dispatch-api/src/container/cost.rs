//! The cost of requests: of all their containers, and of what those requested.

use crate::error::Result;
use crate::record::Record;
use crate::schema::CONTAINERS;
use crate::store::transaction::Tx;

/// The cost of a request with that of its container, which has ended.
pub fn cumulative(request: &Record, container: &Record) -> f64 {
    request.float("cumulative_cost") + container.float("cost") + container.float("subrequests_cost")
}

/// Adds the cost of a child request to its parent container.
pub fn add_to_parent(tx: &Tx<'_>, request: &Record) -> Result<()> {
    let cost = request.float("cumulative_cost");
    let Some(parent) = request
        .some_text("requesting_container_uuid")
        .filter(|_| cost > 0.0)
    else {
        return Ok(());
    };
    if let Some(parent) = tx.fetch(&CONTAINERS, parent)? {
        let updated = parent
            .clone()
            .with("subrequests_cost", parent.float("subrequests_cost") + cost);
        tx.update_derived(&CONTAINERS, &parent, updated)?;
    }
    Ok(())
}
