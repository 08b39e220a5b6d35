//! The kinds of the two ends of a link, which Workbench shows and filters by.

use serde_json::{Value, json};

use crate::contents::project;
use crate::fixture::{Fixture, request};
use crate::garbage::state_of;

#[tokio::test(flavor = "multi_thread")]
async fn links_tell_the_kinds_of_their_ends_and_are_found_by_them() {
    let fixture = Fixture::new().await;
    let api = fixture.plain_user("plain").await;
    let me = api.get("users/current").await.ok()["uuid"].clone();
    let starred = json!(project(&api, "starred", None).await);
    let make = async |link: Value| api.post("links", json!({ "link": link })).await;
    let star = json!({"link_class": "star", "name": "starred", "tail_uuid": me,
                      "head_uuid": starred, "tail_kind": "arvados#user"});
    let star = make(star).await.ok();
    let tag = json!({"link_class": "tag", "name": "red", "head_uuid": me,
                     "head_kind": "arvados#user"});
    let tag = make(tag).await.ok();
    for (link, ends) in [
        (&star, json!(["arvados#group", "arvados#user"])),
        (&tag, json!(["arvados#user", null])),
    ] {
        let uuid = link["uuid"].as_str().unwrap();
        let shown = api.get(&format!("links/{uuid}")).await.ok();
        let selected = json!({"filters": [["uuid", "=", uuid]],
                              "select": ["head_kind", "tail_kind"]});
        let listed = api.list("links", selected).await.ok();
        for seen in [link, &shown, &listed["items"][0]] {
            assert_eq!(
                json!([seen["head_kind"], seen["tail_kind"]]),
                ends,
                "{seen}"
            );
        }
    }
    for (params, expected) in [
        (
            json!({"filters": [["tail_kind", "=", "arvados#user"]]}),
            &star,
        ),
        (
            json!({"filters": [["links.head_kind", "=", "arvados#user"]]}),
            &tag,
        ),
        (
            json!({"filters": [["head_kind", "=", ["arvados#user"]]]}),
            &tag,
        ),
        (json!({"where": {"head_kind": "arvados#group"}}), &star),
        (
            json!({"where": {"head_kind": ["arvados#group", "arvados#log"]}}),
            &star,
        ),
    ] {
        let found = api.list("links", params.clone()).await.ok();
        let found: Vec<_> = found["items"].as_array().unwrap().iter().collect();
        assert_eq!(found.len(), 1, "{params}");
        assert_eq!(found[0]["uuid"], expected["uuid"], "{params}");
    }
    let wrong = json!({"link_class": "tag", "head_uuid": me, "head_kind": "arvados#group"});
    let refusal = make(wrong).await.error_of(422);
    assert!(refusal.contains("head_kind"), "{refusal}");
    for filter in [
        json!(["tail_kind", "like", "arvados#user"]),
        json!(["tail_kind", "=", "arvados#nothing"]),
    ] {
        let params = json!({"filters": [filter]});
        let refusal = api.list("links", params).await.error_of(422);
        assert!(refusal.contains("tail_kind"), "{refusal}");
    }
    let other = json!({"filters": [["tail_kind", "=", "arvados#user"]]});
    api.list("groups", other).await.error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_has_one_of_four_names() {
    let fixture = Fixture::new().await;
    let api = fixture.plain_user("plain").await;
    let me = api.get("users/current").await.ok()["uuid"].clone();
    let shared = project(&api, "p", None).await;
    let grant = |name: &str| {
        json!({"link": {"link_class": "permission", "name": name,
                        "tail_uuid": me, "head_uuid": shared}})
    };
    let refusal = api.post("links", grant("can_bogus")).await.error_of(422);
    assert!(refusal.contains("can_manage"), "{refusal}");
    let link = api.post("links", grant("can_read")).await.ok();
    let path = format!("links/{}", link["uuid"].as_str().unwrap());
    let renamed = json!({"link": {"name": "can_do"}});
    api.put(&path, renamed).await.error_of(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_users_note_about_a_record_is_their_own() {
    let fixture = Fixture::new().await;
    let [one, two] = fixture.plain_users(["one", "two"]).await;
    let guest = two.get("users/current").await.ok()["uuid"].clone();
    let outer = project(&one, "outer", None).await;
    let inner = project(&one, "inner", Some(&outer)).await;
    let grant = json!({"link": {"link_class": "permission", "name": "can_read",
                                "tail_uuid": guest, "head_uuid": outer}});
    one.post("links", grant).await.ok();
    let admin = &fixture.admin;
    for (author, reader) in [(&one, &two), (&two, &one), (admin, &two)] {
        let is_admin = author.token == admin.token;
        for (class, is_shown) in [
            ("star", false),
            ("tag", false),
            ("dockerXimageX", false),
            ("docker_image_hash", is_admin),
        ] {
            let note = json!({"link": {"link_class": class, "name": "x", "head_uuid": inner,
                                       "properties": {"about": "mine"}}});
            let note = author.post("links", note).await.ok();
            let path = format!("links/{}", note["uuid"].as_str().unwrap());
            author.get(&path).await.ok();
            let expected = if is_shown { 200 } else { 404 };
            assert_eq!(reader.get(&path).await.status, expected, "{class}");
            let filters = json!({"filters": [["uuid", "=", note["uuid"]]]});
            let listed = reader.list("links", filters).await.ok();
            assert_eq!(listed["items_available"], u64::from(is_shown), "{class}");
        }
    }
}

/// A permission of an earlier release, which had several between two ends.
fn copy_link(fixture: &Fixture, link: &str, copy: &str, name: &str) {
    let database = state_of(fixture).join("state.db");
    let columns = "owner_uuid, created_at, modified_at, link_class, head_uuid, tail_uuid";
    let sql = format!(
        "INSERT INTO links (uuid, name, {columns}) SELECT ?, ?, {columns} FROM links WHERE uuid = ?"
    );
    let connection = rusqlite::Connection::open(database).unwrap();
    let number = connection.execute(&sql, [copy, name, link]).unwrap();
    assert_eq!(number, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_was_given_twice_is_one_and_is_taken_away_at_once() {
    const COPY: &str = "local-o0j2j-000000000000001";
    let fixture = Fixture::new().await;
    let owner = fixture.plain_user("owner").await;
    let guest = fixture.plain_user("guest").await;
    let me = guest.get("users/current").await.ok()["uuid"].clone();
    let uuid = project(&owner, "shared", None).await;
    let path = format!("groups/{uuid}");
    let give = async |tail: &Value, name: &str| {
        let link = json!({"link_class": "permission", "name": name, "tail_uuid": tail,
                          "head_uuid": uuid});
        let given = owner.post("links", json!({ "link": link })).await.ok();
        let uuid = given["uuid"].as_str().unwrap().to_owned();
        (uuid, given["name"].clone())
    };
    let may = async || {
        let seen = guest.get(&path).await;
        (seen.status, seen.body["can_write"] == true)
    };
    let admin = fixture.admin.get("users/current").await.ok();
    let (other, _) = give(&admin["uuid"], "can_read").await;
    let (link, _) = give(&me, "can_read").await;
    let own = format!("links/{link}");
    for (more, expected) in [("can_write", "can_write"), ("can_read", "can_write")] {
        assert_eq!(give(&me, more).await, (link.clone(), json!(expected)));
    }
    assert_eq!(may().await, (200, true));
    let less = json!({"link": {"name": "can_read"}});
    owner.put(&own, less.clone()).await.ok();
    assert_eq!(may().await, (200, false));

    // Of two, the stronger one counts, and the other one goes.
    copy_link(&fixture, &link, COPY, "can_manage");
    assert_eq!(
        give(&me, "can_write").await,
        (COPY.to_owned(), json!("can_manage"))
    );
    owner.get(&own).await.error_of(404);
    let own = format!("links/{COPY}");
    owner.put(&own, less.clone()).await.ok();
    copy_link(&fixture, COPY, &link, "can_write");
    assert_eq!(owner.put(&own, less).await.ok()["name"], "can_write");
    owner.get(&format!("links/{link}")).await.error_of(404);

    copy_link(&fixture, COPY, &link, "can_read");
    owner.delete(&own).await.ok();
    assert_eq!(may().await, (404, false));
    owner.get(&format!("links/{other}")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_is_given_to_somebody_and_changes_its_level_only() {
    let fixture = Fixture::new().await;
    let owner = fixture.plain_user("owner").await;
    let me = owner.get("users/current").await.ok()["uuid"].clone();
    let role = json!({"group": {"name": "team", "group_class": "role"}});
    let role = fixture.admin.post("groups", role).await.ok()["uuid"].clone();
    let uuid = project(&owner, "shared", None).await;
    let second = project(&owner, "second", None).await;
    let give = async |tail: Value, head: &str| {
        let link = json!({"link_class": "permission", "name": "can_read", "tail_uuid": tail,
                          "head_uuid": head});
        owner.post("links", json!({ "link": link })).await
    };
    for (tail, head, words) in [
        (json!(null), &*uuid, "must be a user or role"),
        (
            json!("local-tpzed-111111111111111"),
            &uuid,
            "does not exist",
        ),
        (
            json!("local-j7d0g-111111111111111"),
            &uuid,
            "does not exist",
        ),
        (
            json!("local-4zz18-111111111111111"),
            &uuid,
            "must be a user or role",
        ),
        (json!(second), &uuid, "group_class project"),
        (me.clone(), "", "Head uuid '' of a permission is no record"),
    ] {
        let text = give(tail.clone(), head).await.error_of(422);
        assert!(text.contains(words), "{tail} {text}");
    }
    let link = give(role, &uuid).await.ok();
    let path = format!("links/{}", link["uuid"].as_str().unwrap());
    for change in [
        json!({"tail_uuid": me}),
        json!({"head_uuid": second}),
        json!({"link_class": "tag"}),
    ] {
        let text = owner
            .put(&path, json!({ "link": change }))
            .await
            .error_of(422);
        assert!(
            text.contains("Can only alter permission link level"),
            "{text}"
        );
    }
    let level = json!({"link": {"name": "can_write", "properties": {"why": "x"}}});
    assert_eq!(owner.put(&path, level).await.ok()["name"], "can_write");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_note_is_about_something_that_its_author_may_read() {
    let fixture = Fixture::new().await;
    let [one, two] = fixture.plain_users(["one", "two"]).await;
    let hidden = project(&one, "hidden", None).await;
    let own = project(&two, "own", None).await;
    let tag = |head: &str| json!({"link": {"link_class": "tag", "name": "x", "head_uuid": head}});
    for head in [&hidden, "local-4zz18-111111111111111"] {
        let text = two.post("links", tag(head)).await.error_of(422);
        assert!(
            text.contains(&format!("head_uuid '{head}' not found")),
            "{text}"
        );
    }
    let made = two.post("links", tag(&own)).await.ok();
    let path = format!("links/{}", made["uuid"].as_str().unwrap());
    two.put(&path, tag(&hidden)).await.error_of(422);
    let tail = json!({"link": {"tail_uuid": hidden}});
    two.put(&path, tail).await.error_of(422);
    // What is gone meanwhile is no hindrance for another change.
    let run = request(json!({"state": "Uncommitted"}));
    let run = two.post("container_requests", run).await.ok();
    let run = run["uuid"].as_str().unwrap();
    let made = two.post("links", tag(run)).await.ok();
    two.delete(&format!("container_requests/{run}")).await.ok();
    let path = format!("links/{}", made["uuid"].as_str().unwrap());
    let renamed = json!({"link": {"name": "y"}});
    two.put(&path, renamed).await.ok();
}
