//! Identifies a request in responses, logs and metrics, renders errors, and keeps what the request
//! holds until its response has been sent.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, error, warn};

use super::connections::{BusyGuard, Connection};
use super::tracked_body::TrackedBody;
use crate::app::App;
use crate::auth::Caller;
use crate::clock;
use crate::emulation::dialect::{self, Responder};
use crate::error::{ApiError, Result};
use crate::http::response::json_text_response;
use crate::limits::{ClientKey, ClientShare, Permits};
use crate::request_log::redact::redact;

/// What a request holds until its response has been sent.
#[derive(Default)]
struct HeldByRequest {
    busy: Option<BusyGuard>,
    permit: Option<OwnedSemaphorePermit>,
    memory: Option<Permits>,
}

pub struct RequestContext {
    id: String,
    method: Method,
    path: String,
    started: Instant,
    peer: Option<SocketAddr>,
    connection: Option<Arc<Connection>>,
    /// The user, once the token has been checked.
    user: Option<String>,
    held: HeldByRequest,
}

/// A request that may use its client's share of the server.
pub struct Admission {
    pub share: Arc<ClientShare>,
    /// `None` without a valid token.
    pub caller: Option<Caller>,
}

impl RequestContext {
    pub fn from_request(request: &Request) -> RequestContext {
        let extensions = request.extensions();
        let connection = extensions.get::<Arc<Connection>>().cloned();
        if let Some(connection) = &connection {
            connection.touch();
        }
        RequestContext {
            id: request_id(request.headers()),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            started: Instant::now(),
            peer: extensions
                .get::<ConnectInfo<SocketAddr>>()
                .map(|peer| peer.0),
            connection,
            user: None,
            held: HeldByRequest::default(),
        }
    }

    /// The address of the client, for records.
    pub fn remote(&self) -> String {
        self.peer
            .map(|peer| peer.ip().to_string())
            .unwrap_or_default()
    }

    /// The client of a request without a valid token.
    pub fn address_key(&self) -> ClientKey {
        let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        ClientKey::Address(
            self.connection
                .as_ref()
                .map_or(unknown, |one| one.network()),
        )
    }

    /// Admits the request of an address, without a valid token.
    pub fn admit_anonymous(&self, app: &App) -> Admission {
        Admission {
            share: app.limits.share(&self.address_key()),
            caller: None,
        }
    }

    /// Checks the token and admits the request of its user. The connection is then busy.
    pub async fn admit(&mut self, app: &Arc<App>, token: Option<String>) -> Result<Admission> {
        let token = token.ok_or(ApiError::NotLoggedIn)?;
        let turn = app.limits.acquire_token_check().await?;
        let authenticate = {
            let app = app.clone();
            move || {
                let result = app.authenticate(&token);
                drop(turn);
                result
            }
        };
        let caller = tokio::task::spawn_blocking(authenticate)
            .await
            .map_err(|_| ApiError::BadRecord("the token check panicked".into()))??;
        self.user = Some(caller.user_uuid.clone());
        let share = app.limits.share(&ClientKey::of(&caller));
        self.held.permit = Some(app.limits.admit_request(&share)?);
        self.held.busy = self.connection.as_ref().map(Connection::begin_request);
        Ok(Admission {
            share,
            caller: Some(caller),
        })
    }

    /// Keeps the permits for a response in memory until it has been sent.
    pub fn hold_memory(&mut self, permits: Permits) {
        self.held.memory = Some(permits);
    }

    /// Completes the response: error body, id header, metrics and logs.
    pub fn finish(self, app: &Arc<App>, result: Result<Response>) -> Response {
        let mut response = result.unwrap_or_else(|problem| error_response(app, &problem, &self));
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            response.headers_mut().insert("x-request-id", id);
        }
        let took = self.started.elapsed();
        app.metrics
            .record_response(&self.method, response.status(), took);
        debug!(request = self.id, method = %self.method, path = redact(&self.path),
               status = response.status().as_u16(), ms = took.as_secs_f64() * 1000.0, "request finished");
        self.track(app, response)
    }

    /// Logs the response when it has been sent, and releases what the request held.
    pub fn track(self, app: &Arc<App>, response: Response) -> Response {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(connection) = &self.connection
        {
            connection.release();
        }
        let (app, status) = (app.clone(), response.status());
        let end = move |bytes| self.record(&app, status, bytes);
        response.map(|body| Body::new(TrackedBody::new(body, end)))
    }

    /// Writes the response into the access log, and releases what the request held.
    fn record(self, app: &App, status: StatusCode, bytes: u64) {
        let Some(log) = &app.access_log else {
            return;
        };
        log.record(json!({
            "time": clock::now(),
            "request": self.id,
            "address": self.remote(),
            "user": self.user,
            "method": self.method.as_str(),
            "path": redact(&self.path),
            "status": status.as_u16(),
            "ms": self.started.elapsed().as_millis() as u64,
            "bytes": bytes,
        }));
    }

    /// Logs a rejected request, at most one of each kind and client in a minute.
    fn log_rejection(&self, app: &App, problem: &ApiError) {
        let address = self.remote();
        let client = self.user.as_deref().unwrap_or(&address);
        if app.rejections.should_log(problem, client) {
            warn!(request = self.id, client, address, method = %self.method,
                  path = redact(&self.path), status = problem.status().as_u16(),
                  error = ?redact(&problem.to_string()), "rejected a request");
        }
    }
}

/// The client's request id if it is valid, otherwise a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers
        .get("x-request-id")
        .and_then(|id| id.to_str().ok())
        .filter(|id| {
            (1..=64).contains(&id.len())
                && id
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        });
    given.map_or_else(|| format!("req-{}", uuid::Uuid::new_v4()), str::to_owned)
}

fn error_response(app: &App, problem: &ApiError, context: &RequestContext) -> Response {
    let status = problem.status();
    let is_overload = matches!(
        problem,
        ApiError::Busy | ApiError::Stopping | ApiError::SlowQuery | ApiError::Gateway(_)
    );
    if status.is_server_error() && !is_overload {
        error!(request = context.id, method = %context.method, path = redact(&context.path),
               error = %problem, "request failed with a server error");
    } else {
        context.log_rejection(app, problem);
    }
    let emulate = app.config.emulate;
    if emulate.is_arvados() && matches!(problem, ApiError::Busy) {
        return status.into_response();
    }
    let responder = dialect::responder_for(emulate, &context.path);
    let body = dialect::error_body(responder, problem, &context.path, &context.id);
    let mut response = match responder {
        Responder::Keepstore => (status, body).into_response(),
        Responder::Rails | Responder::Controller => {
            (status, json_text_response(body)).into_response()
        }
    };
    if let Some(seconds) = problem.retry_after() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_request_id_is_replaced() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", "req-abc".parse().unwrap());
        assert_eq!(request_id(&headers), "req-abc");
        headers.insert("x-request-id", "a b<script>".parse().unwrap());
        assert!(request_id(&headers).starts_with("req-"));
    }
}
