//! The API server goes wrong: a request that may have taken effect is looked up, and nothing else is concluded.

use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use suite_tests::proxy::{Effect, Fault, Rule, Seen};

use crate::scene::{Kind, PATIENCE, Scene, everywhere, held, running};

const MINT: (Method, &str) = (Method::POST, "api_client_authorizations");
const LOCK: (Method, &str) = (Method::POST, "containers/*/lock");
/// What a server of Arvados does not have.
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

/// The next requests of this kind go wrong, each in its way; the containers end well all the same, after one lock each.
async fn go_on(
    kind: Kind,
    request: (Method, &str),
    faults: impl IntoIterator<Item = Fault>,
) -> Scene {
    let scene = running(kind).up().await;
    let mut rules: Vec<Rule> = faults
        .into_iter()
        .map(|fault| once(request.clone(), fault))
        .collect();
    let count = rules.len();
    rules.extend(without_bulk());
    scene.proxy.faults(rules);
    let mut containers = Vec::new();
    for _ in 0..count {
        containers.push(scene.submit().await);
    }
    for container in &containers {
        scene.complete(container, 1).await;
    }
    let seen = scene.proxy.seen();
    let missed = |seen: &&Seen| BULK.iter().any(|path| seen.path.ends_with(path));
    let spoilt = seen.iter().filter(|seen| seen.spoilt && !missed(seen));
    assert_eq!(spoilt.count(), count, "spoilt requests");
    scene
}

/// The same for a call that asks for many at once.
async fn many_go_on(kind: Kind, path: &str) {
    for fault in [
        Fault::Cut(Effect::Done),
        Fault::Cut(Effect::None),
        Fault::Half,
        Fault::Answer(StatusCode::BAD_GATEWAY, Effect::Done),
        Fault::Answer(StatusCode::SERVICE_UNAVAILABLE, Effect::None),
    ] {
        let mut scene = running(kind).up().await;
        scene.stop_dispatcher().await;
        let mut containers = Vec::new();
        for _ in 0..4 {
            containers.push(scene.submit().await);
        }
        scene.proxy.faults([once((Method::POST, path), fault)]);
        scene.stack.dispatcher.start();
        for container in &containers {
            scene.complete(container, 1).await;
        }
        assert_eq!(scene.proxy.spoilt(), 1, "spoilt requests");
    }
}

/// Whatever was done, the answer to it is lost.
fn losses() -> impl Iterator<Item = Fault> {
    [Fault::Cut(Effect::Done), Fault::CutMidway, Fault::Half].into_iter()
}

