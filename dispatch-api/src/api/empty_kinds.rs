//! Kinds of records that an Arvados cluster may have and this server never has: their lists are
//! empty, because clients such as Workbench ask for them. Whoever creates one gets 404.
//!
//! `computed_permissions` is a cache of Arvados; here permissions are computed when they are
//! needed.

use serde_json::Value;

use super::call::{Call, Reply};
use super::render;
use super::route::Route;
use crate::db::list::PageQuery;
use crate::error::Result;
use crate::schema::GROUPS;

/// Path and `kind` of each list.
pub const LISTS: [(&str, &str); 6] = [
    ("authorized_keys", "arvados#authorizedKeyList"),
    ("computed_permissions", "arvados#computedPermissionList"),
    ("credentials", "arvados#credentialList"),
    ("repositories", "arvados#repositoryList"),
    ("user_agreements", "arvados#userAgreementList"),
    ("virtual_machines", "arvados#virtualMachineList"),
];

pub const ROUTES: &[Route] = &[
    Route::new("GET", LISTS[0].0, |call, _| empty(call, LISTS[0].1)),
    Route::new("GET", LISTS[1].0, |call, _| empty(call, LISTS[1].1)),
    Route::new("GET", LISTS[2].0, |call, _| empty(call, LISTS[2].1)),
    Route::new("GET", LISTS[3].0, |call, _| empty(call, LISTS[3].1)),
    Route::new("GET", LISTS[4].0, |call, _| empty(call, LISTS[4].1)),
    Route::new("GET", LISTS[5].0, |call, _| empty(call, LISTS[5].1)),
    Route::new("GET", "user_agreements/signatures", |call, _| {
        empty(call, LISTS[4].1)
    }),
];

fn empty(call: &Call, kind: &str) -> Result<Reply> {
    let page = PageQuery::parse(&GROUPS, |name| match name {
        "limit" | "offset" | "count" => call.params.get(name),
        _ => Value::Null,
    })?;
    let range = (Some(page.offset), Some(page.limit));
    Ok(render::list(kind, range, Vec::new(), page.count.then_some(0)).into())
}
