//! Who may do what: each route of the API, for each kind of caller and of object.
//!
//! The rows below say what is expected. A route without a row fails the test.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, request, v2};

/// The callers, in the order of the columns of a row. `owner` owns all objects, `reader` and
/// `writer` have can_read and can_write on the project of the shared ones. `container` is the
/// owner's container. `scoped` may list collections only, `empty` has no scope.
const CALLERS: [&str; 10] = [
    "owner",
    "other",
    "reader",
    "writer",
    "admin",
    "root",
    "container",
    "attempt",
    "scoped",
    "empty",
];

/// Callers that are refused with 401 by every route.
const STRANGERS: [&str; 4] = ["nobody", "garbage", "expired", "disabled"];

/// Route, object, and for each caller: `+` permitted, `f` 403, `-` 404.
const ROWS: &[(&str, &str, &str)] = &[
    ("GET collections", "", "+++++++f+f"),
    ("POST collections", "own", "++++++++ff"),
    ("POST collections", "shared", "+ff++++fff"),
    ("GET collections/{}", "own", "+---+++fff"),
    ("GET collections/{}", "shared", "+-+++++fff"),
    ("GET collections/{}", "trashed", "-------fff"),
    ("GET collections/{}", "pdh", "+---+++fff"),
    ("PUT collections/{}", "own", "+---+++fff"),
    ("PUT collections/{}", "shared", "+-f++++fff"),
    ("PUT collections/{}", "trashed", "-------fff"),
    ("DELETE collections/{}", "own", "+---+++fff"),
    ("DELETE collections/{}", "shared", "+-f++++fff"),
    ("POST collections/{}/trash", "own", "+---+++fff"),
    ("POST collections/{}/trash", "shared", "+-f++++fff"),
    ("POST collections/{}/untrash", "trashed", "+-f++++fff"),
    ("POST collections/collect_garbage", "", "ffff++ffff"),
    ("GET authorized_keys", "", "+++++++fff"),
    ("GET computed_permissions", "", "+++++++fff"),
    ("GET credentials", "", "+++++++fff"),
    ("GET repositories", "", "+++++++fff"),
    ("GET user_agreements", "", "+++++++fff"),
    ("GET user_agreements/signatures", "", "+++++++fff"),
    ("GET virtual_machines", "", "+++++++fff"),
    ("GET workflows", "", "+++++++fff"),
    ("POST workflows", "own", "+++++++fff"),
    ("POST workflows", "shared", "+ff++++fff"),
    ("GET workflows/{}", "own", "+---+++fff"),
    ("GET workflows/{}", "shared", "+-+++++fff"),
    ("PUT workflows/{}", "own", "+---+++fff"),
    ("PUT workflows/{}", "shared", "+-f++++fff"),
    ("DELETE workflows/{}", "own", "+---+++fff"),
    ("DELETE workflows/{}", "shared", "+-f++++fff"),
    ("GET container_requests", "", "+++++++fff"),
    ("POST container_requests", "own", "+++++++fff"),
    ("POST container_requests", "shared", "+ff++++fff"),
    ("GET container_requests/{}", "own", "+---+++fff"),
    ("GET container_requests/{}", "shared", "+-+++++fff"),
    ("PUT container_requests/{}", "own", "+---+++fff"),
    ("PUT container_requests/{}", "shared", "+-f++++fff"),
    ("DELETE container_requests/{}", "own", "+---+++fff"),
    ("DELETE container_requests/{}", "shared", "+-f++++fff"),
    (
        "GET container_requests/{}/container_status",
        "own",
        "+---+++fff",
    ),
    (
        "GET container_requests/{}/container_status",
        "shared",
        "+-+++++fff",
    ),
    ("OPTIONS container_requests/{}/log", "own", "+---+++fff"),
    ("OPTIONS container_requests/{}/log", "shared", "+-+++++fff"),
    ("GET containers", "", "+++++++fff"),
    ("POST containers", "", "ffff++ffff"),
    ("GET containers/current", "", "------+fff"),
    ("GET containers/{}", "running", "+---++++ff"),
    ("GET containers/{}", "shared", "+-+++++fff"),
    ("PUT containers/{}", "running", "f---++++ff"),
    ("PUT containers/{}", "shared", "f-ff++ffff"),
    ("DELETE containers/{}", "shared", "f-ff++ffff"),
    ("POST containers/{}/lock", "shared", "f-ff++ffff"),
    ("POST containers/{}/unlock", "running", "+---++++ff"),
    ("POST containers/{}/update_priority", "shared", "+-+++++fff"),
    ("GET containers/{}/auth", "running", "f---fff+ff"),
    ("GET containers/{}/auth", "shared", "f-ffffffff"),
    ("GET containers/{}/secret_mounts", "running", "f---ff+fff"),
    ("GET containers/{}/secret_mounts", "shared", "f-ffffffff"),
    ("POST containers/bulk_lock", "", "+++++++fff"),
    ("POST container_requests/bulk_update", "", "+++++++fff"),
    ("GET api_client_authorizations", "", "++++++ffff"),
    ("POST api_client_authorizations", "own", "++++++ffff"),
    (
        "POST api_client_authorizations",
        "of the owner",
        "+fff++ffff",
    ),
    (
        "POST api_client_authorizations/bulk_create",
        "",
        "++++++ffff",
    ),
    ("GET api_client_authorizations/current", "", "++++++++++"),
    ("GET api_client_authorizations/{}", "own", "+---++ffff"),
    ("GET api_client_authorizations/{}", "of root", "-----+ffff"),
    ("PUT api_client_authorizations/{}", "own", "+---++ffff"),
    ("PUT api_client_authorizations/{}", "of root", "-----+ffff"),
    ("DELETE api_client_authorizations/{}", "own", "+---++ffff"),
    ("GET users", "", "+++++++fff"),
    ("POST users", "", "ffff++ffff"),
    ("GET users/current", "", "++++++++ff"),
    ("GET users/system", "", "----++-fff"),
    ("GET users/{}", "own", "+---+++fff"),
    ("PUT users/{}", "own", "f---++ffff"),
    ("GET links", "", "+++++++fff"),
    ("POST links", "own", "+++++++fff"),
    ("POST links", "grant of the shared project", "+-ff+++fff"),
    ("GET links/{}", "grant to the reader", "+-+-+++fff"),
    ("PUT links/{}", "grant to the reader", "+-f-+++fff"),
    ("DELETE links/{}", "grant to the reader", "+-f-+++fff"),
    ("GET permissions/{}", "own", "+---+++fff"),
    ("GET permissions/{}", "shared", "+-ff+++fff"),
    ("GET groups", "", "+++++++fff"),
    ("POST groups", "own", "+++++++fff"),
    ("POST groups", "shared", "+ff++++fff"),
    ("GET groups/{}", "own", "+---+++fff"),
    ("GET groups/{}", "shared", "+-+++++fff"),
    ("PUT groups/{}", "own", "+---+++fff"),
    ("PUT groups/{}", "shared", "+-f++++fff"),
    ("DELETE groups/{}", "own", "+---+++fff"),
    ("DELETE groups/{}", "shared", "+-ff+++fff"),
    ("POST groups/{}/trash", "own", "+---+++fff"),
    ("POST groups/{}/trash", "shared", "+-ff+++fff"),
    ("POST groups/{}/untrash", "own", "+---+++fff"),
    ("POST groups/{}/untrash", "shared", "+-ff+++fff"),
    ("GET groups/contents", "", "+++++++fff"),
    ("GET groups/{}/contents", "own", "+---+++fff"),
    ("GET groups/{}/contents", "shared", "+-+++++fff"),
    ("GET groups/shared", "", "+++++++fff"),
    ("GET logs", "", "+++++++fff"),
    ("POST logs", "own", "+++++++fff"),
    ("POST logs", "note on private", "+fff+++fff"),
    ("POST logs", "note on shared", "+f+++++fff"),
    ("POST logs", "update of private", "+fff+++fff"),
    ("POST logs", "update of shared", "+ff++++fff"),
    ("POST logs", "update of a container", "ffff++ffff"),
    ("POST logs/bulk_create", "", "+++++++fff"),
    ("GET logs/{}", "own", "+---+++fff"),
    ("GET logs/{}", "shared", "+-+++++fff"),
    ("GET keep_services", "", "+++++++fff"),
    ("GET keep_services/accessible", "", "++++++++ff"),
    ("GET keep_services/{}", "", "+++++++fff"),
    ("PUT /{}", "block", "++++++++ff"),
    ("GET /metrics", "", "ffff++ffff"),
];

