//! Calls for container requests.

use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::error::Error;
use crate::ids::ContainerRequestUuid;
use crate::records::ContainerRequest;

impl Client {
    /// Fetches the complete record.
    pub async fn container_request(
        &self,
        uuid: &ContainerRequestUuid,
    ) -> Result<ContainerRequest, Error> {
        self.get(format!("container_requests/{uuid}")).await
    }

    /// Creates a request. With `state: Committed` its container exists when this returns.
    pub async fn create_container_request(
        &self,
        attributes: Value,
    ) -> Result<ContainerRequest, Error> {
        let body = json!({"container_request": attributes});
        self.send(Call::post("container_requests", body)).await
    }

    /// Changes a request. After commit, only priority, name, description and properties can change.
    pub async fn update_container_request(
        &self,
        uuid: &ContainerRequestUuid,
        attributes: Value,
    ) -> Result<ContainerRequest, Error> {
        let body = json!({"container_request": attributes});
        let path = format!("container_requests/{uuid}");
        self.send(Call::put(path, body)).await
    }
}
