//! Computes container priorities from requests, and propagates them to child requests.

use rusqlite::OptionalExtension;

use crate::auth::Identity;
use crate::clock;
use crate::error::Result;
use crate::record::Record;
use crate::schema::CONTAINERS;
use crate::store::follow_ups::FollowUp;
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

/// Recomputes the priority of a container, and then of those that it requested.
pub fn refresh(tx: &Tx<'_>, container_uuid: &str) -> Result<()> {
    // The record may be large, and mostly nothing changes.
    let sql = "SELECT priority FROM containers \
               WHERE uuid = ?1 AND state NOT IN ('Complete', 'Cancelled')";
    let mut statement = tx.conn.prepare_cached(sql)?;
    let known: Option<i64> = statement
        .query_row([container_uuid], |row| row.get(0))
        .optional()?;
    let effective_priority = effective_priority(tx, container_uuid)?;
    // Each container of a cycle of requests gets the highest priority in it, and then this ends.
    if known.is_none_or(|known| known == effective_priority) {
        return Ok(());
    }
    let Some(container) = tx.fetch(&CONTAINERS, container_uuid)? else {
        return Ok(());
    };
    let system = Identity::system(tx.config.system_user());
    let new = container.clone().with("priority", effective_priority);
    tx.update_derived(&CONTAINERS, &system, &container, new)?;
    tx.queue_follow_up(FollowUp::Priority, container_uuid);
    Ok(())
}

/// The priority that a request gives a new container.
pub fn requested(tx: &Tx<'_>, request: &Record) -> Result<i64> {
    let sql = "SELECT priority FROM containers WHERE uuid = ?1";
    let mut statement = tx.conn.prepare_cached(sql)?;
    let parent = [request.text("requesting_container_uuid")];
    let of_parent: Option<i64> = statement.query_row(parent, |row| row.get(0)).optional()?;
    let created_at = request.some_text("created_at").unwrap_or(&tx.now);
    let own = weight(request.int("priority"), clock::millis(created_at));
    Ok(of_parent.unwrap_or(own))
}

/// The highest priority that a committed request gives this container. A child runs at its parent's
/// priority, so that a workflow does not starve itself.
pub fn effective_priority(tx: &Tx<'_>, container_uuid: &str) -> Result<i64> {
    let sql = "SELECT r.priority, r.created_at, parent.priority FROM container_requests r \
               LEFT JOIN containers parent ON parent.uuid = r.requesting_container_uuid \
               WHERE r.container_uuid = ?1 AND r.state = 'Committed' AND r.priority > 0";
    let mut statement = tx.conn.prepare_cached(sql)?;
    let mut rows = statement.query([container_uuid])?;
    let mut highest = 0;
    while let Some(row) = rows.next()? {
        let requested = match row.get::<_, Option<i64>>(2)? {
            Some(of_parent) => of_parent,
            None => weight(row.get(0)?, clock::millis(&row.get::<_, String>(1)?)),
        };
        highest = highest.max(requested);
    }
    Ok(highest)
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
