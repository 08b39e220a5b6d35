//! The Keep services of a cluster as they are known, and as the API server lists them now: services move, and what
//! was known of them may be remembered from another day.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use super::service::{Service, ServiceError};
use crate::client::Client;
use crate::records::KeepService;

/// Maximum time that the API server is asked for the list while a block waits.
const REFRESH_BUDGET: Duration = Duration::from_secs(5);

/// Shared by all clients of one cluster's Keep.
#[derive(Debug)]
pub struct ServiceList {
    known: RwLock<Arc<[Service]>>,
    /// `None`: the services were named by a person, and nobody else knows of others.
    server: Option<Client>,
}

impl ServiceList {
    /// These services and no others.
    pub fn fixed(services: Vec<Service>) -> Self {
        Self {
            known: RwLock::new(services.into()),
            server: None,
        }
    }

    /// The services that the client's endpoint names, else `listed`, which the server said before.
    pub fn of(client: &Client, listed: &[KeepService]) -> Result<Self, ServiceError> {
        let named = &client.endpoint().keep_services;
        if !named.is_empty() {
            return Ok(Self::fixed(Service::from_urls(&named.join(" "))?));
        }
        Ok(Self {
            known: RwLock::new(services(listed)?.into()),
            server: Some(client.clone()),
        })
    }

    /// The services as they are known.
    pub fn known(&self) -> Arc<[Service]> {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Asks the API server, once. Whether it named others than those known until now; without an answer nothing
    /// changes.
    pub(super) async fn refresh(&self) -> bool {
        let Some(client) = &self.server else {
            return false;
        };
        let asked = tokio::time::timeout(REFRESH_BUDGET, client.keep_services()).await;
        let Ok(answer) = asked else {
            return false;
        };
        let listed = answer.and_then(|listed| Ok(services(&listed)?));
        match listed {
            Ok(listed) => {
                let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
                let is_new = **known != *listed;
                *known = listed.into();
                is_new
            }
            Err(error) => {
                tracing::debug!(%error, "the API server does not tell the Keep services");
                false
            }
        }
    }
}

fn services(listed: &[KeepService]) -> Result<Vec<Service>, ServiceError> {
    let services = listed.iter().map(|service| {
        Service::new(
            service.uuid.as_str(),
            &service.service_host,
            service.service_port,
            service.service_ssl_flag,
            &service.service_type,
            service.read_only,
        )
    });
    services.collect()
}
