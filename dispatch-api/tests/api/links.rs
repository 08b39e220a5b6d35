//! The kinds of the two ends of a link, which Workbench shows and filters by.

use serde_json::{Value, json};

use crate::contents::project;
use crate::fixture::Fixture;

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
    let (one, two) = (
        fixture.plain_user("one").await,
        fixture.plain_user("two").await,
    );
    let guest = two.get("users/current").await.ok()["uuid"].clone();
    let outer = project(&one, "outer", None).await;
    let inner = project(&one, "inner", Some(&outer)).await;
    let grant = json!({"link": {"link_class": "permission", "name": "can_read",
                                "tail_uuid": guest, "head_uuid": outer}});
    one.post("links", grant).await.ok();
    for (author, reader) in [(&one, &two), (&two, &one)] {
        for (class, is_shown) in [
            ("star", false),
            ("tag", false),
            ("dockerXimageX", false),
            ("docker_image_hash", true),
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

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_was_given_twice_is_taken_away_at_once() {
    let fixture = Fixture::new().await;
    let owner = fixture.plain_user("owner").await;
    let guest = fixture.plain_user("guest").await;
    let me = guest.get("users/current").await.ok()["uuid"].clone();
    let uuid = project(&owner, "shared", None).await;
    let path = format!("groups/{uuid}");
    let give = async |name: &str| {
        let link = json!({"link_class": "permission", "name": name, "tail_uuid": me,
                          "head_uuid": uuid});
        let given = owner.post("links", json!({ "link": link })).await.ok();
        let own = format!("links/{}", given["uuid"].as_str().unwrap());
        (own, given["name"].clone())
    };
    let may = async || {
        let seen = guest.get(&path).await;
        (seen.status, seen.body["can_write"] == true)
    };
    let (first, _) = give("can_write").await;
    // A weaker one shows what is permitted.
    let (second, name) = give("can_read").await;
    assert_eq!(name, "can_write");
    // Other permissions stay: those of another user, and on another record.
    let other = json!({"link_class": "permission", "name": "can_read", "head_uuid": uuid,
                       "tail_uuid": fixture.admin.get("users/current").await.ok()["uuid"]});
    let other = owner.post("links", json!({ "link": other })).await.ok();
    owner.delete(&first).await.ok();
    owner.get(&second).await.error_of(404);
    assert_eq!(may().await, (404, false));

    let (first, _) = give("can_read").await;
    let (second, name) = give("can_manage").await;
    assert_eq!((name, may().await), (json!("can_manage"), (200, true)));
    let less = json!({"link": {"name": "can_read"}});
    // While there are two, the stronger one counts.
    let changed = owner.put(&second, less.clone()).await.ok();
    assert_eq!(changed["name"], "can_read");
    owner.get(&first).await.error_of(404);
    assert_eq!(may().await, (200, false));
    let (first, _) = give("can_write").await;
    assert_eq!(owner.put(&second, less).await.ok()["name"], "can_write");
    owner.get(&first).await.error_of(404);
    owner.delete(&second).await.ok();

    give("can_read").await;
    give("can_manage").await;
    let (third, name) = give("can_read").await;
    assert_eq!(name, "can_manage");
    owner.delete(&third).await.ok();
    assert_eq!(may().await, (404, false));
    let other = format!("links/{}", other["uuid"].as_str().unwrap());
    owner.get(&other).await.ok();
}