/// Routes in rows that other parts of the server have.
const OTHER_ROUTES: &str = "OPTIONS container_requests/{}/log, PUT /{}, GET /metrics";

#[test]
fn every_route_has_a_row() {
    let routes =
        dispatch_api::api::routes().map(|route| format!("{} {}", route.method, route.path));
    let mut routes: BTreeSet<String> = routes.collect();
    routes.extend(OTHER_ROUTES.split(", ").map(str::to_owned));
    let rows: BTreeSet<String> = ROWS.iter().map(|(route, ..)| (*route).to_owned()).collect();
    assert_eq!(rows, routes);
}

/// The callers, and the objects that no request of the matrix changes.
struct World {
    fixture: Fixture,
    callers: BTreeMap<&'static str, Api>,
    /// The project that is shared with the reader and the writer.
    project: Value,
    image: Value,
    owner: Value,
    reader: Value,
    running: String,
}

async fn uuid_of(api: &Api) -> Value {
    api.get("users/current").await.ok()["uuid"].clone()
}

async fn create(api: &Api, resource: &str, body: Value) -> String {
    let made = api.post(resource, body).await.ok();
    made["uuid"].as_str().unwrap().to_owned()
}

fn grant(tail: &Value, level: &str, head: &Value) -> Value {
    json!({"link": {"link_class": "permission", "name": level, "tail_uuid": tail, "head_uuid": head}})
}

