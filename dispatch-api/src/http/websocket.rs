//! `/websocket`: subscriptions, replay, and live events.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::{Message, WebSocket};
use axum::extract::{Request, State, WebSocketUpgrade};
use axum::response::Response;
use http::request::Parts;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tracing::debug;

use crate::api::params::{self, Params};
use crate::app::{App, wait_for_stop};
use crate::auth::{Access, Caller};
use crate::clock;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::events::event::Event;
use crate::http::request_context::RequestContext;
use crate::limits::ClientKey;
use crate::schema::LOGS;

/// Timeout of sending one message; a slower client is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which the other websockets of a client do not wait for one that receives slowly.
const TURN_TIMEOUT: Duration = Duration::from_millis(20);
const PING_INTERVAL: Duration = Duration::from_secs(45);
/// Maximum age of log entries that a replay with `last_log_id` returns.
const REPLAY_WINDOW: Duration = Duration::from_secs(600);
/// Maximum number of log entries of a replay that are in memory, and their size in bytes.
const REPLAY_PAGE_SIZE: i64 = 50;
const REPLAY_PAGE_BYTES: usize = 1 << 20;
const MAX_SUBSCRIPTIONS: usize = 64;
/// Maximum size in bytes of a message from a client, and of all its subscriptions together.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
const READ_BUFFER_BYTES: usize = 4 << 10;
/// Maximum size in bytes of messages that the client has not received.
const MAX_WRITE_BUFFER_BYTES: usize = 1 << 20;
/// Time after which a websocket without a valid token is closed.
const ANONYMOUS_LIFETIME: Duration = Duration::from_secs(60);
/// Interval of token checks, and the maximum age of a check at which an event is still sent.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(5);
const MAX_TOKEN_CHECK_AGE: Duration = Duration::from_secs(1);

/// The filters of one connection; an event is sent if it matches any of them.
#[derive(Default)]
struct Subscriptions(Vec<Value>);

impl Subscriptions {
    fn has_room_for(&self, message: &str) -> bool {
        let used: usize = self.0.iter().map(|filters| filters.to_string().len()).sum();
        self.0.len() < MAX_SUBSCRIPTIONS && used + message.len() <= MAX_MESSAGE_BYTES
    }

    fn matches(&self, event: &Event) -> bool {
        self.0.iter().any(|filters| filters_match(filters, event))
    }
}

/// Filters on event type and creation time apply; as in Arvados, all others are ignored.
fn filters_match(filters: &Value, event: &Event) -> bool {
    filters.as_array().into_iter().flatten().all(|filter| {
        let operator = filter[1].as_str().unwrap_or("");
        match filter[0].as_str() {
            Some("event_type") => match operator {
                "in" => filter[2]
                    .as_array()
                    .is_some_and(|types| types.iter().any(|one| *one == *event.event_type)),
                "=" => filter[2] == *event.event_type,
                _ => true,
            },
            Some("created_at") => {
                let Some(bound) = filter[2].as_str().and_then(clock::normalise) else {
                    return true;
                };
                match operator {
                    "<" => event.created_at < bound,
                    "<=" => event.created_at <= bound,
                    ">" => event.created_at > bound,
                    ">=" => event.created_at >= bound,
                    "=" => event.created_at == bound,
                    _ => true,
                }
            }
            _ => true,
        }
    })
}

pub async fn open(
    State(app): State<Arc<App>>,
    upgrade: WebSocketUpgrade,
    request: Request,
) -> Response {
    let mut context = RequestContext::from_request(&request);
    let (parts, _) = request.into_parts();
    let result = accept(&app, &mut context, upgrade, &parts).await;
    context.finish(&app, result)
}

