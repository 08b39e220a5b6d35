//! `/arvados/v1/containers`.

use serde_json::{Value, json};

use fail_points::fail_point;

use super::{Call, Reply, bulk, changes, resource};
use crate::auth::permission;
use crate::container::{constraints, lifecycle, priority, reuse, spec};
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{CONTAINERS, TOKENS};

pub fn route(call: &Call, verb: &str, rest: &[&str]) -> Result<Reply> {
    match (verb, rest) {
        ("GET", []) => resource::list(call, &CONTAINERS, |_| ()),
        ("POST", []) => create(call),
        ("GET", ["current"]) => current(call),
        ("GET", [uuid]) => {
            let record = resource::get(call, &CONTAINERS, uuid)?;
            resource::show(call, &CONTAINERS, &record)
        }
        ("PUT", [uuid]) => update(call, uuid),
        ("DELETE", [uuid]) => delete(call, uuid),
        ("POST", ["bulk_lock"]) => bulk::lock_containers(call),
        ("POST", [uuid, "lock"]) => {
            let (who, uuid, etag) = (call.who.clone(), (*uuid).to_owned(), call.if_match.clone());
            fail_point("api.lock.accepted");
            let locked = call.app.write(move |tx| {
                let locked = lifecycle::lock(tx, &who, &uuid, etag.as_deref());
                fail_point("api.lock.before-commit");
                locked
            })?;
            fail_point("api.lock.before-answer");
            Ok(lock_reply(&locked))
        }
        ("POST", [uuid, "unlock"]) => {
            let (who, uuid, etag) = (call.who.clone(), (*uuid).to_owned(), call.if_match.clone());
            let unlocked = call.app.write(move |tx| {
                let unlocked = lifecycle::unlock(tx, &who, &uuid, etag.as_deref());
                fail_point("api.unlock.before-commit");
                unlocked
            })?;
            fail_point("api.unlock.before-answer");
            Ok(lock_reply(&unlocked))
        }
        ("POST", [uuid, "update_priority"]) => update_priority(call, uuid),
        ("GET", [uuid, "auth"]) => auth(call, uuid),
        ("GET", [uuid, "secret_mounts"]) => secret_mounts(call, uuid),
        _ => Err(ApiError::path_not_found()),
    }
}

/// Lock and unlock answer with these attributes and no others.
pub(super) fn lock_reply(container: &Record) -> Reply {
    let body: Value = ["uuid", "locked_by_uuid", "priority", "state", "auth_uuid"]
        .into_iter()
        .map(|name| (name.to_owned(), container.get(name).clone()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    Reply {
        body,
        etag: Some(rows::etag(container.uuid(), container.int("row_version"))),
    }
}

fn create(call: &Call) -> Result<Reply> {
    if !call.who.is_admin {
        return Err(ApiError::denied());
    }
    let attributes = call.params.attributes(&CONTAINERS)?;
    let who = call.who.clone();
    let made = call.app.write(move |tx| {
        let blank = Record::new()
            .with("cwd", ".")
            .with("output_storage_classes", json!(["default"]))
            .with("runtime_user_uuid", who.user_uuid.as_str())
            .with("runtime_auth_scopes", json!(["all"]));
        let mut container = changes::apply(&CONTAINERS, &blank, &attributes, &["secret_mounts"])?;
        let blank_names: Vec<String> = ["container_image", "output_path"]
            .into_iter()
            .filter(|name| container.some_text(name).is_none())
            .map(|name| format!("{} can't be blank", crate::schema::humanise(name)))
            .collect();
        if !blank_names.is_empty() {
            return Err(ApiError::Invalid(blank_names));
        }
        if container
            .some_text("state")
            .is_some_and(|state| state != "Queued")
        {
            return Err(ApiError::invalid("State of a new container must be Queued"));
        }
        let runtime = constraints::runtime(container.get("runtime_constraints"), true)?;
        container.set("runtime_constraints", constraints::with_defaults(&runtime));
        let scheduling = constraints::scheduling(
            container.get("scheduling_parameters"),
            container.get("command"),
        )?;
        container.set("scheduling_parameters", scheduling);
        container.set("reuse_key", reuse::key(&container));
        spec::create(tx, &who, container)
    })?;
    resource::show(call, &CONTAINERS, &made)
}

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&CONTAINERS)?;
    let (who, uuid, etag) = (call.who.clone(), uuid.to_owned(), call.if_match.clone());
    let updated = call.app.write(move |tx| {
        let updated = lifecycle::update(tx, &who, &uuid, &attributes, etag.as_deref());
        fail_point("api.update.before-commit");
        updated
    })?;
    fail_point("api.update.before-answer");
    resource::show(call, &CONTAINERS, &updated)
}

fn delete(call: &Call, uuid: &str) -> Result<Reply> {
    let (who, uuid) = (call.who.clone(), uuid.to_owned());
    let deleted = call.app.write(move |tx| {
        let old = permission::must_read(tx.conn, &CONTAINERS, &who, &uuid)?;
        if !who.is_admin {
            return Err(ApiError::denied());
        }
        tx.delete(&CONTAINERS, &who, &old)?;
        if let Some(auth) = old.some_text("auth_uuid") {
            crate::auth::lifetime::expire(tx, &who, auth)?;
        }
        crate::auth::lifetime::end_attempts(tx, &who, &uuid, crate::auth::lifetime::Ending::All)?;
        Ok(old)
    })?;
    resource::show(call, &CONTAINERS, &deleted)
}

fn update_priority(call: &Call, uuid: &str) -> Result<Reply> {
    let (who, uuid) = (call.who.clone(), uuid.to_owned());
    let refreshed = call.app.write(move |tx| {
        permission::must_read(tx.conn, &CONTAINERS, &who, &uuid)?;
        priority::refresh(tx, &uuid)?;
        tx.fetch(&CONTAINERS, &uuid)?
            .ok_or_else(ApiError::path_not_found)
    })?;
    resource::show(call, &CONTAINERS, &refreshed)
}

/// The container of the calling token.
fn current(call: &Call) -> Result<Reply> {
    let uuid = call.who.container_uuid.as_deref().ok_or_else(|| {
        ApiError::NotFound("Token is not associated with a container.".to_owned())
    })?;
    let record = resource::get(call, &CONTAINERS, uuid)?;
    resource::show(call, &CONTAINERS, &record)
}

/// The token the container itself uses, for the holder of its lock.
fn auth(call: &Call, uuid: &str) -> Result<Reply> {
    let token = call.app.readers.read(|connection| {
        let container = permission::must_read(connection, &CONTAINERS, &call.who, uuid)?;
        if container.some_text("locked_by_uuid") != Some(&call.who.token_uuid) {
            return Err(ApiError::Denied("Not locked by your token".into()));
        }
        let token_uuid = match container.some_text("runtime_token") {
            Some(given) => given.split('/').nth(1).unwrap_or("").to_owned(),
            None => container.text("auth_uuid").to_owned(),
        };
        rows::fetch(connection, &TOKENS, &token_uuid)?.ok_or_else(ApiError::path_not_found)
    })?;
    resource::show(call, &TOKENS, &token)
}

fn secret_mounts(call: &Call, uuid: &str) -> Result<Reply> {
    let container = resource::get(call, &CONTAINERS, uuid)?;
    if call.who.container_uuid.as_deref() != Some(uuid) {
        return Err(ApiError::Denied(
            "Token is not associated with this container.".into(),
        ));
    }
    Ok(json!({"secret_mounts": container.get("secret_mounts")}).into())
}
