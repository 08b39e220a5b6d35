//! Calls about the server and Keep.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use serde_json::json;

use super::NewLog;
use crate::client::{Call, Client};
use crate::error::Error;
use crate::keep::{KeepClient, KeepOptions, ServiceList};
use crate::records::{Discovery, KeepService, Page};

impl Client {
    /// Fetches the discovery document.
    pub async fn discovery(&self) -> Result<Discovery, Error> {
        self.get("/discovery/v1/apis/arvados/v1/rest").await
    }

    /// The server's clock, to a second: the `Date` of an answer. `None` if the server does not
    /// answer or does not send the time.
    ///
    /// It asks for the user without a token. Arvados answers 401 and computes that anew; it keeps
    /// the discovery document for minutes, together with its `Date`.
    pub async fn server_time(&self) -> Option<Timestamp> {
        let endpoint = self.endpoint();
        let url = format!("https://{}/arvados/v1/users/current", endpoint.host);
        let request = self.http().get(url).timeout(endpoint.call_timeout);
        let answer = request.send().await.ok()?;
        let date = answer.headers().get("date")?.to_str().ok()?;
        DateTimeParser::new().parse_timestamp(date).ok()
    }

    /// Lists the Keep services for this token.
    pub async fn keep_services(&self) -> Result<Vec<KeepService>, Error> {
        let page: Page<KeepService> = self.get("keep_services/accessible").await?;
        Ok(page.items)
    }

    /// Creates a log entry.
    pub async fn create_log(&self, new: &NewLog) -> Result<(), Error> {
        self.done(Call::post("logs", json!({"log": new}))).await
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
        let (http, token) = (self.http().clone(), self.endpoint().token.clone());
        Ok(KeepClient::new(http, token, services, options))
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

    /// Whether a Cancelled container with `permanentFailure` in its `runtime_status` ends its
    /// requests, which dispatch-api announces. Arvados runs such a container again, and does not
    /// have this key.
    pub fn ends_permanent_failures(&self) -> bool {
        self.announces("permanentFailures", "end-requests")
    }

    /// Whether crunch-run is to leave out entries of an output that cannot be saved, which
    /// dispatch-api announces. With Arvados such an entry costs the whole output.
    pub fn takes_partial_outputs(&self) -> bool {
        self.announces("badOutputEntries", "leave-out")
    }

    /// Whether the server has a key of the extensions of dispatch-api with this value.
    pub fn announces(&self, key: &str, value: &str) -> bool {
        self.extra.get(key).and_then(|value| value.as_str()) == Some(value)
    }
}
