//! Creates or reuses the container of a committed request.

use serde_json::{Map, Value, json};

use crate::auth::{Access, Caller};
use crate::collection::store;
use crate::container::{constraints, image, mounts, priority, reuse};
use crate::db::rows;
use crate::db::trash;
use crate::error::{ApiError, Result};
use crate::record::{Record, patch};
use crate::schema::{COLLECTIONS, CONTAINERS, TOKENS};
use crate::store::transaction::Tx;

/// Attributes that a container copies from its request unchanged.
const COPIED_ATTRIBUTES: [&str; 8] = [
    "command",
    "cwd",
    "environment",
    "output_path",
    "output_glob",
    "output_storage_classes",
    "service",
    "published_ports",
];

/// Finds or creates the container of a request. A new one has the priority that the request gives
/// it.
pub fn find_or_create(tx: &Tx<'_>, caller: &Caller, request: &Record) -> Result<Record> {
    let container = resolve(tx, caller, request)?;
    if request.bool("use_existing")
        && reads_inputs(tx, caller, &container)?
        && let Some(existing) = reuse::find_reusable(tx, caller, &container)?
    {
        return Ok(existing);
    }
    let priority = priority::requested(tx, request)?;
    insert_queued(tx, caller, container.with("priority", priority))
}

/// Whether the caller may read all collections that the container mounts. Otherwise it could have
/// the results of another user's container without permission for its inputs.
fn reads_inputs(tx: &Tx<'_>, caller: &Caller, container: &Record) -> Result<bool> {
    let mounts = container.get("mounts").as_object().into_iter().flatten();
    for pdh in mounts.filter_map(|(_, mount)| mount["portable_data_hash"].as_str()) {
        if !tx.config.emulate.is_arvados()
            && store::find_by_pdh(tx.conn, caller, pdh, true)?.is_none()
        {
            return Ok(false);
        }
    }
    Ok(true)
}

pub fn insert_queued(tx: &Tx<'_>, caller: &Caller, container: Record) -> Result<Record> {
    let container = container
        .with("owner_uuid", tx.config.system_user())
        .with("state", "Queued");
    tx.create(&CONTAINERS, caller, container)
}

/// Creates the container that retries a cancelled one.
pub fn retry_of(
    tx: &Tx<'_>,
    cancelled: &Record,
    scheduling: Value,
    secrets: &Record,
) -> Result<Record> {
    let mut container = Record::new()
        .with("scheduling_parameters", scheduling)
        .with("runtime_token", or_null(secrets.some_text("runtime_token")));
    container.copy("secret_mounts", secrets);
    let resolved = [
        "container_image",
        "mounts",
        "runtime_constraints",
        "runtime_user_uuid",
        "runtime_auth_scopes",
        "reuse_key",
    ];
    for name in COPIED_ATTRIBUTES.into_iter().chain(resolved) {
        container.copy(name, cancelled);
    }
    insert_queued(tx, &tx.system, container)
}

fn or_null(text: Option<&str>) -> Value {
    text.map_or(Value::Null, |text| json!(text))
}

fn resolve(tx: &Tx<'_>, caller: &Caller, request: &Record) -> Result<Record> {
    let mut container = Record::new();
    let names = ["scheduling_parameters", "secret_mounts"];
    for name in COPIED_ATTRIBUTES.into_iter().chain(names) {
        if let Some(attr) = CONTAINERS.attr(name) {
            // The key for reuse is of complete attributes.
            let field = patch::stored(attr, &request.field(name))?;
            container.0.insert(name.to_owned(), field);
        }
    }
    let (user, scopes) = runtime_user(tx, caller, request)?;
    let image = image::resolve(tx, caller, request.text("container_image"))?;
    let runtime = constraints::with_defaults(request.get("runtime_constraints"));
    let given = request.get("mounts");
    match mounts::are_resolved(given) {
        true => container.copy("mounts", request),
        false => container.set("mounts", resolve_mounts(tx, caller, given)?),
    };
    container
        .set("container_image", image)
        .set("runtime_constraints", runtime)
        .set("runtime_token", or_null(request.some_text("runtime_token")))
        .set("runtime_user_uuid", user)
        .set("runtime_auth_scopes", scopes);
    container.set("reuse_key", reuse::reuse_key(&container));
    Ok(container)
}

/// The user and scopes of the container: those of a supplied token, else the caller's.
fn runtime_user(tx: &Tx<'_>, caller: &Caller, request: &Record) -> Result<(String, Value)> {
    let Some(token) = request.some_text("runtime_token") else {
        let has_api_access = request.get("runtime_constraints")["API"] == true;
        // The container's own token has all scopes.
        if !tx.config.emulate.is_arvados() && has_api_access && !caller.has_all_scopes() {
            return Err(ApiError::invalid(
                "a token with scopes can give no container access to the API \
                 (runtime_constraints: API); supply a runtime_token",
            ));
        }
        return Ok((caller.user_uuid.clone(), json!(["all"])));
    };
    let record = find_token(tx, token)?
        .ok_or_else(|| ApiError::invalid("Runtime token is not a valid token of this server"))?;
    Ok((
        record.text("owner_uuid").to_owned(),
        record.get("scopes").clone(),
    ))
}

/// The record of a v2 token that has not expired.
pub fn find_token(tx: &Tx<'_>, token: &str) -> Result<Option<Record>> {
    let mut parts = token.split('/');
    let (Some("v2"), Some(uuid), Some(secret)) = (parts.next(), parts.next(), parts.next()) else {
        return Ok(None);
    };
    let valid = "uuid = ?1 AND api_token = ?2 AND (expires_at IS NULL OR expires_at > ?3)";
    Ok(rows::find(tx.conn, &TOKENS, valid, &[&uuid, &secret, &tx.now])?.pop())
}

/// Replaces uuids of mounted collections by their current content hash.
fn resolve_mounts(tx: &Tx<'_>, caller: &Caller, given: &Value) -> Result<Value> {
    let mut resolved = Map::new();
    for (target, mount) in given.as_object().into_iter().flatten() {
        let mut mount = mounts::strip_blank_fields(mount);
        let uuid = mount["uuid"].as_str().map(str::to_owned);
        if mount["kind"] == "collection"
            && let Some(uuid) = uuid
        {
            let pdh = resolve_collection(tx, caller, &uuid, mount["portable_data_hash"].as_str())?;
            mount["portable_data_hash"] = json!(pdh);
            if let Some(fields) = mount.as_object_mut() {
                fields.remove("uuid");
            }
        }
        resolved.insert(target.clone(), mount);
    }
    Ok(Value::Object(resolved))
}

fn resolve_collection(
    tx: &Tx<'_>,
    caller: &Caller,
    uuid: &str,
    expected: Option<&str>,
) -> Result<String> {
    let not_found = || ApiError::invalid(format!("cannot mount collection \"{uuid}\": not found"));
    let collection = Access::new(tx.conn, caller)
        .find_brief(&COLLECTIONS, uuid)?
        .ok_or_else(not_found)?;
    if trash::is_in_trash(tx.conn, &collection, &tx.now)? {
        return Err(not_found());
    }
    let pdh = collection.text("portable_data_hash");
    match expected {
        Some(expected) if expected != pdh => Err(ApiError::invalid(format!(
            "cannot mount collection \"{uuid}\": current portable_data_hash \"{pdh}\" does not match \"{expected}\" in request"
        ))),
        _ => Ok(pdh.to_owned()),
    }
}
