//! The API server is down, cannot send live events, or refuses valid tokens for a while: no
//! container is lost.

use std::time::Duration;

use arvados_client::records::{Container, ContainerState};
use http::{Method, StatusCode};
use serde_json::json;
use suite_tests::proxy::{Effect, Fault, Rule};

use super::{BULK, LIST, LOCK, MINT, UNLOCK};
use crate::backend::{Backend, api_fault};
use crate::fixture::running;
use suite_tests::STEP_TIMEOUT;

async fn live_events_cannot_be_had(backend: Backend) {
    let mut options = running(backend);
    options.api_down = true;
    let fixture = options.up().await;
    let nowhere = Fault::changed(|mut document| {
        document["websocketUrl"] = json!("wss://127.0.0.1:9/websocket");
        document
    });
    let path = "/discovery/v1/apis/arvados/v1/rest";
    fixture
        .proxy
        .faults([Rule::every(Method::GET, path, nowhere)]);
    fixture.proxy.set_open(true);
    let container = fixture.submit().await;
    fixture.complete(&container, 1).await;
    assert!(fixture.proxy.fault_count() > 0);
}
api_fault!(live_events_cannot_be_had, [Condor, Local]);

async fn the_server_is_away_at_the_start(backend: Backend) {
    let mut options = running(backend);
    options.api_down = true;
    let fixture = options.up().await;
    let container = fixture.submit().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        fixture.stack.container(&container).await.state,
        ContainerState::Queued
    );
    fixture.proxy.set_open(true);
    fixture.complete(&container, 1).await;
}
api_fault!(the_server_is_away_at_the_start, [Condor, Local]);

/// If the server is down when the dispatcher starts, log and health page report it at once, not
/// only after the two minutes for which a client repeats its calls.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_at_the_start_is_told_of() {
    let mut options = running(Backend::Local);
    options.api_down = true;
    options.flags = vec!["--health-listen", "127.0.0.1:0"];
    let fixture = options.up().await;
    fixture.wait_for_event("server_unknown").await;
    let log = fixture.stack.dispatcher.log_text();
    let address = log
        .split(r#"event="health_listening" address="#)
        .nth(1)
        .unwrap();
    let address = address.split_whitespace().next().unwrap();
    let page = reqwest::get(format!("http://{address}/_health/ping")).await;
    let page = page.unwrap();
    assert_eq!(page.status(), StatusCode::SERVICE_UNAVAILABLE);
    let words = page.text().await.unwrap();
    assert!(
        words.contains("the API server has not answered yet"),
        "{words}"
    );
}

/// A token that the server does not know is an error at the start, not a warning at each poll.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_the_server_does_not_know_is_told_at_the_start() {
    let wrong = tempfile::NamedTempFile::new().unwrap();
    let token = "v2/local-gj3su-000000000000001/notatokenofthisserver";
    std::fs::write(wrong.path(), token).unwrap();
    let mut options = running(Backend::Local);
    let path: &str = String::leak(wrong.path().to_str().unwrap().to_owned());
    options.flags = vec!["--token-file", path];
    let fixture = options.up().await;
    fixture.wait_for_event("token_refused").await;
    let log = fixture.stack.dispatcher.log_text();
    let line = log.lines().find(|line| line.contains("token_refused"));
    let line = line.unwrap();
    assert!(
        line.contains(" ERROR ") && line.contains("--token-file"),
        "{line}"
    );
    assert!(!log.contains("notatokenofthisserver"), "{log}");
}

/// One container runs, another is created. The outage is short, as a test is; its handling does not
/// depend on its length.
async fn the_server_is_away_for_a_while(backend: Backend) {
    let fixture = running(backend).up().await;
    let (_, runs) = fixture.request("sleep 2", json!({})).await;
    // A slow test may see only the end.
    let ran = |c: &Container| c.state == ContainerState::Running || c.state.is_final();
    fixture.stack.wait_until(&runs, STEP_TIMEOUT, ran).await;
    fixture.proxy.set_open(false);
    let comes = fixture.submit().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    fixture.proxy.set_open(true);
    for container in [runs, comes] {
        fixture.complete(&container, 1).await;
    }
}
api_fault!(the_server_is_away_for_a_while, [Condor, Local]);

/// The server refuses valid tokens for a while, as after a restart of its database, and finds no
/// record. The dispatcher concludes nothing from that.
async fn a_token_that_is_refused_for_a_while_is_still_good(backend: Backend) {
    let fixture = running(backend).up().await;
    let (_, first) = fixture.request("sleep 30; echo done > x", json!({})).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    fixture.stack.wait_until(&first, STEP_TIMEOUT, runs).await;
    let not_logged_in = Fault::Answer(StatusCode::UNAUTHORIZED, Effect::None);
    let refused = [
        MINT,
        LOCK,
        UNLOCK,
        LIST,
        (Method::GET, MINT.1),
        (Method::DELETE, "api_client_authorizations/*"),
        (Method::GET, "users/current"),
        (Method::POST, BULK[0]),
        (Method::POST, BULK[1]),
    ];
    let rules = refused.map(|(method, path)| Rule::every(method, path, not_logged_in.clone()));
    fixture.proxy.faults(rules);
    let second = fixture.submit().await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(fixture.proxy.fault_count() > 0, "nothing was refused");
    fixture.proxy.faults([]);
    fixture.complete(&first, 1).await;
    fixture.complete(&second, 1).await;
    let log = fixture.stack.dispatcher.log_text();
    // Hints about a bad token name the flag that sets it.
    for flag in ["--token-file", "--token-mode"] {
        assert!(!log.contains(flag), "{log}");
    }
}
api_fault!(
    a_token_that_is_refused_for_a_while_is_still_good,
    [Condor, Local]
);
