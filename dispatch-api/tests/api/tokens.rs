//! Tokens: authentication, scopes and expiry.

use serde_json::{Value, json};

use crate::containers::attempt;
use crate::fixture::{Fixture, v2};

#[tokio::test(flavor = "multi_thread")]
async fn the_three_tokens_of_the_first_start_work() {
    let fixture = Fixture::new().await;
    let ready = fixture.server.ready();
    for (name, is_admin) in [("root", true), ("user", false), ("dispatch", true)] {
        let path = ready["tokens"][name].as_str().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        let api = crate::fixture::Api::of(&ready, name);
        let me = api.get("users/current").await.ok();
        assert_eq!(
            (&me["username"], &me["is_admin"]),
            (&json!(name), &json!(is_admin))
        );
        let current = api.get("api_client_authorizations/current").await.ok();
        assert!(
            api.token
                .starts_with(&format!("v2/{}/", current["uuid"].as_str().unwrap()))
        );
    }
    assert!(fixture.server.ready()["tokens"]["root"].as_str().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_missing_and_expired_tokens_are_not_logged_in() {
    let fixture = Fixture::new().await;
    for token in ["nonsense", "", "v2/local-gj3su-000000000000000/nonsense"] {
        let text = fixture
            .admin
            .with_token(token)
            .get("users/current")
            .await
            .error_of(401);
        assert!(text.contains("Not logged in"), "{text}");
    }
    let expired = fixture
        .token(json!({"expires_at": "2020-01-01T00:00:00Z"}))
        .await;
    expired.get("users/current").await.error_of(401);
    let bare = fixture
        .admin
        .with_token(fixture.admin.token.rsplit('/').next().unwrap());
    bare.get("users/current").await.ok();

    let api = &fixture.admin;
    let path = "/arvados/v1/users/current";
    let with = |header: String| {
        api.bare(reqwest::Method::GET, path)
            .header("authorization", header)
    };
    api.send(with(format!("OAuth2 {}", api.token))).await.ok();
    api.send(with(format!("Basic {}", api.token)))
        .await
        .error_of(401);
    api.send(api.bare(reqwest::Method::GET, path))
        .await
        .error_of(401);
    let parameter = format!("{path}?api_token={}", api.token);
    api.send(api.bare(reqwest::Method::GET, &parameter))
        .await
        .ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_are_enforced_to_the_letter() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let scopes = json!([
        format!("GET /arvados/v1/containers/{uuid}"),
        "PUT /arvados/v1/collections/"
    ]);
    let narrow = fixture.token(json!({"scopes": scopes})).await;
    narrow.get(&format!("containers/{uuid}")).await.ok();
    narrow.get("api_client_authorizations/current").await.ok();
    let text = narrow.get("containers").await.error_of(403);
    assert!(text.starts_with("Forbidden"), "{text}");
    narrow.lock(&uuid).await.error_of(403);
    narrow
        .change(&uuid, json!({"priority": 1}))
        .await
        .error_of(403);
    narrow
        .put("collections/local-4zz18-aaaaaaaaaaaaaaa", json!({}))
        .await
        .error_of(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_token_ends_when_it_is_deleted_expired_or_renewed_away() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let path = format!("containers/{uuid}");
    let first = attempt(&fixture, &uuid).await;
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
    fixture.admin.put(&record, later).await.ok();
    first.get(&path).await.ok();
    fixture
        .admin
        .put(&record, json!({"expires_at": "2020-01-01T00:00:00Z"}))
        .await
        .ok();
    first.get(&path).await.error_of(401);

    let second = attempt(&fixture, &uuid).await;
    let record = second.get("api_client_authorizations/current").await.ok();
    let record = format!(
        "api_client_authorizations/{}",
        record["uuid"].as_str().unwrap()
    );
    fixture.admin.delete(&record).await.ok();
    second.get(&path).await.error_of(401);
    fixture.admin.delete(&record).await.error_of(404);

    let fixture = fixture.restarted().await;
    for token in [&first.token, &second.token] {
        fixture
            .admin
            .with_token(token)
            .get(&path)
            .await
            .error_of(401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_tokens_end_with_their_owners_rights() {
    let fixture = Fixture::new().await;
    let uuid = fixture.queued().await;
    let other = fixture.admin.post(
        "users",
        json!({"user": {"username": "other", "is_active": true, "is_admin": true}}),
    );
    let other = other.await.ok();
    let scopes = json!([
        format!("POST /arvados/v1/containers/{uuid}/lock"),
        format!("GET /arvados/v1/containers/{uuid}")
    ]);
    let token = fixture
        .token(json!({"owner_uuid": other["uuid"], "scopes": scopes}))
        .await;
    token.get(&format!("containers/{uuid}")).await.ok();
    let path = format!("users/{}", other["uuid"].as_str().unwrap());
    fixture
        .admin
        .put(&path, json!({"user": {"is_active": false}}))
        .await
        .ok();
    token.get(&format!("containers/{uuid}")).await.error_of(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_make_tokens_for_themselves_only() {
    let fixture = Fixture::new().await;
    let [one, two] = fixture.plain_users(["one", "two"]).await;
    one.post("api_client_authorizations", json!({})).await.ok();
    let victim = two.get("users/current").await.ok();
    let stolen = json!({"api_client_authorization": {"owner_uuid": victim["uuid"]}});
    one.post("api_client_authorizations", stolen)
        .await
        .error_of(403);
    let mine = one.list("api_client_authorizations", json!({})).await.ok();
    assert_eq!(mine["items_available"], 2);
    one.post("users", json!({"user": {"username": "x"}}))
        .await
        .error_of(403);
    let path = format!(
        "users/{}",
        one.get("users/current").await.ok()["uuid"]
            .as_str()
            .unwrap()
    );
    one.put(&path, json!({"user": {"is_admin": true}}))
        .await
        .error_of(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tokens_of_a_disabled_user_end_at_once_and_only_this_server_says_why() {
    for (fixture, status) in [
        (Fixture::new().await, 403),
        (Fixture::as_arvados().await, 401),
    ] {
        let ana = fixture.plain_user("ana").await;
        let other = ana.post("api_client_authorizations", json!({})).await.ok();
        let other = ana.with_token(&v2(&other));
        let bob = fixture.plain_user("bob").await;
        let user = ana.get("users/current").await.ok();
        let path = format!("users/{}", user["uuid"].as_str().unwrap());
        let disable = json!({"user": {"is_active": false}});
        fixture.admin.put(&path, disable).await.ok();
        for token in [&ana, &other] {
            let refused = token.get("collections").await.error_of(status);
            let is_said = refused.contains("user ana is disabled");
            assert_eq!(is_said, status == 403, "{refused}");
            token
                .post("api_client_authorizations", json!({}))
                .await
                .error_of(status);
        }
        bob.get("collections").await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_sent_back_as_it_was_shown_and_its_secret_is_not_chosen() {
    let fixture = Fixture::new().await;
    let user = fixture.plain_user("plain").await;
    let own = user.get("api_client_authorizations/current").await.ok();
    let path = format!(
        "api_client_authorizations/{}",
        own["uuid"].as_str().unwrap()
    );
    let mut shown = user.get(&path).await.ok();
    assert_eq!(shown["api_token"], json!(null));
    shown["expires_at"] = json!("2099-01-01T00:00:00Z");
    let sent = json!({ "api_client_authorization": shown });
    let changed = user.put(&path, sent.clone()).await.ok();
    assert_eq!(changed["expires_at"], "2099-01-01T00:00:00.000000000Z");
    user.get("users/current").await.ok();

    let make = async |attributes: Value| {
        let body = json!({ "api_client_authorization": attributes });
        user.post("api_client_authorizations", body).await
    };
    let chosen = make(json!({"api_token": "x".repeat(50)}))
        .await
        .error_of(422);
    assert!(chosen.contains("cannot be chosen"), "{chosen}");
    let longer = make(json!({})).await.error_of(403);
    assert!(longer.contains("at most 2099-01-01"), "{longer}");
    let until = json!({"expires_at": "2098-01-01T00:00:00Z", "scopes": ["GET /"]});
    let scoped = make(until).await.ok();
    let scoped = user.with_token(&v2(&scoped));
    let all = json!({"api_client_authorization": {"scopes": ["all"]}});
    scoped
        .post("api_client_authorizations", all)
        .await
        .error_of(403);
}
