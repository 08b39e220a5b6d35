//! Routes HTTP requests: authenticates, reads bodies, and renders replies in the API's dialect.

use std::sync::{Arc, Weak};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use bytes::Bytes;
use host_state::allocator;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, header};
use http_body::Body as _;
use serde_json::json;

use crate::api::params::{self, Params};
use crate::api::{self, Call, Reply};
use crate::app::{self, App};
use crate::auth::Caller;
use crate::blocks::block_name;
use crate::emulation::dialect::{self, Responder};
use crate::emulation::{Emulate, faults};
use crate::error::{ApiError, Result};
use crate::http::body::{BufferedBody, UnreadBody};
use crate::http::cors::cors;
use crate::http::keep_blocks::BlockPut;
use crate::http::request_context::{Admission, RequestContext};
use crate::http::response::{json_response, json_text_response};
use crate::http::{block_upload, container_log, gateway_tunnel, keep_blocks, websocket};
use crate::limits::{ClientKey, MAX_BODY_BYTES};
use crate::store::writer::WriteOrigin;

const DISCOVERY_PATH: &str = "/discovery/v1/apis/arvados/v1/rest";
const CONFIG_PATH: &str = "/arvados/v1/config";
const VOCABULARY_PATH: &str = "/arvados/v1/vocabulary";
const METRICS_PATH: &str = "/metrics";
/// Paths that need no token.
const PUBLIC_PATHS: [&str; 3] = [DISCOVERY_PATH, CONFIG_PATH, VOCABULARY_PATH];
/// Maximum size in bytes of a response that is not counted as memory of its client.
const MAX_FREE_RESPONSE_BYTES: u64 = 64 << 10;
/// Sizes in bytes of parsed JSON and of a response in JSON whose memory is given back to the system
/// when the request ends.
const LARGE_BODY_BYTES: usize = 8 << 20;
const LARGE_RESPONSE_BYTES: u64 = 1 << 20;

pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/_health/ping", get(ping))
        .route(METRICS_PATH, get(metrics))
        .route("/websocket", get(websocket::open))
        .merge(gateway_routes())
        .fallback(any(handle))
        .layer(middleware::from_fn(cors))
        .with_state(app)
}

/// Routes below `/arvados/v1` whose responses are streamed.
fn gateway_routes() -> Router<Arc<App>> {
    let mut routes = Router::new();
    for resource in ["containers", "connect"] {
        let path = format!("/arvados/v1/{resource}/{{uuid}}/gateway_tunnel");
        routes = routes.route(&path, post(gateway_tunnel::open));
    }
    for tail in ["", "/", "/{*path}"] {
        let path = format!("/arvados/v1/container_requests/{{uuid}}/log{tail}");
        routes = routes.route(&path, any(container_log::log));
    }
    routes
}

async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    let mut context = RequestContext::from_request(&request);
    let result = handle_buffered(&app, &mut context, request).await;
    context.finish(&app, result)
}

async fn handle_buffered(
    app: &Arc<App>,
    context: &mut RequestContext,
    request: Request,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let mut body = UnreadBody::new(&parts.headers, body);
    let path = params::decode_path(parts.uri.path())?;
    let is_public = PUBLIC_PATHS.contains(&path.as_str());
    let admission = match is_public {
        true => Ok(context.admit_anonymous(app)),
        false => admit(app, context, &parts, &path, &mut body).await,
    };
    let admission = match admission {
        Ok(admission) => admission,
        Err(problem) => {
            body.discard();
            return Err(problem);
        }
    };
    if let Some(name) = block_name(&path)
        && parts.method == Method::PUT
        && body
            .announced()
            .is_none_or(|bytes| bytes > block_upload::PIECE_BYTES as u64)
    {
        let put = BlockPut::of(name, &parts.headers);
        return block_upload::put_block(app, &admission.share, put, body).await;
    }
    let body = if is_public {
        body.discard();
        BufferedBody::default()
    } else {
        let (limits, share) = (&app.limits, &admission.share);
        let mut body = body
            .read(limits, share, MAX_BODY_BYTES, app.transfer_timeout)
            .await?;
        if block_name(&path).is_none() {
            let is_form = params::is_form(&parts.headers);
            body.acquire_parsed(share, is_form).await?;
        }
        body
    };
    // Gone when the client is.
    let presence = Arc::new(());
    let buffered = BufferedRequest {
        method: parts.method,
        path,
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
        remote: context.remote(),
        admitted: admission.caller,
        presence: Arc::downgrade(&presence),
    };
    let response = app::run_blocking(app, &admission.share, move |app| {
        let response = route_buffered(app, &buffered, &body.bytes);
        let is_json = block_name(&buffered.path).is_none();
        let sent = response.as_ref().map_or(0, response_bytes);
        if is_json && (body.parsed_bytes >= LARGE_BODY_BYTES || sent >= LARGE_RESPONSE_BYTES) {
            // The next large request gets its memory only when this one's is given back.
            allocator::trim();
        }
        response
    })
    .await?;
    drop(presence);
    let size = response_bytes(&response);
    if size > MAX_FREE_RESPONSE_BYTES {
        let memory = app.limits.count_response(&admission.share, size).await?;
        context.hold_memory(memory);
    }
    Ok(response)
}

