//! Attacks of one user on others: by names, by results, by input that others must read, and on
//! tokens that are not its own.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, submit};

const EVERYBODY: &str = "local-j7d0g-fffffffffffffff";

async fn saved(api: &Api, manifest: &str) -> Value {
    let body = json!({"collection": {"manifest_text": manifest}});
    api.post("collections", body).await.ok()
}

/// A collection with one file, and its signed manifest.
async fn own_file(api: &Api) -> Value {
    let put = api
        .raw(Method::PUT, "/37b51d194a7513e45b56f6524f2d51f2")
        .body("bar");
    let Value::String(locator) = api.send(put).await.ok() else {
        panic!("a locator");
    };
    saved(api, &format!(". {} 0:3:image.tar\n", locator.trim())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_gives_no_image_its_name_for_others() {
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let shared = json!({"link": {"link_class": "permission", "name": "can_read",
        "tail_uuid": EVERYBODY, "head_uuid": image_of(&fixture, &pdh).await}});
    fixture.admin.post("links", shared).await.ok();
    let [attacker, victim] = fixture.plain_users(["attacker", "victim"]).await;
    let other = own_file(&attacker).await;
    let open = json!({"link": {"link_class": "permission", "name": "can_read",
        "tail_uuid": EVERYBODY, "head_uuid": other["uuid"]}});
    attacker.post("links", open).await.ok();
    let named = json!({"link": {"link_class": "docker_image_repo+tag", "name": "busybox:latest",
        "head_uuid": other["uuid"], "properties": {"image_timestamp": "9999"}}});
    attacker.post("links", named).await.ok();
    for (api, image) in [
        (&victim, json!(pdh)),
        (&attacker, other["portable_data_hash"].clone()),
    ] {
        let request = submit(api, json!({"container_image": "busybox"}))
            .await
            .ok();
        let uuid = request["container_uuid"].as_str().unwrap();
        assert_eq!(
            fixture.admin.container(uuid).await["container_image"],
            image
        );
    }
}

/// A project that another user shares, unasked, gives an image no name; nor does a link of another
/// user in a project of one's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_shared_project_gives_no_image_its_name() {
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let [attacker, victim] = fixture.plain_users(["attacker", "victim"]).await;
    let other = own_file(&attacker).await;
    let link = async |api: &Api, link: Value| api.post("links", json!({"link": link})).await.ok();
    let grant = |tail: &Value, head: &Value, name: &str| json!({"link_class": "permission", "name": name, "tail_uuid": tail, "head_uuid": head});
    let (image, everybody) = (image_of(&fixture, &pdh).await, json!(EVERYBODY));
    link(&fixture.admin, grant(&everybody, &image, "can_read")).await;
    link(&attacker, grant(&everybody, &other["uuid"], "can_read")).await;
    let users = [
        attacker.get("users/current").await.ok()["uuid"].clone(),
        victim.get("users/current").await.ok()["uuid"].clone(),
    ];
    for (owner, guest) in [(&attacker, &users[1]), (&victim, &users[0])] {
        let group = json!({"group": {"name": "p", "group_class": "project"}});
        let project = owner.post("groups", group).await.ok()["uuid"].clone();
        link(owner, grant(guest, &project, "can_write")).await;
        let named = json!({"link_class": "docker_image_repo+tag", "name": "busybox:latest",
            "head_uuid": other["uuid"], "owner_uuid": project,
            "properties": {"image_timestamp": "9999"}});
        link(&attacker, named).await;
    }
    let request = submit(&victim, json!({"container_image": "busybox"})).await;
    let request = request.ok();
    let uuid = request["container_uuid"].as_str().unwrap();
    let container = fixture.admin.container(uuid).await;
    assert_eq!(container["container_image"], json!(pdh));
}

async fn image_of(fixture: &Fixture, pdh: &str) -> Value {
    let filters = json!([["portable_data_hash", "=", pdh]]);
    let found = fixture
        .admin
        .list("collections", json!({"filters": filters}))
        .await;
    found.ok()["items"][0]["uuid"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_acts_for_another_user_is_not_joined() {
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let shared = json!({"link": {"link_class": "permission", "name": "can_read",
        "tail_uuid": EVERYBODY, "head_uuid": image_of(&fixture, &pdh).await}});
    fixture.admin.post("links", shared).await.ok();
    let [one, two] = fixture.plain_users(["one", "two"]).await;
    for (api_access, is_joined) in [(false, true), (true, false)] {
        let work = json!({"runtime_constraints": {"vcpus": 1, "ram": 1 << 20, "API": api_access},
                          "container_image": "busybox"});
        let first = submit(&one, work.clone()).await.ok()["container_uuid"].clone();
        let again = submit(&one, work.clone()).await.ok()["container_uuid"].clone();
        assert_eq!(first, again);
        let other = submit(&two, work).await.ok()["container_uuid"].clone();
        assert_eq!(first == other, is_joined, "API access: {api_access}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_supplied_a_containers_token_invents_no_results() {
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let user = fixture.plain_user("inventor").await;
    let shared = json!({"link": {"link_class": "permission", "name": "can_read",
        "tail_uuid": EVERYBODY, "head_uuid": image_of(&fixture, &pdh).await}});
    fixture.admin.post("links", shared).await.ok();
    let request = submit(&user, json!({"runtime_token": user.token}))
        .await
        .ok();
    let uuid = request["container_uuid"].as_str().unwrap();
    fixture.admin.lock(uuid).await.ok();
    fixture
        .admin
        .change(uuid, json!({"state": "Running"}))
        .await
        .ok();
    let inside = user.with_token(&format!("{}/{uuid}", user.token));
    inside.get("containers/current").await.ok();
    let invented = own_file(&user).await["portable_data_hash"].clone();
    for change in [
        json!({"output": invented}),
        json!({"output": invented, "exit_code": 0, "state": "Complete"}),
    ] {
        let answer = inside.change(uuid, change).await;
        assert!((400..500).contains(&answer.status), "{}", answer.status);
    }
    assert_eq!(fixture.admin.container(uuid).await["output"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_created_container_names_no_token() {
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let own = fixture
        .admin
        .get("api_client_authorizations/current")
        .await
        .ok();
    let made = json!({"container": {"command": ["true"], "container_image": pdh,
        "output_path": "/out", "mounts": {"/out": {"kind": "tmp", "capacity": 1}},
        "runtime_constraints": {"vcpus": 1, "ram": 1 << 20},
        "auth_uuid": "local-gj3su-000000000000000", "locked_by_uuid": own["uuid"]}});
    let made = fixture.admin.post("containers", made).await.ok();
    assert_eq!(made["auth_uuid"], Value::Null);
    assert_eq!(made["locked_by_uuid"], Value::Null);
    let path = format!("containers/{}/auth", made["uuid"].as_str().unwrap());
    fixture.admin.get(&path).await.error_of(403);
    let for_root = json!({"api_client_authorization":
        {"owner_uuid": "local-tpzed-000000000000000"}});
    fixture
        .admin
        .post("api_client_authorizations", for_root)
        .await
        .error_of(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_input_is_refused_before_anybody_must_read_it() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let nested = |depth: usize| -> Value {
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        serde_json::from_str(&text).unwrap()
    };
    let mount = |depth: usize| {
        json!({"mounts": {"/out": {"kind": "tmp", "capacity": 1},
                          "/deep": {"kind": "json", "content": nested(depth)}}})
    };
    submit(&fixture.admin, mount(50)).await.ok();
    submit(&fixture.admin, mount(100)).await.error_of(422);
    let manifest = |depth: usize| {
        format!(
            ".{} d41d8cd98f00b204e9800998ecf8427e+0 0:0:f\n",
            "/a".repeat(depth)
        )
    };
    saved(&fixture.admin, &manifest(1000)).await;
    let deep = json!({"collection": {"manifest_text": manifest(20_000)}});
    fixture.admin.post("collections", deep).await.error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_the_wrong_type_is_not_echoed() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let wrong = json!({"secret_mounts": "{\"/key\": {\"content\": \"hunter2\"}}"});
    let message = submit(&fixture.admin, wrong).await.error_of(422);
    assert!(!message.contains("hunter2"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_in_the_body_is_not_taken_for_the_one_that_was_admitted() {
    let fixture = Fixture::new().await;
    let weak = fixture.plain_user("weak").await;
    let body = json!({"api_token": fixture.admin.token, "collection": {"name": "whose"}});
    let path = format!("/arvados/v1/collections?api_token={}", weak.token);
    let request = weak.bare(Method::POST, &path).json(&body);
    let made = weak.send(request).await.ok();
    let own = weak.get("users/current").await.ok()["uuid"].clone();
    assert_eq!(made["owner_uuid"], own);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_in_the_trash_is_signed_in_no_listing() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("keeper").await;
    let saved = own_file(&user).await;
    let path = format!("collections/{}", saved["uuid"].as_str().unwrap());
    let listing = |include_trash: bool, distinct: bool| {
        json!({"select": ["manifest_text"], "distinct": distinct,
               "include_trash": include_trash})
    };
    for is_trashed in [false, true] {
        if is_trashed {
            user.delete(&path).await.ok();
        }
        for distinct in [false, true] {
            let page = user.list("collections", listing(true, distinct)).await;
            let text = page.ok()["items"][0]["manifest_text"].to_string();
            assert_eq!(text.contains("+A"), !is_trashed, "distinct {distinct}");
        }
    }
}

/// A program in a container reports progress and output, and not how its run ended or what it cost.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_does_not_decide_how_its_own_run_ended() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    fixture.admin.lock(&uuid).await.ok();
    let running = json!({"state": "Running"});
    fixture.admin.change(&uuid, running).await.ok();
    let inside = fixture.admin.container_token(&uuid).await;
    for change in [
        json!({"state": "Complete", "exit_code": 0}),
        json!({"state": "Cancelled"}),
        json!({"exit_code": 0}),
        json!({"cost": -5}),
        json!({"gateway_address": "evil:1"}),
        json!({"finished_at": "2026-01-01T00:00:00Z"}),
    ] {
        let answer = inside.change(&uuid, change.clone()).await;
        assert!(
            (400..500).contains(&answer.status),
            "{change}: {}",
            answer.status
        );
    }
    inside.change(&uuid, json!({"progress": 0.5})).await.ok();
    let long = json!({"runtime_status": {"activity": "x".repeat(70_000)}});
    inside.change(&uuid, long).await.error_of(422);
    assert_eq!(fixture.admin.container(&uuid).await["state"], "Running");
}

/// Numbers that programs could not read are refused, also after the commit.
#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_attempts_stays_a_number_that_programs_read() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let request = submit(&fixture.admin, json!({})).await.ok();
    let path = format!("container_requests/{}", request["uuid"].as_str().unwrap());
    for count in [json!(-5), json!(0), json!(1_i64 << 31), json!(i64::MAX)] {
        let change = json!({"container_request": {"container_count_max": count}});
        fixture.admin.put(&path, change).await.error_of(422);
        let made = submit(&fixture.admin, json!({"container_count_max": count})).await;
        made.error_of(422);
    }
    let change = json!({"container_request": {"container_count_max": 5}});
    fixture.admin.put(&path, change).await.ok();
}

/// A token that may only submit gives no container a token that may do everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_with_scopes_starts_no_container_that_may_do_more() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let scopes = json!({"scopes": ["POST /arvados/v1/container_requests"]});
    let narrow = fixture.token(scopes).await;
    let with_api = json!({"runtime_constraints": {"vcpus": 1, "ram": 1 << 20, "API": true}});
    let text = submit(&narrow, with_api.clone()).await.error_of(422);
    assert!(text.contains("runtime_token"), "{text}");
    submit(&narrow, json!({})).await.ok();
    let mut with_token = with_api;
    with_token["runtime_token"] = json!(narrow.token);
    submit(&narrow, with_token).await.ok();
}

/// A token that ends gives its user no token that ends later, and does not extend itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_does_not_outlive_itself() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("short").await;
    let end = "2099-01-01T00:00:00Z";
    let body = |attributes: Value| json!({"api_client_authorization": attributes});
    let made = user.post(
        "api_client_authorizations",
        body(json!({"expires_at": end})),
    );
    let made = made.await.ok();
    let short = user.with_token(&crate::fixture::v2(&made));
    let own = format!(
        "api_client_authorizations/{}",
        made["uuid"].as_str().unwrap()
    );
    for later in [Value::Null, json!("2100-01-01T00:00:00Z")] {
        let attributes = body(json!({"expires_at": later}));
        short.put(&own, attributes.clone()).await.error_of(403);
        let minted = short.post("api_client_authorizations", attributes).await;
        minted.error_of(403);
    }
    let sooner = body(json!({"expires_at": "2098-01-01T00:00:00Z"}));
    short
        .post("api_client_authorizations", sooner.clone())
        .await
        .ok();
    short.put(&own, sooner).await.ok();
}

/// A group stays what it is, and owns itself neither directly nor through another.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_keeps_its_class_and_is_not_lost_in_itself() {
    let fixture = Fixture::new().await;
    let api = &fixture.admin;
    let group = async |name: &str, owner: Option<&Value>| {
        let group = json!({"name": name, "group_class": "project", "owner_uuid": owner});
        let made = api.post("groups", json!({"group": group})).await.ok();
        made["uuid"].clone()
    };
    let outer = group("outer", None).await;
    let inner = group("inner", Some(&outer)).await;
    let path = format!("groups/{}", outer.as_str().unwrap());
    for change in [
        json!({"owner_uuid": outer}),
        json!({"owner_uuid": inner}),
        json!({"group_class": "role"}),
        json!({"group_class": ""}),
    ] {
        let answer = api.put(&path, json!({"group": change})).await;
        answer.error_of(422);
    }
    let renamed = json!({"group": {"name": "other"}});
    api.put(&path, renamed).await.ok();
}

/// What is shared through a group is shared no more without it, and only who manages a group may
/// delete it.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_ends_with_its_group() {
    let fixture = Fixture::new().await;
    let [ana, bob] = fixture.plain_users(["ana", "bob"]).await;
    let me = bob.get("users/current").await.ok();
    let group = async |name: &str, class: &str| {
        let group = json!({"group": {"name": name, "group_class": class}});
        ana.post("groups", group).await.ok()["uuid"].clone()
    };
    let link = async |name: &str, tail: &Value, head: &Value| {
        let link = json!({"link": {"link_class": "permission", "name": name,
            "tail_uuid": tail, "head_uuid": head}});
        ana.post("links", link).await.ok();
    };
    let role = group("role", "role").await;
    let file = own_file(&ana).await;
    link("can_read", &me["uuid"], &role).await;
    link("can_read", &role, &file["uuid"]).await;
    let path = format!("collections/{}", file["uuid"].as_str().unwrap());
    bob.get(&path).await.ok();
    let role = format!("groups/{}", role.as_str().unwrap());
    ana.delete(&role).await.ok();
    bob.get(&path).await.error_of(404);

    let project = group("project", "project").await;
    link("can_write", &me["uuid"], &project).await;
    let inside = json!({"collection": {"manifest_text": "", "owner_uuid": project}});
    let inside = ana.post("collections", inside).await.ok();
    let project = format!("groups/{}", project.as_str().unwrap());
    bob.delete(&project).await.error_of(403);
    let path = format!("collections/{}", inside["uuid"].as_str().unwrap());
    bob.get(&path).await.ok();
    ana.delete(&project).await.ok();
    bob.get(&path).await.error_of(404);
}

/// The database has the secrets of tokens: a copy that keeps the modes shows them to nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_else_may_read_the_database() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new().await;
    let state = fixture.directory.path();
    let mut seen = 0;
    for entry in walk(state) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("state.db") {
            let mode = std::fs::metadata(&entry).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{name}: {mode:o}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "the database and its log");
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let below = |path: std::path::PathBuf| match path.is_dir() {
        true => walk(&path),
        false => vec![path],
    };
    entries.flat_map(below).collect()
}
