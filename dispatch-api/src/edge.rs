//! The edge between HTTP and the API: limits, bodies, tokens, and answers in the API's dialect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, error};

use crate::api::{self, Call, Reply};
use crate::app::{App, MAX_BODY_KIB};
use crate::auth::scope;
use crate::blocks::protocol;
use crate::error::{ApiError, Result};
use crate::events;
use crate::request::{self, Params};

/// The largest body of an API request, and of a block.
pub const MAX_API_BODY: u64 = 64 << 20;
/// A client must send something this often while it sends a body.
const BODY_PAUSE: Duration = Duration::from_secs(60);
/// How long the next piece of a refused body is waited for.
const DRAIN: Duration = Duration::from_secs(10);
/// How long a request waits for its turn before it is told to come back.
const TURN: Duration = Duration::from_secs(2);

pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(
            "/_health/ping",
            get(|| async { axum_json(&json!({"health": "OK"})) }),
        )
        .route("/metrics", get(metrics))
        .route("/websocket", get(websocket))
        .fallback(any(answer))
        .with_state(app)
}

fn axum_json(value: &serde_json::Value) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json; charset=utf-8")],
        value.to_string(),
    )
        .into_response()
}

/// What identifies a request in answers and logs.
struct Ticket {
    id: String,
    method: Method,
    path: String,
}

async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    let began = Instant::now();
    let ticket = Ticket {
        id: request_id(request.headers()),
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
    };
    let mut response = match work(&app, request).await {
        Ok(response) => response,
        Err(problem) => refusal(&problem, &ticket),
    };
    if let Ok(id) = HeaderValue::from_str(&ticket.id) {
        response.headers_mut().insert("x-request-id", id);
    }
    let took = began.elapsed();
    app.metrics
        .answered(&ticket.method, response.status(), took);
    debug!(request = ticket.id, method = %ticket.method, path = ticket.path,
           status = response.status().as_u16(), ms = took.as_secs_f64() * 1000.0, "answered");
    response
}

/// The client's own request id if it is a sane one, else a new one.
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
    given.map_or_else(
        || {
            let letters: String = (0..20).map(|_| fastrand::alphanumeric()).collect();
            format!("req-{}", letters.to_lowercase())
        },
        str::to_owned,
    )
}

fn refusal(problem: &ApiError, ticket: &Ticket) -> Response {
    let status = problem.status();
    if status.is_server_error() && !matches!(problem, ApiError::Busy | ApiError::Stopping) {
        error!(request = ticket.id, method = %ticket.method, path = ticket.path, error = %problem,
               "a request failed on the server's side");
    }
    let errors: Vec<String> = problem
        .messages()
        .iter()
        .map(|message| format!("{message} ({})", ticket.id))
        .collect();
    let token = format!(
        "{}+{:08x}",
        jiff::Timestamp::now().as_second(),
        fastrand::u32(..)
    );
    let body = json!({"errors": errors, "error_token": token});
    let mut response = (status, axum_json(&body)).into_response();
    if let Some(seconds) = problem.retry_after() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

async fn work(app: &Arc<App>, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let remote = parts
        .extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|peer| peer.0.ip().to_string())
        .unwrap_or_default();
    let (body, memory) = read_body(&app.body_memory, &parts.headers, body).await?;
    // Only now, so that a client that sends slowly keeps nobody from working.
    let turn = tokio::time::timeout(TURN, app.working.clone().acquire_owned());
    let turn = turn
        .await
        .map_err(|_| ApiError::Busy)?
        .map_err(|_| ApiError::Stopping)?;
    let arrived = Arrived {
        method: parts.method,
        path: decoded(parts.uri.path())?,
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
        remote,
    };
    let app = app.clone();
    // Everything below works on files and the database, which block.
    tokio::task::spawn_blocking(move || {
        let answer = dispatch(&app, &arrived, &body);
        drop((turn, memory));
        answer
    })
    .await
    .map_err(|_| ApiError::BadRecord("the request could not be worked on".into()))?
}

