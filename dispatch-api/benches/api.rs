//! Speed of the server over HTTPS with keep-alive connections: `cargo bench -p dispatch-api`.
//!
//! Prints cycles of lock, Running and Complete per second, for one client and for sixteen. Then it
//! prints the time of a list page of 100 while 100,000 containers are queued.

#[path = "../tests/api/fixture.rs"]
#[allow(dead_code, reason = "only the tests use all of it")]
mod fixture;
mod queue;

use std::time::{Duration, Instant};

use fixture::{Api, Fixture};
use serde_json::json;

const QUEUED: u32 = 100_000;
const CYCLES: usize = 400;
const PAGES: usize = 50;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let fixture = Fixture::new().await;
        fixture.image().await;
        for clients in [1, 16] {
            cycles(&fixture, clients).await;
        }
        let fixture = fill(fixture).await;
        pages(&fixture.admin).await;
        fixture.server.stop().await;
    });
}

async fn cycles(fixture: &Fixture, clients: usize) {
    let mut queues = Vec::new();
    for client in 0..clients {
        let mut queue = Vec::new();
        for number in 0..CYCLES / clients {
            let command =
                json!({"command": [client.to_string(), number.to_string(), clients.to_string()]});
            let made = fixture.submit(command).await;
            queue.push(
                made["container_uuid"]
                    .as_str()
                    .expect("a container")
                    .to_owned(),
            );
        }
        queues.push(queue);
    }
    let began = Instant::now();
    let workers: Vec<_> = queues
        .into_iter()
        .map(|queue| {
            let api = fixture.admin.clone();
            tokio::spawn(async move {
                for uuid in queue {
                    api.lock(&uuid).await.ok();
                    api.change(&uuid, json!({"state": "Running"})).await.ok();
                    api.change(&uuid, json!({"state": "Complete", "exit_code": 0}))
                        .await
                        .ok();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("a worker ends well");
    }
    let rate = CYCLES as f64 / began.elapsed().as_secs_f64();
    println!("lock + Running + Complete, {clients:2} clients: {rate:7.0} cycles/s");
}

/// Fills the queue directly in the database, because only the listing is measured.
async fn fill(fixture: Fixture) -> Fixture {
    let made = fixture.submit(json!({"command": ["pattern"]})).await;
    let uuid = made["container_uuid"]
        .as_str()
        .expect("a container")
        .to_owned();
    let directory = fixture.directory;
    fixture.server.stop().await;
    queue::fill(&directory.path().join("state/state.db"), &uuid, QUEUED);
    Fixture::at(directory).await
}

async fn pages(api: &Api) {
    let filters = json!([["state", "=", "Queued"], ["priority", ">", 0]]);
    let narrow = json!([
        "uuid",
        "priority",
        "state",
        "runtime_constraints",
        "scheduling_parameters"
    ]);
    for (name, params) in [
        (
            "page of 100, whole records",
            json!({"filters": filters, "order": "priority desc", "count": "none"}),
        ),
        (
            "page of 100, five attributes",
            json!({"filters": filters, "order": "priority desc", "count": "none", "select": narrow}),
        ),
        (
            "page of 1000, five attributes",
            json!({"filters": filters, "order": "priority desc", "count": "none", "select": narrow, "limit": 1000}),
        ),
        ("count of all", json!({"filters": filters, "limit": 0})),
        (
            "what one token holds",
            json!({"filters": [["locked_by_uuid", "=", "local-gj3su-000000000000000"]]}),
        ),
    ] {
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..PAGES {
            let began = Instant::now();
            api.fetch("containers", params.clone()).await;
            times.push(began.elapsed());
        }
        times.sort();
        let at = |share: f64| times[((PAGES - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
        println!(
            "{QUEUED} queued, {name}: p50 {:.1} ms, p95 {:.1} ms",
            at(0.5),
            at(0.95)
        );
    }
}