/// Checks the token of a request before its body is read. The token is in the head, or at the
/// beginning of a form. Some requests for blocks are admitted without a valid token.
async fn admit(
    app: &Arc<App>,
    context: &mut RequestContext,
    parts: &Parts,
    path: &str,
    body: &mut UnreadBody,
) -> Result<Admission> {
    let emulate = app.config.emulate;
    let is_block = block_name(path).is_some();
    let is_fault = emulate.is_arvados() && path == faults::FAULT_PATH;
    if !is_block && !is_fault && !path.starts_with("/arvados/v1/") {
        return Err(ApiError::path_not_found());
    }
    let params = Params::parse(parts.uri.query(), &parts.headers, &[])?;
    let mut token = params::token(&parts.headers, &params);
    if token.is_none() && !is_block && params::is_form(&parts.headers) {
        let (beginning, is_whole) = body.peek().await?;
        token = params::form_token(beginning, is_whole);
    }
    // Arvados checks the signature of a block instead.
    let may_be_anonymous = is_block && emulate.is_arvados();
    match context.admit(app, token).await {
        Err(ApiError::NotLoggedIn) if may_be_anonymous => Ok(context.admit_anonymous(app)),
        admitted => admitted,
    }
}

/// A request whose body has been read.
struct BufferedRequest {
    method: Method,
    path: String,
    query: Option<String>,
    headers: HeaderMap,
    remote: String,
    /// Who was admitted; `None` without a valid token.
    admitted: Option<Caller>,
    /// Exists while the client waits for the response.
    presence: Weak<()>,
}

impl BufferedRequest {
    /// The caller whose token was admitted, whatever the body says. The token is checked again,
    /// because it may have been revoked while the body was read.
    fn authenticate(&self, app: &App) -> Result<Caller> {
        let admitted = self.admitted.as_ref().ok_or(ApiError::NotLoggedIn)?;
        app.authenticate(&admitted.presented_token)
    }
}

/// Size in bytes of a response; 0 if it is sent in pieces.
fn response_bytes(response: &Response) -> u64 {
    response.body().size_hint().exact().unwrap_or(0)
}

fn route_buffered(app: &Arc<App>, buffered: &BufferedRequest, body: &Bytes) -> Result<Response> {
    let path = buffered.path.as_str();
    if let Some(name) = block_name(path) {
        return handle_block(app, buffered, name, body);
    }
    let emulate = app.config.emulate;
    let responder = dialect::responder_for(emulate, path);
    let params = Params::parse(buffered.query.as_deref(), &buffered.headers, body)
        .map_err(|problem| dialect::body_error(responder, problem))?;
    let method = effective_method(buffered, &params)?;
    let host = params::client_facing_host(&buffered.headers, &app.address);
    match path {
        DISCOVERY_PATH => {
            let mut response = json_text_response(api::discovery::text(app, &host));
            if emulate.is_arvados() {
                dialect::date_of_cache(&mut response);
            }
            return Ok(response);
        }
        CONFIG_PATH => return Ok(json_response(&api::public_config(app, &host))),
        VOCABULARY_PATH => return Ok(json_response(&api::vocabulary())),
        faults::FAULT_PATH if emulate.is_arvados() => {
            let caller = buffered.authenticate(app)?;
            return start_fault(app, &buffered.method, &caller, &params);
        }
        _ => {}
    }
    app.faults.inject()?;
    let rest = path
        .strip_prefix("/arvados/v1/")
        .ok_or_else(ApiError::path_not_found)?;
    let caller = buffered.authenticate(app)?;
    if !caller.may_request(method.as_str(), path) {
        return Err(ApiError::OutOfScope);
    }
    let if_match = buffered
        .headers
        .get(header::IF_MATCH)
        .filter(|_| !emulate.is_arvados())
        .and_then(|tag| tag.to_str().ok())
        .map(str::to_owned);
    let call = Call {
        app: app.clone(),
        origin: WriteOrigin::client(ClientKey::of(&caller), buffered.presence.clone()),
        caller,
        params,
        if_match,
        host,
        remote: buffered.remote.clone(),
    };
    api::route(&call, &method, rest).map(|reply| render(reply, responder, path, emulate))
}

