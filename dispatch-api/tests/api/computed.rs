//! Attributes that are computed for the caller: what they may do with a project.

use serde_json::{Value, json};

use crate::contents::project;
use crate::fixture::Fixture;

fn rights(record: &Value) -> [&Value; 2] {
    [&record["can_write"], &record["can_manage"]]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_says_what_the_caller_may_do_with_it() {
    let fixture = Fixture::new().await;
    let owner = fixture.plain_user("owner").await;
    let guest = fixture.plain_user("guest").await;
    let me = guest.get("users/current").await.ok()["uuid"].clone();
    let home = me.as_str().unwrap();
    for (level, expected) in [
        ("can_read", [false, false]),
        ("can_write", [true, false]),
        ("can_manage", [true, true]),
    ] {
        let outer = project(&owner, level, None).await;
        let inner = project(&owner, "inner", Some(&outer)).await;
        let grant = json!({"link_class": "permission", "name": level,
                           "tail_uuid": me, "head_uuid": outer});
        owner.post("links", json!({ "link": grant })).await.ok();
        for uuid in [&outer, &inner] {
            let seen = guest.get(&format!("groups/{uuid}")).await.ok();
            assert_eq!(rights(&seen), expected.map(Value::from).each_ref());
            assert_eq!(seen.get("frozen_by_uuid"), Some(&Value::Null));
            for (path, api, expected) in [
                ("groups", &guest, expected),
                ("groups/contents", &guest, expected),
                ("groups", &owner, [true, true]),
            ] {
                let filters = json!([["uuid", "=", uuid]]);
                let select = json!(["uuid", "can_write", "can_manage"]);
                let params = json!({"filters": filters, "select": select});
                let listed = api.list(path, params).await.ok();
                let item = &listed["items"][0];
                let expected = expected.map(Value::from);
                assert_eq!(rights(item), expected.each_ref(), "{path} {level}");
                assert_eq!(item.get("owner_uuid"), None, "{item}");
            }
        }
    }
    let own = project(&guest, "own", Some(home)).await;
    let shown = guest.get(&format!("groups/{own}")).await.ok();
    assert_eq!(rights(&shown), [&json!(true), &json!(true)]);
    let shown = guest.list("groups/contents", json!({"uuid": home})).await;
    assert_eq!(shown.ok()["items"][0]["can_manage"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn computed_attributes_are_selected_and_never_stored_or_searched() {
    let fixture = Fixture::new().await;
    let api = fixture.plain_user("plain").await;
    let select = json!({"select": ["full_name", "can_write"]});
    let seen = api.list("users/current", select).await.ok();
    let expected = json!({"full_name": "", "can_write": true});
    assert_eq!(seen, expected);

    let uuid = project(&api, "p", None).await;
    for params in [
        json!({"filters": [["can_write", "=", true]]}),
        json!({"select": ["can_write"], "distinct": true}),
    ] {
        api.list("groups", params).await.error_of(422);
    }
    let path = format!("groups/{uuid}");
    let changed = api.put(&path, json!({"group": {"can_write": false}}));
    changed.await.error_of(422);
    // As the record came.
    let mut record = api.get(&path).await.ok();
    record["name"] = json!("new");
    let wrapped = json!({ "group": record });
    for sent in [record, wrapped] {
        assert_eq!(api.put(&path, sent).await.ok()["can_write"], true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_users_have_both_names() {
    let fixture = Fixture::new().await;
    let me = fixture.admin.get("users/current").await.ok();
    let names = ["first_name", "last_name", "full_name"].map(|name| me[name].as_str().unwrap());
    assert_eq!(names, ["Local", "dispatch", "Local dispatch"]);
    let params = json!({"filters": [["uuid", "=", me["uuid"]]], "select": ["full_name"]});
    let listed = fixture.admin.list("users", params).await.ok();
    assert_eq!(listed["items"][0]["full_name"], "Local dispatch");
}
