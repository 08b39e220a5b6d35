//! Removes containers that killed attempts left with the daemon.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};
use tokio::time::Instant;

use super::create::LABEL;
use super::owner::{self, Owner};
use super::{DockerEngine, errors};
use crate::{EngineError, Recovered};

/// Time limit of podman's cleanup after the end of a container.
const PODMAN_CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for an orphan of another container.
const ORPHAN_CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl DockerEngine {
    /// Removes containers of earlier attempts at this container, and orphans: containers whose
    /// crunch-run is gone.
    pub(super) async fn remove_leftovers(&self, name: &str) -> Result<Recovered, EngineError> {
        let what = format!("what an earlier attempt at container {name} left cannot be removed");
        let mut removed = Vec::new();
        // An old daemon may ignore the filter; nothing without our label is touched.
        for found in self
            .find(&format!("{LABEL}={name}"), PODMAN_CLEANUP_TIMEOUT)
            .await?
        {
            if label(&found, LABEL) == Some(name)
                && let Some(id) = found.id
            {
                remove(self.client().await?, &id, PODMAN_CLEANUP_TIMEOUT)
                    .await
                    .map_err(|error| self.failed(&what, error))?;
                removed.push(format!("{} container {id}", self.flavour.name()));
            }
        }
        self.remove_orphans(self.client().await?).await;
        Ok(Recovered { removed })
    }

    /// Removes orphans of other containers. Their errors do not fail this container.
    async fn remove_orphans(&self, client: &Docker) {
        let found = match self.find(LABEL, ORPHAN_CLEANUP_TIMEOUT).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "cannot list orphaned containers of the daemon");
                return;
            }
        };
        for container in found {
            let owner = label(&container, owner::LABEL).and_then(|text| text.parse::<Owner>().ok());
            let (Some(uuid), Some(owner), Some(id)) =
                (label(&container, LABEL), owner, container.id.as_deref())
            else {
                continue;
            };
            if !owner.is_gone() {
                continue;
            }
            match remove(client, id, Duration::ZERO).await {
                // Another run is removing it.
                Err(error) if errors::is_conflict(&error) => {}
                Ok(()) => tracing::info!(
                    container = uuid,
                    "removed an orphaned container of the daemon: its crunch-run is gone"
                ),
                Err(error) => tracing::warn!(
                    container = uuid, %error, "cannot remove an orphaned container of the daemon"
                ),
            }
        }
    }

    /// All containers with a label, running or not.
    async fn find(
        &self,
        label: &str,
        timeout: Duration,
    ) -> Result<Vec<ContainerSummary>, EngineError> {
        let client = self.client().await?;
        let options = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&HashMap::from([("label", vec![label])]))
            .build();
        let until = Instant::now() + timeout;
        loop {
            match client.list_containers(Some(options.clone())).await {
                // A container is just ending and will have a valid state in a moment.
                Err(error) if errors::is_podmans_stopped(&error) && Instant::now() < until => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                answer => {
                    return answer
                        .map_err(|error| self.failed("it does not list its containers", error));
                }
            }
        }
    }
}

/// Removes a container. If another run is removing it, waits up to `timeout` until it is gone.
pub(super) async fn remove(client: &Docker, id: &str, timeout: Duration) -> Result<(), Error> {
    let options = RemoveContainerOptionsBuilder::new()
        .force(true)
        .v(true)
        .build();
    let until = Instant::now() + timeout;
    loop {
        match client.remove_container(id, Some(options.clone())).await {
            Err(error) if errors::is_gone(&error) => return Ok(()),
            Err(error) if errors::is_conflict(&error) && Instant::now() < until => {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            done => return done,
        }
    }
}

fn label<'a>(container: &'a ContainerSummary, name: &str) -> Option<&'a str> {
    container.labels.as_ref()?.get(name).map(String::as_str)
}
