//! The dispatcher's loop against the server, with a scheduler that does as it is told.

use std::time::Duration;

use arvados_client::api::NewToken;
use arvados_client::client::Call;
use arvados_client::records::{Authorization, Container, ContainerState};
use arvados_client::{Client, ContainerUuid, scopes};
use dispatch_core::scheduler::{Ending, Outlook, Waiting};
use dispatch_core::{Engine, Health, Settings};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::scripted::{Manner, Scripted};
use crate::world::World;

/// Runs a dispatcher until the token is cancelled.
fn dispatch(
    world: &World,
    scheduler: &Scripted,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    dispatch_with(world, scheduler, Settings::default())
}

fn dispatch_with(
    world: &World,
    scheduler: &Scripted,
    settings: Settings,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let settings = Settings {
        poll_interval: Duration::from_millis(200),
        shortest_interval: Duration::from_millis(20),
        reserve_ram: 0,
        max_pending: 100,
        stop_grace: Duration::from_secs(5),
        label: "test".into(),
        ..settings
    };
    let health = Health::new(Duration::from_secs(60), None);
    let engine = Engine::new(
        world.dispatch.clone(),
        scheduler.clone(),
        settings,
        health,
        None,
    );
    let stop = CancellationToken::new();
    let ended = stop.clone();
    let life = tokio::spawn(async move { engine.run(ended).await.unwrap() });
    (stop, life)
}

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

