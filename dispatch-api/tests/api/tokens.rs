//! Tokens: who is let in, how far, and how long.

use serde_json::json;

use crate::containers::attempt;
use crate::world::{World, v2};

#[tokio::test(flavor = "multi_thread")]
async fn the_three_tokens_of_the_first_start_work() {
    let world = World::new().await;
    let ready = world.server.ready();
    for (name, user) in [("root", "root"), ("user", "user"), ("dispatch", "dispatch")] {
        let path = ready["tokens"][name].as_str().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        let api = crate::world::Api::of(&ready, name);
        let me = api.get("users/current").await.ok();
        assert_eq!(
            (&me["username"], &me["is_admin"]),
            (&json!(user), &json!(true))
        );
        let current = api.get("api_client_authorizations/current").await.ok();
        assert!(
            api.token
                .starts_with(&format!("v2/{}/", current["uuid"].as_str().unwrap()))
        );
    }
    assert!(world.server.ready()["tokens"]["root"].as_str().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_missing_and_expired_tokens_are_not_logged_in() {
    let world = World::new().await;
    for token in ["nonsense", "", "v2/local-gj3su-000000000000000/nonsense"] {
        let text = world
            .admin
            .with_token(token)
            .get("users/current")
            .await
            .refused(401);
        assert!(text.contains("Not logged in"), "{text}");
    }
    let expired = world
        .token(json!({"expires_at": "2020-01-01T00:00:00Z"}))
        .await;
    expired.get("users/current").await.refused(401);
    let bare = world
        .admin
        .with_token(world.admin.token.rsplit('/').next().unwrap());
    bare.get("users/current").await.ok();

    let api = &world.admin;
    let path = "/arvados/v1/users/current";
    let with = |header: String| {
        api.bare(reqwest::Method::GET, path)
            .header("authorization", header)
    };
    api.send(with(format!("OAuth2 {}", api.token))).await.ok();
    api.send(with(format!("Basic {}", api.token)))
        .await
        .refused(401);
    api.send(api.bare(reqwest::Method::GET, path))
        .await
        .refused(401);
    let parameter = format!("{path}?api_token={}", api.token);
    api.send(api.bare(reqwest::Method::GET, &parameter))
        .await
        .ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_are_enforced_to_the_letter() {
    let world = World::new().await;
    let uuid = world.queued().await;
    let scopes = json!([
        format!("GET /arvados/v1/containers/{uuid}"),
        "PUT /arvados/v1/collections/"
    ]);
    let narrow = world.token(json!({"scopes": scopes})).await;
    narrow.get(&format!("containers/{uuid}")).await.ok();
    narrow.get("api_client_authorizations/current").await.ok();
    let text = narrow.get("containers").await.refused(403);
    assert!(text.starts_with("Forbidden"), "{text}");
    narrow.lock(&uuid).await.refused(403);
    narrow
        .change(&uuid, json!({"priority": 1}))
        .await
        .refused(403);
    narrow
        .put("collections/local-4zz18-aaaaaaaaaaaaaaa", json!({}))
        .await
        .refused(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_token_ends_when_it_is_deleted_expired_or_renewed_away() {
    let world = World::new().await;
    let uuid = world.queued().await;
    let path = format!("containers/{uuid}");
    let first = attempt(&world, &uuid).await;
    first.get(&path).await.ok();
    let record = first.get("api_client_authorizations/current").await.ok();
    assert_eq!(
        v2(&record),
        first.token,
        "the listing gives a dispatcher its attempts back"
    );
    let record = format!(
        "api_client_authorizations/{}",
        record["uuid"].as_str().unwrap()
    );
    let later = json!({"expires_at": "2099-01-01T00:00:00Z"});
    world.admin.put(&record, later).await.ok();
    first.get(&path).await.ok();
    world
        .admin
        .put(&record, json!({"expires_at": "2020-01-01T00:00:00Z"}))
        .await
        .ok();
    first.get(&path).await.refused(401);

    let second = attempt(&world, &uuid).await;
    let record = second.get("api_client_authorizations/current").await.ok();
    let record = format!(
        "api_client_authorizations/{}",
        record["uuid"].as_str().unwrap()
    );
    world.admin.delete(&record).await.ok();
    second.get(&path).await.refused(401);
    world.admin.delete(&record).await.refused(404);

    let world = world.restarted().await;
    for token in [&first.token, &second.token] {
        world.admin.with_token(token).get(&path).await.refused(401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_tokens_end_with_their_owners_rights() {
    let world = World::new().await;
    let uuid = world.queued().await;
    let other = world.admin.post(
        "users",
        json!({"user": {"username": "other", "is_active": true, "is_admin": true}}),
    );
    let other = other.await.ok();
    let scopes = json!([
        format!("POST /arvados/v1/containers/{uuid}/lock"),
        format!("GET /arvados/v1/containers/{uuid}")
    ]);
    let token = world
        .token(json!({"owner_uuid": other["uuid"], "scopes": scopes}))
        .await;
    token.get(&format!("containers/{uuid}")).await.ok();
    let path = format!("users/{}", other["uuid"].as_str().unwrap());
    world
        .admin
        .put(&path, json!({"user": {"is_active": false}}))
        .await
        .ok();
    token.get(&format!("containers/{uuid}")).await.refused(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_make_tokens_for_themselves_only() {
    let world = World::new().await;
    let (one, two) = (world.plain_user("one").await, world.plain_user("two").await);
    one.post("api_client_authorizations", json!({})).await.ok();
    let victim = two.get("users/current").await.ok();
    let stolen = json!({"api_client_authorization": {"owner_uuid": victim["uuid"]}});
    one.post("api_client_authorizations", stolen)
        .await
        .refused(403);
    let mine = one.list("api_client_authorizations", json!({})).await.ok();
    assert_eq!(mine["items_available"], 2);
    one.post("users", json!({"user": {"username": "x"}}))
        .await
        .refused(403);
    let path = format!(
        "users/{}",
        one.get("users/current").await.ok()["uuid"]
            .as_str()
            .unwrap()
    );
    one.put(&path, json!({"user": {"is_admin": true}}))
        .await
        .refused(403);
}
