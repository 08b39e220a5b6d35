//! Calls for many records at once: an extension of this server, announced in the discovery document as the methods
//! `bulk_create` of tokens and of log entries, and `bulk_lock` of containers. `docs/bulk.md` describes them.
//!
//! Each item is judged by the code of the single call, done wholly or not at all, and answered by itself: what it would
//! have been answered alone, or the status and errors of that refusal. All of a call share one transaction.

use fail_points::fail_point;
use serde_json::{Map, Value, json};

use super::{Call, Reply, containers, logs, present, tokens};
use crate::auth::Caller;
use crate::container::lifecycle;
use crate::error::{ApiError, Result};
use crate::schema::{LOGS, TOKENS};

/// Items of one call, at most: the writer does nothing else meanwhile.
pub const MOST: usize = 250;

/// `POST api_client_authorizations/bulk_create`: each item is what the single call takes.
pub fn create_tokens(call: &Call) -> Result<Reply> {
    let wanted = wanted_records(call, "/arvados/v1/api_client_authorizations")?;
    let (who, remote) = (call.who.clone(), call.remote.clone());
    let made = call.app.write(move |tx| {
        let made = wanted
            .into_iter()
            .map(|attributes| tx.apart(|| tokens::create(tx, &who, &attributes?, &remote)));
        let made = all_but_broken(made);
        fail_point("api.token-create.before-commit");
        made
    })?;
    fail_point("api.token-create.before-answer");
    Ok(answers(made, |token| present::single(&TOKENS, token, None)))
}

/// `POST logs/bulk_create`: each item is what the single call takes.
pub fn create_logs(call: &Call) -> Result<Reply> {
    let wanted = wanted_records(call, "/arvados/v1/logs")?;
    let entries: Vec<_> = wanted
        .into_iter()
        .map(|attributes| logs::entry(&attributes?))
        .collect();
    let who = call.who.clone();
    let made = call.app.write(move |tx| {
        let made = entries
            .into_iter()
            .map(|entry| tx.apart(|| tx.add_log(&who, entry?)));
        all_but_broken(made)
    })?;
    Ok(answers(made, |entry| present::single(&LOGS, entry, None)))
}

/// The attributes of each record to be made, for whoever may make one by the call of this path.
fn wanted_records(call: &Call, single: &str) -> Result<Vec<Result<Map<String, Value>>>> {
    if !call.who.may("POST", single) {
        return Err(ApiError::OutOfScope);
    }
    let each = items(call)?.into_iter().map(|item| match item {
        Value::Object(attributes) => Ok(attributes),
        _ => Err(ApiError::invalid("an item must be an object")),
    });
    Ok(each.collect())
}

/// An item of a bulk lock: who asks, for which container, as it was seen.
struct Wanted {
    who: Caller,
    uuid: String,
    etag: Option<String>,
}

/// `POST containers/bulk_lock`: each item names a container, the token that is to hold it, and the etag that was seen.
pub fn lock_containers(call: &Call) -> Result<Reply> {
    let wanted: Vec<Result<Wanted>> = items(call)?
        .into_iter()
        .map(|item| wanted_lock(call, &item))
        .collect();
    fail_point("api.lock.accepted");
    let locked = call.app.write(move |tx| {
        let locked = wanted.into_iter().map(|item| {
            let item = item?;
            tx.apart(|| lifecycle::lock(tx, &item.who, &item.uuid, item.etag.as_deref()))
        });
        let locked = all_but_broken(locked);
        fail_point("api.lock.before-commit");
        locked
    })?;
    fail_point("api.lock.before-answer");
    Ok(answers(locked, |container| {
        containers::lock_reply(&container)
    }))
}

/// The token of an item stands for the one that a single call comes with, and must be good for that.
fn wanted_lock(call: &Call, item: &Value) -> Result<Wanted> {
    let text = |name: &str| item[name].as_str().map(str::to_owned);
    let uuid = text("uuid").ok_or_else(|| ApiError::invalid("an item has no uuid"))?;
    let token = text("token").ok_or(ApiError::NotLoggedIn)?;
    let who = call.app.authenticate(&token)?;
    let path = format!("/arvados/v1/containers/{uuid}/lock");
    match who.may("POST", &path) {
        true => Ok(Wanted {
            who,
            uuid,
            etag: text("etag").map(|etag| format!("\"{etag}\"")),
        }),
        false => Err(ApiError::OutOfScope),
    }
}

fn items(call: &Call) -> Result<Vec<Value>> {
    let Value::Array(items) = call.params.get("items") else {
        return Err(ApiError::invalid("items must be an array"));
    };
    match items.len() {
        0..=MOST => Ok(items),
        many => Err(ApiError::invalid(format!(
            "{many} items are too many for one call: {MOST} at most"
        ))),
    }
}

/// What came of each; an error that is not about one of them undoes all.
fn all_but_broken<T>(done: impl Iterator<Item = Result<T>>) -> Result<Vec<Result<T>>> {
    done.map(|done| match done {
        Err(broken) if broken.status().is_server_error() => Err(broken),
        done => Ok(done),
    })
    .collect()
}

fn answers<T>(done: Vec<Result<T>>, show: impl Fn(T) -> Reply) -> Reply {
    let answer = |done: Result<T>| match done {
        Ok(record) => json!({"record": show(record).body}),
        Err(refused) => {
            json!({"status": refused.status().as_u16(), "errors": refused.messages()})
        }
    };
    let items: Vec<Value> = done.into_iter().map(answer).collect();
    json!({"items": items}).into()
}
