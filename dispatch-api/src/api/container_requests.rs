//! `/arvados/v1/container_requests`.

use rusqlite::{Connection, params};
use serde_json::json;

use super::call::{Call, Reply};
use super::resource::{get, list, write};
use super::route::Route;
use crate::auth::Access;
use crate::container::request;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{CONTAINER_REQUESTS, CONTAINERS};

pub const ROUTES: &[Route] = &[
    Route::new("GET", "container_requests", |call, _| {
        list(call, &CONTAINER_REQUESTS)
    }),
    Route::new("POST", "container_requests", create),
    Route::new("GET", "container_requests/{}", |call, uuid| {
        get(call, &CONTAINER_REQUESTS, uuid)
    }),
    Route::new("PUT", "container_requests/{}", update),
    Route::new("DELETE", "container_requests/{}", delete),
    Route::new(
        "GET",
        "container_requests/{}/container_status",
        container_status,
    ),
];

fn create(call: &Call, _: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&CONTAINER_REQUESTS)?;
    write(call, &CONTAINER_REQUESTS, move |tx, caller| {
        request::create(tx, caller, &attributes)
    })
}

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&CONTAINER_REQUESTS)?;
    let (uuid, etag) = (uuid.to_owned(), call.if_match.clone());
    write(call, &CONTAINER_REQUESTS, move |tx, caller| {
        request::update(tx, caller, &uuid, &attributes, etag.as_deref())
    })
}

fn delete(call: &Call, uuid: &str) -> Result<Reply> {
    let uuid = uuid.to_owned();
    write(call, &CONTAINER_REQUESTS, move |tx, caller| {
        request::delete(tx, caller, &uuid)
    })
}

/// The place of a container among those of all users that wait, and how many have started.
fn place_in_queue(connection: &Connection, container: &Record) -> Result<String> {
    let count = "SELECT count(*) FILTER (WHERE state = 'Queued'),
            count(*) FILTER (WHERE state = 'Queued'
                AND (priority > ?1 OR (priority = ?1 AND uuid < ?2))),
            count(*) FILTER (WHERE state != 'Queued')
        FROM containers
        WHERE state IN ('Queued', 'Locked', 'Running') AND priority > 0";
    let of = params![container.int("priority"), container.uuid()];
    let mut counts = connection.prepare_cached(count)?;
    let (waiting, ahead, started): (i64, i64, i64) =
        counts.query_row(of, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok(format!(
        "Waiting in queue for a dispatcher: number {} of {waiting} that wait; {started} of all users' containers run or are being started.",
        ahead + 1
    ))
}

/// The reason why the container is not running yet, as one sentence.
fn container_status(call: &Call, uuid: &str) -> Result<Reply> {
    call.app.readers.read(|connection| {
        let request =
            Access::new(connection, &call.caller).require_readable(&CONTAINER_REQUESTS, uuid)?;
        let uuid = request.text("container_uuid");
        let container = Access::new(connection, &call.caller).find_readable(&CONTAINERS, uuid)?;
        let container = container.unwrap_or_default();
        let status = match container.text("state") {
            "Queued" if container.int("priority") == 0 => {
                "Container is on hold: its priority is 0."
            }
            "Queued" => &place_in_queue(connection, &container)?,
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
