//! `/arvados/v1/users`.

use serde_json::json;

use super::call::{Call, Reply};
use super::resource;
use super::route::Route;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::USERS;
use crate::store::revocation;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "users", |call, _| {
        resource::list(call, &USERS, |user| hide_private(call, user))
    }),
    Route::new("POST", "users", |call, _| show(call, create(call)?)),
    Route::new("GET", "users/current", |call, _| {
        get(call, &call.caller.user_uuid)
    }),
    Route::new("GET", "users/system", |call, _| {
        get(call, &call.app.config.system_user())
    }),
    Route::new("GET", "users/{}", get),
    Route::new("PUT", "users/{}", |call, uuid| {
        show(call, update(call, uuid)?)
    }),
];

fn get(call: &Call, uuid: &str) -> Result<Reply> {
    show(call, resource::get(call, &USERS, uuid)?)
}

fn show(call: &Call, mut user: Record) -> Result<Reply> {
    hide_private(call, &mut user);
    resource::show(call, &USERS, &user)
}

/// Hides what only a user and administrators may read of its record.
pub(super) fn hide_private(call: &Call, user: &mut Record) {
    if !call.caller.is_admin && user.uuid() != call.caller.user_uuid {
        user.set("prefs", json!({})).set("identity_url", "");
    }
}

fn create(call: &Call) -> Result<Record> {
    if !call.caller.is_admin {
        return Err(ApiError::denied("only an administrator may create users"));
    }
    let attributes = call.params.attributes(&USERS)?;
    resource::write(call, &USERS, move |tx, caller| {
        let user = patch::apply(&USERS, &Record::new(), &attributes, &[])?
            .with("owner_uuid", tx.config.system_user());
        tx.create(&USERS, caller, user)
    })
}

fn update(call: &Call, uuid: &str) -> Result<Record> {
    let attributes = call.params.attributes(&USERS)?;
    let uuid = uuid.to_owned();
    resource::write(call, &USERS, move |tx, caller| {
        let old = crate::auth::permission::require_readable(tx.conn, &USERS, caller, &uuid)?;
        let new = patch::apply(&USERS, &old, &attributes, &[])?;
        let own = ["prefs", "first_name", "last_name"];
        let only_own = old.uuid() == caller.user_uuid
            && old
                .changed_attributes(&new)
                .iter()
                .all(|name| own.contains(name));
        if !caller.is_admin && !only_own {
            return Err(ApiError::denied(
                "a user may change its own prefs, first_name and last_name; \
                 the rest is for an administrator",
            ));
        }
        let revoked = |name: &str| old.bool(name) && !new.bool(name);
        if revoked("is_active") || revoked("is_admin") {
            revocation::revoke_user_tokens(tx, caller, &uuid)?;
        }
        tx.update(&USERS, caller, &old, new)
    })
}
