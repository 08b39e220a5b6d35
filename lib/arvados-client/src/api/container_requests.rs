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
        self.send(Call::get(format!("container_requests/{uuid}")))
            .await
    }

    /// Creates a request. With `state: Committed` its container exists when this returns.
    pub async fn create_container_request(
        &self,
        attributes: Value,
    ) -> Result<ContainerRequest, Error> {
        self.send(Call::post(
            "container_requests",
            json!({"container_request": attributes}),
        ))
        .await
    }

    /// Changes a request. After commit, only priority, name, description and properties can change.
    pub async fn update_container_request(
        &self,
        uuid: &ContainerRequestUuid,
        attributes: Value,
    ) -> Result<ContainerRequest, Error> {
        self.send(Call::put(
            format!("container_requests/{uuid}"),
            json!({"container_request": attributes}),
        ))
        .await
    }
}
