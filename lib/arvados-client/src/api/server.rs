//! Calls about the server and Keep.

use std::sync::Arc;

use serde_json::{Value, json};

use super::NewLog;
use crate::client::{Call, Client};
use crate::error::Error;
use crate::keep::{KeepClient, KeepOptions, ServiceList};
use crate::records::{Discovery, KeepService, Page};

impl Client {
    /// Fetches the discovery document.
    pub async fn discovery(&self) -> Result<Discovery, Error> {
        self.send(Call::get("/discovery/v1/apis/arvados/v1/rest"))
            .await
    }

    /// Lists the Keep services for this token.
    pub async fn keep_services(&self) -> Result<Vec<KeepService>, Error> {
        let page: Page<KeepService> = self.send(Call::get("keep_services/accessible")).await?;
        Ok(page.items)
    }

    /// Creates a log entry.
    pub async fn create_log(&self, new: &NewLog) -> Result<(), Error> {
        let body = json!({"log": new});
        self.send::<Value>(Call::post("logs", body)).await.map(drop)
    }

    /// Keep options for this cluster: the defaults, with the default replication of the cluster.
    pub async fn keep_options(&self) -> Result<KeepOptions, Error> {
        Ok(self.discovery().await?.keep_options())
    }

    /// A Keep client for this token, with the services of the endpoint, else those the server
    /// lists.
    pub async fn keep(&self, options: KeepOptions) -> Result<KeepClient, Error> {
        let listed = match self.endpoint().keep_services.is_empty() {
            true => self.keep_services().await?,
            false => Vec::new(),
        };
        self.keep_with_services(&listed, options)
    }

    /// [`keep`](Self::keep) with services that the server listed before.
    pub fn keep_with_services(
        &self,
        listed: &[KeepService],
        options: KeepOptions,
    ) -> Result<KeepClient, Error> {
        let services = Arc::new(ServiceList::for_client(self, listed)?);
        let token = self.endpoint().token.clone();
        Ok(KeepClient::new(
            self.http().clone(),
            token,
            services,
            options,
        ))
    }
}

impl Discovery {
    /// Keep options: the defaults, with the default replication of the cluster.
    pub fn keep_options(&self) -> KeepOptions {
        KeepOptions {
            replicas: self.default_collection_replication.max(1),
            ..KeepOptions::default()
        }
    }
}
