//! The container gateway: serves the log of a container while it runs.
//!
//! crunch-run listens on no port. It opens a tunnel to the API server, and the server opens
//! streams in it when a user asks for live logs. All of it runs beside the container and can
//! neither delay nor fail it.
//!
//! In: the gateway secret, the log directory, the API client. Out: answers in the tunnel, and the
//! record's `gateway_address`.

mod answer;
mod listing;
mod request;
pub mod secret;
mod server;
mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use arvados_client::{Client, ContainerUuid};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use self::secret::GatewaySecret;
use self::server::Server;
pub use self::server::ServerError;
use self::tunnel::Tunnel;
use crate::logs::{LogDir, RunLog};

/// Maximum time that the update to Running waits for the first tunnel.
const ADDRESS_GRACE: Duration = Duration::from_secs(1);
/// Interval between attempts to write a `gateway_address` that the server did not take.
const ADDRESS_RETRY: Duration = Duration::from_secs(60);

/// State of the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TunnelState {
    /// The first connection is still being made.
    Pending,
    /// No connection was made yet.
    Failed,
    /// Connected once. The value is the newest `gateway_address`; it stays while a lost tunnel is
    /// reconnected.
    Made(String),
}

impl TunnelState {
    fn address(&self) -> Option<&str> {
        match self {
            Self::Made(address) => Some(address),
            Self::Pending | Self::Failed => None,
        }
    }
}

/// Input of a gateway.
#[derive(Debug)]
pub struct GatewayParts {
    /// With the attempt's token.
    pub client: Client,
    pub uuid: ContainerUuid,
    pub secret: GatewaySecret,
    pub logs: LogDir,
    pub run_log: RunLog,
}

/// A gateway in the background; dropping it ends it.
#[derive(Debug)]
pub struct Gateway {
    state: watch::Receiver<TunnelState>,
    _task: Option<AbortOnDropHandle<()>>,
}

impl Gateway {
    /// A gateway that serves nothing.
    pub fn off() -> Self {
        Self {
            state: watch::channel(TunnelState::Failed).1,
            _task: None,
        }
    }

    /// Creates the certificate and connects in the background.
    pub fn start(parts: GatewayParts) -> Result<Self, ServerError> {
        let server = Server::new(&parts.uuid, &parts.secret, parts.logs)?;
        let (sender, state) = watch::channel(TunnelState::Pending);
        let tunnel = Tunnel {
            client: parts.client,
            uuid: parts.uuid,
            secret: parts.secret,
            server: Arc::new(server),
            run_log: parts.run_log,
        };
        Ok(Self {
            state,
            _task: Some(AbortOnDropHandle::new(tokio::spawn(
                tunnel.keep_connected(sender),
            ))),
        })
    }

    /// Returns the record's `gateway_address` if a tunnel connects within a second.
    pub async fn address(&self) -> Option<String> {
        let mut state = self.state.clone();
        let known = timeout(
            ADDRESS_GRACE,
            state.wait_for(|state| *state != TunnelState::Pending),
        )
        .await;
        match known {
            Ok(Ok(state)) => state.address().map(str::to_owned),
            _ => None,
        }
    }

    /// Updates the record's `gateway_address` while the handle lives. The record has `recorded`
    /// already.
    pub fn update_address(
        &self,
        client: Client,
        uuid: ContainerUuid,
        recorded: Option<String>,
    ) -> AbortOnDropHandle<()> {
        let mut state = self.state.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut recorded = recorded;
            loop {
                let is_new = |state: &TunnelState| {
                    state.address().is_some() && state.address() != recorded.as_deref()
                };
                // An error means that the gateway is gone.
                let Ok(address) = state.wait_for(is_new).await.map(|state| state.clone()) else {
                    return;
                };
                let address = address.address().map(str::to_owned);
                let update = json!({"gateway_address": address});
                match client.update_container(&uuid, update).await {
                    Ok(()) => recorded = address,
                    Err(error) => {
                        tracing::debug!(container = %uuid, %error, "could not write gateway_address");
                        sleep(ADDRESS_RETRY).await;
                    }
                }
            }
        }))
    }
}
