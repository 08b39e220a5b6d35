//! The client with an API server that refuses calls it accepted before, and with malformed replies.

use std::time::Duration;

use crate::https::{TOKEN, client, server};
use arvados_client::client::Call;
use arvados_client::keep::{BlockSource, BlockStore, KeepOptions, Locator};
use arvados_client::{Client, Endpoint, Error};
use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

const RECORD: &str = "/arvados/v1/containers/x";

/// Replies to the next `times` requests of the record with `status`, or to all without a number.
async fn answers(server: &MockServer, status: u16, times: Option<u64>) {
    let body = match status {
        200 => json!({"uuid": "x"}),
        _ => json!({"errors": [format!("mock {status}")]}),
    };
    let mock =
        Mock::given(path(RECORD)).respond_with(ResponseTemplate::new(status).set_body_json(body));
    let mock = match times {
        Some(times) => mock.up_to_n_times(times),
        None => mock,
    };
    mock.mount(server).await;
}

fn with(mut endpoint: Endpoint, window: Duration, budget: Duration) -> Client {
    endpoint.refusal_window = window;
    endpoint.retry_budget = budget;
    client(endpoint)
}

async fn get(client: &Client, call: Call) -> Result<(), u16> {
    let answer = client.send::<Value>(call).await;
    answer
        .map(drop)
        .map_err(|error| error.status().map_or(0, |status| status.as_u16()))
}

async fn request_count(server: &MockServer) -> usize {
    server.received_requests().await.unwrap().len()
}

const LONG_WINDOW: Duration = Duration::from_secs(300);

#[tokio::test]
async fn a_refusal_of_what_worked_before_is_asked_again() {
    // status, whether the record is known, number of requests, final status
    let rows = [
        (401, false, 5, Ok(())),
        (401, true, 5, Ok(())),
        (404, true, 5, Ok(())),
        (403, true, 5, Ok(())),
        (404, false, 2, Err(404)),
        (403, false, 2, Err(403)),
    ];
    for (status, known, requests, expected) in rows {
        let (server, endpoint) = server().await;
        answers(&server, 200, Some(1)).await;
        answers(&server, status, Some(3)).await;
        answers(&server, 200, None).await;
        let client = with(endpoint, LONG_WINDOW, LONG_WINDOW);
        get(&client, Call::get("containers/x")).await.unwrap();
        let call = Call::get("containers/x");
        let call = match known {
            true => call.known_record(),
            false => call,
        };
        let ended = get(&client, call).await;
        assert_eq!(ended, expected, "{status} {known}");
        assert_eq!(request_count(&server).await, requests, "{status} {known}");
    }
}

#[tokio::test]
async fn a_post_that_was_refused_as_not_logged_in_is_sent_again() {
    let (server, endpoint) = server().await;
    answers(&server, 401, Some(2)).await;
    answers(&server, 200, None).await;
    let client = with(endpoint, LONG_WINDOW, LONG_WINDOW).with_accepted_token();
    get(&client, Call::post("containers/x", json!({})))
        .await
        .unwrap();
    assert_eq!(request_count(&server).await, 3);
}

#[tokio::test]
async fn a_token_that_was_never_accepted_is_refused_at_once() {
    let (server, endpoint) = server().await;
    answers(&server, 401, None).await;
    let client = with(endpoint, LONG_WINDOW, LONG_WINDOW);
    let ended = get(&client, Call::get("containers/x").known_record()).await;
    assert_eq!(ended, Err(401));
    assert_eq!(request_count(&server).await, 1);
    // Another token has not been accepted yet.
    let accepted = client.with_accepted_token();
    let other = accepted.with_token(arvados_client::Token::new("other"));
    assert_eq!(get(&other, Call::get("containers/x")).await, Err(401));
    assert_eq!(request_count(&server).await, 2);
}

/// How long a window is has its table beside `RefusalTimer`.
#[tokio::test]
async fn a_refusal_is_believed_when_its_window_or_the_budget_has_ended() {
    // window, budget
    for (window, budget) in [(Duration::ZERO, LONG_WINDOW), (LONG_WINDOW, Duration::ZERO)] {
        let (server, endpoint) = server().await;
        answers(&server, 401, Some(1)).await;
        answers(&server, 200, None).await;
        let client = with(endpoint, window, budget).with_accepted_token();
        assert_eq!(get(&client, Call::get("containers/x")).await, Err(401));
        assert_eq!(request_count(&server).await, 1);
    }
}