async fn accept(
    app: &Arc<App>,
    context: &mut RequestContext,
    upgrade: WebSocketUpgrade,
    parts: &Parts,
) -> Result<Response> {
    let params = Params::parse(parts.uri.query(), &parts.headers, &[]).unwrap_or_default();
    let token = params::token(&parts.headers, &params);
    let caller = match context.admit(app, token).await {
        Ok(admission) => admission.caller,
        Err(ApiError::NotLoggedIn) if app.config.emulate.is_arvados() => None,
        Err(problem) => return Err(problem),
    };
    let key = match &caller {
        Some(caller) => ClientKey::of(caller),
        None => context.address_key(),
    };
    let permits = app.limits.admit_websocket(&key)?;
    let turns = app.limits.share(&key).event_turns.clone();
    let app = app.clone();
    Ok(upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(MAX_WRITE_BUFFER_BYTES)
        .on_upgrade(move |socket| async move {
            let is_anonymous = caller.is_none();
            let served = serve(app, caller, socket, turns);
            match is_anonymous {
                true => drop(tokio::time::timeout(ANONYMOUS_LIFETIME, served).await),
                false => served.await,
            }
            drop(permits);
        }))
}

struct Listener {
    app: Arc<App>,
    /// `None` for an invalid token, which may connect and subscribe but receives no events.
    caller: Option<Caller>,
    socket: WebSocket,
    subscriptions: Subscriptions,
    sent_messages: u64,
    last_id: i64,
    /// Time of the last successful token check.
    token_checked_at: Instant,
    /// With one permit, which all websockets of the client share: what goes to hundreds of them
    /// takes turns with the requests of others.
    turns: Arc<Semaphore>,
}

async fn serve(app: Arc<App>, caller: Option<Caller>, socket: WebSocket, turns: Arc<Semaphore>) {
    let mut live = app.events.subscribe();
    let mut stop = app.stop.subscribe();
    let mut ping = tokio::time::interval(PING_INTERVAL);
    let mut check = tokio::time::interval(TOKEN_CHECK_INTERVAL);
    let mut listener = Listener {
        app,
        caller,
        socket,
        subscriptions: Subscriptions::default(),
        sent_messages: 0,
        last_id: 0,
        token_checked_at: Instant::now(),
        turns,
    };
    loop {
        let connected = tokio::select! {
            event = live.recv() => match event {
                Ok(event) => listener.send_event(&event).await,
                Err(RecvError::Lagged(missed)) => {
                    debug!(missed, "disconnecting a listener that is too slow");
                    false
                }
                Err(RecvError::Closed) => false,
            },
            message = listener.socket.recv() => match message {
                Some(Ok(Message::Text(text))) => listener.handle_message(&text).await,
                Some(Ok(Message::Close(_)) | Err(_)) | None => false,
                Some(Ok(_)) => true,
            },
            _ = ping.tick() => listener.send(Message::Ping(Vec::new().into())).await,
            _ = check.tick() => listener.refresh_caller().await,
            _ = wait_for_stop(&mut stop) => false,
        };
        if !connected {
            break;
        }
    }
}

impl Listener {
    async fn send(&mut self, message: Message) -> bool {
        matches!(
            tokio::time::timeout(SEND_TIMEOUT, self.socket.send(message)).await,
            Ok(Ok(()))
        )
    }

    async fn send_status(&mut self, status: u16) -> bool {
        let text = json!({"status": status}).to_string();
        self.send(Message::Text(text.into())).await
    }

    /// Authenticates the token again. Returns false if a valid token has become invalid.
    async fn refresh_caller(&mut self) -> bool {
        let Some(caller) = self.caller.clone() else {
            return true;
        };
        let app = self.app.clone();
        let authenticate = move || app.authenticate(&caller.presented_token);
        match tokio::task::spawn_blocking(authenticate).await {
            Ok(Ok(caller)) => {
                self.caller = Some(caller);
                self.token_checked_at = Instant::now();
                true
            }
            _ => {
                self.send(Message::Close(None)).await;
                false
            }
        }
    }

