//! The API requests of one container, whose number is limited to keep the server's load low.

use std::time::{Duration, Instant};

use crate::run_lab::{World, can_run, finish, signal};
use http::Method;
use rustix::process::Signal;
use serde_json::json;
use suite_tests::proxy::{Fault, Proxy, Rule};

/// The calls from the `first` on, without names of records. Sorted, because some run concurrently.
fn calls(proxy: &Proxy, first: usize) -> Vec<String> {
    let seen = proxy.seen();
    let mut calls: Vec<String> = seen[first..]
        .iter()
        .map(|seen| {
            let path = seen.path.trim_start_matches("/arvados/v1/");
            let parts: Vec<&str> = path
                .split('/')
                .map(|part| match part.len() >= 27 {
                    true => "*",
                    false => part,
                })
                .collect();
            format!("{} {}", seen.method, parts.join("/"))
        })
        .collect();
    calls.sort();
    calls
}

#[tokio::test]
async fn requests_per_container() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    // The first one of a node finds out where Keep is, and fetches the image.
    let mut first = 0;
    for round in 0..2 {
        let job = world.lock(&["true"], json!({})).await;
        let began = Instant::now();
        let program = world.program_by(&proxy, &job, &[]).spawn();
        let finished = finish(program.unwrap()).await;
        assert_eq!(finished.code, 0, "{}", finished.output);
        let took = began.elapsed();
        let mut calls = calls(&proxy, first);
        first = proxy.seen().len();
        if round == 0 {
            for call in [
                "GET /discovery/v1/apis/arvados/v1/rest",
                "GET keep_services/accessible",
            ] {
                assert!(calls.iter().any(|made| made == call), "{calls:?}");
            }
            continue;
        }
        if took > Duration::from_secs(2) {
            // A slow machine may add updates of the progress, and tunnels that are tried again.
            calls.dedup_by(|one, other| one == other && one != "POST collections");
            calls.push("PUT containers/*".to_owned());
        }
        assert_eq!(
            calls,
            [
                "GET collections/*",
                "GET containers/*",
                "GET containers/*/auth",
                "GET containers/*/secret_mounts",
                "POST collections",
                "POST collections",
                "POST collections",
                "POST connect/*/gateway_tunnel",
                "PUT containers/*",
                "PUT containers/*",
            ]
        );
    }
}

#[tokio::test]
async fn a_log_save_that_is_under_way_at_the_end_is_finished() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    let job = world
        .lock(&["sh", "-c", "echo ready; sleep 1000 & wait"], json!({}))
        .await;
    let late = Fault::Late(Duration::from_secs(2));
    proxy.faults([Rule::next(1, Method::POST, "collections", late).after(1)]);
    let child = world.program_by(&proxy, &job, &[]).spawn().unwrap();
    world.until_logged(&job, "ready").await;
    let first = world.record(&job).await.log;
    // crunch-run saves the log, too, because a kill may follow soon.
    signal(&child, Signal::TERM);
    world
        .until(&job, "saved", |record| record.log != first)
        .await;
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    // Running, the save, and the end. A slow machine may add updates of the progress.
    let updates = proxy.count(Method::PUT, "containers/*");
    assert!(updates >= 3, "{:?}", calls(&proxy, 0));
}
