//! Calls on containers.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::error::Error;
use crate::filter::Query;
use crate::ids::ContainerUuid;
use crate::records::{Authorization, Container, LockReply, Log};

impl Client {
    /// The whole record.
    pub async fn container(&self, uuid: &ContainerUuid) -> Result<Container, Error> {
        self.send(Call::get(format!("containers/{uuid}"))).await
    }

    /// Queued → Locked, for this client's token. With an etag, only if the record is still the one seen; a server
    /// that does not honour `If-Match` ignores it. One winner; the others get 422 or 412.
    pub async fn lock_container(
        &self,
        uuid: &ContainerUuid,
        etag: &str,
    ) -> Result<LockReply, Error> {
        self.send(Call::post(format!("containers/{uuid}/lock"), json!({})).if_match(etag))
            .await
    }

    /// Locked → Queued; only the holder may. The answer may be Cancelled (`MaxDispatchAttempts`).
    pub async fn unlock_container(&self, uuid: &ContainerUuid) -> Result<LockReply, Error> {
        self.send(Call::post(format!("containers/{uuid}/unlock"), json!({})))
            .await
    }

    /// Changes attributes, all or none of them. Only the uuid comes back.
    pub async fn update_container(
        &self,
        uuid: &ContainerUuid,
        attributes: Value,
    ) -> Result<(), Error> {
        let body = json!({"container": attributes, "select": ["uuid"]});
        self.send::<Value>(Call::put(format!("containers/{uuid}"), body))
            .await
            .map(drop)
    }

    /// The container's own token; only for the lock's holder.
    pub async fn container_auth(&self, uuid: &ContainerUuid) -> Result<Authorization, Error> {
        self.send(Call::get(format!("containers/{uuid}/auth")))
            .await
    }

    /// The secret mounts; only for the container's own token.
    pub async fn secret_mounts(&self, uuid: &ContainerUuid) -> Result<Value, Error> {
        self.send(Call::get(format!("containers/{uuid}/secret_mounts")))
            .await
    }

    /// What the server's `logs` have last of it with a text, of one kind (`event_type`): when, and the text; the newest
    /// first, at most `limit`.
    pub async fn last_notes(
        &self,
        uuid: &ContainerUuid,
        kind: &str,
        limit: u64,
    ) -> Result<Vec<(Timestamp, String)>, Error> {
        let query = Query::new()
            .filter("object_uuid", "=", uuid)
            .filter("event_type", "=", kind)
            .order("id desc")
            .limit(limit);
        let page = self.page::<Log>("logs", &query).await?;
        let note = |entry: Log| {
            let text = entry.properties["text"].as_str()?.to_owned();
            Some((entry.event_at?, text))
        };
        Ok(page.items.into_iter().filter_map(note).collect())
    }
}
