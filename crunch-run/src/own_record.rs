//! Calls on the record of this attempt's own container. The dispatcher locked it with this token a
//! moment ago, so 401, 403 and 404 are asked again for a minute before they are believed.

use arvados_client::ContainerUuid;
use arvados_client::client::Call;
use serde_json::{Value, json};

/// The whole record.
pub fn read(uuid: &ContainerUuid) -> Call {
    Call::get(format!("containers/{uuid}")).known_record()
}

/// Changes attributes, all or none of them; only the uuid comes back.
pub fn update(uuid: &ContainerUuid, attributes: &Value) -> Call {
    let body = json!({"container": attributes, "select": ["uuid"]});
    Call::put(format!("containers/{uuid}"), body).known_record()
}

/// A new log collection. It is made in the trash: the server copies it from there to whoever asked
/// for the container, and names in the trash never collide, so making it twice is no harm.
pub fn new_log(uuid: &ContainerUuid, manifest: &str) -> Call {
    let collection = json!({
        "name": format!("logs for {uuid}"), "manifest_text": manifest, "is_trashed": true,
    });
    let body = json!({"collection": collection});
    Call::post("collections", body).known_record().repeatable()
}
