//! The methods of each resource in the discovery document, with their parameters.

use serde_json::{Map, Value, json};

use crate::api::bulk;
use crate::db::trash::IN_PROJECTS;
use crate::emulation::Rules;
use crate::schema::{GROUPS, Resource};

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
const BULK_LOCK: &str = "bulk_lock";
const LOG_EXTRAS: &[ExtraMethod] = &[(BULK_CREATE, "POST", "logs/bulk_create")];
const USER_EXTRAS: &[ExtraMethod] = &[
    ("current", "GET", "users/current"),
    ("system", "GET", "users/system"),
];
const GROUP_EXTRAS: &[ExtraMethod] = &[
    ("contents", "GET", "groups/contents"),
    ("shared", "GET", "groups/shared"),
    ("trash", "POST", "groups/{uuid}/trash"),
    ("untrash", "POST", "groups/{uuid}/untrash"),
];
const LINK_EXTRAS: &[ExtraMethod] = &[("get_permissions", "GET", "permissions/{uuid}")];
const KEEP_EXTRAS: &[ExtraMethod] = &[("accessible", "GET", "keep_services/accessible")];

fn extras(resource: &Resource) -> &'static [ExtraMethod] {
    match resource.table {
        "containers" => CONTAINER_EXTRAS,
        "container_requests" => REQUEST_EXTRAS,
        "collections" => COLLECTION_EXTRAS,
        "api_client_authorizations" => TOKEN_EXTRAS,
        "logs" => LOG_EXTRAS,
        "groups" => GROUP_EXTRAS,
        "links" => LINK_EXTRAS,
        "users" => USER_EXTRAS,
        "keep_services" => KEEP_EXTRAS,
        _ => &[],
    }
}

pub fn resource_methods(resource: &Resource, rules: &Rules) -> Value {
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
        let parameters = match *name {
            "contents" | "shared" => contents_parameters(resource),
            "get_permissions" => list_parameters(resource),
            _ => vec![("select", select())],
        };
        methods.insert(
            (*name).into(),
            method(resource, name, verb, path, &parameters),
        );
    }
    methods.retain(|_, method| has_route(method));
    Value::Object(methods)
}

/// Whether the server answers this method. No kind of record has all of the usual ones.
fn has_route(method: &Value) -> bool {
    let path = method["path"]
        .as_str()
        .unwrap_or("")
        .replace("{uuid}", "{}");
    let mut routes = super::super::routes();
    routes.any(|route| method["httpMethod"] == route.method && path == route.path)
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
    if IN_PROJECTS.contains(&resource.table) && matches!(name, "get" | "list") {
        parameters.insert(
            "include_trash".into(),
            flag("Show what is in the trash too."),
        );
    }
    if resource.table == "collections" && matches!(name, "create" | "update") {
        let what = "Paths of the collection, and what takes the place of each.";
        parameters.insert("replace_files".into(), object(what));
    }
    let returns = if matches!(name, "list" | "accessible" | "get_permissions") {
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
        ("where", object("Older form of filters.")),
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

/// The only method of a kind of which there are no records here.
pub fn list_method(table: &str) -> Value {
    let parameters: Map<String, Value> = list_parameters(&GROUPS)
        .into_iter()
        .map(|(name, parameter)| (name.to_owned(), parameter))
        .collect();
    json!({"methods": {"list": {
        "id": format!("arvados.{table}.list"),
        "path": table,
        "httpMethod": "GET",
        "description": format!("List {table}: this server has none."),
        "parameters": parameters,
        "parameterOrder": [],
        "response": {},
        "scopes": ["https://api.arvados.org/auth/arvados"],
    }}})
}

pub fn single_get_method(resource: &str, path: &str) -> Value {
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

/// Parameters of a listing of several kinds of records.
fn contents_parameters(resource: &Resource) -> Vec<(&'static str, Value)> {
    let mut parameters = list_parameters(resource);
    parameters.extend([
        (
            "uuid",
            text("The project or user whose contents are listed."),
        ),
        (
            "recursive",
            flag("List the contents of all projects below, too."),
        ),
        ("include_trash", flag("Show what is in the trash too.")),
        (
            "exclude_home_project",
            flag("Leave out what the caller owns."),
        ),
        (
            "include",
            text("Also list the records named by owner_uuid or container_uuid."),
        ),
    ]);
    parameters
}

fn select() -> Value {
    json!({"type": "array", "required": false,
           "description": "Attributes of the record(s) to return in the response.", "location": "query"})
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "required": false, "default": "false",
           "description": description, "location": "query"})
}

fn object(description: &str) -> Value {
    json!({"type": "object", "required": false, "description": description, "location": "query"})
}

fn text(description: &str) -> Value {
    json!({"type": "string", "required": false, "description": description, "location": "query"})
}