fn name() -> String {
    format!("name {:016x}", fastrand::u64(..))
}

impl World {
    async fn new() -> World {
        let fixture = Fixture::new().await;
        let mut callers = BTreeMap::new();
        for name in ["owner", "other", "reader", "writer", "disabled"] {
            callers.insert(name, fixture.plain_user(name).await);
        }
        let owner = callers["owner"].clone();
        let owner_uuid = uuid_of(&owner).await;
        let reader = uuid_of(&callers["reader"]).await;
        let project = json!({"group": {"name": "shared", "group_class": "project"}});
        let project = json!(create(&owner, "groups", project).await);
        create(&owner, "links", grant(&reader, "can_read", &project)).await;
        let writer = uuid_of(&callers["writer"]).await;
        create(&owner, "links", grant(&writer, "can_write", &project)).await;
        let disabled = uuid_of(&callers["disabled"]).await;
        let path = format!("users/{}", disabled.as_str().unwrap());
        let inactive = json!({"user": {"is_active": false}});
        fixture.admin.put(&path, inactive).await.ok();

        let put = owner.raw(Method::PUT, "/acbd18db4cc2f85cedef654fccc4a4d8");
        let block = owner.send(put.body("foo")).await.ok();
        let manifest = format!(". {} 0:3:image.tar\n", block.as_str().unwrap().trim());
        let image = json!({"collection": {"manifest_text": manifest}});
        let image = owner.post("collections", image).await.ok()["portable_data_hash"].clone();
        let submitted = request(json!({"container_image": image}));
        let submitted = owner.post("container_requests", submitted).await.ok();
        let running = submitted["container_uuid"].as_str().unwrap().to_owned();
        let scopes = json!([format!("POST /arvados/v1/containers/{running}/lock"), "all"]);
        let attempt = fixture.token(json!({"scopes": scopes})).await;
        attempt.lock(&running).await.ok();
        callers.insert("container", attempt.container_token(&running).await);
        attempt
            .change(&running, json!({"state": "Running"}))
            .await
            .ok();
        callers.insert("attempt", attempt);

        for (name, attributes) in [
            ("expired", json!({"expires_at": "2020-01-01T00:00:00Z"})),
            ("scoped", json!({"scopes": ["GET /arvados/v1/collections"]})),
            ("empty", json!({"scopes": []})),
        ] {
            let body = json!({"api_client_authorization": attributes});
            let made = owner.post("api_client_authorizations", body).await.ok();
            callers.insert(name, owner.with_token(&v2(&made)));
        }
        callers.insert("admin", fixture.admin.clone());
        callers.insert("root", Api::of(&fixture.server.ready(), "root"));
        callers.insert("garbage", owner.with_token("v2/local-gj3su-0/nonsense"));
        callers.insert("nobody", owner.with_token(""));
        World {
            fixture,
            callers,
            project,
            image,
            owner: owner_uuid,
            reader,
            running,
        }
    }

