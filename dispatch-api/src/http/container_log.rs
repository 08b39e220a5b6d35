//! `…/container_requests/REQUEST/log/CONTAINER/FILE`: the log of a container, from its gateway
//! while it runs, otherwise from the saved collection.

use std::sync::Arc;

use arvados_client::manifest::{FileTree, Manifest};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use tracing::warn;

use crate::api::params::{self, Params};
use crate::app::{self, App};
use crate::auth::Access;
use crate::clock;
use crate::db::rows;
use crate::db::trash;
use crate::error::{ApiError, Result};
use crate::gateway::proxy::{self, ProxyRequest};
use crate::gateway::saved_log::{self, ALLOWED_METHODS, SavedLog};
use crate::gateway::tunnel::Tunnel;
use crate::http::body::UnreadBody;
use crate::http::gateway_tunnel;
use crate::http::request_context::RequestContext;
use crate::limits::ClientShare;
use crate::record::Record;
use crate::schema::{COLLECTIONS, CONTAINER_REQUESTS, CONTAINERS};

const REQUESTS_PATH: &str = "/arvados/v1/container_requests/";
/// Maximum size in bytes of a PROPFIND body.
const MAX_PROPFIND_BODY_BYTES: u64 = 64 << 10;

pub async fn log(State(app): State<Arc<App>>, request: Request) -> Response {
    let mut context = RequestContext::from_request(&request);
    let result = respond(&app, &mut context, request).await;
    let mut response = context.finish(&app, result);
    if response.status() == StatusCode::UNAUTHORIZED {
        // Makes WebDAV clients ask their user for a password.
        let basic = HeaderValue::from_static("Basic realm=\"collections\"");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, basic);
    }
    response
}

async fn respond(
    app: &Arc<App>,
    context: &mut RequestContext,
    request: Request,
) -> Result<Response> {
    let (parts, sent) = request.into_parts();
    if !ALLOWED_METHODS
        .split(", ")
        .any(|method| parts.method == method)
    {
        let headers = [(header::ALLOW, ALLOWED_METHODS)];
        return Ok((StatusCode::METHOD_NOT_ALLOWED, headers).into_response());
    }
    let log_request = LogRequest::parse(&parts)?;
    let unread = UnreadBody::new(&parts.headers, sent);
    let share = match context.admit(app, log_request.token.clone()).await {
        Ok(admission) => admission.share,
        Err(problem) => {
            unread.discard();
            return Err(problem);
        }
    };
    let timeout = app.transfer_timeout;
    let body = unread
        .read(&app.limits, &share, MAX_PROPFIND_BODY_BYTES, timeout)
        .await?;
    let find_source = |log_request: LogRequest| {
        app::run_blocking(app, &share, move |app| find(app, &log_request))
    };
    let mut source = find_source(log_request.clone()).await?;
    if let Some(tunnel) = source.tunnel {
        let wanted = ProxyRequest {
            method: parts.method.clone(),
            // Without the query, which may have the reader's token.
            target: parts.uri.path().to_owned(),
            headers: parts.headers.clone(),
            body: body.bytes.clone(),
            prefix: log_request.prefix(),
        };
        match proxy::forward(&tunnel, wanted).await {
            Ok(response) => return Ok(response),
            Err(problem) => check_gateway_failure(app, &share, &tunnel, &problem).await?,
        }
        source = find_source(log_request.clone()).await?;
    }
    if parts.method == Method::OPTIONS {
        return Ok(saved_log::options_response());
    }
    app::run_blocking(app, &share, move |app| {
        let saved = SavedLog {
            tree: log_request.part_of(&source.manifest)?,
            prefix: log_request.prefix(),
            path: log_request.path.clone(),
            modified: source.modified,
        };
        saved.respond(&app.blocks, &parts.method, &parts.headers)
    })
    .await
}

/// Returns the gateway's error if the container is still locked or running; otherwise its log has
/// been saved.
async fn check_gateway_failure(
    app: &Arc<App>,
    share: &ClientShare,
    tunnel: &Arc<Tunnel>,
    problem: &proxy::ProxyError,
) -> Result<()> {
    let grant = tunnel.grant.clone();
    let runs = app::run_blocking(app, share, move |app| {
        Ok(gateway_tunnel::is_valid(app, &grant))
    })
    .await?;
    if !runs {
        return Ok(());
    }
    warn!(container = tunnel.grant.container, error = %problem, "cannot read the log from the container's gateway");
    Err(ApiError::Gateway(problem.to_string()))
}

/// The log and file that a request names.
#[derive(Clone)]
struct LogRequest {
    token: Option<String>,
    request: String,
    /// The container named in the path, if any.
    container: Option<String>,
    /// The rest of the path, decoded.
    path: String,
}

