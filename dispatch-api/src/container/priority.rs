//! Computes container priorities from requests, and propagates them to child requests.

use rusqlite::OptionalExtension;

use crate::clock;
use crate::error::Result;
use crate::record::Record;
use crate::schema::CONTAINERS;
use crate::store::follow_up_progress::FollowUp;
use crate::store::transaction::Tx;

/// The weightiest open request of a container `?1` by a parent of at least `?2`.
const WEIGHTIEST: &str = "\
    SELECT ifnull(r.requesting_container_uuid, ''), r.priority, r.created_at, parent.priority \
    FROM container_requests r INDEXED BY container_requests_weights \
    LEFT JOIN containers parent ON parent.uuid = r.requesting_container_uuid \
    WHERE r.container_uuid = ?1 AND r.state = 'Committed' AND r.priority > 0 \
    AND ifnull(r.requesting_container_uuid, '') >= ?2 \
    ORDER BY ifnull(r.requesting_container_uuid, ''), r.priority DESC, r.created_at LIMIT 1";

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
    let new = container.clone().with("priority", effective_priority);
    tx.update_derived(&CONTAINERS, &container, new)?;
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
///
/// Of the requests that one parent made, or no parent, only the weightiest is read: a user can make
/// any number of equal requests.
fn effective_priority(tx: &Tx<'_>, container_uuid: &str) -> Result<i64> {
    let mut statement = tx.conn.prepare_cached(WEIGHTIEST)?;
    let mut highest = 0;
    let mut from = String::new();
    loop {
        let mut rows = statement.query((container_uuid, &from))?;
        let Some(row) = rows.next()? else {
            return Ok(highest);
        };
        let requested = match row.get::<_, Option<i64>>(3)? {
            Some(of_parent) => of_parent,
            None => weight(row.get(1)?, clock::millis(&row.get::<_, String>(2)?)),
        };
        highest = highest.max(requested);
        let parent: String = row.get(0)?;
        from = format!("{parent} ");
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::store::cluster_config::ClusterConfig;

    const NAMES: [&str; 4] = ["", "parent-a", "parent-b", "no-such-parent"];

    /// The highest priority that these give: parent, priority, time, and whether it is committed.
    fn highest(connection: &Connection, requests: &[(usize, i64, u32, bool)]) -> i64 {
        let clear = "DELETE FROM container_requests";
        connection.execute(clear, []).unwrap();
        let sql = "INSERT INTO container_requests (uuid, owner_uuid, modified_at, container_uuid, \
                     requesting_container_uuid, priority, created_at, state) \
                   VALUES (?1, '', '', 'container', nullif(?2, ''), ?3, ?4, ?5)";
        for (number, (parent, priority, second, is_committed)) in requests.iter().enumerate() {
            let created_at = format!("2026-01-01T00:00:{second:02}.000000000Z");
            let state = if *is_committed { "Committed" } else { "Final" };
            let row = (
                number.to_string(),
                NAMES[*parent],
                priority,
                created_at,
                state,
            );
            connection.execute(sql, row).unwrap();
        }
        let config = ClusterConfig::for_tests();
        effective_priority(&Tx::new(connection, &config), "container").unwrap()
    }

    fn expected(requests: &[(usize, i64, u32, bool)]) -> i64 {
        let given = requests
            .iter()
            .filter(|(_, priority, _, committed)| *priority > 0 && *committed);
        let given = given.map(|(parent, priority, second, _)| match NAMES[*parent] {
            "parent-a" => 7,
            "parent-b" => 1 << 62,
            _ => weight(*priority, 1_767_225_600_000 + i64::from(*second) * 1000),
        });
        given.max().unwrap_or(0)
    }

    /// Whoever makes 50,000 equal requests must not hold up the writer.
    #[test]
    fn the_weightiest_requests_are_found_in_the_order_of_an_index() {
        let directory = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
        let sql = format!("EXPLAIN QUERY PLAN {WEIGHTIEST}");
        let mut plan = connection.prepare(&sql).unwrap();
        let steps = plan.query_map(["", ""], |row| row.get(3)).unwrap();
        let steps: Vec<String> = steps.map(|step| step.unwrap()).collect();
        assert_eq!(steps.len(), 2, "a sort: {steps:?}");
        assert!(
            steps[0].contains("(container_uuid=? AND <expr>>?)"),
            "{steps:?}"
        );
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn a_container_gets_the_highest_priority_of_its_requests(
            requests in proptest::collection::vec(
                (0..NAMES.len(), -1_i64..4, 0_u32..60, proptest::bool::weighted(0.8)), 0..12,
            ),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let connection = crate::db::open(&directory.path().join("state.db")).unwrap();
            let sql = "INSERT INTO containers (uuid, owner_uuid, created_at, modified_at, priority) \
                       VALUES ('parent-a', '', '', '', 7), ('parent-b', '', '', '', 1 << 62)";
            connection.execute(sql, []).unwrap();
            proptest::prop_assert_eq!(highest(&connection, &requests), expected(&requests));
        }
    }

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
