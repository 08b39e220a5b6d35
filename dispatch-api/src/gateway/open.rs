//! `POST containers/UUID/gateway_tunnel`, also as `connect/UUID/gateway_tunnel`: a crunch-run offers its gateway.
//!
//! In: the form field `auth_secret` and `Upgrade: tunnel`. The secret is the one that is derived from the root token, as
//! with the real server, or one of the client's own choice whose token holds the container's lock.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, info};
use yamux::Stream;

use super::secret::Secret;
use super::tunnel::{Keeper, Tunnel, carry};
use crate::app::{App, stopped};
use crate::edge;
use crate::error::{ApiError, Result};
use crate::request::{self, Params};
use crate::schema::{CONTAINERS, TOKENS};
use crate::ticket::Ticket;
use crate::{body, db::rows};

/// Timeout of the change of protocol after its announcement.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between looks whether a tunnel is still kept by a live token and a running container.
const KEEPER_CHECK: Duration = Duration::from_secs(5);
/// Maximum number of bytes of the form.
const MAX_FORM: u64 = 64 << 10;

pub async fn open(
    State(app): State<Arc<App>>,
    Path(container): Path<String>,
    request: Request,
) -> Response {
    let ticket = Ticket::of(&request);
    let done = accept(&app, container, request).await;
    ticket.close(&app, done)
}

async fn accept(app: &Arc<App>, container: String, mut request: Request) -> Result<Response> {
    let upgrade = request
        .extensions_mut()
        .remove::<OnUpgrade>()
        .filter(|_| wants_tunnel(&request))
        .ok_or_else(|| ApiError::BadRequest("the request must have Upgrade: tunnel".into()))?;
    let (parts, sent) = request.into_parts();
    let (form, _memory) = body::read(&app.body_memory, &parts.headers, sent, MAX_FORM).await?;
    let params = Params::parse(parts.uri.query(), &parts.headers, &form)?;
    let token = request::token(&parts.headers, &params);
    let secret = params.text("auth_secret").unwrap_or_default();
    let secret = Secret::presented(&secret).ok_or(ApiError::NotLoggedIn)?;
    let (tunnel, orders) = edge::in_turn(app, move |app| {
        let keeper = keeper(app, container, token, &secret)?;
        Ok(Tunnel::new(secret, keeper))
    })
    .await?;
    let place = app.tunnels.reserve(&tunnel.keeper.container)?;
    let host = edge::host(app, &parts.headers);
    // Before the answer: whoever hears of it may ask for the log at once.
    app.tunnels.insert(&tunnel.keeper.container, tunnel.clone());
    info!(
        container = tunnel.keeper.container,
        "a gateway tunnel is open"
    );
    tokio::spawn(keep(app.clone(), tunnel, orders, upgrade, place));
    let headers = [
        (header::CONNECTION.as_str(), "upgrade".to_owned()),
        (header::UPGRADE.as_str(), "tunnel".to_owned()),
        ("x-arvados-internal-url", format!("https://{host}/")),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

fn wants_tunnel(request: &Request) -> bool {
    let wanted = request.headers().get(header::UPGRADE);
    wanted.is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"tunnel"))
}

/// By what right the tunnel may be opened.
fn keeper(app: &App, container: String, token: Option<String>, secret: &Secret) -> Result<Keeper> {
    let derived = root_tokens(app)?
        .iter()
        .any(|root| Secret::derived(root, &container).is(secret));
    let keeper = match (derived, token) {
        (true, token) => Keeper {
            container,
            token: token.filter(|token| app.authenticate(token).is_ok()),
            must_hold: false,
        },
        (false, Some(token)) if app.setting.rules.extensions => Keeper {
            container,
            token: Some(token),
            must_hold: true,
        },
        (false, _) => return Err(ApiError::NotLoggedIn),
    };
    match keeps(app, &keeper) {
        true => Ok(keeper),
        false => Err(ApiError::NotLoggedIn),
    }
}

/// The root token as dispatchers may be configured with it.
fn root_tokens(app: &App) -> Result<Vec<String>> {
    let uuid = format!("{}-gj3su-000000000000000", app.setting.cluster_id);
    let root = app
        .readers
        .read(|connection| rows::fetch(connection, &TOKENS, &uuid))?;
    Ok(root
        .into_iter()
        .flat_map(|root| {
            let secret = root.text("api_token").to_owned();
            [format!("v2/{uuid}/{secret}"), secret]
        })
        .collect())
}

/// Whether the container is locked or runs, and the token is as good as it was.
pub fn keeps(app: &App, keeper: &Keeper) -> bool {
    let who = match &keeper.token {
        None => None,
        Some(token) => match app.authenticate(token) {
            Ok(who) => Some(who),
            Err(_) => return false,
        },
    };
    let found = app
        .readers
        .read(|connection| rows::fetch(connection, &CONTAINERS, &keeper.container));
    let Ok(Some(container)) = found else {
        return false;
    };
    let is_held = matches!(container.text("state"), "Locked" | "Running");
    let holder = container.some_text("locked_by_uuid");
    let holds = who.is_some_and(|who| holder == Some(who.token_uuid.as_str()));
    is_held && (holds || !keeper.must_hold)
}

/// Carry the tunnel until it is cut, not wanted any more, or the server stops.
async fn keep(
    app: Arc<App>,
    tunnel: Arc<Tunnel>,
    orders: mpsc::Receiver<oneshot::Sender<Stream>>,
    upgrade: OnUpgrade,
    place: OwnedSemaphorePermit,
) {
    let mut stop = app.stopping();
    let carried = async {
        match timeout(UPGRADE_TIMEOUT, upgrade).await {
            Ok(Ok(connection)) => carry(TokioIo::new(connection), orders).await,
            _ => debug!("a gateway tunnel was announced and not made"),
        }
    };
    tokio::select! {
        () = carried => {}
        () = tunnel.end.cancelled() => {}
        () = until_not_kept(&app, &tunnel.keeper) => {}
        () = stopped(&mut stop) => {}
    }
    app.tunnels.remove(&tunnel.keeper.container, &tunnel);
    info!(
        container = tunnel.keeper.container,
        "a gateway tunnel has ended"
    );
    drop(place);
}

async fn until_not_kept(app: &Arc<App>, keeper: &Keeper) {
    let mut tick = interval(KEEPER_CHECK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let (app, keeper) = (app.clone(), keeper.clone());
        let look = tokio::task::spawn_blocking(move || keeps(&app, &keeper));
        if !look.await.unwrap_or(false) {
            return;
        }
    }
}
