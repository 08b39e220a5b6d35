//! `/arvados/v1/api_client_authorizations`.

use rusqlite::Connection;
use serde_json::{Value, json};

use fail_points::fail_point;

use super::call::{Call, Reply};
use super::resource;
use super::route::Route;
use crate::auth::attempt_token::{self, Claims};
use crate::auth::{Access, Caller, scope, secrets};
use crate::clock;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::{TOKENS, USERS};
use crate::store::cluster_config::ClusterConfig;
use crate::store::revocation;
use crate::store::transaction::Tx;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "api_client_authorizations", |call, _| {
        resource::list_finished(call, &TOKENS, |token| hide_secret(call, token))
    }),
    Route::new("POST", "api_client_authorizations", create_one),
    Route::new("GET", "api_client_authorizations/current", |call, _| {
        resource::show(call, &TOKENS, current(call)?)
    }),
    Route::new("GET", "api_client_authorizations/{}", |call, uuid| {
        let find = |connection: &_| find(connection, &call.app.config, &call.caller, uuid);
        let mut token = call.app.readers.read(find)?;
        hide_secret(call, &mut token);
        resource::show(call, &TOKENS, token)
    }),
    Route::new("PUT", "api_client_authorizations/{}", |call, uuid| {
        let attributes = call.params.attributes(&TOKENS)?;
        let (caller, uuid) = (call.caller.clone(), uuid.to_owned());
        let updated = call.write(move |tx| update(tx, &caller, &uuid, &attributes))?;
        show(call, updated)
    }),
    Route::new("DELETE", "api_client_authorizations/{}", |call, uuid| {
        show(call, delete(call, uuid)?)
    }),
];

/// The reply with a token without its secret.
fn show(call: &Call, mut token: Record) -> Result<Reply> {
    if !call.app.config.emulate.is_arvados() {
        token.set("api_token", Value::Null);
    }
    resource::show(call, &TOKENS, token)
}

/// A token that the caller may read and change.
fn find(
    connection: &Connection,
    config: &ClusterConfig,
    caller: &Caller,
    uuid: &str,
) -> Result<Record> {
    let token = Access::new(connection, caller).require_readable(&TOKENS, uuid)?;
    let is_root = caller.user_uuid == config.system_user();
    let is_own = is_root || token.text("owner_uuid") == caller.user_uuid;
    match is_own || !config.emulate.is_arvados() {
        true => Ok(token),
        false => Err(ApiError::path_not_found()),
    }
}

/// Creates a token; only this reply has its secret.
fn create_one(call: &Call, _: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&TOKENS)?;
    let (caller, remote) = (call.caller.clone(), call.remote.clone());
    let created = call.write(move |tx| {
        let created = create(tx, &caller, &attributes, &remote);
        fail_point("api.token-create.before-commit");
        created
    })?;
    fail_point("api.token-create.before-answer");
    resource::show(call, &TOKENS, created)
}

fn delete(call: &Call, uuid: &str) -> Result<Record> {
    let (caller, uuid) = (call.caller.clone(), uuid.to_owned());
    let deleted = call.write(move |tx| {
        let old = find(tx.conn, tx.config, &caller, &uuid)?;
        if old.some_text("attempt_of").is_some() {
            revocation::set_expiry_override(tx, &old, Some(tx.now.clone()))?;
        }
        tx.delete(&TOKENS, &caller, &old)?;
        fail_point("api.token-delete.before-commit");
        Ok(old)
    })?;
    fail_point("api.token-delete.before-answer");
    Ok(deleted)
}

/// Hides the secret of a token that is read. A dispatcher reads its attempt tokens again after a
/// restart, so their secrets are shown to their owner; a token with all scopes could create them
/// anyway.
fn hide_secret(call: &Call, token: &mut Record) {
    let caller = &call.caller;
    let is_own_attempt = attempt_token::is_signed(token.text("api_token"))
        && token.text("owner_uuid") == caller.user_uuid
        && caller.has_all_scopes();
    if !call.app.config.emulate.is_arvados() && !is_own_attempt {
        token.set("api_token", Value::Null);
    }
}

/// The calling token. As in Arvados, its creation time is null.
fn current(call: &Call) -> Result<Record> {
    let mut record = call.app.readers.read(|connection| {
        crate::db::rows::fetch(connection, &TOKENS, &call.caller.token_uuid)?
            .ok_or_else(ApiError::path_not_found)
    })?;
    record.set("created_at", Value::Null);
    Ok(record)
}

