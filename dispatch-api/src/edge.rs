//! The edge between HTTP and the API: limits, bodies, tokens, and answers in the API's dialect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::json;

use crate::api::{self, Call, Reply};
use crate::app::App;
use crate::blocks::protocol;
use crate::body;
use crate::emulation::dialect::{self, Writer};
use crate::emulation::{Rules, faults};
use crate::error::{ApiError, Result};
use crate::events;
use crate::gateway;
use crate::request::{self, Params};
use crate::ticket::Ticket;

/// The largest body of an API request, and of a block.
pub const MAX_API_BODY: u64 = 64 << 20;
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
        .merge(gateway_routes())
        .fallback(any(answer))
        .with_state(app)
}

/// What is answered while it streams, unlike all else under `/arvados/v1`.
fn gateway_routes() -> Router<Arc<App>> {
    let mut routes = Router::new();
    for of in ["containers", "connect"] {
        let path = format!("/arvados/v1/{of}/{{uuid}}/gateway_tunnel");
        routes = routes.route(&path, post(gateway::open::open));
    }
    for tail in ["", "/", "/{*path}"] {
        let path = format!("/arvados/v1/container_requests/{{uuid}}/log{tail}");
        routes = routes.route(&path, any(gateway::log_route::log));
    }
    routes
}

pub fn axum_json(value: &serde_json::Value) -> Response {
    json_text(value.to_string())
}

pub fn json_text(text: String) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json; charset=utf-8")];
    (kind, text).into_response()
}

async fn answer(State(app): State<Arc<App>>, request: Request) -> Response {
    let ticket = Ticket::of(&request);
    let done = work(&app, request).await;
    ticket.close(&app, done)
}

async fn work(app: &Arc<App>, request: Request) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let remote = parts
        .extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map(|peer| peer.0.ip().to_string())
        .unwrap_or_default();
    let (body, memory) = body::read(&app.body_memory, &parts.headers, body, MAX_API_BODY).await?;
    let arrived = Arrived {
        method: parts.method,
        path: decoded(parts.uri.path())?,
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
        remote,
    };
    in_turn(app, move |app| {
        let answer = dispatch(app, &arrived, &body);
        drop(memory);
        answer
    })
    .await
}

/// Work on files and the database, which block, when there is a turn for it. Call it when the request is read to its
/// end, so that a client that sends slowly keeps nobody from working.
pub async fn in_turn<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&Arc<App>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let turn = tokio::time::timeout(TURN, app.working.clone().acquire_owned());
    let turn = turn
        .await
        .map_err(|_| ApiError::Busy)?
        .map_err(|_| ApiError::Stopping)?;
    let app = app.clone();
    tokio::task::spawn_blocking(move || {
        let done = work(&app);
        drop(turn);
        done
    })
    .await
    .map_err(|_| ApiError::BadRecord("the request could not be worked on".into()))?
}

/// The name under which the client knows this server.
pub fn host(app: &App, headers: &HeaderMap) -> String {
    let named = headers.get(header::HOST);
    let named = named.and_then(|host| host.to_str().ok());
    named.unwrap_or(&app.address).to_owned()
}

/// The path as it is meant: clients write the `+` of a portable data hash as `%2B`.
pub fn decoded(path: &str) -> Result<String> {
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

fn dispatch(app: &Arc<App>, arrived: &Arrived, body: &Bytes) -> Result<Response> {
    let path = arrived.path.as_str();
    if let Some(name) = block_name(path) {
        return block(app, arrived, name, body);
    }
    let rules = app.setting.rules;
    let writer = dialect::writer(rules, path);
    let params = Params::parse(arrived.query.as_deref(), &arrived.headers, body)
        .map_err(|problem| dialect::unreadable(writer, problem))?;
    let method = effective_method(arrived, &params)?;
    let host = host(app, &arrived.headers);
    match path {
        "/discovery/v1/apis/arvados/v1/rest" => {
            return Ok(axum_json(&api::discovery::document(app, &host)));
        }
        "/arvados/v1/config" => return Ok(axum_json(&api::public_config(app, &host))),
        faults::PATH if rules.faults => return fault(app, arrived, &params),
        _ => {}
    }
    app.faults.strike()?;
    let rest = path
        .strip_prefix("/arvados/v1/")
        .ok_or_else(ApiError::path_not_found)?;
    let token = request::token(&arrived.headers, &params).ok_or(ApiError::NotLoggedIn)?;
    let who = app.authenticate(&token)?;
    if !who.may(method.as_str(), path) {
        return Err(ApiError::OutOfScope);
    }
    let if_match = arrived
        .headers
        .get(header::IF_MATCH)
        .filter(|_| rules.if_match)
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
    api::route(&call, &method, rest).map(|reply| render(reply, writer, path, rules))
}

/// Faults that an administrator asks an emulated server for.
fn fault(app: &App, arrived: &Arrived, params: &Params) -> Result<Response> {
    let token = request::token(&arrived.headers, params).ok_or(ApiError::NotLoggedIn)?;
    if arrived.method != Method::POST || !app.authenticate(&token)?.is_admin {
        return Err(ApiError::denied());
    }
    let begun = app
        .faults
        .begin(&params.get("fault"), &params.get("seconds"))?;
    Ok(axum_json(&begun))
}

fn render(reply: Reply, writer: Writer, path: &str, rules: &Rules) -> Response {
    let body = match writer {
        Writer::Controller => dialect::rewritten(path, reply.body),
        Writer::Rails | Writer::Keepstore => reply.body,
    };
    let text = body.to_string();
    let tag = match (rules.if_match, writer) {
        (true, _) => reply.etag.map(|tag| format!("\"{tag}\"")),
        (false, Writer::Rails) => Some(dialect::weak_etag(&text)),
        (false, Writer::Controller | Writer::Keepstore) => None,
    };
    let mut response = json_text(text);
    if let Some(tag) = tag
        && let Ok(tag) = HeaderValue::from_str(&tag)
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
pub fn block_name(path: &str) -> Option<&str> {
    let name = path.strip_prefix('/')?;
    let hash = name.get(..32)?;
    let is_hash = hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hash && !name.contains('/')).then_some(name)
}

fn block(app: &App, arrived: &Arrived, name: &str, body: &Bytes) -> Result<Response> {
    let token = request::token(&arrived.headers, &Params::default()).unwrap_or_default();
    match arrived.method {
        Method::PUT => {
            let classes = arrived.headers.get("x-keep-storage-classes");
            let classes = classes.and_then(|names| names.to_str().ok()).unwrap_or("");
            protocol::put(app, name, &token, classes, body)
        }
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
    fn records_do_not_print_their_attributes() {
        let token = crate::record::Record::new()
            .with("uuid", "u")
            .with("api_token", "secret");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
