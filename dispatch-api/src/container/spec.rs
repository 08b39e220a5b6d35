//! From a committed request to the container that does its work.

use serde_json::{Map, Value, json};

use super::{constraints, image, mounts, reuse};
use crate::auth::{Caller, permission};
use crate::collection::store;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{COLLECTIONS, CONTAINERS, TOKENS};
use crate::tx::Tx;

/// Attributes a container takes over from its request unchanged.
const COPIED: [&str; 9] = [
    "command",
    "cwd",
    "environment",
    "output_path",
    "output_glob",
    "output_storage_classes",
    "output_properties",
    "service",
    "published_ports",
];

/// Make or reuse the container of a request; the answer is its uuid.
pub fn container_for(tx: &Tx<'_>, who: &Caller, request: &Record) -> Result<String> {
    let container = resolve(tx, who, request)?;
    if request.bool("use_existing")
        && let Some(existing) = reuse::find(tx, who, container.text("reuse_key"))?
    {
        return Ok(existing.uuid().to_owned());
    }
    Ok(create(tx, who, container)?.uuid().to_owned())
}

pub fn create(tx: &Tx<'_>, who: &Caller, container: Record) -> Result<Record> {
    let container = container
        .with("owner_uuid", tx.setting.system_user())
        .with("state", "Queued");
    tx.create(&CONTAINERS, who, container)
}

/// A new container that does the work of one that was cancelled.
pub fn again(
    tx: &Tx<'_>,
    who: &Caller,
    cancelled: &Record,
    scheduling: Value,
    secrets: &Record,
) -> Result<Record> {
    let mut container = Record::new()
        .with("scheduling_parameters", scheduling)
        .with("secret_mounts", secrets.get("secret_mounts").clone())
        .with("runtime_token", or_null(secrets.some_text("runtime_token")));
    let kept = COPIED
        .iter()
        .filter(|name| **name != "output_properties")
        .chain(&[
            "container_image",
            "mounts",
            "runtime_constraints",
            "runtime_user_uuid",
            "runtime_auth_scopes",
            "reuse_key",
        ]);
    for name in kept {
        container.set(name, cancelled.get(name).clone());
    }
    create(tx, who, container)
}

fn or_null(text: Option<&str>) -> Value {
    text.map_or(Value::Null, |text| json!(text))
}

fn resolve(tx: &Tx<'_>, who: &Caller, request: &Record) -> Result<Record> {
    let mut container: Record = COPIED
        .iter()
        .filter(|name| **name != "output_properties")
        .map(|name| ((*name).to_owned(), request.get(name).clone()))
        .collect();
    let (user, scopes) = runtime_user(tx, who, request)?;
    container
        .set(
            "container_image",
            image::resolve(tx, who, request.text("container_image"))?,
        )
        .set("mounts", resolve_mounts(tx, who, request.get("mounts"))?)
        .set(
            "runtime_constraints",
            constraints::with_defaults(request.get("runtime_constraints")),
        )
        .set(
            "scheduling_parameters",
            request.get("scheduling_parameters").clone(),
        )
        .set("secret_mounts", request.get("secret_mounts").clone())
        .set("runtime_token", or_null(request.some_text("runtime_token")))
        .set("runtime_user_uuid", user)
        .set("runtime_auth_scopes", scopes);
    container.set("reuse_key", reuse::key(&container));
    Ok(container)
}

/// Whom the container acts for: the owner of a supplied token, else the caller.
fn runtime_user(tx: &Tx<'_>, who: &Caller, request: &Record) -> Result<(String, Value)> {
    let Some(token) = request.some_text("runtime_token") else {
        return Ok((who.user_uuid.clone(), json!(["all"])));
    };
    let record = find_token(tx, token)?
        .ok_or_else(|| ApiError::invalid("Runtime token is not a valid token of this server"))?;
    Ok((
        record.text("owner_uuid").to_owned(),
        record.get("scopes").clone(),
    ))
}

/// The record of a live v2 token.
pub fn find_token(tx: &Tx<'_>, token: &str) -> Result<Option<Record>> {
    let mut parts = token.split('/');
    let (Some("v2"), Some(uuid), Some(secret)) = (parts.next(), parts.next(), parts.next()) else {
        return Ok(None);
    };
    let found = rows::find(
        tx.conn,
        &TOKENS,
        "uuid = ?1 AND api_token = ?2 AND (expires_at IS NULL OR expires_at > ?3)",
        &[&uuid, &secret, &tx.now],
    )?;
    Ok(found.into_iter().next())
}

/// Collections named by uuid are pinned to what they contain now.
fn resolve_mounts(tx: &Tx<'_>, who: &Caller, given: &Value) -> Result<Value> {
    let mut resolved = Map::new();
    for (target, mount) in given.as_object().into_iter().flatten() {
        let mut mount = mounts::without_blanks(mount);
        let uuid = mount["uuid"].as_str().map(str::to_owned);
        if mount["kind"] == "collection"
            && let Some(uuid) = uuid
        {
            let pdh = pin(tx, who, &uuid, mount["portable_data_hash"].as_str())?;
            mount["portable_data_hash"] = json!(pdh);
            if let Some(fields) = mount.as_object_mut() {
                fields.remove("uuid");
            }
        }
        resolved.insert(target.clone(), mount);
    }
    Ok(Value::Object(resolved))
}

fn pin(tx: &Tx<'_>, who: &Caller, uuid: &str, expected: Option<&str>) -> Result<String> {
    let collection = permission::readable(tx.conn, &COLLECTIONS, who, uuid)?
        .filter(|collection| !store::in_trash(collection, &tx.now))
        .ok_or_else(|| {
            ApiError::invalid(format!("cannot mount collection \"{uuid}\": not found"))
        })?;
    let pdh = collection.text("portable_data_hash");
    match expected {
        Some(expected) if expected != pdh => Err(ApiError::invalid(format!(
            "cannot mount collection \"{uuid}\": current portable_data_hash \"{pdh}\" does not match \"{expected}\" in request"
        ))),
        _ => Ok(pdh.to_owned()),
    }
}
