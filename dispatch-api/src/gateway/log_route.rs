//! `…/container_requests/REQUEST/log/CONTAINER/FILE`: the log of a container, from its gateway while it runs, else from
//! what was saved of it.

use std::sync::Arc;

use arvados_client::manifest::{FileTree, Manifest};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use tracing::warn;

use super::open;
use super::proxy::{self, Wanted};
use super::saved::{self, ALLOWED, Saved};
use super::tunnel::Tunnel;
use crate::app::App;
use crate::auth::permission;
use crate::body;
use crate::clock;
use crate::collection::store;
use crate::db::rows;
use crate::edge;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::request::{self, Params};
use crate::schema::{COLLECTIONS, CONTAINER_REQUESTS, CONTAINERS};
use crate::ticket::Ticket;

const REQUESTS: &str = "/arvados/v1/container_requests/";
/// Maximum number of bytes of a PROPFIND's body, which says what a client would like to know.
const MAX_QUESTION: u64 = 64 << 10;

pub async fn log(State(app): State<Arc<App>>, request: Request) -> Response {
    let ticket = Ticket::of(&request);
    let done = answer(&app, request).await;
    let mut response = ticket.close(&app, done);
    if response.status() == StatusCode::UNAUTHORIZED {
        // WebDAV clients ask their user for a password then.
        let basic = HeaderValue::from_static("Basic realm=\"collections\"");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, basic);
    }
    response
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response> {
    let (parts, sent) = request.into_parts();
    if !ALLOWED.split(", ").any(|method| parts.method == method) {
        let headers = [(header::ALLOW, ALLOWED)];
        return Ok((StatusCode::METHOD_NOT_ALLOWED, headers).into_response());
    }
    let (question, _memory) =
        body::read(&app.body_memory, &parts.headers, sent, MAX_QUESTION).await?;
    let asked = Asked::of(&parts)?;
    let look = |asked: Asked| edge::in_turn(app, move |app| find(app, &asked));
    let mut source = look(asked.clone()).await?;
    if let Some(tunnel) = source.tunnel {
        let wanted = Wanted {
            method: parts.method.clone(),
            target: target(&parts),
            headers: parts.headers.clone(),
            body: question,
            prefix: asked.prefix(),
        };
        match proxy::ask(&tunnel, wanted).await {
            Ok(response) => return Ok(response),
            Err(problem) => still_running(app, &tunnel, &problem).await?,
        }
        source = look(asked.clone()).await?;
    }
    if parts.method == Method::OPTIONS {
        return Ok(saved::abilities());
    }
    let saved = Saved {
        tree: asked.part_of(&source.manifest)?,
        prefix: asked.prefix(),
        path: asked.path.clone(),
        modified: source.modified,
    };
    saved.answer(app, &parts.method, &parts.headers)
}

fn target(parts: &Parts) -> String {
    let target = parts.uri.path_and_query();
    target.map_or_else(String::new, |target| target.as_str().to_owned())
}

/// A gateway that fails may belong to a container that has just ended; otherwise its failure is the answer.
async fn still_running(
    app: &Arc<App>,
    tunnel: &Arc<Tunnel>,
    problem: &proxy::ProxyError,
) -> Result<()> {
    let keeper = tunnel.keeper.clone();
    let runs = edge::in_turn(app, move |app| Ok(open::keeps(app, &keeper))).await?;
    if !runs {
        return Ok(());
    }
    warn!(container = tunnel.keeper.container, error = %problem, "the log cannot be had from the gateway");
    Err(ApiError::Gateway(problem.to_string()))
}

/// Whose log, and what of it.
#[derive(Clone)]
struct Asked {
    token: Option<String>,
    request: String,
    /// The container named in the path, if one is.
    container: Option<String>,
    /// What follows, decoded.
    path: String,
}

impl Asked {
    fn of(parts: &Parts) -> Result<Asked> {
        let path = edge::decoded(parts.uri.path())?;
        let (request, rest) = path
            .strip_prefix(REQUESTS)
            .and_then(|path| path.split_once("/log"))
            .ok_or_else(ApiError::path_not_found)?;
        let mut rest = rest.trim_matches('/');
        let (first, below) = rest.split_once('/').unwrap_or((rest, ""));
        let is_container = first.len() == 27 && first.get(5..12) == Some("-dz642-");
        if is_container {
            rest = below.trim_matches('/');
        }
        let params = Params::parse(parts.uri.query(), &parts.headers, &[])?;
        Ok(Asked {
            token: request::token(&parts.headers, &params),
            request: request.to_owned(),
            container: is_container.then(|| first.to_owned()),
            path: rest.to_owned(),
        })
    }

    /// The part of the URL's path that stands for the root of what is shown.
    fn prefix(&self) -> String {
        let log = format!("{REQUESTS}{}/log", self.request);
        match &self.container {
            Some(container) => format!("{log}/{container}"),
            None => log,
        }
    }

    /// The directory of the container in the request's log, or all of it.
    fn part_of(&self, manifest: &str) -> Result<FileTree> {
        let tree = Manifest::parse(manifest)
            .map_err(|problem| ApiError::BadRecord(problem.to_string()))?
            .tree();
        match &self.container {
            // What was never saved is empty.
            Some(container) => Ok(tree
                .subtree(&format!("log for container {container}"))
                .unwrap_or_default()),
            None => Ok(tree),
        }
    }
}

/// Where the log can be had from.
struct Source {
    tunnel: Option<Arc<Tunnel>>,
    /// Of the request's log collection; empty where there is none.
    manifest: String,
    modified: String,
}

/// Whoever may read the request may read the logs of all its containers.
fn find(app: &App, asked: &Asked) -> Result<Source> {
    let token = asked.token.as_deref().ok_or(ApiError::NotLoggedIn)?;
    let who = app.authenticate(token)?;
    let path = asked.prefix();
    if !who.may("GET", &path) {
        return Err(ApiError::OutOfScope);
    }
    let (current, log) = app.readers.read(|connection| {
        let request = permission::must_read(connection, &CONTAINER_REQUESTS, &who, &asked.request)?;
        let current = match request.some_text("container_uuid") {
            Some(uuid) if asked.container.as_deref() == Some(uuid) => {
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
        .filter(|log| !store::in_trash(log, &clock::now()))
        .unwrap_or_default();
    Ok(Source {
        tunnel: current.and_then(|container| tunnel_of(app, &container)),
        manifest: log.text("manifest_text").to_owned(),
        modified: clock::http_date(log.text("modified_at")),
    })
}

fn tunnel_of(app: &App, container: &Record) -> Option<Arc<Tunnel>> {
    let tunnel = app.tunnels.of(container.uuid())?;
    open::keeps(app, &tunnel.keeper).then_some(tunnel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str) -> Asked {
        let uri = format!("{REQUESTS}zzzzz-xvhdp-aaaaaaaaaaaaaaa{path}");
        let request = http::Request::builder().uri(uri).body(()).unwrap();
        Asked::of(&request.into_parts().0).unwrap()
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
            let asked = asked(path);
            assert_eq!(asked.container.as_deref(), container, "{path}");
            assert_eq!(asked.path, rest, "{path}");
        }
    }
}
