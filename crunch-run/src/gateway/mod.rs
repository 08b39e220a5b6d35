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
use crate::logs::{Journal, LogDir};

/// Maximum time that the update to Running waits for the first tunnel.
const ADDRESS_GRACE: Duration = Duration::from_secs(1);
/// Interval between attempts to write a `gateway_address` that the server did not take.
const ADDRESS_RETRY: Duration = Duration::from_secs(60);

/// What is known of the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Link {
    /// The first connection is still being made.
    Pending,
    /// There has been none yet.
    Failed,
    /// The `gateway_address` of the newest one. It stays while a cut tunnel is made again.
    Made(String),
}

impl Link {
    fn address(&self) -> Option<&str> {
        match self {
            Self::Made(address) => Some(address),
            Self::Pending | Self::Failed => None,
        }
    }
}

/// What a gateway needs.
#[derive(Debug)]
pub struct GatewayParts {
    /// With the attempt's token.
    pub client: Client,
    pub uuid: ContainerUuid,
    pub secret: GatewaySecret,
    pub logs: LogDir,
    pub journal: Journal,
}

/// A gateway in the background; dropping it ends it.
#[derive(Debug)]
pub struct Gateway {
    link: watch::Receiver<Link>,
    _task: Option<AbortOnDropHandle<()>>,
}

impl Gateway {
    /// No gateway.
    pub fn off() -> Self {
        Self {
            link: watch::channel(Link::Failed).1,
            _task: None,
        }
    }

    /// Makes the certificate, and connects in the background.
    pub fn start(parts: GatewayParts) -> Result<Self, ServerError> {
        let server = Server::new(&parts.uuid, &parts.secret, parts.logs)?;
        let (tell, link) = watch::channel(Link::Pending);
        let tunnel = Tunnel {
            client: parts.client,
            uuid: parts.uuid,
            secret: parts.secret,
            server: Arc::new(server),
            journal: parts.journal,
        };
        Ok(Self {
            link,
            _task: Some(AbortOnDropHandle::new(tokio::spawn(
                tunnel.keep_connected(tell),
            ))),
        })
    }

    /// The record's `gateway_address`, if there is a tunnel within a moment.
    pub async fn address(&self) -> Option<String> {
        let mut link = self.link.clone();
        let known = timeout(ADDRESS_GRACE, link.wait_for(|link| *link != Link::Pending)).await;
        match known {
            Ok(Ok(link)) => link.address().map(str::to_owned),
            _ => None,
        }
    }

    /// Keeps the record's `gateway_address` true while the handle lives. The record says `told`
    /// already.
    pub fn keep_address(
        &self,
        client: Client,
        uuid: ContainerUuid,
        told: Option<String>,
    ) -> AbortOnDropHandle<()> {
        let mut link = self.link.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut told = told;
            loop {
                let is_new =
                    |link: &Link| link.address().is_some() && link.address() != told.as_deref();
                // An error: there is no gateway any more.
                let Ok(address) = link.wait_for(is_new).await.map(|link| link.clone()) else {
                    return;
                };
                let address = address.address().map(str::to_owned);
                let update = json!({"gateway_address": address});
                match client.update_container(&uuid, update).await {
                    Ok(()) => told = address,
                    Err(error) => {
                        tracing::debug!(container = %uuid, %error, "gateway_address is not written");
                        sleep(ADDRESS_RETRY).await;
                    }
                }
            }
        }))
    }
}
