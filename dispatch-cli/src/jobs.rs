//! Finds jobs on the server, and changes them.

use std::collections::{BTreeSet, HashMap};

use arvados_client::client::Call;
use arvados_client::error::StatusCode;
use arvados_client::filter::Query;
use arvados_client::records::{Container, ContainerRequest, RequestState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid};
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use crate::error::CliError;
use crate::job::{Job, REMOVED_PROPERTY, is_removed, number_of};
use crate::job_id::JobId;
use crate::job_numbers::{self, BY_NUMBER, REQUESTS, submitted_by};
use crate::printer::eprint_note;

/// Maximum number of uuids in one filter.
const MAX_FILTERED: usize = 1000;
/// Number of jobs that are stopped at once on a server that stops one with each call.
const AT_ONCE: usize = 8;

/// The text with the names of jobs for the uuids of their containers, as far as they are found.
pub async fn with_names(client: &Client, mut text: String) -> String {
    let is_in_uuid = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let words = text.split(|c| !is_in_uuid(c)).map(str::to_owned);
    let words: BTreeSet<String> = words.collect();
    for uuid in words {
        if let Ok(container) = ContainerUuid::parse(&uuid)
            && let Ok(job) = find(client, &JobId::Container(container)).await
        {
            text = text.replace(&uuid, &format!("job {}", job.name()));
        }
    }
    text
}

/// Finds the job with this id.
pub async fn find(client: &Client, id: &JobId) -> Result<Job, CliError> {
    let user = client.current_user().await?;
    let missing = || match (id, user.is_admin) {
        (JobId::Number(_) | JobId::Name(_), true) => CliError::NoJob(format!(
            "{id} of the administrator (for a job of another user, give its uuid)"
        )),
        _ => CliError::NoJob(id.to_string()),
    };
    let user = user.uuid.to_string();
    let request = match id {
        JobId::Request(uuid) => match client.container_request(uuid).await {
            Err(error) if error.is_not_found() => return Err(missing()),
            request => request?,
        },
        JobId::Container(uuid) => {
            let query = Query::new()
                .filter("container_uuid", "=", uuid)
                .order("created_at desc")
                .limit(1);
            let page = client.page::<ContainerRequest>(REQUESTS, &query).await?;
            match page.items.into_iter().next() {
                Some(request) => request,
                None => return Err(former_container(client, uuid).await?),
            }
        }
        JobId::Number(number) => {
            let requests = job_numbers::requests_with_number(client, &user, *number).await?;
            let mut requests = requests.into_iter().filter(|request| !is_removed(request));
            let first = requests.next().ok_or_else(missing)?;
            let others: Vec<_> = requests.collect();
            if !others.is_empty() {
                let given = job_numbers::separate(client, &user, *number, &first, &others);
                return Err(given.await?);
            }
            first
        }
        JobId::Name(name) => {
            let newest = newest_with_name(client, &user, name).await?;
            newest.ok_or_else(missing)?
        }
    };
    let container = container(client, &request, None).await?;
    Ok(Job::new(request, container, &user))
}

/// The newest request of this user with this name; with a note if it is not the only one.
async fn newest_with_name(
    client: &Client,
    user: &str,
    name: &str,
) -> Result<Option<ContainerRequest>, CliError> {
    let query = submitted_by(Query::new(), user)
        .filter("name", "=", name)
        .order("created_at desc")
        .limit(1)
        .counted();
    let page = client.page::<ContainerRequest>(REQUESTS, &query).await?;
    let newest = page.items.into_iter().find(|request| !is_removed(request));
    if let (Some(newest), Some(2..)) = (&newest, page.items_available) {
        let shown = number_of(newest, user).map_or(newest.uuid.to_string(), |n| n.to_string());
        eprint_note(&format!(
            "several jobs have the name {name}; the newest is {shown}"
        ));
    }
    Ok(newest)
}

/// The name of the job that a property of another one refers to; its uuid if that cannot be read.
pub async fn name_in(client: &Client, job: &Job, property: &str) -> Option<String> {
    let uuid = job.property(property)?.to_owned();
    let Ok(request) = ContainerRequestUuid::parse(&uuid) else {
        return Some(uuid);
    };
    let other = find(client, &JobId::Request(request)).await;
    Some(other.map_or(uuid, |other| other.name()))
}

/// Error for a container that no request refers to. After some failures the server gives a request
/// another container.
async fn former_container(client: &Client, uuid: &ContainerUuid) -> Result<CliError, CliError> {
    let container = match client.container(uuid).await {
        Err(error) if !error.is_not_found() => return Err(error.into()),
        Ok(container) if container.state.is_final() => container,
        _ => return Ok(CliError::NoJob(uuid.to_string())),
    };
    let why = container.runtime_status.error;
    let why = why.map_or(String::new(), |why| format!(", {why}"));
    Ok(CliError::FormerContainer {
        uuid: container.uuid,
        end: format!("it is {}{why}", container.state),
    })
}

