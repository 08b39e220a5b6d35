//! What is said of many jobs at once, and of jobs that were stopped or submitted once more.

use serde_json::Value;

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_that_are_killed_have_one_sentence() {
    let fixture = Fixture::with_image().await;
    let first = fixture.submit("a").await;
    for _ in 1..21 {
        fixture.submit("a").await;
    }
    fixture.start(&first).await;
    let killed = fixture.run(&["kill", "--all"]).await;
    assert_eq!(killed.err, "20 jobs ended, 1 being stopped\n");
    let explained = fixture.run(&["explain", "2"]).await.ok();
    assert!(
        explained.starts_with("Job 2 was stopped by 'dispatch kill'; its command did not run."),
        "{explained}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_submitted_once_more_only_once_unless_it_is_named() {
    let fixture = Fixture::with_image().await;
    let job = fixture.submit("a").await;
    fixture.start(&job).await;
    fixture.finish(&job, 1, &[], &[]).await;
    let first = fixture.run(&["retry", "--failed"]).await;
    assert_eq!(first.err, "job 1 is submitted once more as job 2\n");
    let show = async |id: &str| -> Value {
        let shown = fixture.run(&["--json", "show", id]).await.json();
        shown["request"].clone()
    };
    let (old, new) = (show("1").await, show("2").await);
    assert_eq!(old["properties"]["dispatch_retried_as"], new["uuid"]);
    assert_eq!(new["properties"]["dispatch_retry_of"], old["uuid"]);
    assert_eq!(new["properties"]["dispatch_id"], 2);
    let shown = fixture.run(&["show", "2"]).await.ok();
    assert!(shown.contains("Retry of"), "{shown}");

    let second = fixture.run(&["retry", "--failed"]).await;
    assert_eq!(second.err, "1 job left alone: submitted once more before\n");
    assert_eq!(second.out, "");
    let named = fixture.run(&["retry", "1"]).await;
    assert_eq!(named.err, "job 1 is submitted once more as job 3\n");
}
