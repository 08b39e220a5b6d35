//! What a project or a home has, in one listing of several kinds; and what others share.

use serde_json::{Value, json};

use crate::fixture::{Api, Fixture, request};

fn uuid(record: &Value) -> String {
    record["uuid"].as_str().unwrap().to_owned()
}

pub async fn project(api: &Api, name: &str, owner: Option<&str>) -> String {
    let group = json!({"name": name, "group_class": "project", "owner_uuid": owner});
    uuid(&api.post("groups", json!({ "group": group })).await.ok())
}

async fn collection(api: &Api, name: &str, owner: Option<&str>) -> String {
    let attributes = json!({"name": name, "owner_uuid": owner});
    let created = api.post("collections", json!({ "collection": attributes }));
    uuid(&created.await.ok())
}

/// The names of the items, and what else the answer says.
async fn contents(api: &Api, path: &str, params: Value) -> (Vec<String>, Value) {
    let answer = api.list(path, params).await.ok();
    let items = answer["items"].as_array().unwrap();
    let name = |item: &Value| item["name"].as_str().unwrap_or_default().to_owned();
    (items.iter().map(name).collect(), answer)
}

/// A user with a project that has a project, a request, a workflow and two collections, one of
/// these in the inner project, and one in the trash.
struct Home {
    fixture: Fixture,
    user: Api,
    outer: String,
}

