//! `/websocket`: subscribe, replay, and events as they are committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::{Message, WebSocket};
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tracing::debug;

use super::Event;
use crate::app::{App, stopped};
use crate::auth::{Caller, permission};
use crate::clock;
use crate::db::rows;
use crate::schema::LOGS;

/// A client that takes this long to accept one message is gone.
const SEND_LIMIT: Duration = Duration::from_secs(10);
const PING_EVERY: Duration = Duration::from_secs(45);
/// How far back `last_log_id` reaches.
const REPLAY: Duration = Duration::from_secs(600);
const REPLAY_PAGE: i64 = 500;
const MAX_SUBSCRIPTIONS: usize = 64;
/// Interval between looks whether the token of a listener is still good, and the age at which the answer to the last
/// look is too old to tell an event by it.
const TOKEN_CHECK: Duration = Duration::from_secs(5);
const TOKEN_CHECK_AGE: Duration = Duration::from_secs(1);

/// The filters one connection asked for; an event passes if any set of them lets it through.
#[derive(Default)]
struct Subscriptions(Vec<Value>);

impl Subscriptions {
    fn pass(&self, event: &Event) -> bool {
        self.0.iter().any(|filters| passes(filters, event))
    }
}

/// Filters on event type and creation time count; all others are ignored, as in the real server.
fn passes(filters: &Value, event: &Event) -> bool {
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

struct Listener {
    app: Arc<App>,
    /// A bad token may connect and subscribe, and hears nothing.
    who: Option<Caller>,
    socket: WebSocket,
    subscriptions: Subscriptions,
    sent: u64,
    last_id: i64,
    /// When the token was last found good.
    checked: Instant,
}

pub async fn serve(app: Arc<App>, who: Option<Caller>, socket: WebSocket) {
    let mut live = app.feed.listen();
    let mut stop = app.stopping();
    let mut ping = tokio::time::interval(PING_EVERY);
    let mut check = tokio::time::interval(TOKEN_CHECK);
    let mut listener = Listener {
        app,
        who,
        socket,
        subscriptions: Subscriptions::default(),
        sent: 0,
        last_id: 0,
        checked: Instant::now(),
    };
    loop {
        let going_on = tokio::select! {
            event = live.recv() => match event {
                Ok(event) => listener.tell(&event).await,
                Err(RecvError::Lagged(missed)) => {
                    debug!(missed, "a listener was too slow and is disconnected");
                    false
                }
                Err(RecvError::Closed) => false,
            },
            message = listener.socket.recv() => match message {
                Some(Ok(Message::Text(text))) => listener.obey(&text).await,
                Some(Ok(Message::Close(_)) | Err(_)) | None => false,
                Some(Ok(_)) => true,
            },
            _ = ping.tick() => listener.send(Message::Ping(Vec::new().into())).await,
            _ = check.tick() => listener.is_still_let_in().await,
            _ = stopped(&mut stop) => false,
        };
        if !going_on {
            break;
        }
    }
}

impl Listener {
    async fn send(&mut self, message: Message) -> bool {
        matches!(
            tokio::time::timeout(SEND_LIMIT, self.socket.send(message)).await,
            Ok(Ok(()))
        )
    }

    async fn status(&mut self, status: u16) -> bool {
        let text = json!({"status": status}).to_string();
        self.send(Message::Text(text.into())).await
    }

    /// Whether the token is as good as it was. One that never was good stays, and hears nothing.
    async fn is_still_let_in(&mut self) -> bool {
        let Some(who) = self.who.clone() else {
            return true;
        };
        let app = self.app.clone();
        let look = move || app.authenticate(&who.presented);
        match tokio::task::spawn_blocking(look).await {
            Ok(Ok(who)) => {
                self.who = Some(who);
                self.checked = Instant::now();
                true
            }
            _ => {
                self.send(Message::Close(None)).await;
                false
            }
        }
    }

    async fn obey(&mut self, text: &str) -> bool {
        let Ok(request) = serde_json::from_str::<Value>(text) else {
            return self.status(400).await;
        };
        let filters = request.get("filters").cloned().unwrap_or(json!([]));
        match request["method"].as_str() {
            Some("subscribe") if self.subscriptions.0.len() < MAX_SUBSCRIPTIONS => {
                self.subscriptions.0.push(filters);
                if !self.status(200).await {
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
                self.status(if known { 200 } else { 400 }).await
            }
            _ => self.status(400).await,
        }
    }

    async fn tell(&mut self, event: &Arc<Event>) -> bool {
        // What a replay has told already is not told again.
        if event.id <= self.last_id || !self.subscriptions.pass(event) {
            return true;
        }
        if self.checked.elapsed() > TOKEN_CHECK_AGE && !self.is_still_let_in().await {
            return false;
        }
        let allowed = may_hear(self.app.clone(), self.who.clone(), event.clone());
        if !allowed.await {
            return true;
        }
        self.sent += 1;
        let message = event.message(self.sent);
        self.send(Message::Text(message.into())).await
    }

    async fn replay(&mut self, mut after: i64) -> bool {
        let since = clock::before(REPLAY);
        loop {
            let (app, since) = (self.app.clone(), since.clone());
            let look = move || {
                app.readers.read(|connection| {
                    rows::find(
                        connection,
                        &LOGS,
                        "id > ?1 AND created_at > ?2 ORDER BY id LIMIT ?3",
                        &[&after, &since, &REPLAY_PAGE],
                    )
                })
            };
            let Ok(Ok(entries)) = tokio::task::spawn_blocking(look).await else {
                return false;
            };
            let Some(last) = entries.last() else {
                return true;
            };
            after = last.int("id");
            for entry in &entries {
                let event = Arc::new(Event::from_log(entry, self.app.setting.rules.carried));
                if !self.tell(&event).await {
                    return false;
                }
                self.last_id = self.last_id.max(event.id);
            }
        }
    }
}

async fn may_hear(app: Arc<App>, who: Option<Caller>, event: Arc<Event>) -> bool {
    let Some(who) = who else {
        return false;
    };
    if !who.may_hear_of(&event.object_uuid) {
        return false;
    }
    if who.is_admin {
        return true;
    }
    let look = move || {
        app.readers
            .read(|connection| permission::may_hear(connection, &who, &event.object_uuid))
    };
    matches!(tokio::task::spawn_blocking(look).await, Ok(Ok(true)))
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
            assert_eq!(passes(&filters, &event), expected, "{filters}");
        }
    }
}