/// Fetches the current state of a job. Its records were readable before, so refused calls are
/// retried for a while.
pub async fn refresh(client: &Client, job: &Job) -> Result<Job, CliError> {
    let call = Call::get(format!("{REQUESTS}/{}", job.request.uuid));
    let request = client.send::<ContainerRequest>(call.known_record()).await?;
    let readable = job.container.as_ref().map(|container| &container.uuid);
    let container = container(client, &request, readable).await?;
    let mut fresh = Job::new(request, container, "");
    fresh.number = job.number;
    Ok(fresh)
}

/// Fetches the current state of jobs. One that is not found stays as it was.
pub async fn refresh_all(client: &Client, jobs: Vec<Job>) -> Result<Vec<Job>, CliError> {
    let uuids: Vec<&str> = jobs.iter().map(|job| job.request.uuid.as_str()).collect();
    let mut requests = Vec::new();
    for uuids in uuids.chunks(MAX_FILTERED) {
        let query = Query::new().filter("uuid", "in", uuids);
        let found = client.all::<ContainerRequest>(REQUESTS, query, |r| r.uuid.as_str());
        requests.extend(found.await?);
    }
    let containers = containers_of(client, &requests).await?;
    let fresh = join(requests, &containers, "").into_iter();
    let mut fresh: HashMap<_, _> = fresh.map(|job| (job.request.uuid.clone(), job)).collect();
    let refreshed = jobs.into_iter().map(|job| Job {
        number: job.number,
        ..fresh.remove(&job.request.uuid).unwrap_or(job)
    });
    Ok(refreshed.collect())
}

