//! Health check, status page, and the page of the metrics. Input: the results of polls and the
//! [`World`]. Output: HTTP answers at `/metrics`, `/_health/ping` and `/status`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::api::error_hint::WithHint;
use crate::model::decision::Decision;
use crate::model::owner::KnownOwner;
use crate::model::resources::Admission;
use crate::model::world::{LockHolder, World};
use crate::report::metrics::Metrics;
pub use crate::report::metrics::SiteState;

/// Time of the last answer of the API server or the scheduler, and the last error since then.
#[derive(Debug, Default, Clone)]
struct Peer {
    answered: Option<Instant>,
    failure: Option<String>,
}

/// Health and metrics of the dispatcher.
#[derive(Debug)]
pub struct Health {
    started: Instant,
    stale_after: Duration,
    token: Option<arvados_client::Token>,
    metrics: Metrics,
    facts: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    api: Peer,
    scheduler: Peer,
    queue: Arc<[QueueRow]>,
    site: SiteState,
}

/// Time after which the status page tells of a side whose last query has failed.
const SHORT_SILENCE: Duration = Duration::from_secs(15);

/// When a container is submitted that nothing else holds up.
pub const ON_ITS_TURN: &str =
    "when it is its user's turn and fewer than --max-pending jobs are pending";

/// A container on the status page.
#[derive(Debug, Serialize)]
struct QueueRow {
    container: ContainerUuid,
    state: ContainerState,
    priority: i64,
    ours: bool,
    /// The reason for which the container does not start yet.
    waits: Option<Arc<str>>,
    /// Its place among those that wait and can start, from 1.
    place: Option<usize>,
    /// Whether it can never start with this scheduler as it is.
    never_fits: bool,
    /// User and project, if they are known.
    #[serde(flatten)]
    owner: KnownOwner,
    created_at: Option<Timestamp>,
    partitions: Vec<String>,
    /// Number of its job, and the node on which it runs.
    job: Option<String>,
    node: Option<String>,
}

/// Why a container does not start yet. `is_next` says that it has a place in the order of starts,
/// and `last` is what the scheduler said of its job.
fn waiting_reason(
    record: (&ContainerState, &Admission),
    is_next: bool,
    outage: Option<&str>,
    last: Option<&Arc<str>>,
) -> Option<Arc<str>> {
    match record {
        (
            ContainerState::Queued,
            Admission::Later(why) | Admission::Never(why) | Admission::Impossible(why),
        ) => Some(why.as_str().into()),
        (ContainerState::Queued, Admission::Now) if is_next => {
            Some(format!("it is submitted {ON_ITS_TURN}").into())
        }
        (ContainerState::Locked, _) => outage.map(Into::into).or_else(|| last.cloned()),
        _ => last.cloned(),
    }
}

impl Health {
    /// The health check fails when the API server or the scheduler has not answered for `too_old`.
    /// With a management token, every request must carry it.
    pub fn new(too_old: Duration, token: Option<arvados_client::Token>) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            stale_after: too_old,
            token,
            metrics: Metrics::default(),
            facts: Mutex::default(),
        })
    }

    /// Records a successful API poll.
    pub fn api_answered(&self) {
        self.metrics.api_answered();
        self.facts.lock().api = Peer {
            answered: Some(Instant::now()),
            failure: None,
        };
    }

    /// Records a failed API poll.
    pub fn api_failed(&self, trouble: &WithHint<'_>) {
        self.facts.lock().api.failure = Some(trouble.to_string());
    }

    /// Records a complete listing of the scheduler. Returns whether the one before failed.
    pub fn scheduler_answered(&self) -> bool {
        self.metrics.scheduler_answered();
        let answered = Peer {
            answered: Some(Instant::now()),
            failure: None,
        };
        let before = std::mem::replace(&mut self.facts.lock().scheduler, answered);
        before.failure.is_some()
    }

    /// Records a failed listing of the scheduler.
    pub fn scheduler_failed(&self, error: &crate::scheduler::SchedulerError) {
        self.facts.lock().scheduler.failure = Some(error.to_string());
    }

    /// Counts one decision.
    pub fn count(&self, event: &Decision) {
        self.metrics.count(event);
    }

    /// Replaces the containers, capacity and node exclusions shown by metrics and status page.
    pub fn update(&self, world: &World, places: &BTreeMap<&ContainerUuid, usize>, site: SiteState) {
        let mut rows = Vec::with_capacity(world.containers.len());
        for (uuid, known) in &world.containers {
            let ours = matches!(known.holder, LockHolder::Ours(_));
            let is_queued = known.state == ContainerState::Queued;
            let place = places.get(uuid).copied();
            let outage = site.outage.as_deref();
            let last = world.pending.get(uuid).map(|waits| &waits.text);
            let listing = world.listing.as_ref();
            let job = listing.and_then(|listing| listing.live(uuid).next());
            rows.push(QueueRow {
                container: uuid.clone(),
                state: known.state.clone(),
                priority: known.priority,
                ours,
                waits: waiting_reason((&known.state, &known.fit), place.is_some(), outage, last),
                place,
                never_fits: is_queued && known.fit.never().is_some(),
                owner: known.owner.clone(),
                created_at: known.created_at,
                partitions: known.needs.partitions.clone(),
                job: job.map(|job| job.id.0.clone()),
                node: job.and_then(|job| job.node.clone()),
            });
        }
        self.metrics.update(world, Timestamp::now());
        self.metrics.update_site(&site);
        let mut facts = self.facts.lock();
        (facts.queue, facts.site) = (rows.into(), site);
    }

    /// Why this host cannot submit jobs; which side has not answered for too long, or has failed
    /// for longer than `failing`, for how long and why.
    fn problem(&self, failing: Duration) -> Option<String> {
        let facts = self.facts.lock();
        let fault = facts.site.host_fault.iter();
        let fault = fault.map(|fault| format!("no container is started: {fault}"));
        let peers = [("API server", &facts.api), ("scheduler", &facts.scheduler)];
        let silent = peers.into_iter().filter_map(|(name, side)| {
            // A side that has never answered since the start is reported at once.
            if let (None, Some(why)) = (side.answered, &side.failure) {
                return Some(format!("the {name} has not answered yet: {why}"));
            }
            let age = side.answered.unwrap_or(self.started).elapsed();
            let fails = side.failure.is_some() && age > failing;
            (fails || age > self.stale_after).then(|| {
                let why = side.failure.as_deref().unwrap_or("no answer yet");
                format!("the {name} has not answered for {} s: {why}", age.as_secs())
            })
        });
        let problems: Vec<String> = fault.chain(silent).collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// Serves `/metrics`, `/_health/ping` and `/status` until `shutdown`.
    pub async fn serve(
        self: Arc<Self>,
        listener: tokio::net::TcpListener,
        shutdown: CancellationToken,
    ) -> std::io::Result<()> {
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/_health/ping", get(ping))
            .route("/status", get(status))
            .with_state(self);
        axum::serve(listener, router)
            .with_graceful_shutdown(shutdown.cancelled_owned())
            .await
    }

    fn allows(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.strip_prefix("Bearer "));
        given.is_some_and(|given| is_same(given, token.expose()))
    }
}

