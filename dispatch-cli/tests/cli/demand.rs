//! `dispatch demand`: the file shows the queue.

use std::time::{Duration, Instant};

use serde_json::json;
use worker_demand::{Demand, Status};

use crate::fixture::{Fixture, bare};

fn read(path: &std::path::Path) -> Option<Demand> {
    Some(Demand::read(&std::fs::read(path).ok()?).unwrap())
}

async fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + suite_tests::STEP_TIMEOUT;
    while !done() {
        assert!(Instant::now() < until, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_workers_as_containers_wait() {
    let fixture = Fixture::with_image().await;
    let needed = async |args: &[&str]| {
        let mut all = vec!["demand"];
        all.extend(args);
        all.extend(["--member-id", "me", "/opt/worker", "--flag", "a b"]);
        let text = fixture.run(&all).await.ok();
        Demand::read(text.as_bytes()).unwrap()
    };
    assert_eq!(needed(&[]).await.needed, 0);
    let mut jobs = Vec::new();
    for n in 0..5 {
        jobs.push(fixture.submit(&format!("n{n}")).await);
    }
    assert_eq!(needed(&[]).await.needed, 5);
    fixture.start(&jobs[0]).await;
    let held = fixture.run(&["kill", &jobs[1].id]).await;
    held.ok();
    let file = needed(&["--json", "--per-worker", "2"]).await;
    assert_eq!((file.needed, file.status), (2, Status::InProgress));
    assert_eq!((file.member_id.as_str(), file.update_interval), ("me", 30));
    assert_eq!(file.worker.program, "/opt/worker");
    assert_eq!(file.worker.arguments, ["--flag", "a b"]);
    assert_eq!(needed(&["--max-workers", "1"]).await.needed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn demand_is_written_again_and_at_last_finished() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("one").await;
    let path = fixture.path("demand.rsc");
    let args = ["demand", "--watch", "--until-empty", "--interval", "1s"];
    let more = ["--file", path.to_str().unwrap(), "/opt/worker"];
    let all: Vec<&str> = args.into_iter().chain(more).collect();
    let watching = tokio::spawn(crate::fixture::run(fixture.command(&all)));
    wait_for("the file", || {
        read(&path).is_some_and(|file| file.needed == 1)
    })
    .await;
    fixture.start(&job).await;
    wait_for("none to wait", || {
        read(&path).is_some_and(|file| file.needed == 0)
    })
    .await;
    assert_eq!(read(&path).unwrap().status, Status::InProgress, "one runs");
    fixture
        .update(
            &job,
            json!({"exit_code": 0, "output": fixture.store(&[]).await}),
        )
        .await;
    fixture.update(&job, json!({"state": "Complete"})).await;
    watching.await.unwrap().ok();
    assert_eq!(read(&path).unwrap().status, Status::Finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_or_asked_is_told() {
    let fixture = Fixture::new().await;
    let gone = fixture
        .run(&["demand", "--file", "/no/such/file", "/w"])
        .await;
    gone.says(1, &["cannot write /no/such/file"]);
    let mut away = bare(fixture.dir.path(), &["demand", "/w"]);
    away.env("ARVADOS_API_HOST", "127.0.0.1:1")
        .env("ARVADOS_API_TOKEN", "x");
    crate::fixture::run(away).await.says(5, &["127.0.0.1:1"]);
}
