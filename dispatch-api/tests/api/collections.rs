//! Collections: content, signatures, names and trash.

use serde_json::{Value, json};

use crate::fixture::Fixture;

const FOO: &str = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo.txt\n";
const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e+0";
const FOO_PDH: &str = "83367e8913dcec0bf3fc25ed5a27eacb+49";

fn collection(attributes: Value) -> Value {
    json!({ "collection": attributes })
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_hashed_counted_and_signed_for_the_reader() {
    let fixture = Fixture::new().await;
    let created = collection(json!({"name": "foo", "manifest_text": FOO}));
    let created = fixture.admin.post("collections", created).await.ok();
    assert_eq!(created["portable_data_hash"], FOO_PDH);
    assert_eq!(
        (&created["file_count"], &created["file_size_total"]),
        (&json!(1), &json!(3))
    );
    let by_uuid = format!("collections/{}", created["uuid"].as_str().unwrap());
    let text = |answer: Value| answer["manifest_text"].as_str().unwrap().to_owned();
    let signed = text(fixture.admin.get(&by_uuid).await.ok());
    assert!(signed.contains("+3+A"), "{signed}");
    let other = fixture.token(json!({})).await;
    assert_ne!(text(other.get(&by_uuid).await.ok()), signed);
    let by_content = fixture
        .admin
        .get(&format!("collections/{FOO_PDH}"))
        .await
        .ok();
    assert_eq!(
        (&by_content["uuid"], &by_content["properties"]),
        (&json!(FOO_PDH), &Value::Null)
    );
    let none = fixture
        .admin
        .get("collections/00000000000000000000000000000000+0")
        .await;
    assert!(none.error_of(404).contains("not found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_users_must_bring_signatures_of_their_own() {
    let fixture = Fixture::new().await;
    let plain = fixture.plain_user("plain").await;
    let unsigned = collection(json!({"manifest_text": FOO}));
    let text = plain
        .post("collections", unsigned.clone())
        .await
        .error_of(403);
    assert!(text.contains("PermissionDenied"), "{text}");
    let put = plain
        .raw(reqwest::Method::PUT, "/acbd18db4cc2f85cedef654fccc4a4d8")
        .body("foo");
    let locator = plain.send(put).await.ok();
    let locator = locator.as_str().unwrap().trim();
    let signed = collection(json!({"manifest_text": format!(". {locator} 0:3:foo.txt\n")}));
    let created = plain.post("collections", signed.clone()).await.ok();
    assert_eq!(created["portable_data_hash"], FOO_PDH);
    fixture
        .plain_user("other")
        .await
        .post("collections", signed)
        .await
        .error_of(403);
    fixture.admin.post("collections", unsigned).await.ok();
    let empty = collection(json!({"name": "empty"}));
    assert_eq!(
        plain.post("collections", empty).await.ok()["portable_data_hash"],
        "d41d8cd98f00b204e9800998ecf8427e+0"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_manifests_are_refused() {
    let fixture = Fixture::new().await;
    for manifest in [
        FOO.trim_end(),
        "foo\n",
        ". x 0:1:y\n",
        ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:9:y\n",
    ] {
        let created = collection(json!({"manifest_text": manifest}));
        fixture
            .admin
            .post("collections", created)
            .await
            .error_of(422);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trashed_collection_is_invisible_and_still_a_valid_output() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let output = ". 37b51d194a7513e45b56f6524f2d51f2+3 0:3:bar.txt\n";
    let created =
        collection(json!({"name": "output", "manifest_text": output, "is_trashed": true}));
    let created = fixture.admin.post("collections", created).await.ok();
    assert!(created["trash_at"].is_string() && created["delete_at"].is_string());
    assert_eq!(
        created["manifest_text"], output,
        "what is in the trash is shown unsigned"
    );
    let path = format!("collections/{}", created["uuid"].as_str().unwrap());
    fixture.admin.get(&path).await.error_of(404);
    fixture
        .admin
        .put(&path, json!({"name": "x"}))
        .await
        .error_of(404);
    fixture
        .admin
        .get(&format!("{path}?include_trash=true"))
        .await
        .ok();
    let listed = fixture.admin.list("collections", json!({})).await.ok();
    assert_eq!(listed["items_available"], 1, "only the image");
    fixture.admin.lock(&uuid).await.ok();
    fixture
        .admin
        .change(&uuid, json!({"state": "Running"}))
        .await
        .ok();
    let done =
        json!({"state": "Complete", "exit_code": 0, "output": created["portable_data_hash"]});
    fixture.admin.change(&uuid, done).await.ok();
    fixture
        .admin
        .post(&format!("{path}/untrash"), json!({}))
        .await
        .ok();
    fixture.admin.get(&path).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_unique_per_owner() {
    let fixture = Fixture::new().await;
    let same = collection(json!({"name": "same"}));
    let first = fixture.admin.post("collections", same.clone()).await.ok();
    let text = fixture
        .admin
        .post("collections", same.clone())
        .await
        .error_of(422);
    assert!(text.contains("RecordNotUnique"), "{text}");
    let mut unique = same.clone();
    unique["ensure_unique_name"] = json!(true);
    let second = fixture.admin.post("collections", unique).await.ok();
    let name = second["name"].as_str().unwrap();
    assert!(name.starts_with("same (") && name.ends_with(')'), "{name}");
    fixture
        .plain_user("plain")
        .await
        .post("collections", same.clone())
        .await
        .ok();
    fixture
        .admin
        .delete(&format!("collections/{}", first["uuid"].as_str().unwrap()))
        .await
        .ok();
    fixture.admin.post("collections", same).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_can_get_a_name_that_is_free() {
    let fixture = Fixture::new().await;
    let project = |name| json!({"group": {"name": name, "group_class": "project"}});
    let first = fixture.admin.post("groups", project("p")).await.ok();
    let text = fixture.admin.post("groups", project("p")).await;
    assert!(text.error_of(422).contains("RecordNotUnique"));
    let mut free = project("p");
    free["ensure_unique_name"] = json!(true);
    let second = fixture.admin.post("groups", free.clone()).await.ok();
    let name = second["name"].as_str().unwrap();
    assert!(name.starts_with("p (") && name.ends_with(')'), "{name}");
    // So does one that is renamed; the one that has the name keeps it.
    let third = fixture.admin.post("groups", project("q")).await.ok();
    let path = |group: &Value| format!("groups/{}", group["uuid"].as_str().unwrap());
    let renamed = fixture.admin.put(&path(&third), free.clone()).await.ok();
    assert!(renamed["name"].as_str().unwrap().starts_with("p ("));
    let same = fixture.admin.put(&path(&first), free).await.ok();
    assert_eq!(same["name"], "p");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_is_its_owners() {
    let fixture = Fixture::new().await;
    let [one, two] = fixture.plain_users(["one", "two"]).await;
    let project = json!({"group": {"name": "shared", "group_class": "project"}});
    let project = one.post("groups", project).await.ok();
    let created = collection(json!({"name": "c", "owner_uuid": project["uuid"]}));
    let created = one.post("collections", created).await.ok();
    let path = format!("collections/{}", created["uuid"].as_str().unwrap());
    two.get(&path).await.error_of(404);
    let me = two.get("users/current").await.ok();
    let grant = json!({"link": {"link_class": "permission", "name": "can_read",
                                "tail_uuid": me["uuid"], "head_uuid": project["uuid"]}});
    two.post("links", grant.clone()).await.error_of(404);
    one.post("links", grant).await.ok();
    two.get(&path).await.ok();
    let refusal = two.put(&path, json!({"name": "mine"})).await.error_of(403);
    assert!(refusal.contains("you need can_write on"), "{refusal}");
    one.put(&path, json!({"name": "ours"})).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_user_takes_the_uuid_of_a_deleted_project_or_chooses_one() {
    let fixture = Fixture::new().await;
    let [one, two] = fixture.plain_users(["one", "two"]).await;
    let project = json!({"group": {"name": "gone", "group_class": "project"}});
    let project = one.post("groups", project).await.ok()["uuid"].clone();
    let path = format!("groups/{}", project.as_str().unwrap());
    one.delete(&path).await.ok();
    let again = json!({"name": "mine", "group_class": "project", "uuid": project});
    let again = two.post("groups", json!({ "group": again })).await.ok();
    assert_ne!(again["uuid"], project);
    for (resource, attributes) in [
        (
            "links",
            json!({"link_class": "tag", "uuid": "local-o0j2j-000000000000001"}),
        ),
        (
            "container_requests",
            json!({"uuid": "local-xvhdp-000000000000001"}),
        ),
        (
            "collections",
            json!({"uuid": "local-4zz18-000000000000001"}),
        ),
    ] {
        let chosen = attributes["uuid"].clone();
        let made = two.post(resource, attributes).await.ok();
        assert_ne!(made["uuid"], chosen, "{resource}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_an_administrator_has_a_collection_deleted_before_two_weeks() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let day = |days: i64| {
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * days);
        at.to_string()
    };
    let is_after = |record: &Value, days: i64| record["delete_at"].as_str() > Some(&*day(days));
    for early in [
        json!({"trash_at": "2020-01-01T00:00:00Z"}),
        json!({"trash_at": "2020-01-01T00:00:00Z", "delete_at": "2020-01-02T00:00:00Z"}),
        json!({"is_trashed": true, "delete_at": day(1)}),
        json!({"trash_at": day(3), "delete_at": day(3)}),
    ] {
        let made = user
            .post("collections", collection(early.clone()))
            .await
            .ok();
        assert!(is_after(&made, 13), "{early}: {made}");
        let kept = user.post("collections", collection(json!({}))).await.ok();
        let path = format!("collections/{}", kept["uuid"].as_str().unwrap());
        let changed = user.put(&path, json!({"collection": early})).await.ok();
        assert!(is_after(&changed, 13), "{early}: {changed}");
    }
    let later = json!({"trash_at": day(3), "delete_at": day(30)});
    let made = user.post("collections", collection(later)).await.ok();
    assert!(is_after(&made, 29), "{made}");
    let early = json!({"is_trashed": true, "delete_at": day(1)});
    let made = fixture.admin.post("collections", collection(early)).await;
    assert!(!is_after(&made.ok(), 2));
    let alone = collection(json!({"delete_at": day(30)}));
    user.post("collections", alone).await.error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_comes_back_when_it_has_no_time_in_the_trash() {
    let fixture = Fixture::new().await;
    let made = collection(json!({"is_trashed": true}));
    let made = fixture.admin.post("collections", made).await.ok();
    let path = format!("collections/{}", made["uuid"].as_str().unwrap());
    let restore = json!({"collection": {"trash_at": null}, "include_trash": true});
    let back = fixture.admin.put(&path, restore).await.ok();
    assert_eq!(
        [&back["is_trashed"], &back["delete_at"]],
        [&json!(false), &Value::Null]
    );
    fixture.admin.get(&path).await.ok();
    let untrash = format!("{path}/untrash");
    let again = fixture.admin.post(&untrash, json!({})).await;
    let refusal = again.error_of(422);
    assert!(refusal.contains("not trashed"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_hash_that_is_sent_along_must_be_that_of_the_content() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let other = "0123456789abcdef0123456789abcdef+9";
    let with = |hash: &str| collection(json!({"portable_data_hash": hash}));
    for hash in [other, "nonsense"] {
        let text = user.post("collections", with(hash)).await.error_of(422);
        assert!(text.contains(hash) && text.contains(EMPTY), "{text}");
    }
    // The size of the text is not compared, as in Arvados.
    let hash = EMPTY.split('+').next().unwrap();
    for right in ["", EMPTY, hash, &format!("{hash}+7")] {
        let made = user.post("collections", with(right)).await.ok();
        assert_eq!(made["portable_data_hash"], EMPTY, "{right}");
    }
    let made = fixture
        .admin
        .post("collections", collection(json!({"manifest_text": FOO})));
    let made = made.await.ok();
    let path = format!("collections/{}", made["uuid"].as_str().unwrap());
    let change = |attributes: Value| fixture.admin.put(&path, collection(attributes));
    let text = change(json!({"portable_data_hash": other}))
        .await
        .error_of(422);
    assert!(text.contains("does not match computed hash"), "{text}");
    let wrong = json!({"manifest_text": "", "portable_data_hash": other});
    change(wrong).await.error_of(422);
    // One who sends a record back with another manifest does not mean the old hash.
    let sent_back = json!({"manifest_text": "", "portable_data_hash": made["portable_data_hash"]});
    let changed = change(sent_back).await.ok();
    assert_eq!(changed["portable_data_hash"], EMPTY);
    let right = json!({"manifest_text": FOO, "portable_data_hash": made["portable_data_hash"]});
    let changed = change(right).await.ok();
    assert_eq!(changed["portable_data_hash"], made["portable_data_hash"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unsigned_manifest_is_shown_to_who_selects_it() {
    let fixture = Fixture::new().await;
    let made = fixture
        .admin
        .post("collections", collection(json!({"manifest_text": FOO})));
    let path = format!("collections/{}", made.await.ok()["uuid"].as_str().unwrap());
    let selected = json!({"select": ["unsigned_manifest_text"]});
    let listed = fixture
        .admin
        .list("collections", selected.clone())
        .await
        .ok();
    assert_eq!(listed["items"][0]["unsigned_manifest_text"], FOO);
    assert!(listed["items"][0].get("manifest_text").is_none());
    let shown = fixture.admin.list(&path, selected).await.ok();
    assert_eq!(shown, json!({"unsigned_manifest_text": FOO}));
    let shown = fixture.admin.get(&path).await.ok();
    assert_eq!(shown["unsigned_manifest_text"], "");
    let filter = json!({"filters": [["unsigned_manifest_text", "like", "%foo%"]]});
    fixture
        .admin
        .list("collections", filter)
        .await
        .error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_has_one_version() {
    let fixture = Fixture::new().await;
    let other = collection(json!({"version": 5, "current_version_uuid": "x", "name": "one"}));
    let made = fixture.admin.post("collections", other).await.ok();
    let seen = [&made["version"], &made["current_version_uuid"]];
    assert_eq!(seen, [&json!(1), &made["uuid"]]);
    let path = format!("collections/{}", made["uuid"].as_str().unwrap());
    for change in [json!({"version": 2}), json!({"current_version_uuid": "x"})] {
        let text = fixture
            .admin
            .put(&path, collection(change))
            .await
            .error_of(422);
        assert!(text.contains("cannot be updated"), "{text}");
    }
    let same = json!({"version": 1, "current_version_uuid": made["uuid"], "name": "two"});
    fixture.admin.put(&path, collection(same)).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_name_of_a_directory_and_no_time_is_refused() {
    let fixture = Fixture::new().await;
    for name in [".", "..", "a\0b"] {
        let named = collection(json!({ "name": name }));
        let text = fixture.admin.post("collections", named).await.error_of(422);
        assert!(text.contains("Name cannot be"), "{text}");
        let named = json!({"name": name, "group_class": "project"});
        fixture
            .admin
            .post("groups", json!({ "group": named }))
            .await
            .error_of(422);
    }
    let uuid = crate::contents::project(&fixture.admin, "p", None).await;
    let path = format!("groups/{uuid}");
    let change = |group: Value| fixture.admin.put(&path, json!({ "group": group }));
    change(json!({"name": ".."})).await.error_of(422);
    let text = change(json!({"trash_at": "soon"})).await.error_of(422);
    assert!(
        text.contains("it is text, and must be a time such as"),
        "{text}"
    );
    let alone = json!({"delete_at": "2099-01-01T00:00:00Z"});
    let text = change(alone).await.error_of(422);
    assert!(text.contains("needs a trash at"), "{text}");
    let filter = json!({"group": {"name": "f", "group_class": "filter"}});
    let text = fixture.admin.post("groups", filter).await.error_of(422);
    assert!(text.contains("not built"), "{text}");
}