/// Compares in constant time, so that timing does not reveal how much of the secret was right.
fn is_same(given: &str, secret: &str) -> bool {
    let (given, secret) = (given.as_bytes(), secret.as_bytes());
    let differing = given
        .iter()
        .zip(secret)
        .fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == secret.len() && differing == 0
}

async fn metrics(State(health): State<Arc<Health>>, headers: HeaderMap) -> Response {
    if !health.allows(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match health.metrics.text() {
        Ok(text) => (
            [(
                header::CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn ping(State(health): State<Arc<Health>>, headers: HeaderMap) -> Response {
    if !health.allows(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match health.problem(health.stale_after) {
        None => Json(json!({"health": "OK"})).into_response(),
        Some(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({"health": "ERROR", "error": error})),
        )
            .into_response(),
    }
}

async fn status(State(health): State<Arc<Health>>, headers: HeaderMap) -> Response {
    if !health.allows(&headers) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let problem = health.problem(SHORT_SILENCE);
    let (queue, site) = {
        let facts = health.facts.lock();
        (facts.queue.clone(), facts.site.clone())
    };
    let mut body = json!({
        "health": health.problem(health.stale_after).is_none(),
        "error": problem,
        "uptime_seconds": health.started.elapsed().as_secs(),
        "breaker_open": site.breaker_open,
        "submit_host_fault": site.host_fault,
        "shunned_nodes": site.excluded_nodes,
        "containers": queue,
    });
    if let Some(room) = site.capacity {
        body["capacity"] = json!(room.total);
        body["free"] = json!(room.free);
        body["others"] = json!(room.others);
    }
    Json(body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_page_tells_of_a_failure_before_the_health_check_fails() {
        let silence = |age, failure: Option<&str>| {
            let health = Health::new(Duration::from_secs(300), None);
            health.facts.lock().api = Peer {
                answered: Instant::now().checked_sub(Duration::from_secs(age)),
                failure: failure.map(str::to_owned),
            };
            [SHORT_SILENCE, health.stale_after].map(|failing| health.problem(failing).is_some())
        };
        for (age, failure, expected) in [
            (10, Some("no answer"), [false, false]),
            (20, Some("no answer"), [true, false]),
            // A poll may be on its way.
            (20, None, [false, false]),
            (301, None, [true, true]),
        ] {
            assert_eq!(silence(age, failure), expected, "{age} s {failure:?}");
        }
    }

    #[test]
    fn what_waits_says_for_what() {
        use Admission::{Later, Now};
        use ContainerState::{Locked, Queued, Running};
        let last: Arc<str> = "for free nodes".into();
        let later = Later("full".into());
        let cases = [
            ((&Queued, &later), true, "full"),
            ((&Queued, &Now), true, "--max-pending"),
            ((&Queued, &Now), false, "for free nodes"),
            ((&Locked, &Now), false, "away"),
            ((&Running, &Now), false, "for free nodes"),
        ];
        for (record, is_next, expected) in cases {
            let why = waiting_reason(record, is_next, Some("away"), Some(&last));
            assert!(why.unwrap().contains(expected), "{record:?}");
        }
        assert_eq!(
            waiting_reason((&Queued, &Now), false, None, None),
            None,
            "the priority is 0"
        );
    }
}
