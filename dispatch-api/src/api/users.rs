//! `/arvados/v1/users`.

use serde_json::json;

use super::call::{Call, Reply};
use super::resource::{self, change, list_finished, write};
use super::route::Route;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::patch;
use crate::schema::USERS;
use crate::store::revocation;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "users", |call, _| {
        list_finished(call, &USERS, |user| hide_private(call, user))
    }),
    Route::new("POST", "users", create),
    Route::new("GET", "users/current", |call, _| {
        get(call, &call.caller.user_uuid)
    }),
    Route::new("GET", "users/system", |call, _| {
        get(call, &call.app.config.system_user())
    }),
    Route::new("GET", "users/{}", get),
    Route::new("PUT", "users/{}", update),
];

fn get(call: &Call, uuid: &str) -> Result<Reply> {
    let mut user = resource::fetch(call, &USERS, uuid)?;
    hide_private(call, &mut user);
    resource::show(call, &USERS, user)
}

/// Hides what only a user and administrators may read of its record.
pub(super) fn hide_private(call: &Call, user: &mut Record) {
    if !call.caller.is_admin && user.uuid() != call.caller.user_uuid {
        user.set("prefs", json!({})).set("identity_url", "");
    }
}

fn create(call: &Call, _: &str) -> Result<Reply> {
    if !call.caller.is_admin {
        return Err(ApiError::denied("only an administrator may create users"));
    }
    let attributes = call.params.attributes(&USERS)?;
    write(call, &USERS, move |tx, caller| {
        let user = patch::apply(&USERS, &Record::new(), &attributes, &[])?
            .with("owner_uuid", tx.config.system_user());
        tx.create(&USERS, caller, user)
    })
}

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&USERS)?;
    change(call, &USERS, uuid, move |tx, caller, old| {
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
            revocation::revoke_user_tokens(tx, caller, old.uuid())?;
        }
        tx.update(&USERS, caller, &old, new)
    })
}
