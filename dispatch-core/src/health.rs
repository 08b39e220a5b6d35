//! How the dispatcher is: metrics, a health answer and a status page, from the same facts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::events::Event;
use crate::needs::{Fit, Room};
use crate::trouble::Trouble;
use crate::world::{Holder, World};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabel {
    event: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: String,
}

/// When one side last answered, and what it last said instead.
#[derive(Debug, Default, Clone)]
struct Side {
    answered: Option<Instant>,
    failure: Option<String>,
}

/// The dispatcher's own facts.
#[derive(Debug)]
pub struct Health {
    started: Instant,
    too_old: Duration,
    token: Option<arvados_client::Token>,
    events: Family<EventLabel, Counter>,
    containers: Family<StateLabel, Gauge>,
    breaker: Gauge,
    shunned: Gauge,
    registry: Registry,
    facts: Mutex<Facts>,
}

#[derive(Debug, Default)]
struct Facts {
    api: Side,
    scheduler: Side,
    queue: Arc<[Row]>,
    room: Option<Room>,
    breaker: bool,
    shunned: Vec<String>,
}

/// What the dispatcher has in view.
#[derive(Debug)]
pub struct View<'a> {
    /// Containers and jobs.
    pub world: &'a World,
    /// What there is and what is free, where the scheduler is one machine.
    pub room: Option<Room>,
    /// The circuit breaker lets nothing new through.
    pub breaker_open: bool,
    /// Nodes left out of new submissions.
    pub shunned: Vec<String>,
}

/// A container on the status page.
#[derive(Debug, Serialize)]
struct Row {
    container: ContainerUuid,
    state: ContainerState,
    priority: i64,
    ours: bool,
    /// Why it does not start yet.
    waits: Option<Arc<str>>,
}

impl Health {
    /// Red when a side has not answered for `too_old`. With a management token, only its bearer is answered.
    pub fn new(too_old: Duration, token: Option<arvados_client::Token>) -> Arc<Self> {
        let (events, containers) = (
            Family::<EventLabel, Counter>::default(),
            Family::<StateLabel, Gauge>::default(),
        );
        let mut registry = Registry::with_prefix("arvados_dispatch");
        registry.register("events", "Decisions and failures, by kind", events.clone());
        registry.register(
            "containers",
            "Containers in view, by state",
            containers.clone(),
        );
        let breaker = Gauge::default();
        registry.register(
            "breaker_open",
            "1 while nothing new is started, because several attempts in a row came to nothing",
            breaker.clone(),
        );
        let shunned = Gauge::default();
        registry.register(
            "nodes_shunned",
            "Nodes that get no new jobs, because several containers came to nothing there",
            shunned.clone(),
        );
        Arc::new(Self {
            breaker,
            shunned,
            started: Instant::now(),
            too_old,
            token,
            events,
            containers,
            registry,
            facts: Mutex::default(),
        })
    }

    fn facts(&self) -> std::sync::MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API was looked at.
    pub fn api_answered(&self) {
        self.facts().api = Side {
            answered: Some(Instant::now()),
            failure: None,
        };
    }

    /// The API could not be looked at.
    pub fn api_failed(&self, trouble: &Trouble<'_>) {
        self.facts().api.failure = Some(trouble.to_string());
    }

    /// The scheduler's listing is complete.
    pub fn scheduler_answered(&self) {
        self.facts().scheduler = Side {
            answered: Some(Instant::now()),
            failure: None,
        };
    }

    /// The scheduler's listing failed.
    pub fn scheduler_failed(&self, error: &crate::scheduler::SchedulerError) {
        self.facts().scheduler.failure = Some(error.to_string());
    }

    /// One more of these.
    pub fn count(&self, event: &Event) {
        self.events
            .get_or_create(&EventLabel {
                event: event.name(),
            })
            .inc();
    }

    /// What is in view.
    pub fn view(&self, view: View<'_>) {
        let world = view.world;
        let mut rows = Vec::with_capacity(world.containers.len());
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        for (uuid, known) in &world.containers {
            *counts.entry(known.state.to_string()).or_default() += 1;
            let ours = matches!(known.holder, Holder::Ours(_));
            let is_queued = known.state == ContainerState::Queued;
            let waits = match &known.fit {
                Fit::Later(why) | Fit::Never(why) if is_queued => Some(why.as_str().into()),
                _ => world.waiting.get(uuid).map(|waits| waits.words.clone()),
            };
            rows.push(Row {
                container: uuid.clone(),
                state: known.state.clone(),
                priority: known.priority,
                ours,
                waits,
            });
        }
        self.containers.clear();
        for (state, count) in counts {
            self.containers
                .get_or_create(&StateLabel { state })
                .set(count);
        }
        self.breaker.set(i64::from(view.breaker_open));
        self.shunned.set(view.shunned.len() as i64);
        let mut facts = self.facts();
        facts.queue = rows.into();
        facts.room = view.room;
        facts.breaker = view.breaker_open;
        facts.shunned = view.shunned;
    }

    /// Whether both sides answered lately; else since when not, and why.
    fn complaint(&self) -> Option<String> {
        let facts = self.facts();
        [("API server", &facts.api), ("scheduler", &facts.scheduler)]
            .into_iter()
            .find_map(|(name, side)| {
                // Since its start nobody could have counted on it: what it waits for is said at once.
                if let (None, Some(why)) = (side.answered, &side.failure) {
                    return Some(format!("the {name} has not answered yet: {why}"));
                }
                let age = side.answered.unwrap_or(self.started).elapsed();
                (age > self.too_old).then(|| {
                    let why = side.failure.as_deref().unwrap_or("no answer yet");
                    format!("the {name} has not answered for {} s: {why}", age.as_secs())
                })
            })
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

/// Compares in a time that does not tell how much of the secret was right.
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
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &health.registry) {
        Ok(()) => (
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
    match health.complaint() {
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
    let complaint = health.complaint();
    let (queue, room, breaker, shunned) = {
        let facts = health.facts();
        let shunned = facts.shunned.clone();
        (
            facts.queue.clone(),
            facts.room.clone(),
            facts.breaker,
            shunned,
        )
    };
    let mut body = json!({
        "health": complaint.is_none(),
        "error": complaint,
        "uptime_seconds": health.started.elapsed().as_secs(),
        "breaker_open": breaker,
        "shunned_nodes": shunned,
        "containers": queue,
    });
    if let Some(room) = room {
        body["capacity"] = json!(room.capacity);
        body["free"] = json!(room.free);
    }
    Json(body).into_response()
}
