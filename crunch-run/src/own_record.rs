//! API calls on the record of this attempt's container.
//!
//! The dispatcher has just locked it with this token, so 401, 403 and 404 are retried for a minute
//! before they are believed.

use arvados_client::ContainerUuid;
use arvados_client::client::Call;
use serde_json::{Value, json};

/// Reads the whole record.
pub fn read(uuid: &ContainerUuid) -> Call {
    Call::get(format!("containers/{uuid}")).known_record()
}

/// Changes attributes atomically. Only the uuid is returned.
pub fn update(uuid: &ContainerUuid, attributes: &Value) -> Call {
    let body = json!({"container": attributes, "select": ["uuid"]});
    Call::put(format!("containers/{uuid}"), body).known_record()
}

/// Creates a log collection in the trash. The server copies it from there for requesters. Names in
/// the trash never collide, so a repeated call is harmless.
pub fn new_log(uuid: &ContainerUuid, manifest: &str) -> Call {
    let collection = json!({
        "name": format!("logs for {uuid}"), "manifest_text": manifest, "is_trashed": true,
    });
    let body = json!({"collection": collection});
    Call::post("collections", body).known_record().repeatable()
}