async fn home() -> Home {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let outer = project(&user, "outer", None).await;
    let inner = project(&user, "inner", Some(&outer)).await;
    collection(&user, "deep", Some(&inner)).await;
    collection(&user, "flat", Some(&outer)).await;
    let trashed = collection(&user, "trashed", Some(&outer)).await;
    user.delete(&format!("collections/{trashed}")).await.ok();
    let workflow = json!({"name": "cwl", "owner_uuid": outer});
    let workflow = json!({ "workflow": workflow });
    user.post("workflows", workflow).await.ok();
    let attributes = json!({"name": "run", "owner_uuid": outer, "state": "Uncommitted"});
    user.post("container_requests", request(attributes))
        .await
        .ok();
    Home {
        fixture,
        user,
        outer,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_has_records_of_every_kind() {
    let Home { user, outer, .. } = home().await;
    let path = format!("groups/{outer}/contents");
    let order = |name: &str| json!({"order": [name]});
    let (names, answer) = contents(&user, &path, json!({})).await;
    assert_eq!(names, ["inner", "run", "cwl", "flat"]);
    assert_eq!(answer["items_available"], 4);
    assert_eq!(answer["kind"], "arvados#objectList");
    let kinds: Vec<&Value> = answer["items"].as_array().unwrap().iter().collect();
    assert_eq!(kinds[1]["kind"], "arvados#containerRequest");
    assert!(answer.get("included").is_none() && kinds[3].get("manifest_text").is_none());

    let by_uuid = json!({"uuid": outer, "recursive": true, "order": ["name"]});
    let (names, _) = contents(&user, "groups/contents", by_uuid).await;
    assert_eq!(names, ["inner", "run", "cwl", "deep", "flat"]);
    let with_trash = json!({"include_trash": true, "order": ["name"]});
    let (names, _) = contents(&user, &path, with_trash).await;
    assert_eq!(names, ["inner", "run", "cwl", "flat", "trashed"]);
    // The home of a user, and all that the user may read.
    let me = uuid(&user.get("users/current").await.ok());
    let (names, _) = contents(&user, &format!("groups/{me}/contents"), order("name")).await;
    assert_eq!(names, ["outer"]);
    let (names, _) = contents(&user, "groups/contents", order("name")).await;
    assert_eq!(names, ["inner", "outer", "run", "cwl", "deep", "flat"]);
    let without = json!({"exclude_home_project": true, "order": ["name"]});
    let (names, _) = contents(&user, "groups/contents", without).await;
    assert!(names.is_empty(), "{names:?}");
    let both = json!({"exclude_home_project": true, "uuid": outer});
    user.list("groups/contents", both).await.error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_and_selections_concern_the_kinds_that_have_the_attribute() {
    let Home { user, outer, .. } = home().await;
    let path = format!("groups/{outer}/contents");
    for (filters, expected) in [
        (json!([["name", "like", "%n%"]]), vec!["inner", "run"]),
        (
            json!([["uuid", "is_a", "arvados#collection"]]),
            vec!["flat"],
        ),
        (
            json!([["collections.name", "=", "none"]]),
            vec!["inner", "run", "cwl"],
        ),
        (json!([["portable_data_hash", "!=", null]]), vec!["flat"]),
        (json!([["any", "ilike", "%FLA%"]]), vec!["flat"]),
        (json!([["container.state", "=", null]]), vec!["run"]),
    ] {
        let (names, _) = contents(&user, &path, json!({"filters": filters})).await;
        assert_eq!(names, expected, "{filters}");
    }
    for (conditions, expected) in [
        (json!({"name": ["flat", "cwl"]}), vec!["cwl", "flat"]),
        (json!({"state": "Uncommitted"}), vec!["run"]),
        (json!({"any": ["contains", "FLA"]}), vec!["flat"]),
        (json!({"name": ["contains", "la"]}), vec!["flat"]),
    ] {
        let (names, _) = contents(&user, &path, json!({ "where": conditions })).await;
        assert_eq!(names, expected, "{conditions}");
    }
    let nowhere = json!({"filters": [["nothing", "=", 1]]});
    let text = user.list(&path, nowhere).await.error_of(422);
    assert!(text.contains("nothing"), "{text}");
    for mistake in [
        json!({"filters": [["collections.bogus", "=", 1]]}),
        json!({"filters": [["bogus.name", "=", 1]]}),
        json!({"where": {"bogus": 1}}),
        json!({"select": ["bogus"]}),
        json!({"select": ["uuid", "bogus"]}),
        json!({"select": "uuid"}),
    ] {
        for path in [&path, "groups/contents", "groups/shared"] {
            let answer = user.list(path, mistake.clone()).await;
            assert_eq!(answer.status, 422, "{path} {mistake}: {}", answer.body);
        }
    }
    let listed = json!({"select": ["kind", "etag", "state"]});
    user.list(&path, listed).await.ok();
    let selected = json!({"select": ["uuid", "state"], "include": "owner_uuid"});
    let (_, answer) = contents(&user, &path, selected).await;
    assert_eq!(answer["items"][1]["state"], "Uncommitted");
    assert!(answer["items"][3].get("name").is_none(), "{answer}");
    assert_eq!(answer["included"][0]["uuid"], *outer);
    assert_eq!(answer["included"].as_array().unwrap().len(), 1);
    user.list(&path, json!({"include": "name"}))
        .await
        .error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_go_through_all_kinds_without_a_gap() {
    let Home { user, outer, .. } = home().await;
    let path = format!("groups/{outer}/contents");
    for size in 1..5 {
        let mut names = Vec::new();
        loop {
            let page = json!({"limit": size, "offset": names.len(), "count": "none"});
            let (more, answer) = contents(&user, &path, page).await;
            assert!(answer.get("items_available").is_none());
            assert!(more.len() <= size);
            if more.is_empty() {
                break;
            }
            names.extend(more);
        }
        assert_eq!(names, ["inner", "run", "cwl", "flat"], "{size}");
    }
    let (names, answer) = contents(&user, &path, json!({"limit": 0})).await;
    assert_eq!((names.len(), &answer["items_available"]), (0, &json!(4)));
}

/// A page ends where it becomes too large, and the next one begins there.
#[tokio::test(flavor = "multi_thread")]
async fn large_records_of_one_kind_hide_none_of_the_next() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let outer = project(&user, "outer", None).await;
    collection(&user, "last", Some(&outer)).await;
    for name in ["a", "b", "c", "d"] {
        let description = "x".repeat(3 << 20);
        let group = json!({"name": name, "group_class": "project", "owner_uuid": outer,
                           "description": description});
        user.post("groups", json!({ "group": group })).await.ok();
    }
    let path = format!("groups/{outer}/contents");
    let mut names = Vec::new();
    for expected in [3, 2] {
        let page = json!({"offset": names.len(), "order": ["name"]});
        let (more, answer) = contents(&user, &path, page).await;
        assert_eq!(
            (more.len(), &answer["items_available"]),
            (expected, &json!(5))
        );
        names.extend(more);
    }
    assert_eq!(names, ["a", "b", "c", "d", "last"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn others_see_what_is_shared_with_them() {
    let Home {
        fixture,
        user,
        outer,
    } = home().await;
    let other = fixture.plain_user("other").await;
    let path = format!("groups/{outer}/contents");
    other.get(&path).await.error_of(404);
    other
        .get("groups/local-j7d0g-000000000000000/contents")
        .await
        .error_of(404);
    let me = uuid(&other.get("users/current").await.ok());
    let nothing = || contents(&other, "groups/shared", json!({}));
    assert!(nothing().await.0.is_empty());
    let grant = json!({"link_class": "permission", "name": "can_read",
                       "tail_uuid": me, "head_uuid": outer});
    user.post("links", json!({ "link": grant })).await.ok();
    let (names, _) = contents(&other, &path, json!({})).await;
    assert_eq!(names, ["inner", "run", "cwl", "flat"]);
    // What is inside of a shared project is not shared by itself.
    let (names, answer) = contents(&other, "groups/shared", json!({"include": "owner_uuid"})).await;
    assert_eq!(names, ["outer"]);
    // The owner is named only to those who may read that user.
    assert_eq!(answer["included"], json!([]));
    let without_home = json!({"exclude_home_project": true});
    let (names, _) = contents(&other, "groups/contents", without_home).await;
    assert_eq!(names, ["outer"]);
    // What is shared by itself is found, although its project is not.
    let grant = json!({"link_class": "permission", "name": "can_read", "tail_uuid": me,
                       "head_uuid": collection(&user, "alone", None).await});
    user.post("links", json!({ "link": grant })).await.ok();
    let without_home = json!({"exclude_home_project": true});
    let (names, _) = contents(&other, "groups/contents", without_home).await;
    assert_eq!(names, ["outer", "alone"]);
    let (names, _) = contents(&user, "groups/shared", json!({})).await;
    assert!(names.is_empty());
}
