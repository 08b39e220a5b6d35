//! A project in the trash takes along what is in it: nobody sees it there, it comes back with the
//! project, and nothing is put into it.

use reqwest::Method;
use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, STEP_TIMEOUT, request};
use crate::garbage::put;

async fn project(api: &Api, name: &str, owner: Option<&Value>) -> Value {
    let mut group = json!({"name": name, "group_class": "project"});
    if let Some(owner) = owner {
        group["owner_uuid"] = owner["uuid"].clone();
    }
    api.post("groups", json!({ "group": group })).await.ok()
}

fn path(kind: &str, record: &Value) -> String {
    format!("{kind}/{}", record["uuid"].as_str().unwrap())
}

/// The number of records of this kind that the caller sees.
async fn count(api: &Api, kind: &str, more: Value) -> u64 {
    api.list(kind, more).await.ok()["items_available"]
        .as_u64()
        .unwrap()
}

/// A project in a project, with a record of each kind in it.
struct World {
    fixture: Fixture,
    alice: Api,
    outer: Value,
    inner: Value,
    /// Kind and record.
    records: Vec<(&'static str, Value)>,
}

impl World {
    async fn new() -> World {
        let fixture = Fixture::new().await;
        let alice = fixture.plain_user("alice").await;
        let outer = project(&alice, "outer", None).await;
        let inner = project(&alice, "inner", Some(&outer)).await;
        let owner = &inner["uuid"];
        let locator = put(&alice, "data").await;
        let manifest = format!(". {locator} 0:4:file\n");
        let collection = json!({"name": "c", "owner_uuid": owner, "manifest_text": manifest});
        let collection = alice.post("collections", collection).await.ok();
        let workflow = json!({"name": "w", "owner_uuid": owner});
        let workflow = alice.post("workflows", workflow).await.ok();
        let draft = request(json!({"state": "Uncommitted", "owner_uuid": owner}));
        let draft = alice.post("container_requests", draft).await.ok();
        let records = vec![
            ("groups", inner.clone()),
            ("collections", collection),
            ("workflows", workflow),
            ("container_requests", draft),
        ];
        World {
            fixture,
            alice,
            outer,
            inner,
            records,
        }
    }

    /// Whether all records are there, or none of them, for every way to ask.
    async fn check(&self, there: bool) {
        let with_trash = json!({"include_trash": true});
        for api in [&self.alice, &self.fixture.admin] {
            for (kind, record) in &self.records {
                let path = path(kind, record);
                let status = api.get(&path).await.status;
                assert_eq!(status, if there { 200 } else { 404 }, "{path}");
                api.get(&format!("{path}?include_trash=true")).await.ok();
                let filter = json!([["uuid", "=", record["uuid"]]]);
                let listed = count(api, kind, json!({ "filters": filter })).await;
                assert_eq!(listed, u64::from(there), "{path}");
                let listed =
                    count(api, kind, json!({"filters": filter, "include_trash": true})).await;
                assert_eq!(listed, 1, "{path}");
            }
        }
        let contents = path("groups", &self.inner) + "/contents";
        let shown = self.alice.list(&contents, json!({})).await;
        assert_eq!(shown.status, if there { 200 } else { 404 });
        assert_eq!(count(&self.alice, &contents, with_trash).await, 3);
    }

