//! The discovery document, from which the Python SDK builds its client.

use serde_json::{Map, Value, json};

use super::bulk;
use crate::app::App;
use crate::blocks::signature::SIGNATURE_TTL;
use crate::collection::store::TRASH_LIFETIME;
use crate::db::list::MAX_PAGE_SIZE;
use crate::emulation::Rules;
use crate::limits::MAX_BODY_BYTES;
use crate::schema::{self, Attr, AttrType, KEEP_SERVICES, Resource};

/// The API revision that this server implements.
const API_REVISION: &str = "20250402";

/// A method beyond list, get, create, update and delete: name, HTTP method, path.
type ExtraMethod = (&'static str, &'static str, &'static str);

const CONTAINER_EXTRAS: &[ExtraMethod] = &[
    ("auth", "GET", "containers/{uuid}/auth"),
    ("lock", "POST", "containers/{uuid}/lock"),
    ("unlock", "POST", "containers/{uuid}/unlock"),
    (
        "update_priority",
        "POST",
        "containers/{uuid}/update_priority",
    ),
    ("secret_mounts", "GET", "containers/{uuid}/secret_mounts"),
    ("current", "GET", "containers/current"),
    (BULK_LOCK, "POST", "containers/bulk_lock"),
];
const REQUEST_EXTRAS: &[ExtraMethod] = &[(
    "container_status",
    "GET",
    "container_requests/{uuid}/container_status",
)];
const COLLECTION_EXTRAS: &[ExtraMethod] = &[
    ("trash", "POST", "collections/{uuid}/trash"),
    ("untrash", "POST", "collections/{uuid}/untrash"),
];
const TOKEN_EXTRAS: &[ExtraMethod] = &[
    ("current", "GET", "api_client_authorizations/current"),
    (BULK_CREATE, "POST", "api_client_authorizations/bulk_create"),
];
/// Extensions of this server; see `docs/bulk.md`.
const BULK_CREATE: &str = "bulk_create";
const GATEWAY_AUTH: &str = "gatewayAuth";
const PERMANENT_FAILURES: &str = "permanentFailures";
const BAD_OUTPUT_ENTRIES: &str = "badOutputEntries";
const BULK_LOCK: &str = "bulk_lock";
const LOG_EXTRAS: &[ExtraMethod] = &[(BULK_CREATE, "POST", "logs/bulk_create")];
const USER_EXTRAS: &[ExtraMethod] = &[
    ("current", "GET", "users/current"),
    ("system", "GET", "users/system"),
];
const KEEP_EXTRAS: &[ExtraMethod] = &[("accessible", "GET", "keep_services/accessible")];

fn extras(resource: &Resource) -> &'static [ExtraMethod] {
    match resource.table {
        "containers" => CONTAINER_EXTRAS,
        "container_requests" => REQUEST_EXTRAS,
        "collections" => COLLECTION_EXTRAS,
        "api_client_authorizations" => TOKEN_EXTRAS,
        "logs" => LOG_EXTRAS,
        "users" => USER_EXTRAS,
        "keep_services" => KEEP_EXTRAS,
        _ => &[],
    }
}

pub fn document(app: &App, host: &str) -> Value {
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
            json!({"methods": resource_methods(resource, app.config.rules)}),
        );
    }
    methods.insert("configs".into(), single_get_method("configs", "config"));
    methods.insert(
        "vocabularies".into(),
        single_get_method("vocabularies", "vocabulary"),
    );
    let mut document = api_description(app.config.rules);
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

