//! Faults of API requests: the dispatcher reads the record after an unclear answer, and concludes
//! nothing else from it.

mod outages;

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use suite_tests::proxy::{Effect, Fault, Rule, SeenRequest};

use crate::backend::{Backend, api_fault};
use crate::fixture::{Fixture, held, running};
use suite_tests::STEP_TIMEOUT;

const MINT: (Method, &str) = (Method::POST, "api_client_authorizations");
const LOCK: (Method, &str) = (Method::POST, "containers/*/lock");
/// Bulk calls, which an Arvados server does not have.
const BULK: [&str; 2] = [
    "api_client_authorizations/bulk_create",
    "containers/bulk_lock",
];
const UNLOCK: (Method, &str) = (Method::POST, "containers/*/unlock");
const LIST: (Method, &str) = (Method::GET, "containers");

fn once((method, path): (Method, &str), fault: Fault) -> Rule {
    Rule::next(1, method, path, fault)
}

fn without_bulk() -> impl Iterator<Item = Rule> {
    let missing = Fault::Answer(StatusCode::NOT_FOUND, Effect::None);
    BULK.into_iter()
        .map(move |path| Rule::every(Method::POST, path, missing.clone()))
}

/// The next requests of this backend fail, each in its way. The containers still complete, after
/// one lock each.
async fn completes_after_request_fails(
    backend: Backend,
    request: (Method, &str),
    faults: impl IntoIterator<Item = Fault>,
) -> Fixture {
    let fixture = running(backend).up().await;
    let mut rules: Vec<Rule> = faults
        .into_iter()
        .map(|fault| once(request.clone(), fault))
        .collect();
    let count = rules.len();
    rules.extend(without_bulk());
    fixture.proxy.faults(rules);
    let mut containers = Vec::new();
    for _ in 0..count {
        containers.push(fixture.submit().await);
    }
    for container in &containers {
        fixture.complete(container, 1).await;
    }
    let seen = fixture.proxy.seen();
    let missed = |seen: &&SeenRequest| BULK.iter().any(|path| seen.path.ends_with(path));
    let spoilt = seen.iter().filter(|seen| seen.faulted && !missed(seen));
    assert_eq!(spoilt.count(), count, "spoilt requests");
    fixture
}

/// The same for a bulk call.
async fn completes_after_bulk_request_fails(backend: Backend, path: &str) {
    for fault in [
        Fault::Cut(Effect::Done),
        Fault::Cut(Effect::None),
        Fault::Half,
        Fault::Answer(StatusCode::BAD_GATEWAY, Effect::Done),
        Fault::Answer(StatusCode::SERVICE_UNAVAILABLE, Effect::None),
    ] {
        let mut fixture = running(backend).up().await;
        fixture.stop_dispatcher().await;
        let mut containers = Vec::new();
        for _ in 0..4 {
            containers.push(fixture.submit().await);
        }
        fixture.proxy.faults([once((Method::POST, path), fault)]);
        fixture.stack.dispatcher.start();
        for container in &containers {
            fixture.complete(container, 1).await;
        }
        assert_eq!(fixture.proxy.fault_count(), 1, "spoilt requests");
    }
}

/// Faults that lose the answer after the request took effect.
fn losses() -> impl Iterator<Item = Fault> {
    [Fault::Cut(Effect::Done), Fault::CutMidway, Fault::Half].into_iter()
}

/// Answers of gateways.
fn refusals(effect: Effect) -> impl Iterator<Item = Fault> {
    let statuses = [
        StatusCode::INTERNAL_SERVER_ERROR,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];
    statuses
        .into_iter()
        .map(move |status| Fault::Answer(status, effect))
}

/// The attempt tokens on the server.
async fn attempt_tokens(fixture: &Fixture) -> usize {
    let list: Value = suite_tests::stack::client(&fixture.stack.ready, "root")
        .send(arvados_client::client::Call::get(
            "api_client_authorizations",
        ))
        .await
        .unwrap();
    let of_attempts = |token: &&Value| token["scopes"].to_string().contains("/lock");
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(of_attempts)
        .count()
}

async fn the_lock_takes_effect_and_its_answer_is_lost(backend: Backend) {
    drop(completes_after_request_fails(backend, LOCK, losses()).await)
}
api_fault!(
    the_lock_takes_effect_and_its_answer_is_lost,
    [Condor, Local]
);

async fn the_lock_does_not_take_effect_and_its_answer_is_lost(backend: Backend) {
    drop(completes_after_request_fails(backend, LOCK, [Fault::Cut(Effect::None)]).await)
}
api_fault!(
    the_lock_does_not_take_effect_and_its_answer_is_lost,
    [Condor, Local]
);

