//! Container requests: made, committed, changed, and let go.

use serde_json::{Map, Value, json};

use super::{constraints, mounts, outcome, ports, priority, spec};
use crate::api::changes;
use crate::auth::{Caller, Identity, permission};
use crate::blocks::STORAGE_CLASS;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{CONTAINER_REQUESTS, CONTAINERS, humanise};
use crate::tx::Tx;

/// Attributes a client may set although they are never shown.
const WRITE_ONLY: [&str; 2] = ["secret_mounts", "runtime_token"];

/// What may still change once committed, besides `state`.
const AFTER_COMMIT: [&str; 6] = [
    "priority",
    "container_count_max",
    "name",
    "description",
    "properties",
    "owner_uuid",
];

/// What the server alone writes.
const SERVER_SIDE: [&str; 6] = [
    "container_uuid",
    "container_count",
    "requesting_container_uuid",
    "log_uuid",
    "output_uuid",
    "cumulative_cost",
];

pub fn create(tx: &Tx<'_>, who: &Caller, attributes: &Map<String, Value>) -> Result<Record> {
    let blank = Record::new()
        .with("state", "Uncommitted")
        .with("cwd", ".")
        .with("use_existing", true)
        .with("output_storage_classes", json!(["default"]));
    let mut request = changes::apply(&CONTAINER_REQUESTS, &blank, attributes, &WRITE_ONLY)?;
    for name in SERVER_SIDE {
        request.0.remove(name);
    }
    let owner = request
        .some_text("owner_uuid")
        .unwrap_or(&who.user_uuid)
        .to_owned();
    if !permission::may_write(tx.conn, who, &owner)? {
        return Err(ApiError::denied());
    }
    request.set("owner_uuid", owner);
    adopt_parent(tx, who, &mut request)?;
    let wanted = request.text("state").to_owned();
    if !["Uncommitted", "Committed"].contains(&wanted.as_str()) {
        return Err(wrong_transition("nil", &wanted));
    }
    check(&mut request)?;
    // The request is written first, uncommitted, because its container's priority depends on it.
    request.set("state", "Uncommitted");
    let written = tx.create(&CONTAINER_REQUESTS, who, request)?;
    if wanted == "Committed" {
        return commit(tx, who, &written, written.clone());
    }
    Ok(written)
}

/// A request made by a container belongs to it and shares the priority of its request.
fn adopt_parent(tx: &Tx<'_>, who: &Caller, request: &mut Record) -> Result<()> {
    let Some(parent) = who.container_uuid.as_deref() else {
        return Ok(());
    };
    request.set("requesting_container_uuid", parent);
    let highest: Option<i64> = tx
        .conn
        .prepare_cached(
            "SELECT max(priority) FROM container_requests \
             WHERE container_uuid = ?1 AND state = 'Committed'",
        )?
        .query_row([parent], |row| row.get(0))?;
    request.set("priority", highest.unwrap_or(0));
    Ok(())
}

pub fn update(
    tx: &Tx<'_>,
    who: &Caller,
    uuid: &str,
    attributes: &Map<String, Value>,
    if_match: Option<&str>,
) -> Result<Record> {
    let old = permission::must_read(tx.conn, &CONTAINER_REQUESTS, who, uuid)?;
    permission::must_write(tx.conn, who, &old)?;
    changes::check_etag(&old, if_match)?;
    let mut new = changes::apply(&CONTAINER_REQUESTS, &old, attributes, &WRITE_ONLY)?;
    permission::must_write(tx.conn, who, &new)?;
    let (from, to) = (old.text("state").to_owned(), new.text("state").to_owned());
    match (from.as_str(), to.as_str()) {
        ("Uncommitted", "Uncommitted" | "Committed") => {
            refuse_server_side(&old, &new)?;
            check(&mut new)?;
        }
        ("Committed", "Committed" | "Final") => {
            refuse(&old, &new, |name| AFTER_COMMIT.contains(&name))?;
            check_priority(&new)?;
        }
        ("Final", "Final") => refuse(&old, &new, |name| {
            ["name", "description", "properties", "owner_uuid"].contains(&name)
        })?,
        _ => return Err(wrong_transition(&from, &to)),
    }
    match (from.as_str(), to.as_str()) {
        ("Uncommitted", "Committed") => commit(tx, who, &old, new),
        ("Committed", "Final") => {
            new.set("state", "Committed");
            let written = tx.update(&CONTAINER_REQUESTS, who, &old, new)?;
            let done =
                outcome::finalise(tx, &Identity::system(tx.setting.system_user()), &written)?;
            refresh(tx, &done)?;
            Ok(done)
        }
        _ => {
            let written = tx.update(&CONTAINER_REQUESTS, who, &old, new)?;
            if old.int("priority") != written.int("priority") {
                refresh(tx, &written)?;
            }
            Ok(written)
        }
    }
}

