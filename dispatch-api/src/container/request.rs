//! Creates, commits, updates and deletes container requests.

use serde_json::{Value, json};

use super::{constraints, create, finalize, job_number, mounts, ports, priority, request_logs};
use crate::auth::{Access, Caller};
use crate::blocks::STORAGE_CLASS;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::{CONTAINER_REQUESTS, CONTAINERS, humanise};
use crate::store::transaction::Tx;

/// Hidden attributes that a client may set.
const WRITE_ONLY_ATTRIBUTES: [&str; 2] = ["secret_mounts", "runtime_token"];

/// Attributes, besides `state`, that may change after the commit.
const MUTABLE_AFTER_COMMIT: [&str; 6] = [
    "priority",
    "container_count_max",
    "name",
    "description",
    "properties",
    "owner_uuid",
];

/// Attributes that only the server sets.
const SERVER_SET_ATTRIBUTES: [&str; 6] = [
    "container_uuid",
    "container_count",
    "requesting_container_uuid",
    "log_uuid",
    "output_uuid",
    "cumulative_cost",
];

/// Maximum size in bytes of all words of command and environment, and of pointers to them:
/// execve(2), with the usual stack of 8 MiB.
const MAX_ARGUMENTS_BYTES: usize = 2 << 20;

pub fn create(tx: &Tx<'_>, caller: &Caller, attributes: &Record) -> Result<Record> {
    let blank = Record::new()
        .with("state", "Uncommitted")
        .with("cwd", ".")
        .with("use_existing", true)
        .with("output_storage_classes", json!(["default"]));
    let mut request = patch::apply(
        &CONTAINER_REQUESTS,
        &blank,
        attributes,
        &WRITE_ONLY_ATTRIBUTES,
    )?;
    for name in SERVER_SET_ATTRIBUTES {
        request.0.remove(name);
    }
    if !caller.is_admin {
        request.0.remove("uuid");
    }
    Access::new(tx.conn, caller).set_owner(&mut request)?;
    set_requesting_container(tx, caller, &mut request)?;
    job_number::give(tx, caller, &mut request)?;
    let wanted = request.text("state").to_owned();
    if !["Uncommitted", "Committed"].contains(&wanted.as_str()) {
        return Err(wrong_transition("nil", &wanted));
    }
    normalise(tx, &mut request)?;
    match wanted.as_str() {
        "Committed" => commit(tx, caller, None, request),
        _ => tx.create(&CONTAINER_REQUESTS, caller, request),
    }
}