/// The path as it is meant: clients write the `+` of a portable data hash as `%2B`.
fn decoded(path: &str) -> Result<String> {
    percent_encoding::percent_decode_str(path)
        .decode_utf8()
        .map(|path| path.into_owned())
        .map_err(|_| ApiError::path_not_found())
}

/// A request whose body has been read.
struct Arrived {
    method: Method,
    path: String,
    query: Option<String>,
    headers: HeaderMap,
    remote: String,
}

/// Read a body into memory, within what all requests together may hold.
async fn read_body(
    room: &Arc<Semaphore>,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>)> {
    let too_large = || ApiError::TooLarge {
        limit: MAX_API_BODY,
    };
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse::<u64>().ok());
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let most = match announced {
        Some(length) if length > MAX_API_BODY => {
            drain(body).await;
            return Err(too_large());
        }
        Some(length) => length,
        None if chunked => MAX_API_BODY,
        None => 0,
    };
    if most == 0 {
        return Ok((Bytes::new(), None));
    }
    let kib = u32::try_from(most.div_ceil(1024).min(MAX_BODY_KIB as u64)).unwrap_or(u32::MAX);
    let memory = tokio::time::timeout(BODY_PAUSE, room.clone().acquire_many_owned(kib))
        .await
        .map_err(|_| ApiError::Busy)?
        .map_err(|_| ApiError::Stopping)?;
    let mut pieces = body.into_data_stream();
    let mut read = BytesMut::with_capacity(usize::try_from(most.min(1 << 20)).unwrap_or(0));
    loop {
        let piece = tokio::time::timeout(BODY_PAUSE, pieces.next())
            .await
            .map_err(|_| ApiError::SlowBody(BODY_PAUSE.as_secs()))?;
        match piece {
            None => return Ok((read.freeze(), Some(memory))),
            Some(Ok(piece)) => {
                if (read.len() + piece.len()) as u64 > most {
                    return Err(too_large());
                }
                read.extend_from_slice(&piece);
            }
            Some(Err(problem)) => {
                return Err(ApiError::BadRequest(format!(
                    "the request body broke off: {problem}"
                )));
            }
        }
    }
}

/// Take some of a body that will be refused: a client in the middle of sending would not see the answer.
async fn drain(body: Body) {
    let mut pieces = body.into_data_stream();
    let mut left = MAX_API_BODY;
    // Whether all of it came does not matter: the answer is the same.
    while let Ok(Some(Ok(piece))) = tokio::time::timeout(DRAIN, pieces.next()).await {
        left = left.saturating_sub(piece.len() as u64);
        if left == 0 {
            break;
        }
    }
}

fn dispatch(app: &Arc<App>, arrived: &Arrived, body: &Bytes) -> Result<Response> {
    let path = arrived.path.as_str();
    if let Some(name) = block_name(path) {
        return block(app, arrived, name, body);
    }
    let params = Params::parse(arrived.query.as_deref(), &arrived.headers, body)?;
    let method = effective_method(arrived, &params)?;
    let host = arrived
        .headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or(&app.address)
        .to_owned();
    match path {
        "/discovery/v1/apis/arvados/v1/rest" => {
            return Ok(axum_json(&api::discovery::document(app, &host)));
        }
        "/arvados/v1/config" => return Ok(axum_json(&api::public_config(app, &host))),
        _ => {}
    }
    let rest = path
        .strip_prefix("/arvados/v1/")
        .ok_or_else(ApiError::path_not_found)?;
    let token = request::token(&arrived.headers, &params).ok_or(ApiError::NotLoggedIn)?;
    let who = app.authenticate(&token)?;
    if !scope::permits(&who.scopes, method.as_str(), path) {
        return Err(ApiError::OutOfScope);
    }
    let if_match = arrived
        .headers
        .get(header::IF_MATCH)
        .and_then(|tag| tag.to_str().ok())
        .map(str::to_owned);
    let call = Call {
        app: app.clone(),
        who,
        params,
        if_match,
        host,
        remote: arrived.remote.clone(),
    };
    api::route(&call, &method, rest).map(render)
}

