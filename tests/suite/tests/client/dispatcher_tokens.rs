//! The tokens of attempts, and the dispatch token, with the real controller and API server.

use std::time::Duration;

use arvados_client::api::NewToken;
use arvados_client::client::Call;
use arvados_client::records::{Authorization, ContainerState};
use arvados_client::scopes;
use dispatch_core::{Controller, Health, Settings};
use serde_json::{Value, json};
use suite_tests::STEP_TIMEOUT;
use tokio_util::sync::CancellationToken;

use crate::dispatcher::{dispatch, dispatch_with, queue, record_when, wait_until};
use crate::fixture::Fixture;
use crate::scripted::{Scripted, SubmitBehavior};

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_long_attempt_is_renewed_before_it_ends() {
    let fixture = Fixture::new().await;
    let (_, container) = fixture.request("long").await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    let settings = Settings {
        token_margin: Duration::from_secs(15),
        ..Settings::default()
    };
    let (stop, run) = dispatch_with(&fixture, &scheduler, settings);
    wait_until(&|| scheduler.made(&container) == 1).await;
    // Longer than the token's lifetime.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let token = scheduler.token(&container);
    let as_attempt = fixture.dispatch.with_token(token);
    let record = as_attempt.container(&container).await.unwrap();
    assert_eq!(
        (record.state, record.lock_count),
        (ContainerState::Locked, 1)
    );
    stop.cancel();
    run.await.unwrap();
}

/// The executor has returned its container and does not end. Its token is not valid once the next
/// attempt holds the lock. Many orphaned tokens of other containers do not delay that.
#[tokio::test(flavor = "multi_thread")]
async fn a_left_over_token_is_ended_before_its_container_is_locked_again() {
    let fixture = Fixture::new().await;
    let containers = queue(&fixture, 60).await;
    let mut left_over = Vec::new();
    for container in &containers {
        let new = NewToken {
            scopes: scopes::attempt(container, "scripted-test"),
            expires_at: jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1),
        };
        let token = fixture.dispatch.create_token(&new).await.unwrap();
        let executor = fixture.dispatch.with_token(token.token().unwrap());
        let etag = fixture.dispatch.container(container).await.unwrap().etag;
        executor.lock_container(container, &etag).await.unwrap();
        executor.unlock_container(container).await.unwrap();
        left_over.push(token.token().unwrap());
    }
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    let began = tokio::time::Instant::now();
    let (stop, run) = dispatch(&fixture, &scheduler);
    for (container, token) in containers.iter().zip(left_over) {
        record_when(&fixture, container, |record| record.lock_count == 2).await;
        // A new client, because one whose token was accepted before retries for a while.
        let executor = fixture.dispatch.with_token(token);
        let change = json!({"state": "Cancelled"});
        let refused = executor.update_container(container, change).await;
        assert!(refused.is_err_and(|error| error.is_denied()), "{container}");
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    stop.cancel();
    run.await.unwrap();
}

/// A person has made it, with the label of this dispatcher. Otherwise it could end the attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_made_beside_a_running_attempt_is_revoked_and_the_attempt_goes_on() {
    let fixture = Fixture::new().await;
    let (_, container) = fixture.request("beside").await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    let (stop, run) = dispatch(&fixture, &scheduler);
    wait_until(&|| scheduler.made(&container) == 1).await;
    let new = NewToken {
        scopes: scopes::attempt(&container, "scripted-test"),
        expires_at: jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1),
    };
    let token = fixture.dispatch.create_token(&new).await.unwrap();
    let by_hand = fixture.dispatch.with_token(token.token().unwrap());
    let is_refused = async || {
        let read = by_hand.container(&container).await;
        read.is_err_and(|error| error.is_denied())
    };
    let limit = tokio::time::Instant::now() + STEP_TIMEOUT;
    while !is_refused().await {
        assert!(tokio::time::Instant::now() < limit);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    scheduler.wait_for_listings(3).await;
    let record = fixture.user.container(&container).await.unwrap();
    assert_eq!(
        (record.state, record.lock_count, scheduler.made(&container)),
        (ContainerState::Locked, 1, 1)
    );
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_token_that_is_no_admins_is_refused_at_the_start() {
    let fixture = Fixture::new().await;
    let user = json!({"user": {"email": "someone@example.com", "is_active": true}});
    let user: Value = fixture
        .dispatch
        .send(Call::post("users", user))
        .await
        .unwrap();
    assert_eq!(user["is_admin"], false);
    let token =
        json!({"api_client_authorization": {"owner_uuid": user["uuid"], "scopes": ["all"]}});
    let made = Call::post("api_client_authorizations", token);
    let made: Authorization = fixture.dispatch.send(made).await.unwrap();
    let no_admin = fixture.dispatch.with_token(made.token().unwrap());
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    let health = Health::new(Duration::from_secs(60), None);
    let settings = Settings {
        label: "test".into(),
        ..Settings::default()
    };
    let engine = Controller::new(no_admin, scheduler, settings, health, None);
    let ran = tokio::time::timeout(STEP_TIMEOUT, engine.run(CancellationToken::new()));
    let error = ran.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("no administrator"), "{error}");
}