/// Starts a fault of an emulated server for an administrator.
fn start_fault(app: &App, method: &Method, caller: &Caller, params: &Params) -> Result<Response> {
    if method != Method::POST || !caller.is_admin {
        return Err(ApiError::denied("only an administrator may start a fault"));
    }
    let started = app
        .faults
        .start(&params.get("fault"), &params.get("seconds"))?;
    Ok(json_response(&started))
}

fn render(reply: Reply, responder: Responder, path: &str, emulate: Emulate) -> Response {
    let body = match responder {
        Responder::Controller => dialect::rewrite_body(path, reply.body),
        Responder::Rails | Responder::Keepstore => reply.body,
    };
    let text = body.to_string();
    let tag = match (emulate, responder) {
        (Emulate::None, _) => reply.etag.map(|tag| format!("\"{tag}\"")),
        (Emulate::Arvados3, Responder::Rails) => Some(dialect::weak_etag(&text)),
        (Emulate::Arvados3, Responder::Controller | Responder::Keepstore) => None,
    };
    let mut response = json_text_response(text);
    if let Some(tag) = tag
        && let Ok(tag) = HeaderValue::from_str(&tag)
    {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// The method of the request, which long queries send as an override of POST.
fn effective_method(buffered: &BufferedRequest, params: &Params) -> Result<Method> {
    if buffered.method != Method::POST {
        return Ok(buffered.method.clone());
    }
    let named = buffered
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

fn handle_block(
    app: &App,
    buffered: &BufferedRequest,
    name: &str,
    body: &Bytes,
) -> Result<Response> {
    match buffered.method {
        Method::PUT => keep_blocks::put_block(app, &BlockPut::of(name, &buffered.headers), body),
        Method::GET | Method::HEAD => {
            let token = params::token(&buffered.headers, &Params::default()).unwrap_or_default();
            keep_blocks::get_block(app, &buffered.method, name, &token)
        }
        _ => Err(ApiError::path_not_found()),
    }
}

async fn ping(State(app): State<Arc<App>>, request: Request) -> Response {
    let context = RequestContext::from_request(&request);
    context.track(&app, json_response(&json!({"health": "OK"})))
}

async fn metrics(State(app): State<Arc<App>>, request: Request) -> Response {
    let mut context = RequestContext::from_request(&request);
    let (parts, _) = request.into_parts();
    let result = render_metrics(&app, &mut context, &parts).await;
    context.finish(&app, result)
}

/// The metrics, for an administrator: they tell how much all users run.
async fn render_metrics(
    app: &Arc<App>,
    context: &mut RequestContext,
    parts: &Parts,
) -> Result<Response> {
    let params = Params::parse(parts.uri.query(), &parts.headers, &[])?;
    let token = params::token(&parts.headers, &params);
    let admission = context.admit(app, token).await?;
    let is_permitted = |caller: Caller| caller.is_admin && caller.may_request("GET", METRICS_PATH);
    if !admission.caller.is_some_and(is_permitted) {
        return Err(ApiError::denied("metrics are for an administrator"));
    }
    let render = |app: &Arc<App>| app.metrics.render(&app.readers, app.tunnels.count());
    let text = app::run_blocking(app, &admission.share, render).await?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
