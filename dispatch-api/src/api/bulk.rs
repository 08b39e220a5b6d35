//! Bulk requests, an extension of this server: `bulk_create` of tokens and log entries, `bulk_lock`
//! of containers, `bulk_update` of container requests. The discovery document announces them, and
//! `docs/bulk.md` describes them.
//!
//! Each item runs the code of the single request in a savepoint. Its reply is that request's reply,
//! or the status and errors of its rejection. All items share one transaction.

use fail_points::fail_point;
use serde_json::{Value, json};

use super::call::{Call, Reply};
use super::route::Route;
use super::{containers, logs, render, tokens};
use crate::auth::Caller;
use crate::container::{lifecycle, request};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::field::Field;
use crate::schema::{CONTAINER_REQUESTS, LOGS, Resource, TOKENS};
use crate::store::transaction::Tx;

/// Maximum number of items of one request; the writer does nothing else meanwhile.
pub const MAX_BULK_ITEMS: usize = 250;
/// The same for `bulk_update`, which any user may call, and which may change many other records.
pub const MAX_BULK_UPDATES: usize = 50;

pub const ROUTES: &[Route] = &[
    Route::new("POST", "containers/bulk_lock", lock_containers),
    Route::new(
        "POST",
        "api_client_authorizations/bulk_create",
        create_tokens,
    ),
    Route::new("POST", "logs/bulk_create", create_logs),
    Route::new("POST", "container_requests/bulk_update", update_requests),
];

/// `POST api_client_authorizations/bulk_create`: each item has the attributes of a single request.
fn create_tokens(call: &Call, _: &str) -> Result<Reply> {
    let wanted = parse_records(call, "/arvados/v1/api_client_authorizations")?;
    let (caller, remote) = (call.caller.clone(), call.remote.clone());
    let create = move |tx: &Tx<'_>, attributes| tokens::create(tx, &caller, &attributes, &remote);
    let before_commit = || fail_point("api.token-create.before-commit");
    let created = write_each(call, wanted, create, before_commit)?;
    fail_point("api.token-create.before-answer");
    Ok(render_items(created, |token| {
        render::record(&TOKENS, token, None)
    }))
}

/// `POST logs/bulk_create`: each item has the attributes of a single request.
fn create_logs(call: &Call, _: &str) -> Result<Reply> {
    let wanted = parse_records(call, "/arvados/v1/logs")?;
    let entries: Vec<_> = wanted
        .into_iter()
        .map(|attributes| logs::parse_entry(&attributes?))
        .collect();
    let caller = call.caller.clone();
    let insert = move |tx: &Tx<'_>, entry| logs::insert(tx, &caller, entry);
    let created = write_each(call, entries, insert, || ())?;
    Ok(render_items(created, |entry| {
        brief(&LOGS, entry, &LOG_REPLY)
    }))
}

/// What is told of each log entry that was made, and of each request that was changed. All records
/// together may take hundreds of megabytes.
const LOG_REPLY: [&str; 4] = ["id", "uuid", "object_uuid", "created_at"];
const UPDATE_REPLY: [&str; 5] = ["uuid", "state", "priority", "container_uuid", "modified_at"];

fn brief(resource: &'static Resource, record: Record, names: &[&str]) -> Reply {
    let shown = resource.public_attrs();
    let shown: Vec<_> = shown.filter(|attr| names.contains(&attr.name)).collect();
    render::list_item(resource, record, Some(&shown)).into()
}

/// `POST container_requests/bulk_update`: each item has the uuid and the attributes of a single
/// request.
fn update_requests(call: &Call, _: &str) -> Result<Reply> {
    let wanted: Vec<_> = items(call, MAX_BULK_UPDATES)?
        .into_iter()
        .map(|item| {
            let mut attributes = item?;
            let uuid = attributes.0.remove("uuid").map(Field::into_value);
            let Some(Value::String(uuid)) = uuid else {
                return Err(ApiError::invalid("an item has no uuid"));
            };
            let path = format!("/arvados/v1/container_requests/{uuid}");
            match call.caller.may_request("PUT", &path) {
                true => Ok((uuid, attributes)),
                false => Err(ApiError::OutOfScope),
            }
        })
        .collect();
    let caller = call.caller.clone();
    let update = move |tx: &Tx<'_>, (uuid, attributes): (String, Record)| {
        request::update(tx, &caller, &uuid, &attributes, None)
    };
    let updated = write_each(call, wanted, update, || ())?;
    Ok(render_items(updated, |request| {
        brief(&CONTAINER_REQUESTS, request, &UPDATE_REPLY)
    }))
}