/// What gateways say.
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
async fn attempt_tokens(scene: &Scene) -> usize {
    let list: Value = crate::stack::client(&scene.stack.ready, "root")
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

everywhere!(
    all,
    the_lock_takes_effect_and_its_answer_is_lost,
    |kind| async move { drop(go_on(kind, LOCK, losses()).await) }
);

everywhere!(
    all,
    the_lock_does_not_take_effect_and_its_answer_is_lost,
    |kind| async move { drop(go_on(kind, LOCK, [Fault::Cut(Effect::None)]).await) }
);

everywhere!(
    all,
    a_gateway_refuses_the_lock_before_it_takes_effect,
    |kind| async move { drop(go_on(kind, LOCK, refusals(Effect::None)).await) }
);

everywhere!(
    all,
    a_gateway_refuses_the_lock_after_it_took_effect,
    |kind| async move { drop(go_on(kind, LOCK, refusals(Effect::Done)).await) }
);

everywhere!(
    both,
    many_locks_are_asked_for_and_the_answer_is_lost,
    |kind| many_go_on(kind, BULK[1])
);

everywhere!(
    both,
    many_tokens_are_asked_for_and_the_answer_is_lost,
    |kind| many_go_on(kind, BULK[0])
);

everywhere!(
    all,
    a_token_is_made_and_the_answer_is_lost,
    |kind| async move { drop(go_on(kind, MINT, losses().chain(refusals(Effect::Done))).await) }
);

everywhere!(
    both,
    a_container_is_given_back_and_the_answer_is_lost,
    |kind| async move {
        let mut scene = held(kind).up().await;
        let faults = losses()
            .chain(refusals(Effect::Done))
            .chain(refusals(Effect::None));
        let rules: Vec<Rule> = faults.map(|fault| once(UNLOCK, fault)).collect();
        let mut containers = Vec::new();
        for _ in 0..rules.len() {
            containers.push(scene.submit().await);
        }
        let mut jobs = Vec::new();
        for container in &containers {
            jobs.push(scene.job(container).await.id);
        }
        scene.looks(1).await;
        scene.proxy.faults(rules);
        for job in jobs {
            scene.end_job(&job);
        }
        scene.release();
        for container in &containers {
            scene.complete(container, 2).await;
        }
        assert_eq!(scene.proxy.spoilt(), containers.len(), "spoilt requests");
    }
);

/// Listings go wrong in each of these ways, so many times each, while a job waits: nothing happens to it.
async fn nothing_happens(kind: Kind, times: u32, faults: impl IntoIterator<Item = Fault>) {
    let mut scene = held(kind).up().await;
    let container = scene.submit().await;
    scene.job(&container).await;
    scene.looks(2).await;
    let (method, path) = LIST;
    let rules: Vec<Rule> = faults
        .into_iter()
        .map(|fault| Rule::next(times, method.clone(), path, fault))
        .collect();
    let count = rules.len() * times as usize;
    scene.proxy.faults(rules);
    let all_spoilt = || scene.proxy.spoilt() == count;
    scene.wait_for("spoilt listings", all_spoilt).await;
    scene.looks(2).await;
    scene.is_undisturbed(&container).await;
    scene.release();
    let second = scene.submit().await;
    for container in [container, second] {
        scene.complete(&container, 1).await;
    }
}

everywhere!(both, the_token_is_not_known_for_a_while, |kind| {
    let statuses = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
    nothing_happens(
        kind,
        3,
        statuses.map(|status| Fault::Answer(status, Effect::None)),
    )
});

everywhere!(both, listings_are_cut, |kind| nothing_happens(
    kind,
    3,
    [Fault::Half, Fault::CutMidway]
));

everywhere!(both, listings_are_refused_by_a_gateway, |kind| async move {
    let scene = running(kind).up().await;
    let (method, path) = LIST;
    let rules = refusals(Effect::None).map(|fault| Rule::next(1, method.clone(), path, fault));
    scene.proxy.faults(rules);
    let container = scene.submit().await;
    scene.complete(&container, 1).await;
    let all_spoilt = || scene.proxy.spoilt() == 4;
    scene.wait_for("spoilt listings", all_spoilt).await;
});

everywhere!(
    all,
    the_server_asks_for_less_and_is_given_it,
    |kind| async move {
        let scene = running(kind).up().await;
        scene
            .proxy
            .faults([LIST, LOCK, MINT].map(|request| once(request, Fault::TooMany(1))));
        let container = scene.submit().await;
        scene.complete(&container, 1).await;
        let seen = scene.proxy.seen();
        let refused: Vec<&Seen> = seen.iter().filter(|seen| seen.spoilt).collect();
        assert_eq!(refused.len(), 3);
        for first in refused {
            let again = seen.iter().find(|later| {
                later.at > first.at && (&later.method, &later.path) == (&first.method, &first.path)
            });
            let waited = again.unwrap().at - first.at;
            assert!(waited >= Duration::from_millis(990), "{waited:?} {first:?}");
        }
    }
);

// Another dispatcher was quicker, or the record changed: 422 and 412.
everywhere!(all, the_lock_is_refused, |kind| async move {
    let statuses = [
        StatusCode::UNPROCESSABLE_ENTITY,
        StatusCode::PRECONDITION_FAILED,
        StatusCode::CONFLICT,
    ];
    let faults = statuses.map(|status| Fault::Answer(status, Effect::None));
    let scene = go_on(kind, LOCK, faults).await;
    scene.says("could not lock it").await;
    let until = Instant::now() + PATIENCE;
    while attempt_tokens(&scene).await > 0 {
        assert!(Instant::now() < until, "tokens of attempts are left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
});

/// Other dispatchers of a cluster lock first, often and rightly.
#[tokio::test(flavor = "multi_thread")]
async fn locks_that_others_have_first_are_one_line_and_no_warning() {
    let refused = Fault::Answer(StatusCode::UNPROCESSABLE_ENTITY, Effect::None);
    let scene = go_on(Kind::Slurm, LOCK, vec![refused; 4]).await;
    scene.says("another dispatcher was quicker").await;
    let said = scene.stack.dispatcher.said();
    let is_warning = |line: &&str| line.contains(" WARN ") && line.contains("lock_failed");
    assert_eq!(said.lines().find(is_warning), None);
}

fn with_items(change: impl Fn(&mut Vec<Value>) + Send + Sync + 'static) -> Fault {
    Fault::changed(move |mut page| {
        if let Some(items) = page["items"].as_array_mut() {
            change(items);
        }
        page
    })
}

everywhere!(
    both,
    pages_are_doubled_turned_round_or_count_wrongly,
    |kind| {
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
        nothing_happens(kind, 4, faults)
    }
);

// Containers that a page leaves out are asked for one by one before they count as deleted.
everywhere!(both, pages_are_empty_though_there_is_something, |kind| {
    nothing_happens(kind, 6, [with_items(Vec::clear)])
});

everywhere!(both, records_hold_unknown_fields_and_values, |kind| {
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
    nothing_happens(kind, 4, [with_items(odd), with_items(unreadable)])
});

// Bytes come one by one, but they come.
everywhere!(both, answers_trickle, |kind| nothing_happens(
    kind,
    2,
    [Fault::Trickle(Duration::from_millis(2))]
));

everywhere!(all, live_events_cannot_be_had, |kind| async move {
    let mut begin = running(kind);
    begin.api_down = true;
    let scene = begin.up().await;
    let nowhere = Fault::changed(|mut document| {
        document["websocketUrl"] = json!("wss://127.0.0.1:9/websocket");
        document
    });
    let path = "/discovery/v1/apis/arvados/v1/rest";
    scene
        .proxy
        .faults([Rule::every(Method::GET, path, nowhere)]);
    scene.proxy.open(true);
    let container = scene.submit().await;
    scene.complete(&container, 1).await;
    assert!(scene.proxy.spoilt() > 0);
});

everywhere!(all, the_server_is_away_at_the_start, |kind| async move {
    let mut begin = running(kind);
    begin.api_down = true;
    let scene = begin.up().await;
    let container = scene.submit().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        scene.stack.container(&container).await.state,
        ContainerState::Queued
    );
    scene.proxy.open(true);
    scene.complete(&container, 1).await;
});

/// Before anything was ever seen the log and the health page say what is waited for; not only after the two minutes for
/// which a client repeats its calls.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_at_the_start_is_told_of() {
    let mut begin = running(Kind::Local);
    begin.api_down = true;
    begin.flags = vec!["--health-listen", "127.0.0.1:0"];
    let scene = begin.up().await;
    let began = Instant::now();
    scene
        .says("cannot look for attempts of an earlier run")
        .await;
    scene.says("cannot reach the API server").await;
    assert!(began.elapsed() < PATIENCE);
    let said = scene.stack.dispatcher.said();
    let address = said.split("health and metrics address=").nth(1).unwrap();
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

// One container runs, one comes. The outage is as short as a test is; what is done about it does not depend on how
// long it lasts.
everywhere!(all, the_server_is_away_for_a_while, |kind| async move {
    let scene = running(kind).up().await;
    let (_, runs) = scene.request("sleep 2", json!({})).await;
    // A test that stalls may see only its end.
    let ran = |c: &Container| c.state == ContainerState::Running || c.state.is_final();
    scene.stack.wait_until(&runs, PATIENCE, ran).await;
    scene.proxy.open(false);
    let comes = scene.submit().await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    scene.proxy.open(true);
    for container in [runs, comes] {
        scene.complete(&container, 1).await;
    }
});

// The server refuses valid tokens for a while, as after a restart of its database, and finds no record: nothing is
// concluded from that.
everywhere!(
    all,
    a_token_that_is_refused_for_a_while_is_still_good,
    |kind| async move {
        let scene = running(kind).up().await;
        let (_, first) = scene.request("sleep 30; echo done > x", json!({})).await;
        let runs = |c: &Container| c.state == ContainerState::Running;
        scene.stack.wait_until(&first, PATIENCE, runs).await;
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
        scene.proxy.faults(rules);
        let second = scene.submit().await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(scene.proxy.spoilt() > 0, "nothing was refused");
        scene.proxy.faults([]);
        scene.complete(&first, 1).await;
        scene.complete(&second, 1).await;
        let said = scene.stack.dispatcher.said();
        for blame in [
            "may not make tokens",
            "has it not ended",
            "must be an administrator",
        ] {
            assert!(!said.contains(blame), "{said}");
        }
    }
);
