//! References to a container. Input: a container's uuid, a container request's, or the number of a
//! job, because people have any of them; output: the container's record.

use arvados_client::records::{Container, RequestState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid, Error};

use crate::model::world::JobId;

/// A container, named by its own uuid, by a request's or by its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerRef {
    /// Uuid of the container.
    Container(ContainerUuid),
    /// Uuid of a request for the container.
    Request(ContainerRequestUuid),
    /// Number of a job of the scheduler, like 12, 12_3 or 12.0.
    Job(JobId),
}

/// Error: the text names no container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither the uuid of a container (xxxxx-dz642-…) or of a container request (xxxxx-xvhdp-…), nor the number of a job"
)]
pub struct RefError(String);

/// The reason for which the container cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum ContainerRefError {
    /// The server has no such record.
    #[error("{0} does not exist, or this token may not read it")]
    Missing(String),
    /// The request has no container.
    #[error(
        "request {0} has no container: it is not committed (its state is {1:?}), or its priority is 0"
    )]
    NoContainer(ContainerRequestUuid, RequestState),
    /// The scheduler has no such job of this dispatcher.
    #[error(
        "the scheduler knows no job {0} of this dispatcher; give the uuid of the container, which is the name of its job"
    )]
    NoSuchJob(String),
    /// The scheduler did not answer, so that the container of a job is not known.
    #[error("{0}; give the uuid of the container")]
    NoAnswer(String),
    /// The API call failed.
    #[error(transparent)]
    Api(#[from] Error),
}

impl ContainerRef {
    /// Parses a uuid of either kind, or a job number.
    pub fn parse(text: &str) -> Result<Self, RefError> {
        if let Ok(request) = ContainerRequestUuid::parse(text) {
            return Ok(Self::Request(request));
        }
        if let Ok(container) = ContainerUuid::parse(text) {
            return Ok(Self::Container(container));
        }
        let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
        let mut parts = text.split(['_', '.']);
        match parts.clone().count() <= 2 && parts.all(is_number) {
            true => Ok(Self::Job(JobId(text.to_owned()))),
            false => Err(RefError(text.to_owned())),
        }
    }

    /// Fetches the container's record. `container_of` finds the container of a job.
    pub async fn fetch(
        &self,
        client: &Client,
        container_of: impl AsyncFnOnce(&JobId) -> Result<Option<ContainerUuid>, String>,
    ) -> Result<Container, ContainerRefError> {
        let container = match self {
            Self::Container(container) => container.clone(),
            Self::Job(job) => {
                let found = container_of(job).await;
                let found = found.map_err(ContainerRefError::NoAnswer)?;
                found.ok_or_else(|| ContainerRefError::NoSuchJob(job.0.clone()))?
            }
            Self::Request(uuid) => {
                let request = client.container_request(uuid).await;
                let request = request.map_err(|error| missing(error, "request", uuid.as_str()))?;
                let none = || ContainerRefError::NoContainer(uuid.clone(), request.state);
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
    fn all_names_are_understood() {
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
        for job in ["5", "12_3", "12.0"] {
            let expected = ContainerRef::Job(JobId(job.to_owned()));
            assert_eq!(ContainerRef::parse(job), Ok(expected));
        }
        let odd = [
            "zzzzz-4zz18-000000000000000",
            "",
            "5_",
            ".5",
            "1.2.3",
            "-1",
            "5 6",
        ];
        for neither in odd {
            assert!(ContainerRef::parse(neither).is_err(), "{neither}");
        }
    }
}