pub fn delete(tx: &Tx<'_>, who: &Caller, uuid: &str) -> Result<Record> {
    let old = permission::must_read(tx.conn, &CONTAINER_REQUESTS, who, uuid)?;
    permission::must_write(tx.conn, who, &old)?;
    tx.delete(&CONTAINER_REQUESTS, who, &old)?;
    refresh(tx, &old)?;
    Ok(old)
}

fn refresh(tx: &Tx<'_>, request: &Record) -> Result<()> {
    match request.some_text("container_uuid") {
        Some(container) => priority::refresh(tx, container),
        None => Ok(()),
    }
}

/// Give the request its container.
fn commit(tx: &Tx<'_>, who: &Caller, old: &Record, new: Record) -> Result<Record> {
    check_complete(tx, &new)?;
    let container_uuid = spec::container_for(tx, who, &new)?;
    let new = new
        .with("state", "Committed")
        .with("container_uuid", container_uuid.as_str())
        .with("container_count", 1);
    let written = tx.update(&CONTAINER_REQUESTS, who, old, new)?;
    priority::refresh(tx, &container_uuid)?;
    let Some(container) = tx.fetch(&CONTAINERS, &container_uuid)? else {
        return Ok(written);
    };
    // A reused container may have finished, or shown its log, long ago.
    if matches!(container.text("state"), "Complete" | "Cancelled") {
        return outcome::finalise(tx, &Identity::system(tx.setting.system_user()), &written);
    }
    if container.some_text("log").is_some() {
        outcome::show_log(tx, &container)?;
    }
    Ok(tx
        .fetch(&CONTAINER_REQUESTS, written.uuid())?
        .unwrap_or(written))
}

/// Checks that hold in every state, and the stored form of what was given.
fn check(request: &mut Record) -> Result<()> {
    check_priority(request)?;
    let committing = request.text("state") == "Committed";
    let runtime = constraints::runtime(request.get("runtime_constraints"), committing)?;
    let scheduling =
        constraints::scheduling(request.get("scheduling_parameters"), request.get("command"))?;
    request.set("runtime_constraints", runtime);
    request.set("scheduling_parameters", scheduling);
    if request
        .get("container_count_max")
        .as_i64()
        .is_some_and(|count| count < 1)
    {
        return Err(ApiError::invalid("Container count max must be at least 1"));
    }
    let all_strings = |value: &Value| {
        value
            .as_array()
            .is_none_or(|list| list.iter().all(Value::is_string))
    };
    for name in ["command", "output_glob", "output_storage_classes"] {
        if !all_strings(request.get(name)) {
            return Err(ApiError::invalid(format!(
                "{} must be an array of strings",
                humanise(name)
            )));
        }
    }
    let environment = request.get("environment").as_object();
    if environment.is_some_and(|pairs| !pairs.values().all(Value::is_string)) {
        return Err(ApiError::invalid(
            "Environment must be an object with string values",
        ));
    }
    Ok(())
}

fn check_priority(request: &Record) -> Result<()> {
    if (0..=1000).contains(&request.int("priority")) {
        return Ok(());
    }
    Err(ApiError::invalid("Priority must be between 0 and 1000"))
}

/// Checks that a request must pass to be committed.
fn check_complete(tx: &Tx<'_>, request: &Record) -> Result<()> {
    let mut wrong = Vec::new();
    if request.get("command").as_array().is_none_or(Vec::is_empty) {
        wrong.push("Command can't be blank".to_owned());
    }
    for name in ["container_image", "output_path", "cwd"] {
        if request.some_text(name).is_none() {
            wrong.push(format!("{} can't be blank", humanise(name)));
        }
    }
    let classes = request.get("output_storage_classes").as_array();
    let classes = classes.into_iter().flatten().filter_map(Value::as_str);
    // Otherwise the container would run, and its output could not be saved.
    let checked = tx.setting.rules.storage_classes_checked;
    for class in classes.filter(|class| checked && *class != STORAGE_CLASS) {
        wrong.push(format!(
            "Output storage classes: there is no {class:?} here, only {STORAGE_CLASS:?}"
        ));
    }
    if !wrong.is_empty() {
        return Err(ApiError::Invalid(wrong));
    }
    constraints::runtime(request.get("runtime_constraints"), true)?;
    ports::check(request.get("published_ports"))?;
    mounts::check(
        request.get("mounts"),
        request.get("secret_mounts"),
        request.text("output_path"),
    )
}

fn refuse_server_side(old: &Record, new: &Record) -> Result<()> {
    refuse(old, new, |name| !SERVER_SIDE.contains(&name))
}

fn refuse(old: &Record, new: &Record, allowed: impl Fn(&str) -> bool) -> Result<()> {
    let refused: Vec<String> = old
        .changed(new)
        .into_iter()
        .filter(|name| *name != "state" && !allowed(name))
        .map(|name| {
            format!(
                "{} cannot be modified in state '{}'",
                humanise(name),
                new.text("state")
            )
        })
        .collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(ApiError::Invalid(refused))
    }
}

fn wrong_transition(from: &str, to: &str) -> ApiError {
    ApiError::invalid(format!("State cannot change from {from} to {to}"))
}
