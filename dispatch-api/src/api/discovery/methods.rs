//! The methods of each resource in the discovery document, with their parameters. They are taken
//! from the routes, so that every method has one.

use serde_json::{Map, Value, json};

use crate::api::{Route, bulk, routes};
use crate::db::trash::IN_PROJECTS;
use crate::emulation::Emulate;
use crate::schema::Resource;

pub fn resource_methods(resource: &Resource, emulate: Emulate) -> Value {
    let offered = routes().filter(|route| !emulate.is_arvados() || !route.is_extension());
    let methods: Map<String, Value> = offered
        .filter_map(|route| {
            let name = name_of(resource, route)?;
            Some((name.to_owned(), method(resource, name, route)))
        })
        .collect();
    methods.into()
}

/// The name of the method that a route is for this resource; `None` if it is none.
fn name_of(resource: &Resource, route: &Route) -> Option<&'static str> {
    let segments: Vec<&'static str> = route.path.split('/').collect();
    match (route.method, segments.as_slice()) {
        ("GET", ["permissions", "{}"]) if resource.table == "links" => Some("get_permissions"),
        (_, [table, ..]) if *table != resource.table => None,
        (_, ["groups", "{}", "contents"] | [_, "collect_garbage"]) => None,
        ("GET", [_]) => Some("list"),
        ("POST", [_]) => Some("create"),
        ("GET", [_, "{}"]) => Some("get"),
        ("PUT", [_, "{}"]) => Some("update"),
        ("DELETE", [_, "{}"]) => Some("delete"),
        (_, segments) => segments.last().copied(),
    }
}

fn method(resource: &Resource, name: &str, route: &Route) -> Value {
    let path = route.path.replace("{}", "{uuid}");
    let mut described = describe(resource.table, name, route.method, &path);
    if route.is_extension() {
        // See `docs/bulk.md`.
        let most = match name {
            "bulk_update" => bulk::MAX_BULK_UPDATES,
            _ => bulk::MAX_BULK_ITEMS,
        };
        described["description"] = format!(
            "An extension of dispatch-api: {name} of up to {most} {}, each answered by itself.",
            resource.table
        )
        .into();
        described["maxItems"] = most.into();
        described["request"] =
            json!({"required": true, "properties": {"items": {"type": "array"}}});
        return described;
    }
    described["parameters"] = parameters(resource, name);
    if path.contains("{uuid}") {
        described["parameters"]["uuid"] = json!({
            "type": "string",
            "description": format!("The UUID of the {} in question.", resource.class),
            "required": true,
            "location": "path",
        });
        described["parameterOrder"] = json!(["uuid"]);
    }
    let returns = match name {
        "list" | "accessible" | "get_permissions" => format!("{}List", resource.class),
        _ => resource.class.to_owned(),
    };
    described["response"] = json!({"$ref": returns});
    if matches!(name, "create" | "update") {
        described["request"] = json!({
            "required": name == "create",
            "properties": {resource.singular: {"$ref": resource.class}},
        });
    }
    described
}

/// A method without parameters, whose response has any form.
fn describe(resource: &str, name: &str, verb: &str, path: &str) -> Value {
    json!({
        "id": format!("arvados.{resource}.{name}"),
        "path": path,
        "httpMethod": verb,
        "description": format!("{name} {resource}"),
        "parameters": {},
        "parameterOrder": [],
        "response": {},
        "scopes": ["https://api.arvados.org/auth/arvados"],
    })
}

/// The parameters of a method, apart from a uuid in its path.
fn parameters(resource: &Resource, name: &str) -> Value {
    let mut parameters = match name {
        "list" | "get_permissions" => list_parameters(),
        "contents" | "shared" => contents_parameters(),
        "delete" => json!({}),
        _ => json!({"select": select()}),
    };
    match name {
        "create" => {
            parameters["ensure_unique_name"] = flag(
                "Adjust the name to ensure uniqueness instead of returning an error on name conflict.",
            );
            parameters["cluster_id"] = text("Cluster ID of a federated cluster.");
        }
        "update" => {
            parameters["ensure_unique_name"] = flag("Adjust the name to ensure uniqueness.");
            parameters["include_trash"] = flag("Update the record even if it is in the trash.");
        }
        "get" | "list" if IN_PROJECTS.contains(&resource.table) => {
            parameters["include_trash"] = flag("Show what is in the trash too.");
        }
        _ => {}
    }
    match (resource.table, name) {
        ("collections", "create" | "update") => {
            let what = "Paths of the collection, and what takes the place of each.";
            parameters["replace_files"] = parameter("object", what);
        }
        ("collections", "list") => {
            parameters["include_old_versions"] = flag("Accepted for compatibility.");
        }
        _ => {}
    }
    parameters
}

fn list_parameters() -> Value {
    json!({
        "filters": parameter("array", "Conditions to filter items."),
        "where": parameter("object", "Older form of filters."),
        "order": parameter("array", "Attributes to sort by, each with an optional direction."),
        "select": select(),
        "distinct": flag("Omit duplicates."),
        "limit": with_default("integer", "100", "Maximum number of items to return."),
        "offset": with_default("integer", "0", "Items to skip before the first one returned."),
        "count": with_default(
            "string", "exact", "Whether to count all matching items: exact or none.",
        ),
        "cluster_id": text("Cluster ID of a federated cluster."),
        "bypass_federation": flag("Accepted for compatibility."),
    })
}

/// Parameters of a listing of several kinds of records.
fn contents_parameters() -> Value {
    let mut parameters = list_parameters();
    parameters["uuid"] = text("The project or user whose contents are listed.");
    parameters["recursive"] = flag("List the contents of all projects below, too.");
    parameters["include_trash"] = flag("Show what is in the trash too.");
    parameters["exclude_home_project"] = flag("Leave out what the caller owns.");
    parameters["include"] = text("Also list the records named by owner_uuid or container_uuid.");
    parameters
}

/// The only method of a kind of which there are no records here.
pub fn list_method(table: &str) -> Value {
    let mut list = describe(table, "list", "GET", table);
    list["description"] = format!("List {table}: this server has none.").into();
    list["parameters"] = list_parameters();
    json!({"methods": {"list": list}})
}

pub fn single_get_method(resource: &str, path: &str) -> Value {
    let mut get = describe(resource, "get", "GET", path);
    get["description"] = format!("Get the public {path}.").into();
    json!({"methods": {"get": get}})
}

fn select() -> Value {
    let what = "Attributes of the record(s) to return in the response.";
    parameter("array", what)
}

fn flag(description: &str) -> Value {
    with_default("boolean", "false", description)
}

fn text(description: &str) -> Value {
    parameter("string", description)
}

fn with_default(kind: &str, default: &str, description: &str) -> Value {
    let mut parameter = parameter(kind, description);
    parameter["default"] = default.into();
    parameter
}

fn parameter(kind: &str, description: &str) -> Value {
    json!({"type": kind, "required": false, "description": description, "location": "query"})
}
