//! Changing a container: one update is checked against the state machine, written, and followed up.

use serde_json::{Map, Value, json};

use super::state::{Actor, State, check_attributes, check_transition};
use super::{outcome, priority};
use crate::api::changes;
use crate::auth::lifetime::{self, Ending};
use crate::auth::{Caller, permission};
use crate::collection::store;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::CONTAINERS;
use crate::tx::Tx;

/// What `runtime_status` keys must be text, because programs show them.
const STATUS_TEXTS: [&str; 7] = [
    "error",
    "errorDetail",
    "warning",
    "warningDetail",
    "activity",
    "preemptionNotice",
    "status",
];

pub fn state_of(container: &Record) -> Result<State> {
    State::parse(container.text("state")).ok_or_else(|| {
        ApiError::invalid(format!(
            "State {:?} is not a state of a container",
            container.text("state")
        ))
    })
}

/// What the calling token is to this container.
pub fn actor(who: &Caller, container: &Record) -> Actor {
    let token = who.token_uuid.as_str();
    if container.some_text("locked_by_uuid") == Some(token) {
        Actor::Holder
    } else if who.container_uuid.as_deref() == Some(container.uuid()) {
        Actor::Container
    } else if who.attempt_of.is_some() && container.some_text("locked_by_uuid").is_some() {
        // An attempt has no say in that of another.
        Actor::User
    } else if who.is_admin {
        Actor::Admin
    } else {
        Actor::User
    }
}

/// PUT or PATCH of a container.
pub fn update(
    tx: &Tx<'_>,
    who: &Caller,
    uuid: &str,
    attributes: &Map<String, Value>,
    if_match: Option<&str>,
) -> Result<Record> {
    let old = permission::must_read(tx.conn, &CONTAINERS, who, uuid)?;
    changes::check_etag(&old, if_match)?;
    let new = changes::apply(&CONTAINERS, &old, attributes, &[])?;
    change(tx, who, &old, new)
}

pub fn lock(tx: &Tx<'_>, who: &Caller, uuid: &str, if_match: Option<&str>) -> Result<Record> {
    let old = permission::must_read(tx.conn, &CONTAINERS, who, uuid)?;
    changes::check_etag(&old, if_match)?;
    let state = state_of(&old)?;
    if state != State::Queued {
        return Err(ApiError::LockFailed(format!(
            "cannot lock when {}",
            state.as_str()
        )));
    }
    let new = old.clone().with("state", State::Locked.as_str());
    change(tx, who, &old, new)
}

pub fn unlock(tx: &Tx<'_>, who: &Caller, uuid: &str, if_match: Option<&str>) -> Result<Record> {
    let old = permission::must_read(tx.conn, &CONTAINERS, who, uuid)?;
    changes::check_etag(&old, if_match)?;
    let state = state_of(&old)?;
    if state != State::Locked {
        return Err(ApiError::invalid(format!(
            "#<ArvadosModel::InvalidStateTransitionError: cannot unlock when {}>",
            state.as_str()
        )));
    }
    let new = old.clone().with("state", State::Queued.as_str());
    change(tx, who, &old, new)
}

/// Check a wanted change against the rules, complete it, write it, and do what follows from it.
fn change(tx: &Tx<'_>, who: &Caller, old: &Record, mut new: Record) -> Result<Record> {
    let actor = actor(who, old);
    let (from, to) = (state_of(old)?, state_of(&new)?);
    check_transition(actor, from, to)?;
    settle_holder(who, old, &mut new, from, to)?;
    check_values(tx, who, old, &new)?;
    let texts: Vec<(&str, String, String)> = old
        .changed(&new)
        .into_iter()
        .filter(|name| !matches!(*name, "state" | "locked_by_uuid"))
        .map(|name| (name, inspect(old.get(name)), inspect(new.get(name))))
        .collect();
    check_attributes(actor, from, to, &texts)?;
    if from != to {
        enter(tx, who, old, &mut new, to)?;
    }
    let written = tx.update(&CONTAINERS, who, old, new)?;
    follow_up(tx, who, old, &written)?;
    Ok(written)
}

/// `locked_by_uuid` follows from the state; a client may only repeat what it will be anyway.
fn settle_holder(
    who: &Caller,
    old: &Record,
    new: &mut Record,
    from: State,
    to: State,
) -> Result<()> {
    let due = match (from, to) {
        (State::Queued, State::Locked) => json!(who.token_uuid),
        (_, to) if to.is_held() => old.get("locked_by_uuid").clone(),
        _ => Value::Null,
    };
    let sent = new.get("locked_by_uuid");
    if sent != old.get("locked_by_uuid") && *sent != due {
        return Err(ApiError::invalid(format!(
            "Locked by uuid can only change to {}",
            due.as_str().unwrap_or("nil")
        )));
    }
    new.set("locked_by_uuid", due);
    Ok(())
}

