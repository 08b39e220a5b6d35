//! Live events report new containers and changed priorities to a client.

use arvados_client::api::NewLog;
use serde_json::json;
use tokio::time::timeout;

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn a_new_container_and_a_new_priority_are_announced() {
    let fixture = Fixture::new().await;
    let mut events = fixture.dispatch.events(&[]).await.unwrap();
    let (request, container) = fixture.request("announced").await;
    let next_event = async |events: &mut arvados_client::events::Events| {
        let wait = async {
            loop {
                let event = events.next().await.unwrap();
                if event.object_uuid.as_deref() == Some(container.as_str()) {
                    return event;
                }
            }
        };
        timeout(suite_tests::STEP_TIMEOUT, wait)
            .await
            .expect("no event")
    };
    assert_eq!(
        next_event(&mut events).await.event_type.as_deref(),
        Some("create")
    );
    if Fixture::emulates_arvados() {
        // An Arvados server sends no event for a priority.
        return;
    }
    fixture
        .user
        .update_container_request(&request, json!({"priority": 3}))
        .await
        .unwrap();
    let mut changed = next_event(&mut events).await;
    while changed.properties["new_attributes"]["priority"]
        == changed.properties["old_attributes"]["priority"]
    {
        changed = next_event(&mut events).await;
    }
    assert_eq!(changed.event_type.as_deref(), Some("update"));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_types_asked_for_are_announced() {
    let fixture = Fixture::new().await;
    let mut all = fixture.dispatch.events(&[]).await.unwrap();
    let mut changes = fixture
        .dispatch
        .events(&["create", "update"])
        .await
        .unwrap();
    let (_, container) = fixture.request("announced").await;
    let note = |event_type| NewLog {
        object_uuid: container.to_string(),
        event_type,
        properties: json!({"text": "x"}),
    };
    // By the last event the other subscription knows that it missed the one before.
    for note in [note("dispatch"), note("update")] {
        fixture.dispatch.create_log(&note).await.unwrap();
    }
    let next_event = async |events: &mut arvados_client::events::Events| {
        let mut types = Vec::new();
        let wait = async {
            loop {
                let event = events.next().await.unwrap();
                if event.object_uuid.as_deref() == Some(container.as_str()) {
                    types.extend(event.event_type);
                }
                if event.properties["text"] == "x" && types.last().unwrap() == "update" {
                    return types;
                }
            }
        };
        timeout(suite_tests::STEP_TIMEOUT, wait)
            .await
            .expect("no event")
    };
    let is_note = |types: &[String]| types.iter().any(|one| one == "dispatch");
    assert!(is_note(&next_event(&mut all).await));
    assert!(!is_note(&next_event(&mut changes).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_ends_the_subscription_with_an_error() {
    let fixture = Fixture::new().await;
    let mut events = fixture.dispatch.events(&[]).await.unwrap();
    let Fixture { server, .. } = fixture;
    server.stop().await;
    let ended = timeout(suite_tests::STEP_TIMEOUT, async {
        loop {
            if let Err(error) = events.next().await {
                return error;
            }
        }
    });
    let text = ended.await.expect("the subscription hangs").to_string();
    assert!(text.starts_with("no live events from 127.0.0.1:"), "{text}");
}
