//! `/arvados/v1/config` and `/arvados/v1/vocabulary`: the public settings that clients read,
//! without a token. Workbench fails on a missing key, also where nothing here can be set.

use serde_json::{Map, Value, json};

use crate::app::App;
use crate::blocks::STORAGE_CLASS;
use crate::db::list::MAX_PAGE_SIZE;
use crate::limits::MAX_BODY_BYTES;
use crate::store::cluster_config::{CONTAINER_COUNT_MAX, MAX_DISPATCH_ATTEMPTS};

pub fn public_config(app: &App, host: &str) -> Value {
    json!({
        "ClusterID": app.config.cluster_id,
        "API": {
            "MaxItemsPerResponse": MAX_PAGE_SIZE,
            "MaxRequestSize": MAX_BODY_BYTES,
            "MaxTokenLifetime": "0s",
            "UnfreezeProjectRequiresAdmin": false,
        },
        "Collections": {
            "BlobSigning": true,
            "BlobSigningTTL": "336h0m0s",
            "CollectionVersioning": false,
            "DefaultReplication": 1,
            "DefaultTrashLifetime": "336h0m0s",
            "ForwardSlashNameSubstitution": "",
            "ManagedProperties": {},
            "TrustAllContent": false,
        },
        "Containers": {
            "DefaultKeepCacheRAM": 0,
            "MaxDispatchAttempts": MAX_DISPATCH_ATTEMPTS,
            "MaxRetryAttempts": CONTAINER_COUNT_MAX,
            "ReserveExtraRAM": 0,
            "SupportedDockerImageFormats": {"v2": {}},
        },
        "InstanceTypes": {},
        "Login": {
            "LoginCluster": "",
            "TokenLifetime": "0s",
            "Google": {"Enable": false},
            "LDAP": {"Enable": false},
            "OpenIDConnect": {"Enable": false},
            "PAM": {"Enable": false},
            "Test": {"Enable": false},
        },
        "RemoteClusters": {},
        "Services": services(host),
        "StorageClasses": {STORAGE_CLASS: {"Default": true, "Priority": 0}},
        "Users": {"AnonymousUserToken": "", "SupportEmailAddress": ""},
        "Volumes": {},
        "Workbench": {
            "ActivationContactLink": "",
            "ArvadosDocsite": "https://doc.arvados.org",
            "ArvadosPublicDataDocURL": "",
            "BannerUUID": "",
            "DisableSharingURLsUI": true,
            "FileViewersConfigURL": "",
            "IdleTimeout": "0s",
            "InactivePageHTML": "",
            "SSHHelpHostSuffix": "",
            "SSHHelpPageHTML": "",
            "SiteName": "dispatch-api",
            "Theme": "default",
            "UserProfileFormFields": {},
            "UserProfileFormMessage": "",
            "WelcomePageHTML": "",
        },
    })
}

/// Where each service is; an empty address for those that do not exist here.
fn services(host: &str) -> Value {
    let names = [
        "ContainerWebServices",
        "Keepproxy",
        "WebDAV",
        "WebDAVDownload",
        "WebShell",
        "Workbench1",
        "Workbench2",
    ];
    let mut services: Map<String, Value> = names
        .into_iter()
        .map(|name| (name.to_owned(), json!({"ExternalURL": ""})))
        .collect();
    let address =
        |scheme: &str, path: &str| json!({"ExternalURL": format!("{scheme}://{host}/{path}")});
    services.insert("Controller".into(), address("https", ""));
    services.insert("Websocket".into(), address("wss", "websocket"));
    Value::Object(services)
}

/// No vocabulary: properties may have any name and value.
pub fn vocabulary() -> Value {
    json!({"strict_tags": false, "tags": {}})
}
