//! Which container somebody asks about: people have the name of a container's request as often as its own.

use arvados_client::ids::IdError;
use arvados_client::records::Container;
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid, Error};

/// A container, by its own name or by that of a request for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// By its own.
    Container(ContainerUuid),
    /// By that of its request.
    Request(ContainerRequestUuid),
}

/// Why there is no such container to tell of.
#[derive(Debug, thiserror::Error)]
pub enum AskedError {
    /// The server has none.
    #[error("there is no {0}, or this token may not see it")]
    Missing(String),
    /// The request has none.
    #[error(
        "request {0} has no container: it was not committed (its state is {1}), or nobody wants it"
    )]
    NoContainer(ContainerRequestUuid, String),
    /// The server did not tell.
    #[error(transparent)]
    Api(#[from] Error),
}

impl Asked {
    /// `text` as such a name.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if let Ok(request) = ContainerRequestUuid::parse(text) {
            return Ok(Self::Request(request));
        }
        ContainerUuid::parse(text).map(Self::Container)
    }

    /// Its record.
    pub async fn record(&self, client: &Client) -> Result<Container, AskedError> {
        let container = match self {
            Self::Container(container) => container.clone(),
            Self::Request(uuid) => {
                let request = client.container_request(uuid).await;
                let request = request.map_err(|error| missing(error, "request", uuid.as_str()))?;
                let state = String::from(request.state);
                let none = || AskedError::NoContainer(uuid.clone(), state);
                request.container_uuid.ok_or_else(none)?
            }
        };
        let record = client.container(&container).await;
        record.map_err(|error| missing(error, "container", container.as_str()))
    }
}

fn missing(error: Error, kind: &str, uuid: &str) -> AskedError {
    match error.is_not_found() {
        true => AskedError::Missing(format!("{kind} {uuid}")),
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
        assert!(matches!(Asked::parse(container), Ok(Asked::Container(_))));
        assert!(matches!(Asked::parse(request), Ok(Asked::Request(_))));
        for neither in ["zzzzz-4zz18-000000000000000", "5", ""] {
            assert!(Asked::parse(neither).is_err(), "{neither}");
        }
    }
}
