//! The trash: what is in it, by its own time or by that of a project around it, and for how long.

use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::clock;
use crate::error::{ApiError, Result};
use crate::record::Record;

/// Time that a collection or a project stays in the trash: two weeks.
pub const TRASH_LIFETIME: Duration = Duration::from_secs(14 * 24 * 3600);

/// Time by which a client's clock may be behind.
const TRASH_TOLERANCE: Duration = Duration::from_secs(3600);

/// Tables whose records can be in projects, and so in the trash with them.
pub const IN_PROJECTS: [&str; 4] = ["collections", "container_requests", "groups", "workflows"];

/// Whether one of the projects around is in the trash. Placeholders: the owner, the time now.
const AROUND_SQL: &str = "WITH RECURSIVE around(uuid) AS (VALUES (?1) \
    UNION SELECT groups.owner_uuid FROM groups JOIN around ON groups.uuid = around.uuid) \
    SELECT 1 FROM groups JOIN around ON groups.uuid = around.uuid WHERE trash_at <= ?2";

/// Whether the record itself is out of the trash. Placeholder: the time now.
pub const NOT_TRASHED_SQL: &str = "is_trashed = 0 AND (trash_at IS NULL OR trash_at > ?)";

/// Whether the record itself is in the trash at `now`.
pub fn is_trashed(record: &Record, now: &str) -> bool {
    record.bool("is_trashed") || record.some_text("trash_at").is_some_and(|at| at <= now)
}

/// Whether the record is in the trash at `now`, by itself or with a project around it.
pub fn is_in_trash(connection: &Connection, record: &Record, now: &str) -> Result<bool> {
    Ok(is_trashed(record, now) || is_owner_in_trash(connection, record.text("owner_uuid"), now)?)
}

/// Whether a project, or one around it, is in the trash at `now`; false for a user.
pub fn is_owner_in_trash(connection: &Connection, owner: &str, now: &str) -> Result<bool> {
    let mut around = connection.prepare_cached(AROUND_SQL)?;
    Ok(around.exists((owner, now))?)
}

/// The record in the trash since `now`, or since it was put there.
pub fn trashed(old: &Record, now: &str) -> Record {
    let mut new = old.clone().with("is_trashed", true);
    normalise(now, old, &mut new);
    new
}

/// Rejects a record that is not in the trash by itself.
pub fn require_trashed(record: &Record, now: &str) -> Result<()> {
    match is_trashed(record, now) {
        true => Ok(()),
        false => Err(ApiError::invalid(
            "Item is not trashed, cannot untrash; a project around it may be in the trash",
        )),
    }
}

/// The record taken out of the trash.
pub fn restored(old: &Record) -> Record {
    old.clone()
        .with("is_trashed", false)
        .with("trash_at", Value::Null)
        .with("delete_at", Value::Null)
}

/// Makes them consistent in a change that a client asks for. Only an administrator may have a
/// record deleted earlier than two weeks from now; for others that becomes the time. Returns
/// whether such a client gave an earlier one. Rejects a time of deletion alone.
pub fn normalise_request(
    is_admin: bool,
    now: &str,
    old: &Record,
    new: &mut Record,
) -> Result<bool> {
    let changes = |new: &Record| old.get("delete_at") != new.get("delete_at");
    let is_deleted = |new: &Record| new.some_text("delete_at").is_some();
    let is_given = changes(new);
    let is_time_given = is_given && is_deleted(new);
    normalise(now, old, new);
    if is_time_given && !is_deleted(new) {
        return Err(ApiError::invalid("Delete at needs a trash at"));
    }
    let earliest = clock::after(TRASH_LIFETIME - TRASH_TOLERANCE);
    let is_early = new
        .some_text("delete_at")
        .is_some_and(|at| at < earliest.as_str());
    if is_admin || !is_early || !changes(new) {
        return Ok(false);
    }
    new.set("delete_at", clock::after(TRASH_LIFETIME));
    Ok(is_given)
}

/// Makes `is_trashed`, `trash_at` and `delete_at` consistent, whichever of them was given.
pub fn normalise(now: &str, old: &Record, new: &mut Record) {
    let changed = |name: &str| old.get(name) != new.get(name);
    if changed("trash_at") && !changed("is_trashed") {
        // It alone decides, below.
    } else if new.bool("is_trashed") && new.some_text("trash_at").is_none_or(|at| at > now) {
        new.set("trash_at", now);
    } else if changed("is_trashed") && !new.bool("is_trashed") && !changed("trash_at") {
        new.set("trash_at", Value::Null)
            .set("delete_at", Value::Null);
    }
    match new.some_text("trash_at").map(str::to_owned) {
        None => {
            new.set("is_trashed", false).set("delete_at", Value::Null);
        }
        Some(at) => {
            let trashed = at.as_str() <= now;
            new.set("is_trashed", trashed);
            if new
                .some_text("delete_at")
                .is_none_or(|delete| delete < at.as_str())
            {
                let delete = clock::parse(&at)
                    .and_then(|at| at.checked_add(TRASH_LIFETIME).ok())
                    .map(clock::stamp);
                new.set("delete_at", json!(delete));
            }
        }
    }
}
