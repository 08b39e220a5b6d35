//! Calls about the server and ourselves.

use std::sync::Arc;

use serde_json::{Value, json};

use super::NewLog;
use crate::client::{Call, Client};
use crate::error::Error;
use crate::keep::{KeepClient, KeepOptions, ServiceList};
use crate::records::{Discovery, KeepService, Page, User};

impl Client {
    /// What this server is.
    pub async fn discovery(&self) -> Result<Discovery, Error> {
        self.send(Call::get("/discovery/v1/apis/arvados/v1/rest"))
            .await
    }

    /// Who we are.
    pub async fn current_user(&self) -> Result<User, Error> {
        self.send(Call::get("users/current")).await
    }

    /// Where blocks are kept, for this token.
    pub async fn keep_services(&self) -> Result<Vec<KeepService>, Error> {
        let page: Page<KeepService> = self.send(Call::get("keep_services/accessible")).await?;
        Ok(page.items)
    }

    /// Writes an entry to the server's `logs`.
    pub async fn create_log(&self, new: &NewLog) -> Result<(), Error> {
        let body = json!({"log": new});
        self.send::<Value>(Call::post("logs", body)).await.map(drop)
    }

    /// How blocks are to be stored on this cluster: the defaults, with the copies the cluster wants of each.
    pub async fn keep_options(&self) -> Result<KeepOptions, Error> {
        Ok(self.discovery().await?.keep_options())
    }

    /// A Keep client for this token: the services the endpoint names, else those the server lists.
    pub async fn keep(&self, options: KeepOptions) -> Result<KeepClient, Error> {
        let listed = match self.endpoint().keep_services.is_empty() {
            true => self.keep_services().await?,
            false => Vec::new(),
        };
        self.keep_of(&listed, options)
    }

    /// The same, with services that the server listed before.
    pub fn keep_of(
        &self,
        listed: &[KeepService],
        options: KeepOptions,
    ) -> Result<KeepClient, Error> {
        let services = Arc::new(ServiceList::of(self, listed)?);
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
    /// How blocks are to be stored: the defaults, with the copies the cluster wants of each.
    pub fn keep_options(&self) -> KeepOptions {
        KeepOptions {
            replicas: self.default_collection_replication.max(1),
            ..KeepOptions::default()
        }
    }
}
