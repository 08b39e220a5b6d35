//! What users see in `runtime_status` during an attempt.

use std::time::Duration;

use crate::run_lab::World;
use crunch_run::attempt::runtime_status::Status;
use serde_json::json;

#[tokio::test]
async fn long_activities_are_told_and_short_ones_are_not() {
    if !crate::run_lab::can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    let client = world.dispatch.with_token(job.token.clone());
    client
        .update_container(
            &job.uuid,
            json!({"runtime_status": {"activity": "waiting in the queue", "warning": "w"}}),
        )
        .await
        .unwrap();
    let record = client.container(&job.uuid).await.unwrap();
    let status = Status::start(client.clone(), &record);
    status.set_activity(Some("over in a moment".into()));
    status.set_activity(None);
    let there = status.initial_status().expect("the queue is over");
    assert_eq!(
        (there.activity, there.warning.as_deref()),
        (None, Some("w"))
    );

    for done in 0..15 {
        status.set_activity(Some(format!("fetching inputs {done}/20 MiB")));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let updated = world
        .until(&job, "it is told", |record| {
            let activity = record.runtime_status.activity.as_deref();
            activity.is_some_and(|text| text.starts_with("fetching inputs "))
        })
        .await;
    assert_eq!(updated.runtime_status.warning.as_deref(), Some("w"));

    status.warn("the limit cannot be enforced".into());
    let last = status.finish().await;
    assert_eq!(last.activity, None);
    assert_eq!(last.warning.as_deref(), Some("w"));
    assert_eq!(
        last.warning_detail.as_deref(),
        Some("the limit cannot be enforced")
    );
}