    /// A new object of the row, by its place in the path.
    async fn object(&self, resource: &str, object: &str) -> String {
        let owner = &self.callers["owner"];
        let place = match object {
            "shared" | "trashed" => &self.project,
            _ => &self.owner,
        };
        match (resource, object) {
            ("collections", "pdh") => self.image.as_str().unwrap().to_owned(),
            ("collections", _) => {
                let is_trashed = object == "trashed";
                let body = json!({"owner_uuid": place, "is_trashed": is_trashed});
                create(owner, resource, body).await
            }
            ("groups" | "permissions", _) => {
                let body = json!({"group":
                    {"name": name(), "group_class": "project", "owner_uuid": place}});
                create(owner, "groups", body).await
            }
            ("workflows", _) => create(owner, resource, json!({"owner_uuid": place})).await,
            ("container_requests", _) => {
                let draft = json!({"owner_uuid": place, "state": "Uncommitted"});
                create(owner, resource, request(draft)).await
            }
            ("containers", "running") => self.running.clone(),
            ("containers", _) => {
                let body = request(json!({"owner_uuid": place, "use_existing": false,
                                          "container_image": self.image}));
                let made = owner.post("container_requests", body).await.ok();
                made["container_uuid"].as_str().unwrap().to_owned()
            }
            ("api_client_authorizations", "of root") => "local-gj3su-000000000000000".to_owned(),
            ("api_client_authorizations", _) => create(owner, resource, json!({})).await,
            ("users", _) => self.owner.as_str().unwrap().to_owned(),
            ("links", _) => {
                let project = Box::pin(self.object("groups", "own")).await;
                let link = grant(&self.reader, "can_read", &json!(project));
                create(owner, resource, link).await
            }
            ("logs", _) => {
                let about = Box::pin(self.object("collections", object)).await;
                let filters = json!([["object_uuid", "=", about]]);
                let list = owner.list("logs", json!({"filters": filters})).await.ok();
                list["items"][0]["uuid"].as_str().unwrap().to_owned()
            }
            ("keep_services", _) => "local-bi6l4-000000000000000".to_owned(),
            _ => panic!("no object for {resource} {object}"),
        }
    }

