//! `docs/api.md`, the discovery document and the routes of the server say the same, and what
//! Arvados has and this server has not is listed there with a reason.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::fixture::Fixture;

const UPSTREAM: &str = include_str!("../data/arvados-methods.txt");

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md");
    std::fs::read_to_string(path).unwrap()
}

/// The cells of the table below this heading, without its first two rows.
fn table(page: &str, heading: &str) -> Vec<(String, String)> {
    let section = page.split("\n## ").find(|part| part.starts_with(heading));
    let rows = section
        .unwrap_or_else(|| panic!("docs/api.md has no section {heading:?}"))
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2);
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [first, second] = cells.as_slice() else {
            panic!("not two cells: {row}");
        };
        ((*first).to_owned(), (*second).to_owned())
    })
    .collect()
}

/// The routes in a cell such as ``GET, PUT `a/{}`, POST `a/{}/b` ``.
fn routes_in(cell: &str) -> Vec<String> {
    let mut routes = Vec::new();
    let mut methods = Vec::new();
    for word in cell.split([' ', ',']).filter(|word| !word.is_empty()) {
        match word.strip_prefix('`') {
            None => methods.push(word.to_owned()),
            Some(path) => {
                let path = path.trim_end_matches('`');
                routes.extend(methods.drain(..).map(|method| format!("{method} {path}")));
            }
        }
    }
    assert!(methods.is_empty(), "a method without a path: {cell}");
    routes
}

#[test]
fn the_page_lists_every_route_once() {
    let rows = table(&page(), "Records");
    let listed: Vec<String> = rows.iter().flat_map(|(cell, _)| routes_in(cell)).collect();
    let unique: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(
        listed.len(),
        unique.len(),
        "a route is listed twice: {listed:?}"
    );
    let routes: BTreeSet<String> = dispatch_api::api::routes()
        .map(|route| format!("{} {}", route.method, route.path))
        .collect();
    assert_eq!(unique, routes);
}

/// Resource and its methods, as HTTP method and path, by name.
async fn document(fixture: &Fixture) -> BTreeMap<String, BTreeMap<String, String>> {
    let document = fixture
        .admin
        .raw(reqwest::Method::GET, "/discovery/v1/apis/arvados/v1/rest");
    let document: Value = document.send().await.unwrap().json().await.unwrap();
    let resources = document["resources"].as_object().unwrap();
    let methods = |resource: &Value| {
        let methods = resource["methods"].as_object().unwrap();
        let route = |method: &Value| {
            let path = method["path"].as_str().unwrap().replace("{uuid}", "{}");
            format!("{} {path}", method["httpMethod"].as_str().unwrap())
        };
        methods
            .iter()
            .map(|(name, method)| (name.clone(), route(method)))
            .collect()
    };
    resources
        .iter()
        .map(|(name, resource)| (name.clone(), methods(resource)))
        .collect()
}

/// Routes that have no method, as in Arvados, or that only this server has.
const WITHOUT_METHOD: [&str; 3] = [
    "GET groups/{}/contents",
    "GET user_agreements/signatures",
    "POST collections/collect_garbage",
];

#[tokio::test(flavor = "multi_thread")]
async fn every_route_has_a_method_in_the_document_and_every_method_a_route() {
    let fixture = Fixture::new().await;
    let routes: BTreeSet<String> = dispatch_api::api::routes()
        .map(|route| format!("{} {}", route.method, route.path))
        .chain(["GET config".to_owned(), "GET vocabulary".to_owned()])
        .collect();
    let methods = document(&fixture).await.into_values().flatten();
    let mut methods: BTreeSet<String> = methods.map(|(_, route)| route).collect();
    methods.extend(WITHOUT_METHOD.map(str::to_owned));
    assert_eq!(methods, routes);
    let page = page();
    let before_table = page
        .split("\n## Records")
        .nth(1)
        .and_then(|rest| rest.split("\n|").next());
    for (_, path) in WITHOUT_METHOD
        .iter()
        .filter_map(|route| route.split_once(' '))
    {
        let is_named = before_table.is_some_and(|text| text.contains(&format!("`{path}`")));
        assert!(
            is_named,
            "docs/api.md does not say that {path} has no method"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_arvados_has_is_here_or_missing_for_a_reason() {
    let own = document(&Fixture::new().await).await;
    let mut missing = BTreeSet::new();
    for line in UPSTREAM.lines().filter(|line| !line.starts_with('#')) {
        let (resource, methods) = line.split_once(": ").unwrap();
        for method in methods.split(' ') {
            if !own
                .get(resource)
                .is_some_and(|own| own.contains_key(method))
            {
                missing.insert(format!("{resource}.{method}"));
            }
        }
    }
    let mut excused = BTreeSet::new();
    for (cell, reason) in table(&page(), "What Arvados has") {
        assert!(reason.len() > 5, "{cell} has no reason");
        for name in cell.split(", ").map(|name| name.trim_matches('`')) {
            let all = name.strip_suffix('*');
            let fits = |method: &&String| match all {
                Some(resource) => method.starts_with(resource),
                None => *method == name,
            };
            let found: Vec<String> = missing.iter().filter(fits).cloned().collect();
            assert!(!found.is_empty(), "{name} is not missing");
            excused.extend(found);
        }
    }
    let unexplained: Vec<&String> = missing.difference(&excused).collect();
    assert!(unexplained.is_empty(), "without a reason: {unexplained:?}");
    println!(
        "{} methods of Arvados are missing, each with a reason",
        missing.len()
    );
}