async fn a_gateway_refuses_the_lock_before_it_takes_effect(backend: Backend) {
    drop(completes_after_request_fails(backend, LOCK, refusals(Effect::None)).await)
}
api_fault!(
    a_gateway_refuses_the_lock_before_it_takes_effect,
    [Condor, Local]
);

async fn a_gateway_refuses_the_lock_after_it_took_effect(backend: Backend) {
    drop(completes_after_request_fails(backend, LOCK, refusals(Effect::Done)).await)
}
api_fault!(
    a_gateway_refuses_the_lock_after_it_took_effect,
    [Condor, Local]
);

async fn many_locks_are_asked_for_and_the_answer_is_lost(backend: Backend) {
    completes_after_bulk_request_fails(backend, BULK[1]).await;
}
api_fault!(many_locks_are_asked_for_and_the_answer_is_lost, [Condor]);

async fn many_tokens_are_asked_for_and_the_answer_is_lost(backend: Backend) {
    completes_after_bulk_request_fails(backend, BULK[0]).await;
}
api_fault!(many_tokens_are_asked_for_and_the_answer_is_lost, [Condor]);

async fn a_token_is_made_and_the_answer_is_lost(backend: Backend) {
    drop(completes_after_request_fails(backend, MINT, losses().chain(refusals(Effect::Done))).await)
}
api_fault!(a_token_is_made_and_the_answer_is_lost, [Condor, Local]);

async fn a_container_is_given_back_and_the_answer_is_lost(backend: Backend) {
    let mut fixture = held(backend).up().await;
    let faults = losses()
        .chain(refusals(Effect::Done))
        .chain(refusals(Effect::None));
    let rules: Vec<Rule> = faults.map(|fault| once(UNLOCK, fault)).collect();
    let mut containers = Vec::new();
    for _ in 0..rules.len() {
        containers.push(fixture.submit().await);
    }
    let mut jobs = Vec::new();
    for container in &containers {
        jobs.push(fixture.job(container).await.id);
    }
    fixture.wait_for_listings(1).await;
    fixture.proxy.faults(rules);
    for job in jobs {
        fixture.end_job(&job);
    }
    fixture.start_jobs();
    for container in &containers {
        fixture.complete(container, 2).await;
    }
    assert_eq!(
        fixture.proxy.fault_count(),
        containers.len(),
        "spoilt requests"
    );
}
api_fault!(a_container_is_given_back_and_the_answer_is_lost, [Condor]);

/// Listings fail in each of these ways, several times each, while a job is pending: the job stays
/// as it is.
async fn job_stays_undisturbed(
    backend: Backend,
    times: u32,
    faults: impl IntoIterator<Item = Fault>,
) {
    let mut fixture = held(backend).up().await;
    let container = fixture.submit().await;
    fixture.job(&container).await;
    fixture.wait_for_listings(2).await;
    let (method, path) = LIST;
    let rules: Vec<Rule> = faults
        .into_iter()
        .map(|fault| Rule::next(times, method.clone(), path, fault))
        .collect();
    let count = rules.len() * times as usize;
    fixture.proxy.faults(rules);
    let all_spoilt = || fixture.proxy.fault_count() == count;
    fixture.wait_for("spoilt listings", all_spoilt).await;
    fixture.wait_for_listings(2).await;
    fixture.assert_undisturbed(&container).await;
    fixture.start_jobs();
    let second = fixture.submit().await;
    for container in [container, second] {
        fixture.complete(&container, 1).await;
    }
}

async fn the_token_is_not_known_for_a_while(backend: Backend) {
    let statuses = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
    job_stays_undisturbed(
        backend,
        3,
        statuses.map(|status| Fault::Answer(status, Effect::None)),
    )
    .await;
}
api_fault!(the_token_is_not_known_for_a_while, [Condor]);

async fn listings_are_cut(backend: Backend) {
    job_stays_undisturbed(backend, 3, [Fault::Half, Fault::CutMidway]).await;
}
api_fault!(listings_are_cut, [Condor]);

async fn listings_are_refused_by_a_gateway(backend: Backend) {
    let fixture = running(backend).up().await;
    let (method, path) = LIST;
    let rules = refusals(Effect::None).map(|fault| Rule::next(1, method.clone(), path, fault));
    fixture.proxy.faults(rules);
    let container = fixture.submit().await;
    fixture.complete(&container, 1).await;
    let all_spoilt = || fixture.proxy.fault_count() == 4;
    fixture.wait_for("spoilt listings", all_spoilt).await;
}
api_fault!(listings_are_refused_by_a_gateway, [Condor]);

