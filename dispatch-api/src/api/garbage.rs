//! `/arvados/v1/collections/collect_garbage`, an extension of this server: removes blocks that no
//! collection refers to. Only administrators may call it.

use std::time::Duration;

use serde_json::json;

use super::call::{Call, Reply};
use super::route::Route;
use crate::error::{ApiError, Result};
use crate::garbage;

pub const ROUTES: &[Route] = &[Route::new(
    "POST",
    "collections/collect_garbage",
    |call, _| collect(call),
)];

/// Maximum of `older_than` in seconds: ten years.
const MAX_AGE: u64 = 10 * 365 * 24 * 3600;

/// Parameters: `older_than` in seconds, `empty_trash`, and `dry_run`, which is true if it is not
/// given.
fn collect(call: &Call) -> Result<Reply> {
    if !call.caller.without_attempt_privileges().is_admin {
        return Err(ApiError::denied(
            "only an administrator may collect garbage",
        ));
    }
    let params = &call.params;
    let older_than = params.get("older_than").as_u64();
    let Some(older_than) = older_than.filter(|seconds| *seconds <= MAX_AGE) else {
        return Err(ApiError::invalid(format!(
            "older_than must be a number of seconds, at most {MAX_AGE}"
        )));
    };
    let report = garbage::collect(
        &call.app,
        garbage::Request {
            older_than: Duration::from_secs(older_than),
            empty_trash: params.flag("empty_trash"),
            dry_run: params.get("dry_run").is_null() || params.flag("dry_run"),
        },
    )?;
    Ok(json!(report).into())
}