fn api_description(rules: &Rules) -> Value {
    let version = match rules.extensions {
        true => env!("CARGO_PKG_VERSION"),
        false => "3.2.1",
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
    if rules.extensions {
        about["description"] = json!("The embedded API server of the dispatcher suite");
        // An executor may choose the secret of its gateway, because its attempt token authenticates
        // it.
        about[GATEWAY_AUTH] = json!("attempt-token");
        // An executor that finds a permanent failure ends the requests of its container.
        about[PERMANENT_FAILURES] = json!("end-requests");
        // An executor saves an output without the entries that cannot be saved.
        about[BAD_OUTPUT_ENTRIES] = json!("leave-out");
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
    for attr in resource.public_attrs() {
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
    match attr.kind {
        AttrType::Time => json!({"type": "datetime", "description": attr.human()}),
        kind => json!({
            "type": match kind {
                AttrType::Text | AttrType::Time => "string",
                AttrType::Int => "integer",
                AttrType::Float => "float",
                AttrType::Bool => "boolean",
                AttrType::Object => "Hash",
                AttrType::Array => "Array",
            },
            "description": attr.human(),
        }),
    }
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

fn resource_methods(resource: &Resource, rules: &Rules) -> Value {
    let table = resource.table;
    let mut methods = Map::new();
    methods.insert(
        "get".into(),
        method(
            resource,
            "get",
            "GET",
            &format!("{table}/{{uuid}}"),
            &[("select", select())],
        ),
    );
    methods.insert(
        "list".into(),
        method(resource, "list", "GET", table, &list_parameters(resource)),
    );
    methods.insert(
        "create".into(),
        method(
            resource,
            "create",
            "POST",
            table,
            &[
                ("select", select()),
                ("ensure_unique_name", flag("Adjust the name to ensure uniqueness instead of returning an error on name conflict.")),
                ("cluster_id", text("Cluster ID of a federated cluster.")),
            ],
        ),
    );
    methods.insert(
        "update".into(),
        method(
            resource,
            "update",
            "PUT",
            &format!("{table}/{{uuid}}"),
            &[
                ("select", select()),
                (
                    "ensure_unique_name",
                    flag("Adjust the name to ensure uniqueness."),
                ),
                (
                    "include_trash",
                    flag("Update the record even if it is in the trash."),
                ),
            ],
        ),
    );
    methods.insert(
        "delete".into(),
        method(
            resource,
            "delete",
            "DELETE",
            &format!("{table}/{{uuid}}"),
            &[],
        ),
    );
    let extended = rules.extensions;
    let is_ours = |name: &str| matches!(name, BULK_CREATE | BULK_LOCK);
    for (name, verb, path) in extras(resource) {
        if is_ours(name) && !extended {
            continue;
        }
        methods.insert(
            (*name).into(),
            method(resource, name, verb, path, &[("select", select())]),
        );
    }
    Value::Object(methods)
}

fn method(
    resource: &Resource,
    name: &str,
    verb: &str,
    path: &str,
    more: &[(&str, Value)],
) -> Value {
    let mut parameters = Map::new();
    let mut order = Vec::new();
    if path.contains("{uuid}") {
        parameters.insert(
            "uuid".into(),
            json!({
                "type": "string",
                "description": format!("The UUID of the {} in question.", resource.class),
                "required": true,
                "location": "path",
            }),
        );
        order.push("uuid");
    }
    for (name, parameter) in more {
        parameters.insert((*name).into(), parameter.clone());
    }
    if resource.table == "collections" && matches!(name, "get" | "list") {
        parameters.insert(
            "include_trash".into(),
            flag("Show what is in the trash too."),
        );
    }
    let returns = if name == "list" || name == "accessible" {
        format!("{}List", resource.class)
    } else {
        resource.class.to_owned()
    };
    let mut described = json!({
        "id": format!("arvados.{}.{name}", resource.table),
        "path": path,
        "httpMethod": verb,
        "description": format!("{name} {}", resource.table),
        "parameters": parameters,
        "parameterOrder": order,
        "response": {"$ref": returns},
        "scopes": ["https://api.arvados.org/auth/arvados"],
    });
    if matches!(name, BULK_CREATE | BULK_LOCK) {
        described["description"] = format!(
            "An extension of dispatch-api: {name} of up to {} {}, each answered by itself.",
            bulk::MAX_BULK_ITEMS,
            resource.table
        )
        .into();
        described["maxItems"] = bulk::MAX_BULK_ITEMS.into();
        described["parameters"] = json!({});
        described["response"] = json!({});
        described["request"] =
            json!({"required": true, "properties": {"items": {"type": "array"}}});
    }
    if matches!(name, "create" | "update") {
        described["request"] = json!({
            "required": name == "create",
            "properties": {resource.singular: {"$ref": resource.class}},
        });
    }
    described
}

fn list_parameters(resource: &Resource) -> Vec<(&'static str, Value)> {
    let array = |description: &str| json!({"type": "array", "required": false, "description": description, "location": "query"});
    let number = |default: i64, description: &str| {
        json!({"type": "integer", "required": false, "default": default.to_string(),
               "description": description, "location": "query"})
    };
    let mut parameters = vec![
        ("filters", array("Conditions to filter items.")),
        (
            "where",
            json!({"type": "object", "required": false, "description": "Older form of filters.", "location": "query"}),
        ),
        (
            "order",
            array("Attributes to sort by, each with an optional direction."),
        ),
        ("select", select()),
        (
            "distinct",
            json!({"type": "boolean", "required": false, "default": "false",
                   "description": "Omit duplicates.", "location": "query"}),
        ),
        ("limit", number(100, "Maximum number of items to return.")),
        (
            "offset",
            number(0, "Items to skip before the first one returned."),
        ),
        (
            "count",
            json!({"type": "string", "required": false, "default": "exact",
                   "description": "Whether to count all matching items: exact or none.", "location": "query"}),
        ),
        ("cluster_id", text("Cluster ID of a federated cluster.")),
        ("bypass_federation", flag("Accepted for compatibility.")),
    ];
    if resource.table == "collections" {
        parameters.push(("include_old_versions", flag("Accepted for compatibility.")));
    }
    parameters
}

fn single_get_method(resource: &str, path: &str) -> Value {
    json!({"methods": {"get": {
        "id": format!("arvados.{resource}.get"),
        "path": path,
        "httpMethod": "GET",
        "description": format!("Get the public {path}."),
        "parameters": {},
        "parameterOrder": [],
        "response": {},
        "scopes": ["https://api.arvados.org/auth/arvados"],
    }}})
}

fn select() -> Value {
    json!({"type": "array", "required": false,
           "description": "Attributes of the record(s) to return in the response.", "location": "query"})
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "required": false, "default": "false",
           "description": description, "location": "query"})
}

fn text(description: &str) -> Value {
    json!({"type": "string", "required": false, "description": description, "location": "query"})
}
