//! `/arvados/v1/container_requests`.

use serde_json::json;

use super::{Call, Reply, resource};
use crate::auth::permission;
use crate::container::request;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{CONTAINER_REQUESTS, CONTAINERS};

pub fn route(call: &Call, verb: &str, rest: &[&str]) -> Result<Reply> {
    match (verb, rest) {
        ("GET", []) => resource::list(call, &CONTAINER_REQUESTS, |_| ()),
        ("POST", []) => {
            let attributes = call.params.attributes(&CONTAINER_REQUESTS)?;
            let who = call.who.clone();
            let made = call
                .app
                .write(move |tx| request::create(tx, &who, &attributes))?;
            show(call, &made)
        }
        ("GET", [uuid]) => show(call, &resource::get(call, &CONTAINER_REQUESTS, uuid)?),
        ("PUT", [uuid]) => {
            let attributes = call.params.attributes(&CONTAINER_REQUESTS)?;
            let (who, uuid, etag) = (call.who.clone(), (*uuid).to_owned(), call.if_match.clone());
            let updated = call
                .app
                .write(move |tx| request::update(tx, &who, &uuid, &attributes, etag.as_deref()))?;
            show(call, &updated)
        }
        ("DELETE", [uuid]) => {
            let (who, uuid) = (call.who.clone(), (*uuid).to_owned());
            let deleted = call.app.write(move |tx| request::delete(tx, &who, &uuid))?;
            show(call, &deleted)
        }
        ("GET", [uuid, "container_status"]) => container_status(call, uuid),
        _ => Err(ApiError::path_not_found()),
    }
}

fn show(call: &Call, record: &Record) -> Result<Reply> {
    resource::show(call, &CONTAINER_REQUESTS, record)
}

/// One sentence about why the container is not running yet, if that is so.
fn container_status(call: &Call, uuid: &str) -> Result<Reply> {
    call.app.readers.read(|connection| {
        let request = permission::must_read(connection, &CONTAINER_REQUESTS, &call.who, uuid)?;
        let container = match request.some_text("container_uuid") {
            Some(uuid) => permission::readable(connection, &CONTAINERS, &call.who, uuid)?,
            None => None,
        };
        let container = container.unwrap_or_default();
        let status = match container.text("state") {
            "Queued" if container.int("priority") == 0 => {
                "Container is on hold: its priority is 0."
            }
            "Queued" => "Waiting in queue for a dispatcher.",
            "Locked" => "A dispatcher has taken the container and is preparing to run it.",
            _ => "",
        };
        Ok(json!({
            "uuid": request.uuid(),
            "container_state": container.text("state"),
            "scheduling_status": status,
            "kind": "arvados#containerStatus",
        })
        .into())
    })
}