/// Fetches the container of a request, if this token can read it. `readable` is the container
/// that this token could read before.
async fn container(
    client: &Client,
    request: &ContainerRequest,
    readable: Option<&ContainerUuid>,
) -> Result<Option<Container>, CliError> {
    let Some(uuid) = &request.container_uuid else {
        return Ok(None);
    };
    let call = Call::get(format!("containers/{uuid}"));
    let call = match readable == Some(uuid) {
        true => call.known_record(),
        false => call,
    };
    match client.send(call).await {
        Ok(container) => Ok(Some(container)),
        // The request may be shared with this user while its container is not.
        Err(error)
            if matches!(
                error.status(),
                Some(StatusCode::NOT_FOUND | StatusCode::FORBIDDEN)
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Replaces the properties of a request. They only help to show its state, so a server whose
/// vocabulary does not allow them is no error.
pub async fn set_properties(
    client: &Client,
    job: &Job,
    properties: Map<String, Value>,
) -> Result<(), CliError> {
    let change = json!({"properties": properties});
    let changed = client.update_container_request(&job.request.uuid, change);
    match changed.await {
        Err(error) if !error.is_refused() => Err(error.into()),
        _ => Ok(()),
    }
}

/// The user's jobs with numbers from `first` to `last`, in their order.
pub async fn in_range(client: &Client, first: u64, last: u64) -> Result<Vec<Job>, CliError> {
    let user = client.current_user().await?.uuid.to_string();
    let range = submitted_by(Query::new(), &user)
        .filter(BY_NUMBER, ">=", first)
        .filter(BY_NUMBER, "<=", last);
    let mut found = own(client, range).await?;
    found.sort_by_key(|job| job.number);
    Ok(found)
}

/// The user's jobs that match, the oldest first, whatever program submitted them.
pub async fn own(client: &Client, query: Query) -> Result<Vec<Job>, CliError> {
    let user = client.current_user().await?.uuid.to_string();
    let query = query.filter("owner_uuid", "=", &user);
    let requests = client.all::<ContainerRequest>(REQUESTS, query, |r| r.uuid.as_str());
    let mut requests = requests.await?;
    requests.retain(|request| !is_removed(request));
    requests.sort_by(|a, b| (a.created_at, &a.uuid).cmp(&(b.created_at, &b.uuid)));
    let containers = containers_of(client, &requests).await?;
    Ok(join(requests, &containers, &user))
}

/// Changes the priority of a job; false if it has ended meanwhile.
pub async fn set_priority(client: &Client, job: &Job, priority: i64) -> Result<bool, CliError> {
    let change = json!({"priority": priority});
    let changed = client.update_container_request(&job.request.uuid, change);
    match changed.await {
        Ok(_) => Ok(true),
        Err(error) if error.status() == Some(StatusCode::UNPROCESSABLE_ENTITY) => {
            match refresh(client, job).await?.request.state {
                RequestState::Final => Ok(false),
                _ => Err(error.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Stops jobs with a priority of 0 and these properties, at once: with the priority alone, they
/// would be on hold for a moment. A server whose vocabulary does not allow them gets the priority.
pub async fn stop(
    client: &Client,
    jobs: impl Iterator<Item = &Job>,
    properties: impl Fn(&Job) -> Map<String, Value>,
) -> Result<(), CliError> {
    let most = client.discovery().await?.bulk().updates;
    let change = |job: &Job| json!({"priority": 0, "properties": properties(job)});
    let jobs: Vec<&Job> = jobs.collect();
    let one_by_one = async |job: &Job| {
        let uuid = &job.request.uuid;
        let changed = client.update_container_request(uuid, change(job)).await;
        changed.map(drop)
    };
    let mut refused = Vec::new();
    // A real Arvados has no call for more than one.
    let at_once = if most > 1 { most } else { AT_ONCE };
    for jobs in jobs.chunks(at_once) {
        let answers = match most {
            0 | 1 => join_all(jobs.iter().map(|job| one_by_one(job))).await,
            _ => {
                let item = |job: &&Job| {
                    let mut item = change(job);
                    item["uuid"] = json!(job.request.uuid);
                    item
                };
                let items = jobs.iter().map(item).collect();
                client.update_container_requests(items).await?
            }
        };
        for (job, answer) in jobs.iter().zip(answers) {
            match answer {
                Ok(()) => {}
                // Or it has ended meanwhile.
                Err(error) if error.is_refused() => refused.push(job),
                Err(error) => return Err(error.into()),
            }
        }
    }
    for job in refused {
        set_priority(client, job, 0).await?;
    }
    Ok(())
}

/// The user's jobs that have not ended.
pub async fn open(client: &Client) -> Result<Vec<Job>, CliError> {
    let mut open = own(client, Query::new().filter("state", "=", "Committed")).await?;
    // A job on hold may be released.
    open.retain(|job| !job.state().has_ended());
    Ok(open)
}

/// Number of records that match, if the server reports it.
pub async fn count(client: &Client, path: &str, query: Query) -> Result<Option<u64>, CliError> {
    let query = query.counted().limit(0);
    Ok(client.page::<Value>(path, &query).await?.items_available)
}

/// The containers of requests, by uuid.
async fn containers_of(
    client: &Client,
    requests: &[ContainerRequest],
) -> Result<HashMap<String, Container>, CliError> {
    let uuids = requests.iter().filter_map(|r| r.container_uuid.as_ref());
    let uuids: Vec<&str> = uuids.map(|uuid| uuid.as_str()).collect();
    let mut containers = HashMap::new();
    for uuids in uuids.chunks(MAX_FILTERED) {
        let query = Query::new().filter("uuid", "in", uuids);
        let found = client.all::<Container>("containers", query, |c| c.uuid.as_str());
        containers.extend(found.await?.into_iter().map(|c| (c.uuid.to_string(), c)));
    }
    Ok(containers)
}

/// Requests with their containers. Several requests may share one.
fn join(
    requests: Vec<ContainerRequest>,
    containers: &HashMap<String, Container>,
    user: &str,
) -> Vec<Job> {
    let with_container = requests.into_iter().map(|request| {
        let uuid = request.container_uuid.as_ref();
        let container = uuid.and_then(|uuid| containers.get(uuid.as_str()).cloned());
        Job::new(request, container, user)
    });
    with_container.collect()
}

/// Fetches the newest jobs that match and are wanted, at most `limit`, and the number of all, if
/// that is known. Which are wanted is known only here: then all pages are read that are needed.
pub async fn newest(
    client: &Client,
    query: Query,
    limit: usize,
    is_wanted: Option<&dyn Fn(&Job) -> bool>,
) -> Result<(Vec<Job>, Option<usize>), CliError> {
    let query = query.filter(&format!("properties.{REMOVED_PROPERTY}"), "exists", false);
    let page_size = match is_wanted {
        Some(_) => MAX_FILTERED,
        None => limit.min(MAX_FILTERED),
    };
    let head = query.clone().order("created_at desc").counted();
    let head = head.limit(page_size as u64);
    let (user, page) = tokio::try_join!(
        client.current_user(),
        client.page::<ContainerRequest>(REQUESTS, &head)
    )?;
    let wanted = async |requests: Vec<ContainerRequest>| -> Result<Vec<Job>, CliError> {
        let containers = containers_of(client, &requests).await?;
        let mut jobs = join(requests, &containers, user.uuid.as_str());
        jobs.retain(|job| is_wanted.is_none_or(|is_wanted| is_wanted(job)));
        Ok(jobs)
    };
    let all = page.items_available.map(|all| all as usize);
    let is_part = all.is_none_or(|all| page.items.len() < all);
    let mut jobs = wanted(page.items).await?;
    let mut available = match is_wanted {
        Some(_) if is_part => None,
        Some(_) => Some(jobs.len()),
        None => all,
    };
    if is_part && jobs.len() < limit {
        let requests = client.all::<ContainerRequest>(REQUESTS, query, |r| r.uuid.as_str());
        let mut requests = requests.await?;
        requests.sort_by(|a, b| (b.created_at, &b.uuid).cmp(&(a.created_at, &a.uuid)));
        jobs = wanted(requests).await?;
        available = Some(jobs.len());
    }
    jobs.truncate(limit);
    Ok((jobs, available))
}