pub(super) fn create(
    tx: &Tx<'_>,
    caller: &Caller,
    attributes: &Record,
    remote: &str,
) -> Result<Record> {
    if !attributes.get("api_token").is_null() {
        return Err(ApiError::invalid("Api token cannot be chosen"));
    }
    let blank = Record::new().with("scopes", json!(["all"]));
    let mut token = patch::apply(&TOKENS, &blank, attributes, &[])?;
    let owner = token.some_text("owner_uuid");
    let owner = owner.unwrap_or(&caller.user_uuid).to_owned();
    let is_for_root = !tx.config.emulate.is_arvados() && owner == tx.config.system_user();
    if owner != caller.user_uuid && (!caller.is_admin || is_for_root) {
        return Err(ApiError::denied(format!(
            "you may not create a token of {owner}"
        )));
    }
    let user = tx
        .fetch(&USERS, &owner)?
        .ok_or_else(|| ApiError::invalid(format!("Owner {owner} is not a user")))?;
    let scopes = scopes_of(&token)?;
    if !tx.config.emulate.is_arvados() {
        check_reach(caller, &owner, &scopes, token.some_text("expires_at"))?;
    }
    let uuid = tx.config.new_uuid(&TOKENS);
    token
        .set("uuid", uuid.as_str())
        .set("owner_uuid", owner.as_str())
        .set("created_by_ip_address", remote);
    for server_side in ["last_used_at", "last_used_by_ip_address"] {
        token.0.remove(server_side);
    }
    // Those of others are ordinary tokens: a user could give any container thousands of attempts,
    // which are revoked one by one when it ends.
    let signed = !tx.config.emulate.is_arvados() && caller.is_admin;
    let attempt_of = scope::attempt_container(&scopes).filter(|_| signed);
    match attempt_of.map(str::to_owned) {
        // Signed tokens are verified without a database query, so the user must be active now.
        Some(_) if !user.bool("is_active") => {
            return Err(ApiError::invalid(format!("Owner {owner} is not active")));
        }
        Some(container) => {
            let exp = token
                .some_text("expires_at")
                .and_then(clock::parse)
                .map(|at| at.as_second());
            let secret = tx.config.attempt_key.sign(&Claims {
                jti: uuid,
                sub: owner,
                admin: user.bool("is_admin"),
                container: container.clone(),
                scopes,
                exp,
            })?;
            token.set("api_token", secret).set("attempt_of", container);
        }
        None => {
            token.set("api_token", secrets::new_token_secret());
        }
    }
    tx.create(&TOKENS, caller, token)
}

/// Whether a token with this end ends no later than the caller's, which may otherwise outlive
/// itself. A dispatcher's may: it makes tokens for attempts of any length.
fn ends_in_time(caller: &Caller, expires_at: Option<&str>) -> bool {
    let ends_too = |end: &String| expires_at.is_some_and(|at| at <= end.as_str());
    (caller.is_admin && caller.has_all_scopes()) || caller.expires_at.iter().all(ends_too)
}

/// Rejects a new token that could do more than the caller's token: for another user, with other
/// scopes, or for longer.
fn check_reach(
    caller: &Caller,
    owner: &str,
    scopes: &[String],
    expires_at: Option<&str>,
) -> Result<()> {
    let is_within =
        owner == caller.user_uuid && scopes.iter().all(|scope| caller.scopes.contains(scope));
    if !caller.has_all_scopes() && !is_within {
        return Err(ApiError::denied(
            "this token makes tokens of its own user with its own scopes only",
        ));
    }
    match ends_in_time(caller, expires_at) {
        true => Ok(()),
        false => Err(outlives(caller)),
    }
}

fn outlives(caller: &Caller) -> ApiError {
    let end = caller.expires_at.as_deref().unwrap_or_default();
    ApiError::denied(format!(
        "a token needs an expires_at, at most {end}, the end of this one"
    ))
}

fn scopes_of(token: &Record) -> Result<Vec<String>> {
    let invalid = || ApiError::invalid("Scopes must be an array of strings");
    let list = token.get("scopes").as_array().ok_or_else(invalid)?;
    list.iter()
        .map(|scope| scope.as_str().map(str::to_owned).ok_or_else(invalid))
        .collect()
}

/// Updates expiry and scopes. The scopes of an attempt token are signed and cannot change.
fn update(tx: &Tx<'_>, caller: &Caller, uuid: &str, attributes: &Record) -> Result<Record> {
    if !tx.config.emulate.is_arvados() && !caller.has_all_scopes() {
        return Err(ApiError::OutOfScope);
    }
    let old = find(tx.conn, tx.config, caller, uuid)?;
    let mut new = patch::apply(&TOKENS, &old, attributes, &[])?;
    if new.some_text("api_token").is_none() {
        // As the record was shown.
        new.copy("api_token", &old);
    }
    let old_scopes = scopes_of(&old)?;
    let is_wider = scopes_of(&new)?
        .iter()
        .any(|scope| !old_scopes.contains(scope));
    let can_more = is_wider || old.get("expires_at") != new.get("expires_at");
    if !tx.config.emulate.is_arvados()
        && can_more
        && !ends_in_time(caller, new.some_text("expires_at"))
    {
        return Err(outlives(caller));
    }
    let signed = old.some_text("attempt_of").is_some();
    let refused: Vec<String> = old
        .changed_attributes(&new)
        .into_iter()
        .filter(|name| !(*name == "expires_at" || (*name == "scopes" && !signed)))
        .map(|name| format!("{} cannot be changed", crate::schema::humanise(name)))
        .collect();
    ApiError::reject_all(refused)?;
    if signed && old.get("expires_at") != new.get("expires_at") {
        let until = new.some_text("expires_at").map(str::to_owned);
        revocation::set_expiry_override(tx, &old, until)?;
    }
    tx.update(&TOKENS, caller, &old, new)
}
