//! Calls for containers.

use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::error::Error;
use crate::ids::ContainerUuid;
use crate::records::{Authorization, Container, LockReply};

impl Client {
    /// Fetches the complete record.
    pub async fn container(&self, uuid: &ContainerUuid) -> Result<Container, Error> {
        self.get(format!("containers/{uuid}")).await
    }

    /// Locks a container (Queued → Locked) for the token of this client. With an etag, only if it
    /// is unchanged; a server without `If-Match` ignores it. Of several callers one succeeds; the
    /// others get 422 or 412.
    pub async fn lock_container(
        &self,
        uuid: &ContainerUuid,
        etag: &str,
    ) -> Result<LockReply, Error> {
        let path = format!("containers/{uuid}/lock");
        self.send(Call::post(path, json!({})).if_match(etag)).await
    }

    /// Unlocks a container (Locked → Queued); only the holder can. The new state may be Cancelled
    /// (`MaxDispatchAttempts`).
    pub async fn unlock_container(&self, uuid: &ContainerUuid) -> Result<LockReply, Error> {
        let path = format!("containers/{uuid}/unlock");
        self.send(Call::post(path, json!({}))).await
    }

    /// Changes attributes, all or none of them.
    pub async fn update_container(
        &self,
        uuid: &ContainerUuid,
        attributes: Value,
    ) -> Result<(), Error> {
        let body = json!({"container": attributes, "select": ["uuid"]});
        self.done(Call::put(format!("containers/{uuid}"), body))
            .await
    }

    /// Fetches the token of the container; only for the holder of the lock.
    pub async fn container_auth(&self, uuid: &ContainerUuid) -> Result<Authorization, Error> {
        self.get(format!("containers/{uuid}/auth")).await
    }
}
