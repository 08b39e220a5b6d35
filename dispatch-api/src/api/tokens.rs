//! `/arvados/v1/api_client_authorizations`.

use serde_json::{Map, Value, json};

use fail_points::fail_point;

use super::{Call, Reply, bulk, changes, resource};
use crate::auth::attempt::Claims;
use crate::auth::{Caller, lifetime, permission, scope};
use crate::clock;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{TOKENS, USERS};
use crate::tx::Tx;

pub fn route(call: &Call, verb: &str, rest: &[&str]) -> Result<Reply> {
    let record = match (verb, rest) {
        ("GET", []) => return resource::list(call, &TOKENS, |_| ()),
        ("POST", []) => {
            let attributes = call.params.attributes(&TOKENS)?;
            let (who, remote) = (call.who.clone(), call.remote.clone());
            let made = call.app.write(move |tx| {
                let made = create(tx, &who, &attributes, &remote);
                fail_point("api.token-create.before-commit");
                made
            })?;
            fail_point("api.token-create.before-answer");
            made
        }
        ("POST", ["bulk_create"]) => return bulk::create_tokens(call),
        ("GET", ["current"]) => current(call)?,
        ("GET", [uuid]) => resource::get(call, &TOKENS, uuid)?,
        ("PUT", [uuid]) => {
            let attributes = call.params.attributes(&TOKENS)?;
            let (who, uuid) = (call.who.clone(), (*uuid).to_owned());
            call.app
                .write(move |tx| update(tx, &who, &uuid, &attributes))?
        }
        ("DELETE", [uuid]) => {
            let (who, uuid) = (call.who.clone(), (*uuid).to_owned());
            let deleted = call.app.write(move |tx| {
                let old = permission::must_read(tx.conn, &TOKENS, &who, &uuid)?;
                if old.some_text("attempt_of").is_some() {
                    lifetime::override_expiry(tx, &old, Some(tx.now.clone()))?;
                }
                tx.delete(&TOKENS, &who, &old)?;
                fail_point("api.token-delete.before-commit");
                Ok(old)
            })?;
            fail_point("api.token-delete.before-answer");
            deleted
        }
        _ => return Err(ApiError::path_not_found()),
    };
    resource::show(call, &TOKENS, &record)
}

/// The calling token. Like the real server, it does not tell when it was made.
fn current(call: &Call) -> Result<Record> {
    let mut record = call.app.readers.read(|connection| {
        crate::db::rows::fetch(connection, &TOKENS, &call.who.token_uuid)?
            .ok_or_else(ApiError::path_not_found)
    })?;
    record.set("created_at", Value::Null);
    Ok(record)
}

pub(super) fn create(
    tx: &Tx<'_>,
    who: &Caller,
    attributes: &Map<String, Value>,
    remote: &str,
) -> Result<Record> {
    let blank = Record::new().with("scopes", json!(["all"]));
    let mut token = changes::apply(&TOKENS, &blank, attributes, &[])?;
    let owner = token
        .some_text("owner_uuid")
        .unwrap_or(&who.user_uuid)
        .to_owned();
    if owner != who.user_uuid && !who.is_admin {
        return Err(ApiError::denied());
    }
    let user = tx
        .fetch(&USERS, &owner)?
        .ok_or_else(|| ApiError::invalid(format!("Owner {owner} is not a user")))?;
    let scopes = scopes_of(&token)?;
    let uuid = tx.setting.new_uuid(&TOKENS);
    token
        .set("uuid", uuid.as_str())
        .set("owner_uuid", owner.as_str())
        .set("created_by_ip_address", remote);
    for server_side in ["last_used_at", "last_used_by_ip_address"] {
        token.0.remove(server_side);
    }
    let signed = tx.setting.rules.extensions;
    let attempt_of = scope::attempt_of(&scopes).filter(|_| signed);
    match attempt_of.map(str::to_owned) {
        // What is signed is not looked up again, so it must be right from the start.
        Some(_) if !user.bool("is_active") => {
            return Err(ApiError::invalid(format!("Owner {owner} is not active")));
        }
        Some(container) => {
            let exp = token
                .some_text("expires_at")
                .and_then(clock::parse)
                .map(|at| at.as_second());
            let secret = tx.setting.attempt_key.sign(&Claims {
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
            token.set("api_token", lifetime::new_secret());
        }
    }
    tx.create(&TOKENS, who, token)
}

fn scopes_of(token: &Record) -> Result<Vec<String>> {
    let wrong = || ApiError::invalid("Scopes must be an array of strings");
    let list = token.get("scopes").as_array().ok_or_else(wrong)?;
    list.iter()
        .map(|scope| scope.as_str().map(str::to_owned).ok_or_else(wrong))
        .collect()
}

/// Expiry and scopes may be changed; the scopes of an attempt token are part of its signature.
fn update(
    tx: &Tx<'_>,
    who: &Caller,
    uuid: &str,
    attributes: &Map<String, Value>,
) -> Result<Record> {
    let old = permission::must_read(tx.conn, &TOKENS, who, uuid)?;
    let new = changes::apply(&TOKENS, &old, attributes, &[])?;
    scopes_of(&new)?;
    let signed = old.some_text("attempt_of").is_some();
    let refused: Vec<String> = old
        .changed(&new)
        .into_iter()
        .filter(|name| !(*name == "expires_at" || (*name == "scopes" && !signed)))
        .map(|name| format!("{} cannot be changed", crate::schema::humanise(name)))
        .collect();
    if !refused.is_empty() {
        return Err(ApiError::Invalid(refused));
    }
    if signed && old.get("expires_at") != new.get("expires_at") {
        let until = new.some_text("expires_at").map(str::to_owned);
        lifetime::override_expiry(tx, &old, until)?;
    }
    tx.update(&TOKENS, who, &old, new)
}
