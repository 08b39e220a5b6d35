//! `/arvados/v1/users`.

use super::{Call, Reply, changes, resource};
use crate::auth::lifetime;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{TOKENS, USERS};

pub fn route(call: &Call, verb: &str, rest: &[&str]) -> Result<Reply> {
    let record = match (verb, rest) {
        ("GET", []) => return resource::list(call, &USERS, |_| ()),
        ("POST", []) => create(call)?,
        ("GET", ["current"]) => resource::get(call, &USERS, &call.who.user_uuid)?,
        ("GET", ["system"]) => resource::get(call, &USERS, &call.app.setting.system_user())?,
        ("GET", [uuid]) => resource::get(call, &USERS, uuid)?,
        ("PUT", [uuid]) => update(call, uuid)?,
        _ => return Err(ApiError::path_not_found()),
    };
    resource::show(call, &USERS, &record)
}

fn create(call: &Call) -> Result<Record> {
    if !call.who.is_admin {
        return Err(ApiError::denied());
    }
    let attributes = call.params.attributes(&USERS)?;
    let who = call.who.clone();
    call.app.write(move |tx| {
        let user = changes::apply(&USERS, &Record::new(), &attributes, &[])?
            .with("owner_uuid", tx.setting.system_user());
        tx.create(&USERS, &who, user)
    })
}

fn update(call: &Call, uuid: &str) -> Result<Record> {
    let attributes = call.params.attributes(&USERS)?;
    let (who, uuid) = (call.who.clone(), uuid.to_owned());
    call.app.write(move |tx| {
        let old = crate::auth::permission::must_read(tx.conn, &USERS, &who, &uuid)?;
        let new = changes::apply(&USERS, &old, &attributes, &[])?;
        let own = ["prefs", "first_name", "last_name"];
        let only_own = old.changed(&new).iter().all(|name| own.contains(name));
        if !who.is_admin && !only_own {
            return Err(ApiError::denied());
        }
        let lowered = |name: &str| old.bool(name) && !new.bool(name);
        if lowered("is_active") || lowered("is_admin") {
            end_signed_tokens(tx, &who, &uuid)?;
        }
        tx.update(&USERS, &who, &old, new)
    })
}

/// Attempt tokens carry their owner's rights inside; when those shrink, they must go.
fn end_signed_tokens(
    tx: &crate::tx::Tx<'_>,
    who: &crate::auth::Caller,
    user_uuid: &str,
) -> Result<()> {
    let tokens = rows::find(
        tx.conn,
        &TOKENS,
        "owner_uuid = ?1 AND attempt_of IS NOT NULL",
        &[&user_uuid],
    )?;
    for token in tokens {
        lifetime::expire(tx, who, token.uuid())?;
    }
    Ok(())
}
