//! `/arvados/v1/config`: the public settings that clients read.

use serde_json::{Value, json};

use crate::app::App;
use crate::blocks::STORAGE_CLASS;
use crate::db::list::MAX_PAGE_SIZE;
use crate::limits::MAX_BODY_BYTES;

pub fn public_config(app: &App, host: &str) -> Value {
    let url = format!("https://{host}/");
    json!({
        "ClusterID": app.config.cluster_id,
        "API": {
            "MaxItemsPerResponse": MAX_PAGE_SIZE,
            "MaxRequestSize": MAX_BODY_BYTES,
            "MaxTokenLifetime": "0s",
        },
        "Collections": {
            "BlobSigning": true,
            "BlobSigningTTL": "336h0m0s",
            "CollectionVersioning": false,
            "DefaultReplication": 1,
            "DefaultTrashLifetime": "336h0m0s",
            "ForwardSlashNameSubstitution": "",
            "TrustAllContent": false,
        },
        "Containers": {
            "DefaultKeepCacheRAM": 0,
            "MaxDispatchAttempts": app.config.max_dispatch_attempts,
            "MaxRetryAttempts": app.config.container_count_max,
            "ReserveExtraRAM": 0,
            "SupportedDockerImageFormats": {"v2": {}},
        },
        "Services": {
            "Controller": {"ExternalURL": url},
            "Keepproxy": {"ExternalURL": ""},
            "Websocket": {"ExternalURL": format!("wss://{host}/websocket")},
            "WebDAV": {"ExternalURL": ""},
            "Workbench1": {"ExternalURL": ""},
            "Workbench2": {"ExternalURL": ""},
        },
        "StorageClasses": {STORAGE_CLASS: {"Default": true, "Priority": 0}},
        "Users": {"AnonymousUserToken": ""},
    })
}