#[tokio::test]
async fn an_outage_may_be_told_sooner_than_a_refusal() {
    // Status, number of answers with it, whether it is retried until it succeeds. The outage lasts
    // for more tries than the budget has time for, however slow the first one is.
    let rows = [(503, 30, false), (401, 6, true)];
    for (status, failures, passes) in rows {
        let (server, mut endpoint) = server().await;
        answers(&server, status, Some(failures)).await;
        answers(&server, 200, None).await;
        endpoint.outage_budget = Some(Duration::from_secs(5));
        let client = with(endpoint, LONG_WINDOW, LONG_WINDOW).with_accepted_token();
        let ended = get(&client, Call::get("containers/x")).await;
        assert_eq!(ended.is_ok(), passes, "{status}: {ended:?}");
        let requests = request_count(&server).await;
        assert!(
            requests > 1 && (requests == failures as usize + 1) == passes,
            "{status}: {requests}"
        );
    }
}

#[tokio::test]
async fn a_keep_service_with_a_long_uuid_is_read_and_used() {
    let (server, endpoint) = server().await;
    let keep = MockServer::start().await;
    let stored = Locator::of(b"foo").sign(b"key", TOKEN, 0x7000_0000, 1_209_600);
    Mock::given(method("PUT"))
        .respond_with(
            ResponseTemplate::new(200)
                .set_body_string(format!("{stored}\n"))
                .insert_header("X-Keep-Replicas-Stored", "1"),
        )
        .mount(&keep)
        .await;
    let service = json!({
        "uuid": "zzzzz-bi6l4-887edefe27fc75f4", "service_host": "127.0.0.1",
        "service_port": keep.address().port(), "service_ssl_flag": false,
        "service_type": "disk", "read_only": false,
    });
    Mock::given(path("/arvados/v1/keep_services/accessible"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({"items": [service]})))
        .mount(&server)
        .await;
    let options = KeepOptions {
        replicas: 1,
        ..KeepOptions::default()
    };
    let keep = client(endpoint).keep(options).await.unwrap();
    assert_eq!(
        keep.services().current()[0].uuid(),
        "zzzzz-bi6l4-887edefe27fc75f4"
    );
    assert_eq!(keep.put("foo".into()).await.unwrap(), stored);
}

#[tokio::test]
async fn keep_services_that_moved_are_found_again() {
    let (server, endpoint) = server().await;
    let keep = MockServer::start().await;
    let block = Locator::of(b"foo");
    let stored = ResponseTemplate::new(200).set_body_string(block.to_string());
    Mock::given(method("PUT"))
        .respond_with(stored.insert_header("X-Keep-Replicas-Stored", "1"))
        .mount(&keep)
        .await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(200).set_body_string("foo"))
        .mount(&keep)
        .await;
    let at = |port: u16| {
        json!({
            "uuid": "zzzzz-bi6l4-887edefe27fc75f4", "service_host": "127.0.0.1",
            "service_port": port, "service_ssl_flag": false,
            "service_type": "disk", "read_only": false,
        })
    };
    Mock::given(path("/arvados/v1/keep_services/accessible"))
        .respond_with(
            ResponseTemplate::new(200).set_body_json(json!({"items": [at(keep.address().port())]})),
        )
        .mount(&server)
        .await;
    let options = KeepOptions {
        replicas: 1,
        first_delay: Duration::from_millis(1),
        // No server listens at port 1, for any number of retries.
        retry_budget: Duration::from_secs(300),
        ..KeepOptions::default()
    };
    let remembered = [serde_json::from_value(at(1)).unwrap()];
    let client = client(endpoint);
    let writing = client
        .keep_with_services(&remembered, options.clone())
        .unwrap();
    assert_eq!(writing.put("foo".into()).await.unwrap(), block);
    let reading = client.keep_with_services(&remembered, options).unwrap();
    assert_eq!(reading.get(&block).await.unwrap(), "foo");
    let requests = server.received_requests().await.unwrap();
    assert_eq!(requests.len(), 2, "once by each client");
}

#[tokio::test]
async fn an_answer_with_a_uuid_of_no_shape_is_told_with_its_call() {
    let (server, endpoint) = server().await;
    let service = json!({"uuid": "zzzzz-bi6l4-887edefe27fc75f4f"});
    Mock::given(path("/arvados/v1/keep_services/accessible"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({"items": [service]})))
        .mount(&server)
        .await;
    let error = client(endpoint).keep_services().await.unwrap_err();
    assert!(matches!(error, Error::Undecodable { .. }), "{error:?}");
    assert!(error.to_string().contains("GET keep_services/accessible"));
}
