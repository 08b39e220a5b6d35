//! Equal requests: they share a container, its priority and its results.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::container_requests::{complete, finish};
use crate::fixture::{Api, Fixture, STEP_TIMEOUT};
use crate::processes::Process;

#[tokio::test(flavor = "multi_thread")]
async fn equal_work_is_shared_unless_that_is_not_wanted() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let first = fixture.submit(json!({})).await;
    let same = fixture.submit(json!({"name": "again"})).await;
    assert_eq!(same["container_uuid"], first["container_uuid"]);
    let other = fixture.submit(json!({"command": ["false"]})).await;
    assert_ne!(other["container_uuid"], first["container_uuid"]);
    let own = fixture.submit(json!({"use_existing": false})).await;
    assert_ne!(own["container_uuid"], first["container_uuid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_work_is_reused_with_its_results() {
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let first = fixture.submit(json!({})).await;
    let uuid = first["container_uuid"].as_str().unwrap();
    finish(&fixture, uuid, &pdh).await;
    let second = fixture.submit(json!({})).await;
    assert_eq!(second["container_uuid"], uuid);
    assert_eq!(second["state"], "Final");
    assert!(second["output_uuid"].is_string());
}

/// A server goes on with what one that was killed had begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_requests_of_one_container_get_its_results() {
    if !fail_points::ENABLED {
        panic!("build with --features fail-points/enabled");
    }
    let fixture = Fixture::new().await;
    let pdh = fixture.image().await;
    let first = fixture.submit(json!({})).await;
    for _ in 1..100 {
        let same = fixture.submit(json!({})).await;
        assert_eq!(same["container_uuid"], first["container_uuid"]);
    }
    let uuid = first["container_uuid"].as_str().unwrap();
    fixture.admin.lock(uuid).await.ok();
    let running = json!({"state": "Running"});
    fixture.admin.change(uuid, running).await.ok();
    let token = fixture.admin.token.clone();
    let directory = fixture.stopped().await;

    let points = directory.path().join("points");
    std::fs::create_dir(&points).unwrap();
    std::fs::write(points.join("api.follow-up.before-commit"), "1").unwrap();
    let state = directory.path().join("state");
    let killed = Process::start_with(&state, &points);
    let api = Api::of(&killed.ready, "root").with_token(&token);
    let done = json!({"container": complete(&pdh)});
    let change = api.raw(Method::PUT, &format!("/arvados/v1/containers/{uuid}"));
    // The answer may come too late.
    let _ = change.json(&done).send().await;
    killed.wait_until_killed();
    let database = rusqlite::Connection::open(state.join("state.db")).unwrap();
    let sql = "SELECT count(*) FROM container_requests WHERE state = 'Committed'";
    let open: i64 = database.query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(open >= 36, "more than one write followed: {open} are open");
    drop(database);

    let fixture = Fixture::at(directory).await;
    let until = Instant::now() + STEP_TIMEOUT;
    let open = json!([["state", "=", "Committed"]]);
    while count(&fixture, &open).await != 0 {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let done = json!([["output_uuid", "!=", null], ["log_uuid", "!=", null]]);
    assert_eq!(count(&fixture, &done).await, 100);
}

async fn count(fixture: &Fixture, filters: &Value) -> Value {
    let params = json!({"filters": filters, "limit": 0});
    let listed = fixture.admin.list("container_requests", params).await.ok();
    listed["items_available"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_highest_of_several_priorities_counts_and_none_means_hold() {
    let fixture = Fixture::new().await;
    fixture.image().await;
    let low = fixture.submit(json!({"priority": 10})).await;
    let high = fixture.submit(json!({"priority": 20})).await;
    let uuid = low["container_uuid"].as_str().unwrap();
    assert_eq!(high["container_uuid"], uuid);
    let weight = |priority: &Value| (priority.as_i64().unwrap() + (1 << 49)) >> 50;
    assert_eq!(weight(&fixture.admin.container(uuid).await["priority"]), 20);
    let lower = json!({"container_request": {"priority": 0}});
    let path =
        |request: &Value| format!("container_requests/{}", request["uuid"].as_str().unwrap());
    fixture.admin.put(&path(&high), lower.clone()).await.ok();
    assert_eq!(weight(&fixture.admin.container(uuid).await["priority"]), 10);
    fixture.admin.put(&path(&low), lower).await.ok();
    let container = fixture.admin.container(uuid).await;
    assert_eq!(
        (&container["priority"], &container["state"]),
        (&json!(0), &json!("Queued"))
    );
    fixture
        .admin
        .put(&path(&low), json!({"priority": 5}))
        .await
        .ok();
    assert_eq!(weight(&fixture.admin.container(uuid).await["priority"]), 5);
    fixture.admin.delete(&path(&low)).await.ok();
    assert_eq!(fixture.admin.container(uuid).await["priority"], 0);
}
