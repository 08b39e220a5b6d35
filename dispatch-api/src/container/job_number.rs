//! Numbers of jobs: the properties `dispatch_id` and `dispatch_user` of requests.
//!
//! A request of a user's own gets the user's next number in the transaction that creates it,
//! whichever client makes it, and keeps it. A number is never given twice. Requests of projects
//! and of containers have none.

use serde_json::{Map, Value};

use crate::auth::Caller;
use crate::error::Result;
use crate::record::Record;
use crate::store::transaction::Tx;

const NUMBER: &str = "dispatch_id";
const USER: &str = "dispatch_user";
/// Prefix of what `dispatch` notes about a request, which is not true of a copy.
const NOTES: &str = "dispatch_";
/// The only note that a new request may have: which one it does once more.
const RETRY_OF: &str = "dispatch_retry_of";

/// Numbers a new request, and removes notes about another one that it is a copy of.
pub fn give(tx: &Tx<'_>, caller: &Caller, request: &mut Record) -> Result<()> {
    let user = caller.user_uuid.as_str();
    let is_own = request.text("owner_uuid") == user;
    let number = match is_own && request.some_text("requesting_container_uuid").is_none() {
        true => Some(next(tx, user)?),
        false => None,
    };
    let is_note = |name: &str| name.starts_with(NOTES) && name != RETRY_OF;
    let number = number.map(|number| (number.into(), user.into()));
    set(tx, request, is_note, number);
    Ok(())
}

/// Keeps the number of a request that a client changes.
pub fn keep(tx: &Tx<'_>, old: &Record, new: &mut Record) {
    if old.0.get("properties") == new.0.get("properties") {
        return;
    }
    let before = old.get("properties");
    let number = before.get(NUMBER).cloned().zip(before.get(USER).cloned());
    set(tx, new, |name| [NUMBER, USER].contains(&name), number);
}

fn next(tx: &Tx<'_>, user: &str) -> Result<i64> {
    let sql = "INSERT INTO job_numbers VALUES (?1, 1) \
               ON CONFLICT (user_uuid) DO UPDATE SET last = last + 1 RETURNING last";
    let mut statement = tx.conn.prepare_cached(sql)?;
    Ok(statement.query_row([user], |row| row.get(0))?)
}

/// Replaces properties by the number and its user.
fn set(
    tx: &Tx<'_>,
    request: &mut Record,
    is_replaced: impl Fn(&str) -> bool,
    number: Option<(Value, Value)>,
) {
    if tx.config.emulate.is_arvados() {
        return;
    }
    let empty = Map::new();
    let properties = request.get("properties").as_object().unwrap_or(&empty);
    let mut properties = properties.clone();
    properties.retain(|name, _| !is_replaced(name));
    if let Some((number, user)) = number {
        properties.insert(NUMBER.to_owned(), number);
        properties.insert(USER.to_owned(), user);
    }
    request.set("properties", properties);
}
