//! `POST containers/UUID/gateway_tunnel`, also as `connect/UUID/gateway_tunnel`: crunch-run opens a
//! tunnel to its gateway.
//!
//! Input: the form field `auth_secret` and the header `Upgrade: tunnel`. The secret is derived from
//! the root token, as with Arvados, or chosen by a client whose token holds the container's lock.

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

use crate::api::params::{self, Params};
use crate::app::{self, App, wait_for_stop};
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::gateway::secret::GatewaySecret;
use crate::gateway::tunnel::{Tunnel, TunnelGrant, carry};
use crate::http::body::UnreadBody;
use crate::http::request_context::RequestContext;
use crate::schema::{CONTAINERS, TOKENS};

/// Timeout of the protocol upgrade after the response.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of checks whether the token and the container still permit the tunnel.
const GRANT_CHECK_INTERVAL: Duration = Duration::from_secs(5);

pub async fn open(
    State(app): State<Arc<App>>,
    Path(container): Path<String>,
    request: Request,
) -> Response {
    let mut context = RequestContext::from_request(&request);
    let result = accept(&app, &mut context, container, request).await;
    context.finish(&app, result)
}

async fn accept(
    app: &Arc<App>,
    context: &mut RequestContext,
    container: String,
    mut request: Request,
) -> Result<Response> {
    let upgrade = request
        .extensions_mut()
        .remove::<OnUpgrade>()
        .filter(|_| wants_tunnel(&request))
        .ok_or_else(|| ApiError::BadRequest("the request must have Upgrade: tunnel".into()))?;
    let (parts, sent) = request.into_parts();
    let form = UnreadBody::new(&parts.headers, sent).read_small().await?;
    let params = Params::parse(parts.uri.query(), &parts.headers, &form)?;
    let token = params::token(&parts.headers, &params);
    let secret = params.text("auth_secret").unwrap_or_default();
    let secret = GatewaySecret::from_client(&secret).ok_or(ApiError::NotLoggedIn)?;
    let share = match context.admit(app, token.clone()).await {
        Ok(admission) => admission.share,
        Err(ApiError::NotLoggedIn) => context.admit_anonymous(app).share,
        Err(problem) => return Err(problem),
    };
    let (tunnel, stream_requests) = app::run_blocking(app, &share, move |app| {
        let grant = grant(app, container, token, &secret)?;
        Ok(Tunnel::new(secret, grant))
    })
    .await?;
    let slot = app.tunnels.reserve(&tunnel.grant.container)?;
    let host = params::client_facing_host(&parts.headers, &app.address);
    // Registered before the response: its receiver may ask for the log immediately.
    app.tunnels.insert(&tunnel.grant.container, tunnel.clone());
    info!(
        container = tunnel.grant.container,
        "opened a gateway tunnel"
    );
    tokio::spawn(carry_until_end(
        app.clone(),
        tunnel,
        stream_requests,
        upgrade,
        slot,
    ));
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

/// Determines the permission for the tunnel.
fn grant(
    app: &App,
    container: String,
    token: Option<String>,
    secret: &GatewaySecret,
) -> Result<TunnelGrant> {
    let derived = root_tokens(app)?
        .iter()
        .any(|root| GatewaySecret::derive(root, &container).matches(secret));
    let grant = match (derived, token) {
        (true, token) => TunnelGrant {
            container,
            token: token.filter(|token| app.authenticate(token).is_ok()),
            must_hold_lock: false,
        },
        (false, Some(token)) if !app.config.emulate.is_arvados() => TunnelGrant {
            container,
            token: Some(token),
            must_hold_lock: true,
        },
        (false, _) => return Err(ApiError::NotLoggedIn),
    };
    match is_valid(app, &grant) {
        true => Ok(grant),
        false => Err(ApiError::NotLoggedIn),
    }
}

/// The root token in each form that dispatchers may have it in.
fn root_tokens(app: &App) -> Result<Vec<String>> {
    let uuid = format!("{}-gj3su-000000000000000", app.config.cluster_id);
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

/// Whether the container is locked or running and the token still permits the tunnel.
pub fn is_valid(app: &App, grant: &TunnelGrant) -> bool {
    let caller = match &grant.token {
        None => None,
        Some(token) => match app.authenticate(token) {
            Ok(caller) => Some(caller),
            Err(_) => return false,
        },
    };
    let found = app
        .readers
        .read(|connection| rows::fetch(connection, &CONTAINERS, &grant.container));
    let Ok(Some(container)) = found else {
        return false;
    };
    let is_held = matches!(container.text("state"), "Locked" | "Running");
    let holder = container.some_text("locked_by_uuid");
    let holds = caller.is_some_and(|caller| holder == Some(caller.token_uuid.as_str()));
    is_held && (holds || !grant.must_hold_lock)
}

/// Runs the tunnel until it is closed, no longer permitted, or the server stops.
async fn carry_until_end(
    app: Arc<App>,
    tunnel: Arc<Tunnel>,
    stream_requests: mpsc::Receiver<oneshot::Sender<Stream>>,
    upgrade: OnUpgrade,
    slot: OwnedSemaphorePermit,
) {
    let mut stop = app.stop.subscribe();
    let carried = async {
        match timeout(UPGRADE_TIMEOUT, upgrade).await {
            Ok(Ok(connection)) => carry(TokioIo::new(connection), stream_requests).await,
            _ => debug!("the client did not complete the upgrade to a gateway tunnel"),
        }
    };
    tokio::select! {
        () = carried => {}
        () = tunnel.cancel.cancelled() => {}
        () = wait_until_invalid(&app, &tunnel.grant) => {}
        () = wait_for_stop(&mut stop) => {}
    }
    app.tunnels.remove(&tunnel.grant.container, &tunnel);
    info!(
        container = tunnel.grant.container,
        "closed a gateway tunnel"
    );
    drop(slot);
}

async fn wait_until_invalid(app: &Arc<App>, grant: &TunnelGrant) {
    let mut tick = interval(GRANT_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let (app, grant) = (app.clone(), grant.clone());
        let check = tokio::task::spawn_blocking(move || is_valid(&app, &grant));
        if !check.await.unwrap_or(false) {
            return;
        }
    }
}
