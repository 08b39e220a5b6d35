//! Attempt tokens: one attempt gets the lock, and the token of an earlier attempt is refused.

use arvados_client::api::{NewLog, NewToken};
use arvados_client::client::Call;
use arvados_client::error::StatusCode;
use arvados_client::records::{Authorization, ContainerState};
use arvados_client::{Client, ContainerUuid, scopes};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::fixture::Fixture;

async fn mint(fixture: &Fixture, container: &ContainerUuid) -> (Authorization, Client) {
    let expires_at = Timestamp::now() + SignedDuration::from_hours(1);
    let made = fixture
        .dispatch
        .create_token(&NewToken {
            scopes: scopes::attempt(container, "test"),
            expires_at,
        })
        .await
        .unwrap();
    let client = fixture.dispatch.with_token(made.token().unwrap());
    (made, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_attempts_wins_the_lock() {
    let fixture = Fixture::new().await;
    let (_, uuid) = fixture.request("race").await;
    let mut attempts = Vec::new();
    for _ in 0..8 {
        attempts.push(mint(&fixture, &uuid).await);
    }
    let seen = fixture.dispatch.container(&uuid).await.unwrap();
    let mut tasks = Vec::new();
    for (made, client) in attempts {
        let (uuid, etag) = (uuid.clone(), seen.etag.clone());
        tasks.push(tokio::spawn(async move {
            (made.uuid, client.lock_container(&uuid, &etag).await)
        }));
    }
    let mut winners = Vec::new();
    for task in tasks {
        match task.await.unwrap() {
            (token, Ok(reply)) => {
                assert_eq!(reply.locked_by_uuid, Some(token.clone()));
                winners.push(token);
            }
            (_, Err(error)) => assert!(error.is_stale() || error.is_refused(), "{error}"),
        }
    }
    assert_eq!(winners.len(), 1);
    assert_eq!(
        fixture
            .dispatch
            .container(&uuid)
            .await
            .unwrap()
            .locked_by_uuid,
        Some(winners.remove(0))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_view_cannot_lock() {
    let fixture = Fixture::new().await;
    let (request, uuid) = fixture.request("stale").await;
    let seen = fixture.dispatch.container(&uuid).await.unwrap();
    fixture
        .user
        .update_container_request(&request, json!({"priority": 7}))
        .await
        .unwrap();
    let (_, attempt) = mint(&fixture, &uuid).await;
    let locked = attempt.lock_container(&uuid, &seen.etag).await;
    if Fixture::emulates_arvados() {
        // A real server ignores If-Match, so only the state and the token fence a container.
        assert_eq!(locked.unwrap().state, ContainerState::Locked);
        return;
    }
    let error = locked.unwrap_err();
    assert!(error.is_stale(), "{error}");
    assert_eq!(
        fixture.dispatch.container(&uuid).await.unwrap().state,
        ContainerState::Queued
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_attempt_cannot_touch_the_next_one() {
    let fixture = Fixture::new().await;
    let (_, uuid) = fixture.request("fence").await;
    let (first, old) = mint(&fixture, &uuid).await;
    old.lock_container(&uuid, "").await.unwrap();
    old.unlock_container(&uuid).await.unwrap();
    fixture.dispatch.delete_token(&first.uuid).await.unwrap();
    let (second, new) = mint(&fixture, &uuid).await;
    new.lock_container(&uuid, "").await.unwrap();

    let log = "d41d8cd98f00b204e9800998ecf8427e+0";
    let error = old
        .update_container(&uuid, json!({"state": "Running", "log": log}))
        .await
        .unwrap_err();
    assert!(error.is_denied(), "{error}");
    new.update_container(&uuid, json!({"state": "Running", "log": log}))
        .await
        .unwrap();
    let record = fixture.dispatch.container(&uuid).await.unwrap();
    assert_eq!(
        (record.state, record.locked_by_uuid),
        (ContainerState::Running, Some(second.uuid))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_token_does_nothing_but_its_own_container() {
    let fixture = Fixture::new().await;
    let (_, mine) = fixture.request("mine").await;
    let (_, other) = fixture.request("other").await;
    let (_, attempt) = mint(&fixture, &mine).await;
    attempt.lock_container(&mine, "").await.unwrap();
    let note = NewLog {
        object_uuid: mine.to_string(),
        event_type: "dispatch",
        properties: json!({"text": "x"}),
    };
    let collection = fixture
        .user
        .create_collection(json!({"name": "the user's", "manifest_text": ""}))
        .await
        .unwrap();
    let path = format!("collections/{}", collection.uuid);
    let change = json!({"collection": {"name": "taken over"}});
    let behind_post = |method: &str| {
        let mut body = change.clone();
        body["_method"] = method.into();
        Call::post(path.clone(), body)
    };
    for call in [
        Call::get(path.clone()),
        Call::put(path.clone(), change.clone()),
        Call::delete(path.clone()),
        behind_post("PUT"),
        behind_post("PATCH"),
        Call::post(format!("{path}/trash"), json!({})),
    ] {
        let denied = attempt.send::<Value>(call).await.unwrap_err();
        assert_eq!(denied.status(), Some(StatusCode::FORBIDDEN), "{denied}");
    }
    let patch = reqwest::Method::PATCH;
    let url = format!("https://{}/arvados/v1/{path}", attempt.endpoint().host);
    let patched = attempt
        .http()
        .request(patch, url)
        .bearer_auth(attempt.endpoint().token.expose())
        .json(&change)
        .send()
        .await
        .unwrap();
    assert_eq!(patched.status(), 403);
    let unchanged = fixture.user.collection(collection.uuid.as_str()).await;
    assert_eq!(unchanged.unwrap().name, "the user's");
    for denied in [
        attempt.container(&other).await.map(drop),
        attempt.lock_container(&other, "").await.map(drop),
        attempt.create_log(&note).await,
        attempt.create_logs(&[note.clone(), note]).await.map(drop),
        attempt
            .page::<serde_json::Value>("containers", &Default::default())
            .await
            .map(drop),
    ] {
        assert!(denied.unwrap_err().is_denied());
    }
    assert!(
        attempt
            .container_auth(&mine)
            .await
            .unwrap()
            .api_token
            .is_some()
    );
}
