//! Numbers of jobs: chooses them, and separates requests that have the same one.

use std::time::Duration;

use arvados_client::Client;
use arvados_client::error::StatusCode;
use arvados_client::filter::Query;
use arvados_client::records::ContainerRequest;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::job::{
    ID_PROPERTY, KILLED_BY_PROPERTY, KILLED_PROPERTY, USER_PROPERTY, number_of, properties_of,
};

pub const BY_NUMBER: &str = "properties.dispatch_id";
const BY_USER: &str = "properties.dispatch_user";
pub const REQUESTS: &str = "container_requests";

/// Prefix of the properties with which this program describes a request.
const OWN_PREFIX: &str = "dispatch_";
/// Age up to which another process may still be choosing the number of a request.
const MAX_NUMBERING_TIME: Duration = Duration::from_secs(60);

/// Whether the server gives each request of the user a number. A number is chosen here otherwise.
pub async fn are_given(client: &Client) -> Result<bool, CliError> {
    Ok(client.discovery().await?.announces("jobNumbers", "given"))
}

/// Restricts a query to what this user submitted with `dispatch submit`.
pub fn submitted_by(query: Query, user: &str) -> Query {
    query
        .filter(BY_USER, "=", user)
        .filter("owner_uuid", "=", user)
}

/// The requests of this user with this number, oldest first.
pub async fn requests_with_number(
    client: &Client,
    user: &str,
    number: u64,
) -> Result<Vec<ContainerRequest>, CliError> {
    let query = submitted_by(Query::new(), user)
        .filter(BY_NUMBER, "=", number)
        .order("created_at asc")
        .order("uuid asc");
    Ok(client.page(REQUESTS, &query).await?.items)
}

/// One more than the largest number among the user's newest jobs.
pub async fn next_number(client: &Client, user: &str) -> Result<u64, CliError> {
    let query = submitted_by(Query::new(), user)
        .order("created_at desc")
        .select(&["uuid", "properties"])
        .limit(50);
    let page = client.page::<ContainerRequest>(REQUESTS, &query).await?;
    let largest = page.items.iter().filter_map(|r| number_of(r, user)).max();
    Ok(largest.unwrap_or(0) + 1)
}

/// The properties that hold a job number.
pub fn number_properties(user: &str, number: u64) -> Value {
    json!({ID_PROPERTY: number, USER_PROPERTY: user})
}

/// Makes the number of a new request unique: two submits at the same time choose the same number.
///
/// In the first round the oldest request keeps the number and the others choose another. A request
/// that has changed its number never keeps one that another request has too, because that request
/// may have checked earlier and finished. So a finished request never loses its number. The others
/// choose at random from a growing range until each is alone.
pub async fn resolve_number_conflict(
    client: &Client,
    user: &str,
    request: &ContainerRequest,
) -> Result<Option<u64>, CliError> {
    const MAX_ROUNDS: u32 = 12;
    let mut number = number_of(request, user);
    for round in 0..MAX_ROUNDS {
        let Some(mine) = number else { return Ok(None) };
        let rivals = requests_with_number(client, user, mine).await?;
        let position = rivals.iter().position(|r| r.uuid == request.uuid);
        if rivals.len() < 2 || (round == 0 && position == Some(0)) {
            return Ok(number);
        }
        let ahead = match round {
            // Each request moves ahead by its position among those with the same number.
            0 => position.unwrap_or(1) as u64 - 1,
            _ => fastrand::u64(..rivals.len() as u64 * u64::from(round)),
        };
        let next = next_number(client, user).await? + ahead;
        number = renumber(client, user, request, Some(next)).await?;
    }
    // No number is better than one that names two jobs.
    renumber(client, user, request, None).await
}

async fn renumber(
    client: &Client,
    user: &str,
    request: &ContainerRequest,
    number: Option<u64>,
) -> Result<Option<u64>, CliError> {
    let mut properties = properties_of(request);
    properties.remove(ID_PROPERTY);
    properties.remove(USER_PROPERTY);
    if let Some(number) = number {
        let own = number_properties(user, number);
        properties.extend(own.as_object().cloned().unwrap_or_default());
    }
    let changed = client
        .update_container_request(&request.uuid, json!({"properties": properties}))
        .await?;
    Ok(number_of(&changed, user))
}

/// Gives requests other numbers that have the number of an older one: Workbench copies a request
/// with its properties. Returns the error for the command, which may have meant any of them.
pub async fn separate(
    client: &Client,
    user: &str,
    number: u64,
    first: &ContainerRequest,
    others: &[ContainerRequest],
) -> Result<CliError, CliError> {
    let uuids = [first].into_iter().chain(others);
    let uuids: Vec<String> = uuids.map(|request| request.uuid.to_string()).collect();
    let ambiguous = CliError::AmbiguousJob {
        number,
        uuids: uuids.join(", "),
    };
    let since = Timestamp::now() - MAX_NUMBERING_TIME;
    let is_settled = |request: &ContainerRequest| request.created_at.is_some_and(|at| at < since);
    if !others.iter().all(is_settled) {
        return Ok(ambiguous);
    }
    let mut copies = Vec::new();
    for copy in others {
        match resolve_number_conflict(client, user, &without_copied(copy, first)).await {
            // The token may only read, or the server's vocabulary has no such properties.
            Err(CliError::Api(error))
                if error.is_refused() || error.status() == Some(StatusCode::FORBIDDEN) =>
            {
                return Ok(ambiguous);
            }
            resolved => drop(resolved?),
        }
        // Another command may have done the same.
        let now = client.container_request(&copy.uuid).await?;
        copies.push(match number_of(&now, user) {
            Some(number) => format!("{} has the number {number} now", copy.uuid),
            None => format!("{} has no number now", copy.uuid),
        });
    }
    Ok(CliError::CopiedJob {
        number,
        kept_by: first.uuid.clone(),
        copies: copies.join(", "),
    })
}

/// A copy without what this program has noted about the first request, but for the number. Of a
/// request with priority 0 it may be its own that it was killed.
fn without_copied(copy: &ContainerRequest, first: &ContainerRequest) -> ContainerRequest {
    let of_first = properties_of(first);
    let mut properties = properties_of(copy);
    properties.retain(|name, value| {
        let is_copied = name.starts_with(OWN_PREFIX) && of_first.get(name) == Some(value);
        let is_kept = match name.as_str() {
            ID_PROPERTY | USER_PROPERTY => true,
            KILLED_PROPERTY | KILLED_BY_PROPERTY => copy.priority == 0,
            _ => false,
        };
        is_kept || !is_copied
    });
    let mut copy = copy.clone();
    copy.extra.insert("properties".into(), properties.into());
    copy
}
