//! What a running container asks for: the steps of a workflow.

use std::time::Duration;

use arvados_client::client::Call;
use arvados_client::records::{ContainerState, RequestState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid};
use dispatch_core::model::resources::Admission;
use serde_json::{Value, json};

use crate::dispatcher::{dispatch, record_when, wait_until};
use crate::fixture::Fixture;
use crate::scripted::{Scripted, SubmitBehavior};

/// A request for a container with this command, which may be one that is queued already.
async fn request(
    fixture: &Fixture,
    client: &Client,
    command: &str,
) -> (ContainerRequestUuid, ContainerUuid) {
    let made = client.create_container_request(json!({
        "name": command, "state": "Committed", "priority": 500, "use_existing": true,
        "command": [command], "container_image": fixture.image, "output_path": "/out", "cwd": ".",
        "mounts": {"/out": {"kind": "tmp", "capacity": 1 << 20}},
        "runtime_constraints": {"vcpus": 1, "ram": 64 << 20},
    }));
    let made = made.await.unwrap();
    (made.uuid, made.container_uuid.unwrap())
}

/// A step that nobody can start is cancelled, and not tried again. If a user asked for the same
/// container, it waits, whatever the dispatcher knew of it before.
#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_step_is_cancelled_unless_a_user_waits_for_it() {
    let fixture = Fixture::new().await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    *scheduler.of_steps.lock().unwrap() = Admission::Later("not yet".into());
    let (_, runner) = request(&fixture, &fixture.user, "runner").await;
    let (stop, run) = dispatch(&fixture, &scheduler);
    wait_until(&|| scheduler.made(&runner) > 0).await;
    let attempt = fixture.dispatch.with_token(scheduler.token(&runner));
    let running = json!({"state": "Running"});
    attempt.update_container(&runner, running).await.unwrap();
    let own = attempt.container_auth(&runner).await.unwrap().token();
    let workflow = fixture.user.with_token(own.unwrap());

    let (alone, step) = request(&fixture, &workflow, "alone").await;
    let (_, shared) = request(&fixture, &workflow, "shared").await;
    // Its project is in the trash by the time that it is cancelled.
    let (hidden, hidden_step) = request(&fixture, &workflow, "hidden").await;
    let project = json!({"group": {"name": "gone", "group_class": "project"}});
    let project: Value = fixture
        .user
        .send(Call::post("groups", project))
        .await
        .unwrap();
    let project = project["uuid"].as_str().unwrap();
    let path = format!("container_requests/{hidden}");
    let owner = json!({"container_request": {"owner_uuid": project}});
    let _: Value = fixture.user.send(Call::put(path, owner)).await.unwrap();
    let trash = async |verb: &str| {
        let call = Call::post(format!("groups/{project}/{verb}"), json!({}));
        let _: Value = fixture.user.send(call).await.unwrap();
    };
    trash("trash").await;
    scheduler.wait_for_listings(5).await;
    let (_, same) = request(&fixture, &fixture.user, "shared").await;
    assert_eq!(same, shared, "one container for both");

    *scheduler.of_steps.lock().unwrap() = Admission::Impossible("too large".into());
    for (request, step) in [(alone, step), (hidden.clone(), hidden_step)] {
        let record = record_when(&fixture, &step, |record| record.state.is_final()).await;
        assert_eq!(record.state, ContainerState::Cancelled);
        let error = record.runtime_status.error.unwrap_or_default();
        assert_eq!(error, "it can never start: too large");
        if request == hidden {
            trash("untrash").await;
        }
        let ended = fixture.user.container_request(&request).await.unwrap();
        assert_eq!(ended.state, RequestState::Final);
        assert_eq!(
            ended.container_uuid,
            Some(step),
            "another container was made"
        );
    }
    scheduler.wait_for_listings(5).await;
    let record = fixture.dispatch.container(&shared).await.unwrap();
    assert_eq!(record.state, ContainerState::Queued);
    stop.cancel();
    run.await.unwrap();
}