/// The attributes of each record to create. The caller needs permission for the single request at
/// path `single`.
fn parse_records(call: &Call, single: &str) -> Result<Vec<Result<Record>>> {
    if !call.caller.may_request("POST", single) {
        return Err(ApiError::OutOfScope);
    }
    items(call, MAX_BULK_ITEMS)
}

/// One item of a bulk lock: the caller, the container, and the etag that the client has seen.
struct LockItem {
    caller: Caller,
    uuid: String,
    etag: Option<String>,
}

/// `POST containers/bulk_lock`: each item names a container, the token to lock it with, and the
/// etag that was seen.
fn lock_containers(call: &Call, _: &str) -> Result<Reply> {
    let wanted: Vec<Result<LockItem>> = items(call, MAX_BULK_ITEMS)?
        .into_iter()
        .map(|item| parse_lock_item(call, &item?))
        .collect();
    fail_point("api.lock.accepted");
    let lock = |tx: &Tx<'_>, item: LockItem| {
        lifecycle::lock(tx, &item.caller, &item.uuid, item.etag.as_deref())
    };
    let locked = write_each(call, wanted, lock, || fail_point("api.lock.before-commit"))?;
    fail_point("api.lock.before-answer");
    Ok(render_items(locked, |container| {
        containers::lock_reply(&container)
    }))
}

/// Parses an item and authenticates its token, which needs permission for the single lock request.
fn parse_lock_item(call: &Call, item: &Record) -> Result<LockItem> {
    let text = |name: &str| item.get(name).as_str().map(str::to_owned);
    let uuid = text("uuid").ok_or_else(|| ApiError::invalid("an item has no uuid"))?;
    let token = text("token").ok_or(ApiError::NotLoggedIn)?;
    let caller = call.app.authenticate(&token)?;
    let path = format!("/arvados/v1/containers/{uuid}/lock");
    match caller.may_request("POST", &path) {
        true => Ok(LockItem {
            caller,
            uuid,
            etag: text("etag").map(|etag| format!("\"{etag}\"")),
        }),
        false => Err(ApiError::OutOfScope),
    }
}

fn items(call: &Call, most: usize) -> Result<Vec<Result<Record>>> {
    let items = call.params.items();
    let items = items.ok_or_else(|| ApiError::invalid("items must be an array"))?;
    let no_object = || ApiError::invalid("an item must be an object");
    let each = items.iter().map(|item| item.clone().ok_or_else(no_object));
    match items.len() {
        many if many <= most => Ok(each.collect()),
        many => Err(ApiError::invalid(format!(
            "{many} items exceed the maximum of {most} for one request"
        ))),
    }
}

/// Carries out each item in a savepoint. A server error of one rolls back all of them.
fn write_each<I: Send + 'static, T: Send + 'static>(
    call: &Call,
    items: Vec<Result<I>>,
    work: impl Fn(&Tx<'_>, I) -> Result<T> + Send + 'static,
    before_commit: fn(),
) -> Result<Vec<Result<T>>> {
    call.write(move |tx| {
        let written = items.into_iter().map(|item| {
            let item = item?;
            tx.in_savepoint(|| work(tx, item))
        });
        let written = written
            .map(|result| match result {
                Err(broken) if broken.status().is_server_error() => Err(broken),
                result => Ok(result),
            })
            .collect();
        before_commit();
        written
    })
}

fn render_items<T>(result: Vec<Result<T>>, show: impl Fn(T) -> Reply) -> Reply {
    let render_item = |result: Result<T>| match result {
        Ok(record) => json!({"record": show(record).body}),
        Err(refused) => {
            json!({"status": refused.status().as_u16(), "errors": refused.messages()})
        }
    };
    let items: Vec<Value> = result.into_iter().map(render_item).collect();
    json!({"items": items}).into()
}