async fn the_server_asks_for_less_and_is_given_it(backend: Backend) {
    let fixture = running(backend).up().await;
    fixture
        .proxy
        .faults([LIST, LOCK, MINT].map(|request| once(request, Fault::TooMany(1))));
    let container = fixture.submit().await;
    fixture.complete(&container, 1).await;
    let seen = fixture.proxy.seen();
    let refused: Vec<&SeenRequest> = seen.iter().filter(|seen| seen.faulted).collect();
    assert_eq!(refused.len(), 3);
    for first in refused {
        let again = seen.iter().find(|later| {
            later.at > first.at && (&later.method, &later.path) == (&first.method, &first.path)
        });
        let waited = again.unwrap().at - first.at;
        assert!(waited >= Duration::from_millis(990), "{waited:?} {first:?}");
    }
}
api_fault!(the_server_asks_for_less_and_is_given_it, [Condor, Local]);

/// Another dispatcher was quicker, or the record changed: 422 and 412.
async fn the_lock_is_refused(backend: Backend) {
    let statuses = [
        StatusCode::UNPROCESSABLE_ENTITY,
        StatusCode::PRECONDITION_FAILED,
        StatusCode::CONFLICT,
    ];
    let faults = statuses.map(|status| Fault::Answer(status, Effect::None));
    let fixture = completes_after_request_fails(backend, LOCK, faults).await;
    fixture.wait_for_event("lock_failed").await;
    let until = Instant::now() + STEP_TIMEOUT;
    while attempt_tokens(&fixture).await > 0 {
        assert!(Instant::now() < until, "tokens of attempts are left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
api_fault!(the_lock_is_refused, [Condor, Local]);

/// Other dispatchers of a cluster lock first, often and rightly.
#[tokio::test(flavor = "multi_thread")]
async fn locks_that_others_have_first_are_one_line_and_no_warning() {
    let refused = Fault::Answer(StatusCode::UNPROCESSABLE_ENTITY, Effect::None);
    let fixture = completes_after_request_fails(Backend::Slurm, LOCK, vec![refused; 4]).await;
    fixture.wait_for_event("locks_lost").await;
    let log = fixture.stack.dispatcher.log_text();
    let is_warning = |line: &&str| line.contains(" WARN ") && line.contains("lock_failed");
    assert_eq!(log.lines().find(is_warning), None);
}

fn with_items(change: impl Fn(&mut Vec<Value>) + Send + Sync + 'static) -> Fault {
    Fault::changed(move |mut page| {
        if let Some(items) = page["items"].as_array_mut() {
            change(items);
        }
        page
    })
}

async fn pages_are_doubled_turned_round_or_count_wrongly(backend: Backend) {
    let counts = |count: u32| {
        Fault::changed(move |mut page| {
            page["items_available"] = json!(count);
            page
        })
    };
    let faults = [
        with_items(|items| items.extend_from_within(..)),
        with_items(|items| items.reverse()),
        counts(0),
        counts(100_000),
    ];
    job_stays_undisturbed(backend, 4, faults).await;
}
api_fault!(pages_are_doubled_turned_round_or_count_wrongly, [Condor]);

/// Containers that a page omits are fetched one by one before they count as deleted.
async fn pages_are_empty_though_there_is_something(backend: Backend) {
    job_stays_undisturbed(backend, 6, [with_items(Vec::clear)]).await;
}
api_fault!(pages_are_empty_though_there_is_something, [Condor]);

async fn records_hold_unknown_fields_and_values(backend: Backend) {
    let odd = |items: &mut Vec<Value>| {
        for item in items {
            item["state"] = json!("Paused");
            item["mood"] = json!({"good": [1, 2, 3]});
            item["runtime_constraints"]["quantum"] = json!(true);
        }
    };
    let unreadable = |items: &mut Vec<Value>| {
        for item in items {
            item["priority"] = json!("high");
        }
    };
    job_stays_undisturbed(backend, 4, [with_items(odd), with_items(unreadable)]).await;
}
api_fault!(records_hold_unknown_fields_and_values, [Condor]);

/// The answer arrives byte by byte, but it arrives.
async fn answers_trickle(backend: Backend) {
    job_stays_undisturbed(backend, 2, [Fault::Trickle(Duration::from_millis(2))]).await;
}
api_fault!(answers_trickle, [Condor]);
