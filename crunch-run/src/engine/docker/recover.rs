//! Removes what killed attempts left with the daemon.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, RemoveContainerOptionsBuilder};
use tokio::time::Instant;

use super::create::LABEL;
use super::owner::{self, Owner};
use super::{DockerEngine, messages};
use crate::engine::{EngineError, Recovered};

/// How long podman may need to tidy up after the end of a container.
const ENDING: Duration = Duration::from_secs(30);
/// The same, of a container that is none of ours.
const OTHERS_ENDING: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(50);

impl DockerEngine {
    /// Everything of earlier attempts at this container, and whatever container's crunch-run is gone.
    pub(super) async fn remove_left_overs(&self, name: &str) -> Result<Recovered, EngineError> {
        let what = format!("what an earlier attempt at container {name} left cannot be removed");
        let mut removed = Vec::new();
        // An old daemon may not know the filter; nothing without our label is touched.
        for found in self.find(&format!("{LABEL}={name}"), ENDING).await? {
            if label(&found, LABEL) == Some(name)
                && let Some(id) = found.id
            {
                remove(self.client().await?, &id, ENDING)
                    .await
                    .map_err(|error| self.failed(&what, error))?;
                removed.push(format!("{} container {id}", self.flavour.name()));
            }
        }
        self.remove_orphans(self.client().await?).await;
        Ok(Recovered { removed })
    }

    /// Those of other containers: this one need not wait long for them, nor fail with them.
    async fn remove_orphans(&self, client: &Docker) {
        let found = match self.find(LABEL, OTHERS_ENDING).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!("not looked for what others left: {error}");
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
                // Another run is at it.
                Err(error) if messages::is_conflict(&error) => {}
                Ok(()) => tracing::info!(
                    "container {uuid} was left by a crunch-run that is gone; it is removed"
                ),
                Err(error) => tracing::warn!(
                    "container {uuid} was left by a crunch-run that is gone, and cannot be removed: {error}"
                ),
            }
        }
    }

    /// All containers with a label, running or not.
    async fn find(
        &self,
        label: &str,
        patience: Duration,
    ) -> Result<Vec<ContainerSummary>, EngineError> {
        let client = self.client().await?;
        let options = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&HashMap::from([("label", vec![label])]))
            .build();
        let until = Instant::now() + patience;
        loop {
            match client.list_containers(Some(options.clone())).await {
                // One is just ending, and will have a state with a proper name in a moment.
                Err(error) if messages::is_podmans_stopped(&error) && Instant::now() < until => {
                    tokio::time::sleep(LOOK).await;
                }
                answer => {
                    return answer
                        .map_err(|error| self.failed("it does not list its containers", error));
                }
            }
        }
    }
}

/// Where another run is removing it at this moment, it is gone when that is done, within `patience`.
pub(super) async fn remove(client: &Docker, id: &str, patience: Duration) -> Result<(), Error> {
    let options = RemoveContainerOptionsBuilder::new()
        .force(true)
        .v(true)
        .build();
    let until = Instant::now() + patience;
    loop {
        match client.remove_container(id, Some(options.clone())).await {
            Err(error) if messages::is_gone(&error) => return Ok(()),
            Err(error) if messages::is_conflict(&error) && Instant::now() < until => {
                tokio::time::sleep(LOOK).await;
            }
            done => return done,
        }
    }
}

fn label<'a>(container: &'a ContainerSummary, name: &str) -> Option<&'a str> {
    container.labels.as_ref()?.get(name).map(String::as_str)
}