async fn eventually(done: &dyn Fn() -> bool) {
    let limit = tokio::time::Instant::now() + PATIENCE;
    while !done() {
        assert!(tokio::time::Instant::now() < limit);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn queue(world: &World, count: usize) -> Vec<ContainerUuid> {
    let mut containers = Vec::new();
    for n in 0..count {
        containers.push(world.request(&format!("n{n}")).await.1);
    }
    containers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_takes_nothing_does_not_use_up_the_locks_of_the_queue() {
    let world = World::new().await;
    let containers = queue(&world, 8).await;
    let scheduler = Scripted::new(Manner::Mumble);
    let (stop, run) = dispatch(&world, &scheduler);
    for container in &containers {
        record_when(&world, container, |record| record.lock_count > 0).await;
    }
    tokio::time::sleep(Duration::from_secs(7)).await;
    stop.cancel();
    run.await.unwrap();
    let mut locks = 0;
    for container in &containers {
        let record = world.user.container(container).await.unwrap();
        assert_eq!(record.state, ContainerState::Queued);
        locks += record.lock_count;
    }
    // Each once, at the beginning; then the breaker is open. Without it they would be at 3 each by now.
    assert!((8..=10).contains(&locks), "{locks} locks");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_makes_no_second_job() {
    let world = World::new().await;
    let containers = queue(&world, 3).await;
    let scheduler = Scripted::new(Manner::Swallow);
    let (stop, run) = dispatch(&world, &scheduler);
    eventually(&|| containers.iter().all(|one| scheduler.made(one) > 0)).await;
    // Time for a second one.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for container in &containers {
        let record = world.user.container(container).await.unwrap();
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Locked, 1)
        );
        assert_eq!(scheduler.made(container), 1);
    }
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_dispatcher_leaves_no_lock_without_a_job() {
    let world = World::new().await;
    let containers = queue(&world, 30).await;
    let scheduler = Scripted::new(Manner::Slow(Duration::from_millis(500)));
    let (stop, run) = dispatch(&world, &scheduler);
    // In the middle of it.
    eventually(&|| scheduler.jobs.lock().unwrap().len() >= 3).await;
    stop.cancel();
    run.await.unwrap();
    let mut locked = 0;
    for container in &containers {
        let state = world.user.container(container).await.unwrap().state;
        assert_eq!(
            state == ContainerState::Locked,
            scheduler.made(container) == 1,
            "{container}"
        );
        locked += u32::from(state == ContainerState::Locked);
    }
    assert!(
        locked > 0 && locked < 30,
        "{locked}: this was not in the middle"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_long_attempt_is_renewed_before_it_ends() {
    let world = World::new().await;
    let (_, container) = world.request("long").await;
    let scheduler = Scripted::new(Manner::Slow(Duration::ZERO));
    let settings = Settings {
        token_margin: Duration::from_secs(15),
        ..Settings::default()
    };
    let (stop, run) = dispatch_with(&world, &scheduler, settings);
    eventually(&|| scheduler.made(&container) == 1).await;
    // Longer than what it was minted for.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let token = scheduler.token(&container);
    let as_attempt = world.dispatch.with_token(token);
    let record = as_attempt.container(&container).await.unwrap();
    assert_eq!(
        (record.state, record.lock_count),
        (ContainerState::Locked, 1)
    );
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_on_hold_gives_its_job_back() {
    let world = World::new().await;
    let (request, container) = world.request("held").await;
    let scheduler = Scripted::new(Manner::Slow(Duration::ZERO));
    let (stop, run) = dispatch(&world, &scheduler);
    eventually(&|| scheduler.made(&container) == 1).await;
    let hold = json!({"priority": 0});
    world
        .user
        .update_container_request(&request, hold)
        .await
        .unwrap();
    eventually(&|| scheduler.made(&container) == 0).await;
    stop.cancel();
    run.await.unwrap();
}

/// Who asks why it does not start reads it in the record; and its job is not left to wait for ever.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_waits_for_is_told_and_what_is_in_vain_is_given_up() {
    let world = World::new().await;
    let containers = queue(&world, 2).await;
    let scheduler = Scripted::new(Manner::Slow(Duration::ZERO));
    let waits = |outlook, words: &str| {
        let words = words.to_owned();
        *scheduler.waiting.lock().unwrap() = Some(Waiting { outlook, words });
    };
    waits(Outlook::Passes, "waits for its turn");
    let settings = Settings {
        start_timeout: Some(Duration::from_secs(3)),
        ..Settings::default()
    };
    let (stop, run) = dispatch_with(&world, &scheduler, settings);
    for container in &containers {
        let told = |record: &Container| {
            record.runtime_status.activity.as_deref() == Some("waits for its turn")
        };
        record_when(&world, container, told).await;
    }
    let wanted = scheduler.wanted.lock().unwrap().clone();
    let asked: Vec<_> = wanted.iter().map(|wanted| &wanted.container).collect();
    let mut sorted: Vec<_> = containers.iter().collect();
    sorted.sort();
    assert_eq!(asked, sorted);
    assert!(wanted.iter().all(|wanted| wanted.priority > 1 << 50));
    // Longer than the time-out: it is not for those whose turn comes.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(scheduler.made(&containers[0]), 1);
    waits(Outlook::NeedsSomebody, "an administrator holds it");
    for container in &containers {
        let told = |record: &Container| {
            record.runtime_status.activity.as_deref() == Some("an administrator holds it")
        };
        record_when(&world, container, told).await;
    }
    for container in &containers {
        let record = record_when(&world, container, |c| c.lock_count == 2).await;
        assert!(record.state != ContainerState::Cancelled, "{record:?}");
    }
    stop.cancel();
    run.await.unwrap();
}

/// Waits for its job, makes the record Running as its executor would, and takes the job away. A client of the attempt.
async fn run_and_lose(world: &World, scheduler: &Scripted, container: &ContainerUuid) -> Client {
    eventually(&|| scheduler.made(container) > 0).await;
    let as_attempt = world.dispatch.with_token(scheduler.token(container));
    let running = json!({"state": "Running", "log": world.image.clone()});
    as_attempt
        .update_container(container, running)
        .await
        .unwrap();
    scheduler.jobs.lock().unwrap().clear();
    as_attempt
}

async fn record_when(
    world: &World,
    container: &ContainerUuid,
    done: impl Fn(&Container) -> bool,
) -> Container {
    let limit = tokio::time::Instant::now() + PATIENCE;
    loop {
        let record = world.dispatch.container(container).await.unwrap();
        if done(&record) {
            break record;
        }
        assert!(tokio::time::Instant::now() < limit, "{record:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn undelivered() -> Ending {
    Ending {
        reason: "the container ran, and its results are kept".into(),
        node: Some("n7".into()),
        undelivered: true,
        ..Ending::default()
    }
}

/// Somebody delivers the results later, when neither this dispatcher nor its scheduler remembers the job.
#[tokio::test(flavor = "multi_thread")]
async fn results_that_wait_on_their_node_keep_the_record_as_it_is() {
    let world = World::new().await;
    let (_, container) = world.request("kept").await;
    let scheduler = Scripted::new(Manner::Slow(Duration::ZERO));
    *scheduler.ending.lock().unwrap() = undelivered();
    let (stop, run) = dispatch(&world, &scheduler);
    let as_attempt = run_and_lose(&world, &scheduler, &container).await;
    let noted = |record: &Container| record.runtime_status.warning.is_some();
    let record = record_when(&world, &container, noted).await;
    let activity = record.runtime_status.activity.unwrap();
    assert!(activity.contains("its results are on n7"), "{activity}");
    stop.cancel();
    run.await.unwrap();

    *scheduler.ending.lock().unwrap() = Ending::default();
    let (stop, run) = dispatch(&world, &scheduler);
    // Fifteen looks.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let record = world.dispatch.container(&container).await.unwrap();
    assert_eq!(record.state, ContainerState::Running);
    let complete = json!({"state": "Complete", "exit_code": 0, "output": world.image.clone()});
    as_attempt
        .update_container(&container, complete)
        .await
        .unwrap();
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_nobody_delivers_in_time_are_given_up() {
    let world = World::new().await;
    let (_, container) = world.request("given up").await;
    let scheduler = Scripted::new(Manner::Slow(Duration::ZERO));
    *scheduler.ending.lock().unwrap() = undelivered();
    let settings = Settings {
        undelivered_wait: Duration::from_secs(2),
        ..Settings::default()
    };
    let (stop, run) = dispatch_with(&world, &scheduler, settings);
    run_and_lose(&world, &scheduler, &container).await;
    let noted = |record: &Container| record.runtime_status.warning.is_some();
    let record = record_when(&world, &container, noted).await;
    assert_eq!(record.state, ContainerState::Running);
    let record = record_when(&world, &container, |record| record.state.is_final()).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap();
    assert!(why.ends_with("nobody did so in time"), "{why}");
    stop.cancel();
    run.await.unwrap();
}

/// The executor is gone: the record says why, and its log has what it saved last and what the dispatcher knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_executor_is_gone_ends_with_a_reason_and_a_log() {
    let world = World::new().await;
    let (request, container) = world.request("doomed").await;
    let scheduler = Scripted::new(Manner::Slow(Duration::ZERO));
    let (stop, run) = dispatch(&world, &scheduler);
    run_and_lose(&world, &scheduler, &container).await;
    let record = record_when(&world, &container, |record| record.state.is_final()).await;
    stop.cancel();
    run.await.unwrap();
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap();
    assert!(why.contains("without recording a final state"), "{why}");
    // The collection of the container's log is in the trash, so it is seen where users see it.
    let request = world.user.container_request(&request).await.unwrap();
    let log = request.log_uuid.unwrap();
    let log = world.user.collection(log.as_str());
    let manifest = log.await.unwrap().manifest_text;
    assert!(
        manifest.contains("dispatch.txt") && manifest.contains(".tar"),
        "{manifest}"
    );
}

/// As a crunch-run does that gives its container back, and does not end: its token is no good once the next attempt holds
/// the lock. Nor do the left-over tokens of many others take time before that.
#[tokio::test(flavor = "multi_thread")]
async fn a_left_over_token_is_ended_before_its_container_is_locked_again() {
    let world = World::new().await;
    let containers = queue(&world, 60).await;
    let mut left_over = Vec::new();
    for container in &containers {
        let new = NewToken {
            scopes: scopes::attempt(container, "scripted-test"),
            expires_at: jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1),
        };
        let token = world.dispatch.create_token(&new).await.unwrap();
        let executor = world.dispatch.with_token(token.token().unwrap());
        let etag = world.dispatch.container(container).await.unwrap().etag;
        executor.lock_container(container, &etag).await.unwrap();
        executor.unlock_container(container).await.unwrap();
        left_over.push(token.token().unwrap());
    }
    let scheduler = Scripted::new(Manner::Slow(Duration::ZERO));
    let began = tokio::time::Instant::now();
    let (stop, run) = dispatch(&world, &scheduler);
    for (container, token) in containers.iter().zip(left_over) {
        record_when(&world, container, |record| record.lock_count == 2).await;
        // Another client: one whose token was accepted before asks again for a while.
        let executor = world.dispatch.with_token(token);
        let change = json!({"state": "Cancelled"});
        let refused = executor.update_container(container, change).await;
        assert!(refused.is_err_and(|error| error.is_denied()), "{container}");
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_token_that_is_no_admins_is_refused_at_the_start() {
    let world = World::new().await;
    let user = json!({"user": {"email": "someone@example.com", "is_active": true}});
    let user: Value = world
        .dispatch
        .send(Call::post("users", user))
        .await
        .unwrap();
    assert_eq!(user["is_admin"], false);
    let token =
        json!({"api_client_authorization": {"owner_uuid": user["uuid"], "scopes": ["all"]}});
    let made = Call::post("api_client_authorizations", token);
    let made: Authorization = world.dispatch.send(made).await.unwrap();
    let no_admin = world.dispatch.with_token(made.token().unwrap());
    let scheduler = Scripted::new(Manner::Slow(Duration::ZERO));
    let health = Health::new(Duration::from_secs(60), None);
    let settings = Settings {
        label: "test".into(),
        ..Settings::default()
    };
    let engine = Engine::new(no_admin, scheduler, settings, health, None);
    let ran = tokio::time::timeout(PATIENCE, engine.run(CancellationToken::new()));
    let told = ran.await.unwrap().unwrap_err().to_string();
    assert!(told.contains("no administrator"), "{told}");
}
