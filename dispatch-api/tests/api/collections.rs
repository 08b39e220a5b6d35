//! Collections: content, signatures, names and trash.

use serde_json::{Value, json};

use crate::world::World;

const FOO: &str = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo.txt\n";
const FOO_PDH: &str = "83367e8913dcec0bf3fc25ed5a27eacb+49";

fn collection(attributes: Value) -> Value {
    json!({ "collection": attributes })
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_hashed_counted_and_signed_for_the_reader() {
    let world = World::new().await;
    let made =
        collection(json!({"name": "foo", "manifest_text": FOO, "portable_data_hash": "wrong"}));
    let made = world.admin.post("collections", made).await.ok();
    assert_eq!(
        made["portable_data_hash"], FOO_PDH,
        "a wrong hash is corrected"
    );
    assert_eq!(
        (&made["file_count"], &made["file_size_total"]),
        (&json!(1), &json!(3))
    );
    let by_uuid = format!("collections/{}", made["uuid"].as_str().unwrap());
    let text = |answer: Value| answer["manifest_text"].as_str().unwrap().to_owned();
    let signed = text(world.admin.get(&by_uuid).await.ok());
    assert!(signed.contains("+3+A"), "{signed}");
    let other = world.token(json!({})).await;
    assert_ne!(text(other.get(&by_uuid).await.ok()), signed);
    let by_content = world
        .admin
        .get(&format!("collections/{FOO_PDH}"))
        .await
        .ok();
    assert_eq!(
        (&by_content["uuid"], &by_content["properties"]),
        (&json!(FOO_PDH), &Value::Null)
    );
    let none = world
        .admin
        .get("collections/00000000000000000000000000000000+0")
        .await;
    assert!(none.refused(404).contains("not found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_users_must_bring_signatures_of_their_own() {
    let world = World::new().await;
    let plain = world.plain_user("plain").await;
    let unsigned = collection(json!({"manifest_text": FOO}));
    let text = plain
        .post("collections", unsigned.clone())
        .await
        .refused(403);
    assert!(text.contains("PermissionDenied"), "{text}");
    let put = plain
        .raw(reqwest::Method::PUT, "/acbd18db4cc2f85cedef654fccc4a4d8")
        .body("foo");
    let locator = plain.send(put).await.ok();
    let locator = locator.as_str().unwrap().trim();
    let signed = collection(json!({"manifest_text": format!(". {locator} 0:3:foo.txt\n")}));
    let made = plain.post("collections", signed.clone()).await.ok();
    assert_eq!(made["portable_data_hash"], FOO_PDH);
    world
        .plain_user("other")
        .await
        .post("collections", signed)
        .await
        .refused(403);
    world.admin.post("collections", unsigned).await.ok();
    let empty = collection(json!({"name": "empty"}));
    assert_eq!(
        plain.post("collections", empty).await.ok()["portable_data_hash"],
        "d41d8cd98f00b204e9800998ecf8427e+0"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_manifests_are_refused() {
    let world = World::new().await;
    for manifest in [
        FOO.trim_end(),
        "foo\n",
        ". x 0:1:y\n",
        ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:9:y\n",
    ] {
        let made = collection(json!({"manifest_text": manifest}));
        world.admin.post("collections", made).await.refused(422);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trashed_collection_is_invisible_and_still_a_valid_output() {
    let world = World::new().await;
    let uuid = world.queued().await;
    let output = ". 37b51d194a7513e45b56f6524f2d51f2+3 0:3:bar.txt\n";
    let made = collection(json!({"name": "output", "manifest_text": output, "is_trashed": true}));
    let made = world.admin.post("collections", made).await.ok();
    assert!(made["trash_at"].is_string() && made["delete_at"].is_string());
    assert_eq!(
        made["manifest_text"], output,
        "what is in the trash is shown unsigned"
    );
    let path = format!("collections/{}", made["uuid"].as_str().unwrap());
    world.admin.get(&path).await.refused(404);
    world
        .admin
        .put(&path, json!({"name": "x"}))
        .await
        .refused(404);
    world
        .admin
        .get(&format!("{path}?include_trash=true"))
        .await
        .ok();
    let listed = world.admin.list("collections", json!({})).await.ok();
    assert_eq!(listed["items_available"], 1, "only the image");
    world.admin.lock(&uuid).await.ok();
    world
        .admin
        .change(&uuid, json!({"state": "Running"}))
        .await
        .ok();
    let done = json!({"state": "Complete", "exit_code": 0, "output": made["portable_data_hash"]});
    world.admin.change(&uuid, done).await.ok();
    world
        .admin
        .post(&format!("{path}/untrash"), json!({}))
        .await
        .ok();
    world.admin.get(&path).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_unique_per_owner() {
    let world = World::new().await;
    let same = collection(json!({"name": "same"}));
    let first = world.admin.post("collections", same.clone()).await.ok();
    let text = world
        .admin
        .post("collections", same.clone())
        .await
        .refused(422);
    assert!(text.contains("RecordNotUnique"), "{text}");
    let mut unique = same.clone();
    unique["ensure_unique_name"] = json!(true);
    let second = world.admin.post("collections", unique).await.ok();
    let name = second["name"].as_str().unwrap();
    assert!(name.starts_with("same (") && name.ends_with(')'), "{name}");
    world
        .plain_user("plain")
        .await
        .post("collections", same.clone())
        .await
        .ok();
    world
        .admin
        .delete(&format!("collections/{}", first["uuid"].as_str().unwrap()))
        .await
        .ok();
    world.admin.post("collections", same).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_its_owners() {
    let world = World::new().await;
    let (one, two) = (world.plain_user("one").await, world.plain_user("two").await);
    let project = json!({"group": {"name": "shared", "group_class": "project"}});
    let project = one.post("groups", project).await.ok();
    let made = collection(json!({"name": "c", "owner_uuid": project["uuid"]}));
    let made = one.post("collections", made).await.ok();
    let path = format!("collections/{}", made["uuid"].as_str().unwrap());
    two.get(&path).await.refused(404);
    let me = two.get("users/current").await.ok();
    let grant = json!({"link": {"link_class": "permission", "name": "can_read",
                                "tail_uuid": me["uuid"], "head_uuid": project["uuid"]}});
    two.post("links", grant.clone()).await.refused(404);
    one.post("links", grant).await.ok();
    two.get(&path).await.ok();
    two.put(&path, json!({"name": "mine"})).await.refused(403);
    one.put(&path, json!({"name": "ours"})).await.ok();
}