    fn collection(&self) -> &Value {
        &self.records[1].1
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_it_goes_and_comes_back_with_the_project() {
    let world = World::new().await;
    let alice = &world.alice;
    world.check(true).await;
    let outer = path("groups", &world.outer);
    let trashed = alice.post(&format!("{outer}/trash"), json!({})).await.ok();
    assert_eq!(trashed["is_trashed"], true);
    assert!(trashed["delete_at"].as_str() > trashed["trash_at"].as_str());
    alice.get(&outer).await.error_of(404);
    world.check(false).await;
    // Its name is free meanwhile.
    let same = project(alice, "outer", None).await;
    let untrash = format!("{outer}/untrash");
    let taken = alice.post(&untrash, json!({})).await.error_of(422);
    assert!(taken.contains("already exists"), "{taken}");
    let unique = json!({"ensure_unique_name": true});
    let back = alice.post(&untrash, unique).await.ok();
    assert!(back["name"].as_str().unwrap().starts_with("outer ("));
    assert_eq!(
        (&back["is_trashed"], &back["delete_at"]),
        (&json!(false), &Value::Null)
    );
    world.check(true).await;

    // DELETE is the trash, too; that of the project in it stays when the outer one comes back.
    alice.delete(&path("groups", &same)).await.ok();
    alice.delete(&path("groups", &world.inner)).await.ok();
    alice.delete(&outer).await.ok();
    alice.post(&untrash, json!({})).await.ok();
    alice.get(&outer).await.ok();
    world.check(false).await;
    // So is an update, and a time that has come.
    let inner = path("groups", &world.inner);
    let out = json!({"group": {"is_trashed": false}});
    alice.put(&inner, out).await.ok();
    world.check(true).await;
    let future = json!({"group": {"trash_at": "2200-01-01T00:00:00Z"}});
    alice.put(&inner, future).await.ok();
    world.check(true).await;
    let past = json!({"group": {"trash_at": "2020-01-01T00:00:00Z"}});
    assert_eq!(alice.put(&inner, past).await.ok()["is_trashed"], true);
    world.check(false).await;
    let out = json!({"group": {"trash_at": null}});
    assert_eq!(alice.put(&inner, out).await.ok()["is_trashed"], false);
    world.check(true).await;
    let untrash = format!("{inner}/untrash");
    let refusal = alice.post(&untrash, json!({})).await.error_of(422);
    assert!(refusal.contains("not trashed"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_used_from_the_trash_and_nothing_put_into_it() {
    let world = World::new().await;
    let alice = &world.alice;
    alice.delete(&path("groups", &world.outer)).await.ok();
    let collection = world.collection();
    let hash = collection["portable_data_hash"].as_str().unwrap();
    alice
        .get(&format!("collections/{hash}"))
        .await
        .error_of(404);
    let mounts = json!({"/out": {"kind": "tmp", "capacity": 1},
                        "/in": {"kind": "collection", "uuid": collection["uuid"]}});
    world.fixture.image().await;
    let mounted = request(json!({ "mounts": mounts }));
    let refused = world
        .fixture
        .admin
        .post("container_requests", mounted)
        .await;
    assert!(refused.error_of(422).contains("not found"));
    for owner in [&world.outer, &world.inner] {
        for api in [alice, &world.fixture.admin] {
            let lost = json!({"name": "lost", "owner_uuid": owner["uuid"]});
            let refused = api.post("collections", lost).await.error_of(422);
            assert!(refused.contains("in the trash"), "{refused}");
        }
    }
    let kept = alice
        .post("collections", json!({"name": "kept"}))
        .await
        .ok();
    let moved = json!({"owner_uuid": world.inner["uuid"]});
    let refused = alice.put(&path("collections", &kept), moved).await;
    assert!(refused.error_of(422).contains("in the trash"));
    // But it can be taken out of there alone.
    let me = alice.get("users/current").await.ok();
    let out = json!({"owner_uuid": me["uuid"], "include_trash": true});
    alice.put(&path("collections", collection), out).await.ok();
    alice.get(&path("collections", collection)).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_write_does_not_put_a_project_into_the_trash() {
    let world = World::new().await;
    let writer = world.fixture.plain_user("writer").await;
    let me = writer.get("users/current").await.ok();
    let grant = json!({"link": {"link_class": "permission", "name": "can_write",
                                "tail_uuid": me["uuid"], "head_uuid": world.outer["uuid"]}});
    world.alice.post("links", grant).await.ok();
    let outer = path("groups", &world.outer);
    writer.delete(&outer).await.error_of(403);
    for call in ["trash", "untrash"] {
        let refused = writer.post(&format!("{outer}/{call}"), json!({})).await;
        assert_eq!(refused.status, 403, "{call}");
    }
    let update = json!({"group": {"is_trashed": true}});
    writer.put(&outer, update).await.error_of(403);
    let update = json!({"group": {"description": "mine"}});
    writer.put(&outer, update).await.ok();
    // Nor does one take a project out of it, and manage it then.
    let mine = json!({"group": {"owner_uuid": me["uuid"]}});
    let inner = path("groups", &world.inner);
    writer.put(&inner, mine).await.error_of(403);
    // A time in the past is now.
    let past = json!({"group": {"trash_at": "2020-01-01T00:00:00Z"}});
    let trashed = world.alice.put(&inner, past).await.ok();
    assert!(trashed["delete_at"].as_str() > trashed["modified_at"].as_str());
    // Who manages it does not shorten the time of what others have in it.
    let now =
        json!({"group": {"trash_at": "2020-01-01T00:00:00Z", "delete_at": "2020-01-01T00:00:00Z"}});
    world.alice.put(&outer, now.clone()).await.error_of(422);
    // One whose time has ended does not come back in part.
    let admin = &world.fixture.admin;
    admin.put(&inner, now).await.ok();
    for change in [json!({"trash_at": null}), json!({"is_trashed": false})] {
        let refusal = admin.put(&inner, json!({"group": change})).await;
        let refusal = refusal.error_of(422);
        assert!(refusal.contains("being deleted"), "{refusal}");
    }
    // A role has no trash.
    let role = json!({"group": {"name": "r", "group_class": "role"}});
    let role = world.fixture.admin.post("groups", role).await.ok();
    let role = path("groups", &role);
    let refused = admin.post(&format!("{role}/trash"), json!({})).await;
    assert!(refused.error_of(422).contains("only a project"));
    admin.delete(&role).await.ok();
    let gone = admin.get(&format!("{role}?include_trash=true")).await;
    assert_eq!(gone.status, 404);
}

/// The blocks of what is in the trash stay.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_collection_leaves_what_may_come_back() {
    let world = World::new().await;
    let alice = &world.alice;
    let outer = path("groups", &world.outer);
    alice.delete(&outer).await.ok();
    // Its manifest is shown and not signed, so that nobody counts on its blocks.
    let shown = path("collections", world.collection()) + "?include_trash=true";
    let filter = json!([["uuid", "=", world.collection()["uuid"]]]);
    let listed = json!({"filters": filter, "include_trash": true, "select": ["manifest_text"]});
    let listed = alice.list("collections", listed).await.ok();
    for shown in [alice.get(&shown).await.ok(), listed["items"][0].clone()] {
        let manifest = shown["manifest_text"].as_str().unwrap();
        assert!(
            manifest.contains("+4 ") && !manifest.contains("+A"),
            "{shown}"
        );
    }
    crate::garbage::collect(&world.fixture, 0, true, false).await;
    alice
        .post(&format!("{outer}/untrash"), json!({}))
        .await
        .ok();
    let shown = alice
        .get(&path("collections", world.collection()))
        .await
        .ok();
    let manifest = shown["manifest_text"].as_str().unwrap();
    let block = format!("/{}", manifest.split(' ').nth(1).unwrap());
    let block = alice.raw(Method::GET, &block).send().await.unwrap();
    assert_eq!(block.text().await.unwrap(), "data");
}

/// Many listings of the trash at once, each of which asks where its collections are.
#[tokio::test(flavor = "multi_thread")]
async fn many_listings_of_the_trash_are_answered() {
    let world = World::new().await;
    let contents = path("groups", &world.inner) + "/contents";
    for number in 0..20 {
        let more = json!({"name": number.to_string(), "owner_uuid": world.inner["uuid"]});
        world.alice.post("collections", more).await.ok();
    }
    world.alice.delete(&path("groups", &world.outer)).await.ok();
    let listings = (0..40).map(|_| {
        let (api, contents) = (world.fixture.admin.clone(), contents.clone());
        tokio::spawn(async move {
            for _ in 0..5 {
                assert_eq!(
                    count(&api, &contents, json!({"include_trash": true})).await,
                    23
                );
            }
        })
    });
    for listing in listings.collect::<Vec<_>>() {
        tokio::time::timeout(STEP_TIMEOUT, listing)
            .await
            .expect("the server does not answer any more")
            .unwrap();
    }
}
