//! The list of Keep services of a cluster, refreshed from the API server: services move, and a
//! cached list may be old.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::service::{Service, ServiceError};
use crate::client::Client;
use crate::records::KeepService;

/// Timeout of a refresh, during which a block waits.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(5);

/// List of Keep services, shared by all clients of a cluster.
#[derive(Debug)]
pub struct ServiceList {
    current: RwLock<Arc<[Service]>>,
    /// Where the list is refreshed from; `None` for services from the configuration.
    server: Option<Client>,
}

impl ServiceList {
    /// A list that never changes.
    pub fn fixed(services: Vec<Service>) -> Self {
        Self {
            current: RwLock::new(services.into()),
            server: None,
        }
    }

    /// The services of the endpoint of `client`, else `listed`, an earlier list of the server.
    pub fn for_client(client: &Client, listed: &[KeepService]) -> Result<Self, ServiceError> {
        let named = &client.endpoint().keep_services;
        if !named.is_empty() {
            return Ok(Self::fixed(Service::from_urls(&named.join(" "))?));
        }
        Ok(Self {
            current: RwLock::new(services(listed)?.into()),
            server: Some(client.clone()),
        })
    }

    /// The current list.
    pub fn current(&self) -> Arc<[Service]> {
        self.current.read().clone()
    }

    /// Fetches the list from the API server, once. Returns whether it has changed; an error changes
    /// nothing.
    pub(super) async fn refresh(&self) -> bool {
        let Some(client) = &self.server else {
            return false;
        };
        let reply = tokio::time::timeout(REFRESH_TIMEOUT, client.keep_services()).await;
        let Ok(answer) = reply else {
            return false;
        };
        let listed = answer.and_then(|listed| Ok(services(&listed)?));
        match listed {
            Ok(listed) => {
                let mut current = self.current.write();
                let is_new = **current != *listed;
                *current = listed.into();
                is_new
            }
            Err(error) => {
                tracing::debug!(%error, "cannot refresh the list of Keep services");
                false
            }
        }
    }
}

fn services(listed: &[KeepService]) -> Result<Vec<Service>, ServiceError> {
    listed.iter().map(Service::of).collect()
}
