//! `/arvados/v1/containers`.

use serde_json::{Value, json};

use fail_points::fail_point;

use super::call::{Call, Reply};
use super::resource::{change, fetch, get, list, show, write};
use super::route::Route;
use crate::auth::Access;
use crate::container::{constraints, create, lifecycle, priority, reuse};
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::{CONTAINERS, TOKENS, humanise};
use crate::store::revocation;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "containers", |call, _| list(call, &CONTAINERS)),
    Route::new("POST", "containers", create),
    Route::new("GET", "containers/current", |call, _| current(call)),
    Route::new("GET", "containers/{}", |call, uuid| {
        get(call, &CONTAINERS, uuid)
    }),
    Route::new("PUT", "containers/{}", update),
    Route::new("DELETE", "containers/{}", delete),
    Route::new("POST", "containers/{}/lock", lock),
    Route::new("POST", "containers/{}/unlock", unlock),
    Route::new("POST", "containers/{}/update_priority", update_priority),
    Route::new("GET", "containers/{}/auth", auth),
    Route::new("GET", "containers/{}/secret_mounts", secret_mounts),
];

fn lock(call: &Call, uuid: &str) -> Result<Reply> {
    let (caller, uuid, etag) = (call.caller.clone(), uuid.to_owned(), call.if_match.clone());
    fail_point("api.lock.accepted");
    let locked = call.write(move |tx| {
        let locked = lifecycle::lock(tx, &caller, &uuid, etag.as_deref());
        fail_point("api.lock.before-commit");
        locked
    })?;
    fail_point("api.lock.before-answer");
    Ok(lock_reply(&locked))
}

fn unlock(call: &Call, uuid: &str) -> Result<Reply> {
    let (caller, uuid, etag) = (call.caller.clone(), uuid.to_owned(), call.if_match.clone());
    let unlocked = call.write(move |tx| {
        let unlocked = lifecycle::unlock(tx, &caller, &uuid, etag.as_deref());
        fail_point("api.unlock.before-commit");
        unlocked
    })?;
    fail_point("api.unlock.before-answer");
    Ok(lock_reply(&unlocked))
}

/// The reply to lock and unlock requests, which has only these attributes.
pub(super) fn lock_reply(container: &Record) -> Reply {
    let body: Value = ["uuid", "locked_by_uuid", "priority", "state", "auth_uuid"]
        .into_iter()
        .map(|name| (name.to_owned(), container.get(name).clone()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    Reply {
        body,
        etag: Some(container.etag()),
    }
}

fn create(call: &Call, _: &str) -> Result<Reply> {
    if !call.caller.is_admin {
        return Err(ApiError::denied(
            "only an administrator may create containers",
        ));
    }
    let attributes = call.params.attributes(&CONTAINERS)?;
    write(call, &CONTAINERS, move |tx, caller| {
        let blank = Record::new()
            .with("cwd", ".")
            .with("output_storage_classes", json!(["default"]))
            .with("runtime_user_uuid", caller.user_uuid.as_str())
            .with("runtime_auth_scopes", json!(["all"]));
        let mut container = patch::apply(&CONTAINERS, &blank, &attributes, &["secret_mounts"])?;
        for attribute in SERVER_SIDE_ATTRIBUTES {
            container.0.remove(attribute);
        }
        let blank_names: Vec<String> = ["container_image", "output_path"]
            .into_iter()
            .filter(|name| container.some_text(name).is_none())
            .map(|name| format!("{} can't be blank", humanise(name)))
            .collect();
        ApiError::reject_all(blank_names)?;
        if !matches!(container.text("state"), "" | "Queued") {
            return Err(ApiError::invalid("State of a new container must be Queued"));
        }
        let runtime = constraints::runtime(container.get("runtime_constraints"), true)?;
        container.set("runtime_constraints", constraints::with_defaults(&runtime));
        let scheduling = constraints::scheduling(
            container.get("scheduling_parameters"),
            container.get("command"),
            tx.config.accepts_preemptible,
        )?;
        container.set("scheduling_parameters", scheduling);
        container.set("reuse_key", reuse::reuse_key(&container));
        create::insert_queued(tx, caller, container)
    })
}

/// Attributes of a new container that only the server sets. By `auth_uuid`, its creator would get
/// the secret of any token.
const SERVER_SIDE_ATTRIBUTES: [&str; 9] = [
    "auth_uuid",
    "locked_by_uuid",
    "lock_count",
    "exit_code",
    "log",
    "output",
    "started_at",
    "finished_at",
    "cost",
];

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&CONTAINERS)?;
    let (uuid, etag) = (uuid.to_owned(), call.if_match.clone());
    let updated = write(call, &CONTAINERS, move |tx, caller| {
        let updated = lifecycle::update(tx, caller, &uuid, &attributes, etag.as_deref());
        fail_point("api.update.before-commit");
        updated
    })?;
    fail_point("api.update.before-answer");
    Ok(updated)
}

fn delete(call: &Call, uuid: &str) -> Result<Reply> {
    change(call, &CONTAINERS, uuid, |tx, caller, old| {
        if !caller.is_admin {
            return Err(ApiError::denied(
                "only an administrator may delete containers",
            ));
        }
        tx.delete(&CONTAINERS, caller, &old)?;
        if let Some(auth) = old.some_text("auth_uuid") {
            revocation::revoke(tx, caller, auth)?;
        }
        revocation::revoke_attempt_tokens(tx, caller, old.uuid(), None)?;
        Ok(old)
    })
}

fn update_priority(call: &Call, uuid: &str) -> Result<Reply> {
    change(call, &CONTAINERS, uuid, |tx, _, old| {
        priority::refresh(tx, old.uuid())?;
        let refreshed = tx.fetch(&CONTAINERS, old.uuid())?;
        refreshed.ok_or_else(ApiError::path_not_found)
    })
}

/// The container of the calling token.
fn current(call: &Call) -> Result<Reply> {
    let uuid = call.caller.container_uuid.as_deref().ok_or_else(|| {
        ApiError::NotFound("Token is not associated with a container.".to_owned())
    })?;
    get(call, &CONTAINERS, uuid)
}

/// The container's own token, for the token that locked the container.
fn auth(call: &Call, uuid: &str) -> Result<Reply> {
    let token = call.app.readers.read(|connection| {
        let container =
            Access::new(connection, &call.caller).require_readable(&CONTAINERS, uuid)?;
        if container.some_text("locked_by_uuid") != Some(&call.caller.token_uuid) {
            return Err(ApiError::Denied("Not locked by your token".into()));
        }
        let token_uuid = match container.some_text("runtime_token") {
            Some(given) => given.split('/').nth(1).unwrap_or("").to_owned(),
            None => container.text("auth_uuid").to_owned(),
        };
        rows::fetch(connection, &TOKENS, &token_uuid)?.ok_or_else(ApiError::path_not_found)
    })?;
    show(call, &TOKENS, token)
}

fn secret_mounts(call: &Call, uuid: &str) -> Result<Reply> {
    let container = fetch(call, &CONTAINERS, uuid)?;
    if call.caller.container_uuid.as_deref() != Some(uuid) {
        return Err(ApiError::Denied(
            "Token is not associated with this container.".into(),
        ));
    }
    Ok(json!({"secret_mounts": container.get("secret_mounts")}).into())
}
