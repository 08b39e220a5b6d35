//! Live events wake a client when something is queued, or when a priority changes.

use std::time::Duration;

use arvados_client::api::NewLog;
use serde_json::json;
use tokio::time::timeout;

use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_new_container_and_a_new_priority_are_announced() {
    let world = World::new().await;
    let mut events = world.dispatch.events(&[]).await.unwrap();
    let (request, container) = world.request("announced").await;
    let heard = async |events: &mut arvados_client::events::Events| {
        let wait = async {
            loop {
                let event = events.next().await.unwrap();
                if event.object_uuid.as_deref() == Some(container.as_str()) {
                    return event;
                }
            }
        };
        timeout(Duration::from_secs(10), wait)
            .await
            .expect("no event")
    };
    assert_eq!(
        heard(&mut events).await.event_type.as_deref(),
        Some("create")
    );
    if World::passes_for_arvados() {
        // A real server tells nobody of a priority.
        return;
    }
    world
        .user
        .update_container_request(&request, json!({"priority": 3}))
        .await
        .unwrap();
    let mut changed = heard(&mut events).await;
    while changed.properties["new_attributes"]["priority"]
        == changed.properties["old_attributes"]["priority"]
    {
        changed = heard(&mut events).await;
    }
    assert_eq!(changed.event_type.as_deref(), Some("update"));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_types_asked_for_are_announced() {
    let world = World::new().await;
    let mut all = world.dispatch.events(&[]).await.unwrap();
    let mut changes = world.dispatch.events(&["create", "update"]).await.unwrap();
    let (_, container) = world.request("announced").await;
    let note = |event_type| NewLog {
        object_uuid: container.to_string(),
        event_type,
        properties: json!({"text": "x"}),
    };
    // The last is how the other subscription knows that it has missed the one before.
    for note in [note("dispatch"), note("update")] {
        world.dispatch.create_log(&note).await.unwrap();
    }
    let heard = async |events: &mut arvados_client::events::Events| {
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
        timeout(Duration::from_secs(10), wait)
            .await
            .expect("no event")
    };
    let is_note = |types: &[String]| types.iter().any(|one| one == "dispatch");
    assert!(is_note(&heard(&mut all).await));
    assert!(!is_note(&heard(&mut changes).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_ends_the_subscription_with_an_error() {
    let world = World::new().await;
    let mut events = world.dispatch.events(&[]).await.unwrap();
    let World { server, .. } = world;
    server.stop().await;
    let ended = timeout(Duration::from_secs(20), async {
        loop {
            if let Err(error) = events.next().await {
                return error;
            }
        }
    });
    let text = ended.await.expect("the subscription hangs").to_string();
    assert!(text.starts_with("no live events from 127.0.0.1:"), "{text}");
}