    async fn body(&self, route: &str, object: &str) -> Value {
        let event = |kind: &str, uuid: String| json!({"event_type": kind, "object_uuid": uuid});
        match (route, object) {
            ("POST links", "own") => json!({"link": {"link_class": "tag", "name": "x"}}),
            ("POST links", _) => grant(&self.owner, "can_read", &self.project),
            ("POST groups", "own") => {
                json!({"group": {"name": name(), "group_class": "project"}})
            }
            ("POST groups", _) => json!({"group":
                {"name": name(), "group_class": "project", "owner_uuid": self.project}}),
            ("POST logs", "own") => json!({"event_type": "note"}),
            ("POST logs", "update of a container") => event("update", self.running.clone()),
            ("POST logs", _) => {
                let (kind, place) = object.split_once(' ').unwrap();
                let place = place.rsplit(' ').next().unwrap();
                event(kind, self.object("collections", place).await)
            }
            ("POST users", _) => json!({"user": {"username": name()}}),
            ("PUT users/{}", _) => json!({"user": {"email": name()}}),
            ("POST api_client_authorizations", "of the owner") => {
                json!({"owner_uuid": self.owner})
            }
            ("PUT api_client_authorizations/{}", "own") => {
                json!({"expires_at": "2090-01-01T00:00:00Z"})
            }
            ("PUT containers/{}", _) => json!({"container": {"priority": 7}}),
            ("PUT links/{}", _) => json!({"link": {"name": "can_manage"}}),
            (_, "shared") if !route.contains('{') => json!({"owner_uuid": self.project}),
            _ if route.contains("/bulk_") => json!({"items": []}),
            _ => json!({}),
        }
    }

    async fn status(&self, caller: &str, route: &str, object: &str, uuid: &str) -> u16 {
        let (method, path) = route.split_once(' ').unwrap();
        let api = &self.callers[caller];
        let path = match path {
            "/{}" => "/acbd18db4cc2f85cedef654fccc4a4d8".to_owned(),
            "/metrics" => path.to_owned(),
            path => format!("/arvados/v1/{}", path.replace("{}", uuid)),
        };
        let request = match caller {
            "nobody" => api.bare(method.parse().unwrap(), &path),
            _ => api.raw(method.parse().unwrap(), &path),
        };
        let request = match (method, object) {
            ("GET" | "DELETE" | "OPTIONS", _) => request,
            (_, "block") => request.body("foo"),
            _ => request.json(&self.body(route, object).await),
        };
        request.send().await.unwrap().status().as_u16()
    }
}

fn mark(status: u16) -> char {
    match status {
        401 => '!',
        403 => 'f',
        404 => '-',
        status if status < 500 => '+',
        _ => '5',
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_may_do_what_its_row_says() {
    let world = World::new().await;
    let mut wrong = Vec::new();
    for (route, object, expected) in ROWS {
        let (method, path) = route.split_once(' ').unwrap();
        let resource = path.split('/').next().unwrap();
        let needs_object = path.contains("{}") && !resource.is_empty();
        let mut uuid = String::new();
        let mut seen = String::new();
        for caller in STRANGERS.iter().chain(&CALLERS) {
            if needs_object && (uuid.is_empty() || seen.ends_with('+') && method != "GET") {
                uuid = world.object(resource, object).await;
            }
            seen.push(mark(world.status(caller, route, object, &uuid).await));
        }
        // The last stranger is a disabled user, who is told so.
        if seen != format!("!!!f{expected}") {
            wrong.push(format!(
                "{route} ({object}): expected {expected}, is {seen}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{:?}\n{}", CALLERS, wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_what_a_caller_may_get_and_nothing_else() {
    let world = World::new().await;
    for resource in [
        "collections",
        "container_requests",
        "containers",
        "groups",
        "logs",
        "links",
    ] {
        for object in ["own", "shared", "trashed"] {
            if object == "trashed" && resource != "collections" {
                continue;
            }
            let uuid = world.object(resource, object).await;
            for caller in [
                "owner",
                "other",
                "reader",
                "writer",
                "admin",
                "root",
                "container",
            ] {
                let api = &world.callers[caller];
                let found = api.get(&format!("{resource}/{uuid}")).await.status == 200;
                let filters = json!({"filters": [["uuid", "=", uuid]]});
                let list = api.list(resource, filters).await.ok();
                let listed = list["items_available"] == 1;
                assert_eq!(listed, found, "{caller}: {resource} ({object})");
            }
        }
    }
    // The server runs until here.
    world.fixture.server.stop().await;
}