/// Links a request made by a container to that container, with the priority of its requests.
fn set_requesting_container(tx: &Tx<'_>, caller: &Caller, request: &mut Record) -> Result<()> {
    let Some(parent) = caller.container_uuid.as_deref() else {
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
    caller: &Caller,
    uuid: &str,
    attributes: &Record,
    if_match: Option<&str>,
) -> Result<Record> {
    let old = Access::new(tx.conn, caller).require_readable(&CONTAINER_REQUESTS, uuid)?;
    Access::new(tx.conn, caller).require_writable(&old)?;
    patch::check_etag(&old, if_match)?;
    let mut new = patch::apply(
        &CONTAINER_REQUESTS,
        &old,
        attributes,
        &WRITE_ONLY_ATTRIBUTES,
    )?;
    Access::new(tx.conn, caller).require_owners(&old, &new)?;
    job_number::keep(tx, &old, &mut new);
    let (from, to) = (old.text("state").to_owned(), new.text("state").to_owned());
    match (from.as_str(), to.as_str()) {
        ("Uncommitted", "Uncommitted" | "Committed") => {
            check_changes(&old, &new, |name| !SERVER_SET_ATTRIBUTES.contains(&name))?;
            normalise(tx, &mut new)?;
        }
        ("Committed", "Committed" | "Final") => {
            check_changes(&old, &new, |name| MUTABLE_AFTER_COMMIT.contains(&name))?;
            check_priority(&new)?;
            check_count_max(&new)?;
        }
        ("Final", "Final") => check_changes(&old, &new, |name| {
            ["name", "description", "properties", "owner_uuid"].contains(&name)
        })?,
        _ => return Err(wrong_transition(&from, &to)),
    }
    match (from.as_str(), to.as_str()) {
        ("Uncommitted", "Committed") => commit(tx, caller, Some(&old), new),
        ("Committed", "Final") => {
            new.set("state", "Committed");
            let written = tx.update(&CONTAINER_REQUESTS, caller, &old, new)?;
            let container = match written.some_text("container_uuid") {
                Some(uuid) => tx.fetch(&CONTAINERS, uuid)?,
                None => None,
            };
            let done = finalize::finalize_request(tx, &written, container.as_ref())?;
            refresh_container_priority(tx, &done)?;
            Ok(done)
        }
        _ => {
            let written = tx.update(&CONTAINER_REQUESTS, caller, &old, new)?;
            if old.int("priority") != written.int("priority") {
                refresh_container_priority(tx, &written)?;
            }
            Ok(written)
        }
    }
}

pub fn delete(tx: &Tx<'_>, caller: &Caller, uuid: &str) -> Result<Record> {
    let old = Access::new(tx.conn, caller).require_readable(&CONTAINER_REQUESTS, uuid)?;
    Access::new(tx.conn, caller).require_writable(&old)?;
    tx.delete(&CONTAINER_REQUESTS, caller, &old)?;
    refresh_container_priority(tx, &old)?;
    Ok(old)
}

fn refresh_container_priority(tx: &Tx<'_>, request: &Record) -> Result<()> {
    match request.some_text("container_uuid") {
        Some(container) => priority::refresh(tx, container),
        None => Ok(()),
    }
}

/// Commits a request, new or a draft, by giving it a container.
fn commit(tx: &Tx<'_>, caller: &Caller, draft: Option<&Record>, new: Record) -> Result<Record> {
    check_complete(tx, &new)?;
    let container = create::find_or_create(tx, caller, &new)?;
    let new = new
        .with("state", "Committed")
        .with("container_uuid", container.uuid())
        .with("container_count", 1);
    let written = match draft {
        Some(draft) => tx.update(&CONTAINER_REQUESTS, caller, draft, new)?,
        None => tx.create(&CONTAINER_REQUESTS, caller, new)?,
    };
    priority::refresh(tx, container.uuid())?;
    // A reused container may have ended or saved its log earlier.
    if finalize::has_ended(&container) {
        return finalize::finalize_request(tx, &written, Some(&container));
    }
    request_logs::give(tx, &written, &container)
}

/// Validates what holds in every state, and normalises constraints.
fn normalise(tx: &Tx<'_>, request: &mut Record) -> Result<()> {
    check_priority(request)?;
    let committing = request.text("state") == "Committed";
    let runtime = constraints::runtime(request.get("runtime_constraints"), committing)?;
    let scheduling = constraints::scheduling(
        request.get("scheduling_parameters"),
        request.get("command"),
        tx.config.accepts_preemptible,
    )?;
    request.set("runtime_constraints", runtime);
    request.set("scheduling_parameters", scheduling);
    check_count_max(request)?;
    for name in ["command", "output_glob", "output_storage_classes"] {
        let mut items = request.get(name).as_array().into_iter().flatten();
        if !items.all(Value::is_string) {
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
    check_arguments(request)
}

/// Refuses a command and an environment that are together more than a program can be started with.
/// For one word that is too long, crunch-run has a sentence.
fn check_arguments(request: &Record) -> Result<()> {
    let words = request.get("command").as_array().into_iter().flatten();
    let words = words.filter_map(Value::as_str).map(str::len);
    let pairs = request.get("environment").as_object().into_iter().flatten();
    let pairs = pairs.map(|(name, value)| name.len() + 1 + value.as_str().map_or(0, str::len));
    let ended_words = words.chain(pairs).map(|length| length + 1);
    let bytes: usize = ended_words
        .map(|length| length + size_of::<*const u8>())
        .sum();
    if bytes <= MAX_ARGUMENTS_BYTES {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "Command and environment together take {bytes} bytes, and Linux starts no program with \
         more than {MAX_ARGUMENTS_BYTES} (execve: argument list too long); pass them in a file \
         that is mounted"
    )))
}

/// Programs read it as a 32-bit number.
fn check_count_max(request: &Record) -> Result<()> {
    let count = request.get("container_count_max").as_i64();
    match count.is_none_or(|count| (1..=i32::MAX.into()).contains(&count)) {
        true => Ok(()),
        false => Err(ApiError::invalid(
            "Container count max must be at least 1, and less than 2147483648",
        )),
    }
}

fn check_priority(request: &Record) -> Result<()> {
    if (0..=1000).contains(&request.int("priority")) {
        return Ok(());
    }
    Err(ApiError::invalid("Priority must be between 0 and 1000"))
}

/// Validates a request that is being committed.
fn check_complete(tx: &Tx<'_>, request: &Record) -> Result<()> {
    let mut problems = Vec::new();
    if request.get("command").as_array().is_none_or(Vec::is_empty) {
        problems.push("Command can't be blank".to_owned());
    }
    for name in ["container_image", "output_path", "cwd"] {
        if request.some_text(name).is_none() {
            problems.push(format!("{} can't be blank", humanise(name)));
        }
    }
    let classes = request.get("output_storage_classes").as_array();
    let classes = classes.into_iter().flatten().filter_map(Value::as_str);
    // Otherwise the container would run, but its output could not be saved.
    let checked = !tx.config.emulate.is_arvados();
    for class in classes.filter(|class| checked && *class != STORAGE_CLASS) {
        problems.push(format!(
            "Output storage classes: there is no {class:?} here, only {STORAGE_CLASS:?}"
        ));
    }
    ApiError::reject_all(problems)?;
    constraints::runtime(request.get("runtime_constraints"), true)?;
    ports::check(request.get("published_ports"))?;
    mounts::check(
        request.get("mounts"),
        request.get("secret_mounts"),
        request.text("output_path"),
    )
}

fn check_changes(old: &Record, new: &Record, allowed: impl Fn(&str) -> bool) -> Result<()> {
    let refused: Vec<String> = old
        .changed_attributes(new)
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
    ApiError::reject_all(refused)
}

fn wrong_transition(from: &str, to: &str) -> ApiError {
    ApiError::invalid(format!("State cannot change from {from} to {to}"))
}