fn check_values(tx: &Tx<'_>, who: &Caller, old: &Record, new: &Record) -> Result<()> {
    let changed = |name: &str| old.get(name) != new.get(name);
    if changed("exit_code")
        && let Some(code) = new.get("exit_code").as_i64()
        && i32::try_from(code).is_err()
    {
        return Err(ApiError::invalid(format!(
            "Exit code {code} is out of range"
        )));
    }
    if changed("priority") && new.int("priority") < 0 {
        return Err(ApiError::invalid(
            "Priority must be greater than or equal to 0",
        ));
    }
    if changed("runtime_status") {
        for key in STATUS_TEXTS {
            let value = &new.get("runtime_status")[key];
            if !value.is_null() && !value.is_string() {
                return Err(ApiError::invalid(format!(
                    "Runtime status '{key}' value must be a string"
                )));
            }
        }
    }
    if changed("output")
        && let Some(pdh) = new.some_text("output")
        && !may_name(tx, who, old, pdh)?
    {
        return Err(ApiError::invalid(
            "Output collection must exist and be readable by current user.",
        ));
    }
    // Anybody else may name any log, as in the real server; the requester is shown what is in it.
    if changed("log")
        && who.attempt_of.is_some()
        && let Some(pdh) = new.some_text("log")
        && store::any_by_pdh(tx.conn, pdh)?.is_some()
        && !may_name(tx, who, old, pdh)?
    {
        return Err(ApiError::invalid(
            "Log collection must be readable by current user.",
        ));
    }
    Ok(())
}

/// Whether there is a collection of this content that the caller may read. An attempt may name what was saved with its
/// own token or with the container's, and nothing more of what its owner may read.
fn may_name(tx: &Tx<'_>, who: &Caller, container: &Record, pdh: &str) -> Result<bool> {
    if who.attempt_of.is_none() {
        return Ok(store::find_by_pdh(tx.conn, who, pdh, true)?.is_some());
    }
    for user in [who.user_uuid.as_str(), container.text("runtime_user_uuid")] {
        if store::find_by_pdh(tx.conn, &who.as_plain(user), pdh, true)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a new state brings with it.
fn enter(tx: &Tx<'_>, who: &Caller, old: &Record, new: &mut Record, to: State) -> Result<()> {
    match to {
        State::Locked => {
            if new.int("priority") <= 0 {
                return Err(ApiError::LockFailed("cannot lock when priority<=0".into()));
            }
            new.set("lock_count", old.int("lock_count") + 1);
            if new.some_text("runtime_token").is_none() {
                new.set("auth_uuid", lifetime::create_container_token(tx, who, new)?);
            }
        }
        State::Queued => {
            let count = old.int("lock_count");
            let limit = tx.setting.max_dispatch_attempts;
            new.set("runtime_status", json!({}));
            if count >= limit {
                new.set("state", State::Cancelled.as_str());
                new.set(
                    "runtime_status",
                    json!({"error": format!(
                        "Failed to start container.  Cancelled after exceeding \
                         'Containers.MaxDispatchAttempts' (lock_count={count})")}),
                );
                finish(tx, old, new);
            }
        }
        State::Running => {
            if new.some_text("started_at").is_none() {
                new.set("started_at", tx.now.as_str());
            }
        }
        // A finished container that is cancelled to forbid its reuse keeps its times.
        State::Complete | State::Cancelled if state_of(old)?.is_final() => {}
        State::Complete | State::Cancelled => finish(tx, old, new),
    }
    if !state_of(new)?.is_held() {
        new.set("auth_uuid", Value::Null);
        new.set("locked_by_uuid", Value::Null);
    }
    Ok(())
}

fn finish(tx: &Tx<'_>, old: &Record, new: &mut Record) {
    if new.get("finished_at") == old.get("finished_at") {
        new.set("finished_at", tx.now.as_str());
    }
    new.set("secret_mounts", json!({}));
    new.set("runtime_token", Value::Null);
}

/// What other records must learn from the change.
fn follow_up(tx: &Tx<'_>, who: &Caller, old: &Record, new: &Record) -> Result<()> {
    let (was, is) = (state_of(old)?, state_of(new)?);
    if was.is_held() && !is.is_held() {
        if let Some(auth) = old.some_text("auth_uuid") {
            lifetime::expire(tx, who, auth)?;
        }
        let holder = old.text("locked_by_uuid");
        let ending = if is.is_final() {
            Ending::All
        } else {
            Ending::Holder(holder)
        };
        lifetime::end_attempts(tx, who, new.uuid(), ending)?;
    } else if is.is_final() && !was.is_final() {
        lifetime::end_attempts(tx, who, new.uuid(), Ending::All)?;
    }
    if is.is_final() && !was.is_final() {
        return outcome::settle(tx, new);
    }
    if old.get("log") != new.get("log") {
        outcome::show_log(tx, new)?;
    }
    if old.get("priority") != new.get("priority") {
        priority::cascade_from(tx, who, new.uuid())?;
    }
    Ok(())
}

/// A value the way Ruby would print it, because that is what clients of this API see in errors.
fn inspect(value: &Value) -> String {
    match value {
        Value::Null => "nil".into(),
        other => {
            let text = other.to_string();
            match text.char_indices().nth(200) {
                Some((cut, _)) => format!("{}…", &text[..cut]),
                None => text,
            }
        }
    }
}
