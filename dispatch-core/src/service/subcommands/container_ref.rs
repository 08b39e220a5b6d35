//! References to a container. Input: a container's uuid or a container request's, because users
//! have either; output: the container's record.

use arvados_client::ids::IdError;
use arvados_client::records::Container;
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid, Error};

/// A container, named by its own uuid or by a request's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerRef {
    /// Uuid of the container.
    Container(ContainerUuid),
    /// Uuid of a request for the container.
    Request(ContainerRequestUuid),
}

/// The reason for which the container cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum ContainerRefError {
    /// The server has no such record.
    #[error("{0} does not exist, or this token may not read it")]
    Missing(String),
    /// The request has no container.
    #[error(
        "request {0} has no container: it is not committed (its state is {1}), or its priority is 0"
    )]
    NoContainer(ContainerRequestUuid, String),
    /// The API call failed.
    #[error(transparent)]
    Api(#[from] Error),
}

impl ContainerRef {
    /// Parses a uuid of either kind.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if let Ok(request) = ContainerRequestUuid::parse(text) {
            return Ok(Self::Request(request));
        }
        ContainerUuid::parse(text).map(Self::Container)
    }

    /// Fetches the container's record.
    pub async fn fetch(&self, client: &Client) -> Result<Container, ContainerRefError> {
        let container = match self {
            Self::Container(container) => container.clone(),
            Self::Request(uuid) => {
                let request = client.container_request(uuid).await;
                let request = request.map_err(|error| missing(error, "request", uuid.as_str()))?;
                let state = String::from(request.state);
                let none = || ContainerRefError::NoContainer(uuid.clone(), state);
                request.container_uuid.ok_or_else(none)?
            }
        };
        let record = client.container(&container).await;
        record.map_err(|error| missing(error, "container", container.as_str()))
    }
}

fn missing(error: Error, kind: &str, uuid: &str) -> ContainerRefError {
    match error.is_not_found() {
        true => ContainerRefError::Missing(format!("{kind} {uuid}")),
        false => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_are_understood() {
        let container = "zzzzz-dz642-queuedcontainer";
        let request = "zzzzz-xvhdp-cr4queuedcontnr";
        assert!(matches!(
            ContainerRef::parse(container),
            Ok(ContainerRef::Container(_))
        ));
        assert!(matches!(
            ContainerRef::parse(request),
            Ok(ContainerRef::Request(_))
        ));
        for neither in ["zzzzz-4zz18-000000000000000", "5", ""] {
            assert!(ContainerRef::parse(neither).is_err(), "{neither}");
        }
    }
}
