//! The executor's calls to the simulated API server.

use arvados_client::records::ContainerState;
use arvados_client::{ContainerUuid, Error, TokenUuid};
use serde_json::{Value, json};

use crate::api::SimApi;
use crate::server::Caller;

impl SimApi {
    pub async fn executor_update(
        &self,
        token: &TokenUuid,
        uuid: &ContainerUuid,
        change: Value,
    ) -> Result<(), Error> {
        let (who, uuid) = (Caller::Attempt(token.clone()), uuid.clone());
        self.call("executor's update", move |world| {
            world.update(&who, &uuid, &change, true)
        })
        .await
    }

    /// The state of the container, if this attempt holds it.
    pub async fn executor_fetch(
        &self,
        token: &TokenUuid,
        uuid: &ContainerUuid,
    ) -> Result<Option<ContainerState>, Error> {
        let (token, uuid) = (token.clone(), uuid.clone());
        self.call("executor's look", move |world| {
            world.admit(&Caller::Attempt(token.clone()), &uuid)?;
            let record = world.containers.get(&uuid);
            let held = record.filter(|record| record.locked_by.as_ref() == Some(&token));
            Ok(held.map(|record| record.state.clone()))
        })
        .await
    }
}

/// The change that records Running.
pub fn running() -> Value {
    json!({"state": "Running", "log": "a log by the executor"})
}
