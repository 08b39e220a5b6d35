//! The routes under `/arvados/v1`, one module per resource.

pub mod bulk;
mod call;
mod collections;
mod computed;
mod container_requests;
mod containers;
mod contents;
pub mod discovery;
pub mod empty_kinds;
mod garbage;
mod groups;
mod keep_services;
mod links;
mod logs;
pub mod params;
mod permission_link;
mod public_config;
pub mod render;
mod resource;
mod route;
mod tokens;
mod users;
mod workflows;

use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{self, CONTAINER_REQUESTS};
use http::Method;

pub use call::{Call, Reply};
use params::Params;
pub use public_config::{public_config, vocabulary};
pub use route::Route;

/// Every route below `/arvados/v1`; the first that matches counts.
pub fn routes() -> impl Iterator<Item = &'static Route> {
    [
        bulk::ROUTES,
        containers::ROUTES,
        container_requests::ROUTES,
        garbage::ROUTES,
        collections::ROUTES,
        tokens::ROUTES,
        users::ROUTES,
        workflows::ROUTES,
        links::ROUTES,
        contents::ROUTES,
        groups::ROUTES,
        logs::ROUTES,
        keep_services::ROUTES,
        empty_kinds::ROUTES,
    ]
    .into_iter()
    .flatten()
}

/// Whether the call removes something, or stops a job.
fn frees_space(route: &Route, params: &Params) -> bool {
    let stops = || {
        let attributes = params.attributes(&CONTAINER_REQUESTS);
        attributes.is_ok_and(|attributes| attributes.get("priority") == 0)
    };
    let is_stop = |item: &Option<Record>| {
        let priority = item.as_ref().map(|item| item.get("priority"));
        priority.is_some_and(|priority| priority == 0)
    };
    let stops_all = || (params.items()).is_some_and(|items| items.iter().all(is_stop));
    match (route.method, route.path) {
        ("DELETE", _) | (_, "collections/collect_garbage") => true,
        ("PUT", "container_requests/{}") => stops(),
        ("POST", "container_requests/bulk_update") => stops_all(),
        _ => false,
    }
}

/// Routes a request to its handler. `path` is the part after `/arvados/v1/`.
pub fn route(call: &Call, method: &Method, path: &str) -> Result<Reply> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let segments: Vec<&str> = path.split('/').collect();
    let verb = match *method {
        Method::HEAD => "GET",
        // PUT and PATCH differ only for scopes.
        Method::PATCH => "PUT",
        ref other => other.as_str(),
    };
    let extensions = !call.app.config.emulate.is_arvados();
    let found = routes()
        .filter(|route| extensions || !route.is_extension())
        .find_map(|route| Some((route, route.matches(verb, &segments)?)));
    if verb != "GET"
        && let Some(resource) = schema::ALL
            .into_iter()
            .find(|kind| segments[0] == kind.table)
    {
        // A write that is refused for its answer must not have been carried out.
        resource::select(call, resource)?;
    }
    match found {
        Some((route, parameter)) => match (route.handler)(call, parameter) {
            Err(ApiError::DiskFull) if frees_space(route, &call.params) => {
                // Another call may have released it meanwhile.
                call.app.disk_reserve.release();
                (route.handler)(call, parameter)
            }
            reply => reply,
        },
        None => Err(ApiError::path_not_found()),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_removes_or_stops_may_use_the_last_space() {
        let one = "container_requests/local-xvhdp-000000000000000";
        let bulk = "container_requests/bulk_update";
        let stop = json!({"container_request": {"priority": 0}});
        let go_on = json!({"container_request": {"priority": 1}});
        let items = |priorities: &[i64]| -> Value {
            let item = |priority| json!({"uuid": one, "priority": priority});
            json!({"items": priorities.iter().map(item).collect::<Vec<_>>()})
        };
        for (method, path, body, expected) in [
            ("DELETE", one, json!({}), true),
            ("POST", "collections/collect_garbage", json!({}), true),
            ("PUT", one, stop.clone(), true),
            ("PUT", one, go_on, false),
            (
                "PUT",
                one,
                json!({"container_request": {"name": "x"}}),
                false,
            ),
            ("POST", "container_requests", stop, false),
            ("POST", bulk, items(&[0, 0]), true),
            ("POST", bulk, items(&[0, 1]), false),
            ("POST", bulk, json!({"items": "all"}), false),
        ] {
            let params = Params::parse(None, &HeaderMap::new(), body.to_string().as_bytes());
            let segments: Vec<&str> = path.split('/').collect();
            let route = routes().find(|route| route.matches(method, &segments).is_some());
            let frees = frees_space(route.unwrap(), &params.unwrap());
            assert_eq!(frees, expected, "{method} {path} {body}");
        }
    }
}