fn render(reply: Reply) -> Response {
    let mut response = axum_json(&reply.body);
    if let Some(tag) = reply.etag
        && let Ok(tag) = HeaderValue::from_str(&format!("\"{tag}\""))
    {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// The method meant, which long queries hide behind a POST.
fn effective_method(arrived: &Arrived, params: &Params) -> Result<Method> {
    if arrived.method != Method::POST {
        return Ok(arrived.method.clone());
    }
    let named = arrived
        .headers
        .get("x-http-method-override")
        .and_then(|name| name.to_str().ok())
        .map(str::to_owned)
        .or_else(|| params.text("_method"));
    match named {
        None => Ok(Method::POST),
        Some(name) => name
            .to_uppercase()
            .parse()
            .map_err(|_| ApiError::BadRequest(format!("{name:?} is not an HTTP method"))),
    }
}

/// `/HASH…` at the root of the server is a block.
fn block_name(path: &str) -> Option<&str> {
    let name = path.strip_prefix('/')?;
    let hash = name.get(..32)?;
    let is_hash = hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hash && !name.contains('/')).then_some(name)
}

fn block(app: &App, arrived: &Arrived, name: &str, body: &Bytes) -> Result<Response> {
    let token = request::token(&arrived.headers, &Params::default()).unwrap_or_default();
    match arrived.method {
        Method::PUT => protocol::put(app, name, &token, body),
        Method::GET | Method::HEAD => {
            let found = protocol::find(app, &arrived.method, name, &token)?;
            Ok(protocol::stream(found))
        }
        _ => Err(ApiError::path_not_found()),
    }
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = tokio::task::spawn_blocking(move || app.metrics.text(&app)).await;
    match text {
        Ok(Ok(text)) => (
            [(
                header::CONTENT_TYPE,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )],
            text,
        )
            .into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn websocket(
    State(app): State<Arc<App>>,
    upgrade: WebSocketUpgrade,
    request: Request,
) -> Response {
    let params = Params::parse(request.uri().query(), request.headers(), &[]).unwrap_or_default();
    let token = request::token(request.headers(), &params);
    let look = {
        let app = app.clone();
        move || token.and_then(|token| app.authenticate(&token).ok())
    };
    // A bad token may connect and hears nothing, as in the real server.
    let who = tokio::task::spawn_blocking(look).await.unwrap_or_default();
    upgrade
        .max_message_size(64 << 10)
        .on_upgrade(move |socket| events::socket::serve(app, who, socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_told_from_other_paths() {
        let hash = "acbd18db4cc2f85cedef654fccc4a4d8";
        assert_eq!(block_name(&format!("/{hash}")), Some(hash));
        let locator = format!("{hash}+3+A0@1");
        assert_eq!(block_name(&format!("/{locator}")), Some(locator.as_str()));
        assert_eq!(block_name("/arvados/v1/containers"), None);
        assert_eq!(block_name(&format!("/{hash}/x")), None);
    }

    #[test]
    fn paths_are_decoded_once() {
        assert_eq!(decoded("/c/x%2B12").unwrap(), "/c/x+12");
        assert_eq!(decoded("/c/x+12").unwrap(), "/c/x+12");
        assert!(decoded("/%ff").is_err());
    }

    #[test]
    fn a_strange_request_id_is_replaced() {
        let mut headers = HeaderMap::new();
        headers.insert("x-request-id", "req-abc".parse().unwrap());
        assert_eq!(request_id(&headers), "req-abc");
        headers.insert("x-request-id", "a b<script>".parse().unwrap());
        assert!(request_id(&headers).starts_with("req-"));
    }

    #[test]
    fn records_do_not_print_their_attributes() {
        let token = crate::record::Record::new()
            .with("uuid", "u")
            .with("api_token", "secret");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