    async fn handle_message(&mut self, text: &str) -> bool {
        let Ok(request) = serde_json::from_str::<Value>(text) else {
            return self.send_status(400).await;
        };
        let filters = request.get("filters").cloned().unwrap_or(json!([]));
        match request["method"].as_str() {
            Some("subscribe") if self.subscriptions.has_room_for(text) => {
                self.subscriptions.0.push(filters);
                if !self.send_status(200).await {
                    return false;
                }
                match request["last_log_id"].as_i64() {
                    Some(id) => self.replay(id).await,
                    None => true,
                }
            }
            Some("unsubscribe") => {
                let before = self.subscriptions.0.len();
                self.subscriptions.0.retain(|known| *known != filters);
                let known = self.subscriptions.0.len() < before;
                self.send_status(if known { 200 } else { 400 }).await
            }
            _ => self.send_status(400).await,
        }
    }

    async fn send_event(&mut self, event: &Arc<Event>) -> bool {
        // Events that a replay has sent are not sent again.
        if event.id <= self.last_id || !self.subscriptions.matches(event) {
            return true;
        }
        if self.token_checked_at.elapsed() > MAX_TOKEN_CHECK_AGE && !self.refresh_caller().await {
            return false;
        }
        let allowed = may_receive(self.app.clone(), self.caller.clone(), event.clone());
        if !allowed.await {
            return true;
        }
        let turns = self.turns.clone();
        let turn = turns.acquire().await;
        self.sent_messages += 1;
        let message = event.message(self.sent_messages);
        let mut sent = pin!(self.send(Message::Text(message.into())));
        match tokio::time::timeout(TURN_TIMEOUT, sent.as_mut()).await {
            Ok(is_sent) => is_sent,
            Err(_) => {
                drop(turn);
                sent.await
            }
        }
    }

    async fn replay(&mut self, mut after: i64) -> bool {
        let since = clock::before(REPLAY_WINDOW);
        loop {
            let (app, since) = (self.app.clone(), since.clone());
            let find_entries = move || {
                app.readers.read(|connection| {
                    rows::find_up_to(
                        connection,
                        &LOGS,
                        "id > ?1 AND created_at > ?2 ORDER BY id LIMIT ?3",
                        &[&after, &since, &REPLAY_PAGE_SIZE],
                        REPLAY_PAGE_BYTES,
                    )
                })
            };
            let Ok(Ok(entries)) = tokio::task::spawn_blocking(find_entries).await else {
                return false;
            };
            let Some(last) = entries.last() else {
                return true;
            };
            after = last.int("id");
            for entry in &entries {
                let event = Arc::new(Event::from_log(
                    entry,
                    self.app.config.emulate.event_attributes(),
                ));
                if !self.send_event(&event).await {
                    return false;
                }
                self.last_id = self.last_id.max(event.id);
            }
        }
    }
}

async fn may_receive(app: Arc<App>, caller: Option<Caller>, event: Arc<Event>) -> bool {
    let Some(caller) = caller else {
        return false;
    };
    if !caller.may_receive_events_of(&event.object_uuid) {
        return false;
    }
    if caller.is_admin {
        return true;
    }
    let decision = event.decision_of(&caller.user_uuid);
    let decide = async || {
        let query = move || {
            app.readers
                .read(|connection| Access::new(connection, &caller).may_receive(&event.object_uuid))
        };
        match tokio::task::spawn_blocking(query).await {
            Ok(Ok(may)) => Ok(may),
            Ok(Err(_)) | Err(_) => Err(()),
        }
    };
    decision.get_or_try_init(decide).await == Ok(&true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn filters_on_type_and_time_count_and_others_do_not() {
        let entry = Record::new()
            .with("id", 1)
            .with("event_type", "update")
            .with("created_at", "2026-01-02T03:04:05.000000000Z");
        let event = Event::from_log(&entry, &[]);
        for (filters, expected) in [
            (json!([]), true),
            (json!([["event_type", "in", ["create", "update"]]]), true),
            (json!([["event_type", "in", ["delete"]]]), false),
            (json!([["created_at", ">", "2026-01-02T00:00:00Z"]]), true),
            (json!([["created_at", ">", "2026-01-03T00:00:00Z"]]), false),
            (json!([["object_uuid", "=", "nobody"]]), true),
        ] {
            assert_eq!(filters_match(&filters, &event), expected, "{filters}");
        }
    }
}
