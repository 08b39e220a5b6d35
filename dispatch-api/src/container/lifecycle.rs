//! Updates a container: checks the change by the state table, writes it, and updates dependent
//! records.

use serde_json::{Value, json};

use super::state::{Actor, State, check_attributes, check_transition};
use crate::auth::{Access, Caller, secrets};
use crate::collection::store;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::{CONTAINERS, TOKENS};
use crate::store::cluster_config::MAX_DISPATCH_ATTEMPTS;
use crate::store::follow_up_progress::FollowUp;
use crate::store::revocation;
use crate::store::transaction::Tx;

/// Keys of `runtime_status` whose values must be text because programs display them.
const TEXT_STATUS_KEYS: [&str; 7] = [
    "error",
    "errorDetail",
    "warning",
    "warningDetail",
    "activity",
    "preemptionNotice",
    "status",
];

/// Maximum size of the `runtime_status` that a program writes to its own container, as JSON: every
/// dispatcher reads it with each poll.
const MAX_OWN_STATUS_BYTES: usize = 64 << 10;

pub fn state_of(container: &Record) -> Result<State> {
    State::parse(container.text("state")).ok_or_else(|| {
        ApiError::invalid(format!(
            "State {:?} is not a state of a container",
            container.text("state")
        ))
    })
}

/// The role of the calling token for this container.
pub fn actor_of(caller: &Caller, container: &Record) -> Actor {
    let token = caller.token_uuid.as_str();
    if container.some_text("locked_by_uuid") == Some(token) {
        Actor::LockHolder
    } else if caller.container_uuid.as_deref() == Some(container.uuid()) {
        Actor::Container
    } else if caller.attempt_of.is_some() && container.some_text("locked_by_uuid").is_some() {
        // An attempt token has no rights over a container that another attempt holds.
        Actor::User
    } else if caller.is_admin {
        Actor::Admin
    } else {
        Actor::User
    }
}

/// Updates a container from a client's attributes.
pub fn update(
    tx: &Tx<'_>,
    caller: &Caller,
    uuid: &str,
    attributes: &Record,
    if_match: Option<&str>,
) -> Result<Record> {
    let old = Access::new(tx.conn, caller).require_readable(&CONTAINERS, uuid)?;
    patch::check_etag(&old, if_match)?;
    let new = patch::apply(&CONTAINERS, &old, attributes, &[])?;
    apply_change(tx, caller, &old, new)
}

pub fn lock(tx: &Tx<'_>, caller: &Caller, uuid: &str, if_match: Option<&str>) -> Result<Record> {
    let old = Access::new(tx.conn, caller).require_readable(&CONTAINERS, uuid)?;
    patch::check_etag(&old, if_match)?;
    let state = state_of(&old)?;
    if state != State::Queued {
        return Err(ApiError::LockFailed(format!(
            "cannot lock when {}",
            state.as_str()
        )));
    }
    let new = old.clone().with("state", State::Locked.as_str());
    apply_change(tx, caller, &old, new)
}

pub fn unlock(tx: &Tx<'_>, caller: &Caller, uuid: &str, if_match: Option<&str>) -> Result<Record> {
    let old = Access::new(tx.conn, caller).require_readable(&CONTAINERS, uuid)?;
    patch::check_etag(&old, if_match)?;
    let state = state_of(&old)?;
    if state != State::Locked {
        return Err(ApiError::invalid(format!(
            "#<ArvadosModel::InvalidStateTransitionError: cannot unlock when {}>",
            state.as_str()
        )));
    }
    let new = old.clone().with("state", State::Queued.as_str());
    apply_change(tx, caller, &old, new)
}

/// Validates and completes a change, writes it, and propagates it.
fn apply_change(tx: &Tx<'_>, caller: &Caller, old: &Record, mut new: Record) -> Result<Record> {
    let actor = match actor_of(caller, old) {
        // The owner of a supplied token could invent results, which other users' requests reuse.
        Actor::Container
            if !tx.config.emulate.is_arvados() && old.some_text("runtime_token").is_some() =>
        {
            Actor::User
        }
        Actor::Container if !tx.config.emulate.is_arvados() => Actor::GuardedContainer,
        actor => actor,
    };
    if actor == Actor::GuardedContainer
        && new.get("runtime_status").to_string().len() > MAX_OWN_STATUS_BYTES
    {
        return Err(ApiError::invalid("Runtime status is too long"));
    }
    let (from, to) = (state_of(old)?, state_of(&new)?);
    check_transition(actor, from, to)?;
    check_lock_holder(caller, old, &mut new, from, to)?;
    check_values(tx, caller, old, &new)?;
    let texts: Vec<(&str, String, String)> = old
        .changed_attributes(&new)
        .into_iter()
        .filter(|name| !matches!(*name, "state" | "locked_by_uuid"))
        .map(|name| (name, inspect(old.get(name)), inspect(new.get(name))))
        .collect();
    check_attributes(actor, from, to, &texts)?;
    if from != to {
        apply_state_entry(tx, caller, old, &mut new, to)?;
    }
    let written = tx.update(&CONTAINERS, caller, old, new)?;
    propagate(tx, caller, old, &written)?;
    Ok(written)
}

