//! The discovery document, from which the Python SDK builds its client.

mod methods;

use serde_json::{Map, Value, json};

use self::methods::{list_method, resource_methods, single_get_method};
use super::empty_kinds;
use crate::app::App;
use crate::blocks::signature::SIGNATURE_TTL;
use crate::db::list::MAX_PAGE_SIZE;
use crate::db::trash::TRASH_LIFETIME;
use crate::emulation::Emulate;
use crate::limits::MAX_BODY_BYTES;
use crate::schema::{self, Attr, AttrType, KEEP_SERVICES, Resource, humanise};

/// The API revision that this server implements.
const API_REVISION: &str = "20250402";

/// Stands for the host of a request.
const ANY_HOST: &str = "host-of-the-request.invalid";

/// The document for a client that calls this server by the name `host`. It is made once: everybody
/// may ask for it, without a token.
pub fn text(app: &App, host: &str) -> String {
    let of_any = || document(app, ANY_HOST).to_string();
    let template = app.discovery.get_or_init(of_any);
    let quoted = json!(host).to_string();
    template.replace(ANY_HOST, &quoted[1..quoted.len() - 1])
}

fn document(app: &App, host: &str) -> Value {
    let root = format!("https://{host}/");
    let resources: Vec<&'static Resource> =
        schema::ALL.into_iter().chain([&KEEP_SERVICES]).collect();
    let mut schemas = Map::new();
    let mut methods = Map::new();
    for resource in resources {
        schemas.insert(resource.class.into(), record_schema(resource));
        schemas.insert(format!("{}List", resource.class), list_schema(resource));
        methods.insert(
            resource.table.into(),
            json!({"methods": resource_methods(resource, app.config.emulate)}),
        );
    }
    for (table, _) in empty_kinds::LISTS {
        methods.insert(table.into(), list_method(table));
    }
    methods.insert("configs".into(), single_get_method("configs", "config"));
    methods.insert(
        "vocabularies".into(),
        single_get_method("vocabularies", "vocabulary"),
    );
    let mut document = api_description(app.config.emulate);
    let of_this_server = json!({
        "generatedAt": crate::clock::now(),
        "baseUrl": format!("{root}arvados/v1/"),
        "rootUrl": root,
        "uuidPrefix": app.config.cluster_id,
        "websocketUrl": format!("wss://{host}/websocket"),
        "auth": {"oauth2": {"scopes": {
            format!("{root}auth/arvados"): {"description": "View and manage objects"},
            format!("{root}auth/arvados.readonly"): {"description": "View objects"},
        }}},
        "schemas": schemas,
        "resources": methods,
    });
    for part in [limits(), of_this_server] {
        if let (Some(document), Value::Object(part)) = (document.as_object_mut(), part) {
            document.extend(part);
        }
    }
    document
}

fn api_description(emulate: Emulate) -> Value {
    let version = match emulate {
        Emulate::None => env!("CARGO_PKG_VERSION"),
        Emulate::Arvados3 => "3.2.1",
    };
    let mut about = json!({
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": "arvados:v1",
        "name": "arvados",
        "version": "v1",
        "revision": API_REVISION,
        "source_version": version,
        "sourceVersion": version,
        "packageVersion": version,
        "title": "Arvados API",
        "documentationLink": "https://doc.arvados.org/api/index.html",
        "protocol": "rest",
        "basePath": "/arvados/v1/",
        "servicePath": "arvados/v1/",
        "batchPath": "batch",
        "parameters": {
            "alt": {
                "type": "string",
                "description": "Data format for the response.",
                "default": "json",
                "enum": ["json"],
                "enumDescriptions": ["Responses with Content-Type of application/json"],
                "location": "query",
            },
            "fields": {
                "type": "string",
                "description": "Selector specifying which fields to include in a partial response.",
                "location": "query",
            },
        },
    });
    if !emulate.is_arvados() {
        about["description"] = json!("The embedded API server of the dispatcher suite");
        // An executor may choose the secret of its gateway, because its attempt token authenticates
        // it.
        about["gatewayAuth"] = json!("attempt-token");
        // An executor that finds a permanent failure ends the requests of its container.
        about["permanentFailures"] = json!("end-requests");
        // An executor saves an output without the entries that cannot be saved.
        about["badOutputEntries"] = json!("leave-out");
        // Each request of a user's own gets a number that is given once.
        about["jobNumbers"] = json!("given");
    }
    about
}

/// Limits and settings that clients read from this document.
fn limits() -> Value {
    json!({
        "defaultCollectionReplication": 1,
        "defaultTrashLifetime": TRASH_LIFETIME.as_secs(),
        "blobSignatureTtl": SIGNATURE_TTL,
        "maxRequestSize": MAX_BODY_BYTES,
        "maxItemsPerResponse": MAX_PAGE_SIZE,
        "dockerImageFormats": ["v2"],
        "crunchLogUpdatePeriod": 1800,
        "crunchLogUpdateSize": 32 << 20,
        "remoteHosts": {},
        "remoteHostsViaDNS": false,
        "workbenchUrl": "",
        "workbench2Url": "",
        "keepWebServiceUrl": "",
        "gitUrl": "",
    })
}

fn record_schema(resource: &Resource) -> Value {
    let mut properties = Map::new();
    for attr in resource.public_attrs().chain(resource.computed) {
        properties.insert(attr.name.into(), attr_schema(attr));
    }
    for (name, description) in [("etag", "Object cache version."), ("kind", "Object type.")] {
        properties.insert(
            name.into(),
            json!({"type": "string", "description": description}),
        );
    }
    json!({
        "id": resource.class,
        "description": format!("{} record", resource.class),
        "type": "object",
        "uuidPrefix": resource.infix,
        "properties": properties,
    })
}

fn attr_schema(attr: &Attr) -> Value {
    let kind = match attr.kind {
        AttrType::Text => "string",
        AttrType::Time => "datetime",
        AttrType::Int => "integer",
        AttrType::Float => "float",
        AttrType::Bool => "boolean",
        AttrType::Object => "Hash",
        AttrType::Array => "Array",
    };
    json!({"type": kind, "description": humanise(attr.name)})
}

fn list_schema(resource: &Resource) -> Value {
    json!({
        "id": format!("{}List", resource.class),
        "description": format!("A list of {} records", resource.class),
        "type": "object",
        "properties": {
            "kind": {"type": "string", "default": resource.list_kind(), "description": "Object type."},
            "etag": {"type": "string", "description": "List cache version."},
            "items": {
                "type": "array",
                "description": "The records of this page.",
                "items": {"$ref": resource.class},
            },
        },
    })
}