impl LogRequest {
    fn parse(parts: &Parts) -> Result<LogRequest> {
        let path = params::decode_path(parts.uri.path())?;
        let (request, rest) = path
            .strip_prefix(REQUESTS_PATH)
            .and_then(|path| path.split_once("/log"))
            .ok_or_else(ApiError::path_not_found)?;
        let mut rest = rest.trim_matches('/');
        let (first, below) = rest.split_once('/').unwrap_or((rest, ""));
        let is_container = first.len() == 27 && first.get(5..12) == Some("-dz642-");
        if is_container {
            rest = below.trim_matches('/');
        }
        let params = Params::parse(parts.uri.query(), &parts.headers, &[])?;
        Ok(LogRequest {
            token: params::token(&parts.headers, &params),
            request: request.to_owned(),
            container: is_container.then(|| first.to_owned()),
            path: rest.to_owned(),
        })
    }

    /// The URL path of the root of the served tree.
    fn prefix(&self) -> String {
        let log = format!("{REQUESTS_PATH}{}/log", self.request);
        match &self.container {
            Some(container) => format!("{log}/{container}"),
            None => log,
        }
    }

    /// The container's directory in the request's log, or the whole log.
    fn part_of(&self, manifest: &str) -> Result<FileTree> {
        let tree = Manifest::parse(manifest)
            .map_err(|problem| ApiError::BadRecord(problem.to_string()))?
            .tree();
        match &self.container {
            // A log that was never saved is empty.
            Some(container) => Ok(tree
                .subtree(&format!("log for container {container}"))
                .unwrap_or_default()),
            None => Ok(tree),
        }
    }
}

/// Sources of a log.
struct LogSource {
    tunnel: Option<Arc<Tunnel>>,
    /// The manifest of the request's log collection; empty without a collection.
    manifest: String,
    modified: String,
}

/// Finds the sources. Permission to read the request includes the logs of all its containers.
fn find(app: &App, log_request: &LogRequest) -> Result<LogSource> {
    let token = log_request.token.as_deref().ok_or(ApiError::NotLoggedIn)?;
    let caller = app.authenticate(token)?;
    let path = log_request.prefix();
    if !caller.may_request("GET", &path) {
        return Err(ApiError::OutOfScope);
    }
    let (current, log) = app.readers.read(|connection| {
        let request = Access::new(connection, &caller)
            .require_readable(&CONTAINER_REQUESTS, &log_request.request)?;
        let current = match request.some_text("container_uuid") {
            Some(uuid) if log_request.container.as_deref() == Some(uuid) => {
                rows::fetch(connection, &CONTAINERS, uuid)?
            }
            _ => None,
        };
        let log = match request.some_text("log_uuid") {
            Some(uuid) => rows::fetch(connection, &COLLECTIONS, uuid)?,
            None => None,
        };
        Ok((current, log))
    })?;
    let log = log
        .filter(|log| !trash::is_trashed(log, &clock::now()))
        .unwrap_or_default();
    Ok(LogSource {
        tunnel: current.and_then(|container| tunnel_of(app, &container)),
        manifest: log.text("manifest_text").to_owned(),
        modified: clock::http_date(log.text("modified_at")),
    })
}

fn tunnel_of(app: &App, container: &Record) -> Option<Arc<Tunnel>> {
    let tunnel = app.tunnels.get(container.uuid())?;
    gateway_tunnel::is_valid(app, &tunnel.grant).then_some(tunnel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_request(path: &str) -> LogRequest {
        let uri = format!("{REQUESTS_PATH}zzzzz-xvhdp-aaaaaaaaaaaaaaa{path}");
        let request = http::Request::builder().uri(uri).body(()).unwrap();
        LogRequest::parse(&request.into_parts().0).unwrap()
    }

    #[test]
    fn a_container_in_the_path_is_told_from_a_file() {
        const UUID: &str = "zzzzz-dz642-aaaaaaaaaaaaaaa";
        for (path, container, rest) in [
            ("/log", None, ""),
            ("/log/", None, ""),
            ("/log/stdout.txt", None, "stdout.txt"),
            (&format!("/log/{UUID}"), Some(UUID), ""),
            (&format!("/log/{UUID}/a%20b/c"), Some(UUID), "a b/c"),
            (&format!("/log/{UUID}x/c"), None, &format!("{UUID}x/c")),
        ] {
            let log_request = log_request(path);
            assert_eq!(log_request.container.as_deref(), container, "{path}");
            assert_eq!(log_request.path, rest, "{path}");
        }
    }
}