/// Sets `locked_by_uuid` by the state. A client may only send the value that results anyway.
fn check_lock_holder(
    caller: &Caller,
    old: &Record,
    new: &mut Record,
    from: State,
    to: State,
) -> Result<()> {
    let expected = match (from, to) {
        (State::Queued, State::Locked) => json!(caller.token_uuid),
        (_, to) if to.is_locked_or_running() => old.get("locked_by_uuid").clone(),
        _ => Value::Null,
    };
    let sent = new.get("locked_by_uuid");
    if sent != old.get("locked_by_uuid") && *sent != expected {
        return Err(ApiError::invalid(format!(
            "Locked by uuid can only change to {}",
            expected.as_str().unwrap_or("nil")
        )));
    }
    new.set("locked_by_uuid", expected);
    Ok(())
}

fn check_values(tx: &Tx<'_>, caller: &Caller, old: &Record, new: &Record) -> Result<()> {
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
        for key in TEXT_STATUS_KEYS {
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
        && !may_reference(tx, caller, old, pdh)?
    {
        return Err(ApiError::invalid(
            "Output collection must exist and be readable by current user.",
        ));
    }
    // As in Arvados, other callers may name any log, even though requesters can then read it.
    if changed("log")
        && caller.attempt_of.is_some()
        && let Some(pdh) = new.some_text("log")
        && store::find_any_by_pdh(tx.conn, pdh)?.is_some()
        && !may_reference(tx, caller, old, pdh)?
    {
        return Err(ApiError::invalid(
            "Log collection must be readable by current user.",
        ));
    }
    Ok(())
}

/// Whether the caller may read a collection with this content. An attempt may only name what was
/// saved with its own token or the container's token.
fn may_reference(tx: &Tx<'_>, caller: &Caller, container: &Record, pdh: &str) -> Result<bool> {
    if caller.attempt_of.is_none() {
        return Ok(store::find_by_pdh(tx.conn, caller, pdh, true)?.is_some());
    }
    for user in [
        caller.user_uuid.as_str(),
        container.text("runtime_user_uuid"),
    ] {
        if store::find_by_pdh(tx.conn, &caller.as_plain_user(user), pdh, true)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sets the attributes that follow from entering a state.
fn apply_state_entry(
    tx: &Tx<'_>,
    caller: &Caller,
    old: &Record,
    new: &mut Record,
    to: State,
) -> Result<()> {
    match to {
        State::Locked => {
            if new.int("priority") <= 0 {
                return Err(ApiError::LockFailed("cannot lock when priority<=0".into()));
            }
            new.set("lock_count", old.int("lock_count") + 1);
            if new.some_text("runtime_token").is_none() {
                new.set("auth_uuid", create_container_token(tx, caller, new)?);
            }
        }
        State::Queued => {
            let count = old.int("lock_count");
            new.set("runtime_status", json!({}));
            if count >= MAX_DISPATCH_ATTEMPTS {
                new.set("state", State::Cancelled.as_str());
                new.set(
                    "runtime_status",
                    json!({"error": format!(
                        "Failed to start container.  Cancelled after exceeding \
                         'Containers.MaxDispatchAttempts' (lock_count={count})")}),
                );
                set_finished(tx, old, new);
            }
        }
        State::Running => {
            if new.some_text("started_at").is_none() {
                new.set("started_at", tx.now.as_str());
            }
        }
        // A container that is cancelled after its end, to prevent reuse, keeps its times.
        State::Complete | State::Cancelled if state_of(old)?.is_final() => {}
        State::Complete | State::Cancelled => set_finished(tx, old, new),
    }
    if !state_of(new)?.is_locked_or_running() {
        new.set("auth_uuid", Value::Null);
        new.set("locked_by_uuid", Value::Null);
    }
    Ok(())
}

fn set_finished(tx: &Tx<'_>, old: &Record, new: &mut Record) {
    if new.get("finished_at") == old.get("finished_at") {
        new.set("finished_at", tx.now.as_str());
    }
    new.set("secret_mounts", json!({}));
    new.set("runtime_token", Value::Null);
}

/// Propagates a change to tokens, requests and child containers.
fn propagate(tx: &Tx<'_>, caller: &Caller, old: &Record, new: &Record) -> Result<()> {
    let (was, is) = (state_of(old)?, state_of(new)?);
    if was.is_locked_or_running() && !is.is_locked_or_running() {
        if let Some(auth) = old.some_text("auth_uuid") {
            revocation::revoke(tx, caller, auth)?;
        }
        let holder = (!is.is_final()).then(|| old.text("locked_by_uuid"));
        revocation::revoke_attempt_tokens(tx, caller, new.uuid(), holder)?;
    } else if is.is_final() && !was.is_final() {
        revocation::revoke_attempt_tokens(tx, caller, new.uuid(), None)?;
    }
    if is.is_final() && !was.is_final() {
        // The last is done first.
        tx.queue_follow_up(FollowUp::Children, new.uuid());
        tx.queue_follow_up(FollowUp::End, new.uuid());
        return Ok(());
    }
    if old.get("log") != new.get("log") {
        tx.queue_follow_up(FollowUp::Log, new.uuid());
    }
    if old.get("priority") != new.get("priority") {
        tx.queue_follow_up(FollowUp::Priority, new.uuid());
    }
    Ok(())
}

/// Formats a value like Ruby, because clients of Arvados see this form in errors.
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

/// Creates the container's own token.
fn create_container_token(tx: &Tx<'_>, caller: &Caller, container: &Record) -> Result<String> {
    let owner = container
        .some_text("runtime_user_uuid")
        .map_or_else(|| tx.config.system_user(), str::to_owned);
    let token = Record::new()
        .with("owner_uuid", owner)
        .with("container_of", container.uuid())
        .with("api_token", secrets::new_token_secret())
        .with("scopes", container.get("runtime_auth_scopes").clone());
    Ok(tx.create(&TOKENS, caller, token)?.uuid().to_owned())
}
