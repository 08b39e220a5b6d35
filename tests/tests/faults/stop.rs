//! The command that ends a job goes wrong: the job is ended all the same, and nothing else is.

use arvados_client::records::ContainerState;
use serde_json::json;
use suite_tests::fake_sched::{Fault, Rule};

use crate::scene::{Kind, PATIENCE, everywhere, held, running};

/// A container on hold gives its job back although the first two commands to end it go wrong.
async fn first_go_wrong(kind: Kind, fault: Fault) {
    let mut begin = held(kind);
    begin.flags = vec!["--stop-grace", "1s"];
    let scene = begin.up().await;
    let (request, container) = scene.request("true", json!({})).await;
    scene.job(&container).await;
    scene.looks(1).await;
    scene.fake.faults([Rule::next(kind.ends(), 2, fault)]);
    scene.set_priority(&request, 0).await;
    scene
        .stack
        .wait_until(&container, PATIENCE, |c| c.state != ContainerState::Locked)
        .await;
    assert!(scene.job(&container).await.ended.is_some());
    assert!(
        scene.fake.count(kind.ends()) <= 6,
        "{:?}",
        scene.fake.calls()
    );
    scene.check_jobs(&container, 0);
}

everywhere!(both, it_fails, |kind| {
    let fault = Fault::Refuse {
        status: 1,
        say: "error: Socket timed out on send/recv operation".into(),
    };
    first_go_wrong(kind, fault)
});

everywhere!(both, it_ends_the_job_and_fails, |kind| {
    let fault = Fault::DoneButFails {
        status: 1,
        say: "error: Socket timed out on send/recv operation".into(),
    };
    first_go_wrong(kind, fault)
});

everywhere!(both, it_does_nothing_and_its_exit_status_is_0, |kind| {
    let fault = Fault::Nothing { say: String::new() };
    first_go_wrong(kind, fault)
});

// The container runs: crunch-run is asked, ends it and says so.
everywhere!(
    both,
    a_running_job_is_asked_again_after_a_failure,
    |kind| async move {
        let scene = running(kind).up().await;
        let (request, container) = scene.request("sleep 1000", json!({})).await;
        scene
            .stack
            .wait_until(&container, PATIENCE, |c| c.state == ContainerState::Running)
            .await;
        let fault = Fault::Refuse {
            status: 1,
            say: "error: Socket timed out on send/recv operation".into(),
        };
        scene.fake.faults([Rule::next(kind.ends(), 1, fault)]);
        scene.set_priority(&request, 0).await;
        let record = scene.stack.end(&container, PATIENCE).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Cancelled, 1)
        );
        scene.check_jobs(&container, 1);
    }
);
