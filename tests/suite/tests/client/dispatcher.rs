//! The dispatcher's loop against the server, with a scripted scheduler.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::records::{Container, ContainerState};
use arvados_client::{Client, ContainerUuid};
use dispatch_core::act::TaskRunner;
use dispatch_core::act::attempt_tokens::{AttemptTokens, TokenMode};
use dispatch_core::model::task::{Start, Task};
use dispatch_core::scheduler::submit_host::Precondition;
use dispatch_core::scheduler::{JobExit, PendingOutlook, PendingReason};
use dispatch_core::{Controller, Health, Settings};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::fixture::Fixture;
use crate::scripted::{Scripted, SubmitBehavior};
use suite_tests::STEP_TIMEOUT;

/// Runs a dispatcher until the token is cancelled.
pub fn dispatch(
    fixture: &Fixture,
    scheduler: &Scripted,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    dispatch_with(fixture, scheduler, Settings::default())
}

pub fn dispatch_with(
    fixture: &Fixture,
    scheduler: &Scripted,
    settings: Settings,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let settings = Settings {
        poll_interval: Duration::from_millis(200),
        min_poll_interval: Duration::from_millis(20),
        reserve_ram: 0,
        max_pending: 100,
        stop_grace: Duration::from_secs(5),
        label: "test".into(),
        ..settings
    };
    let health = Health::new(Duration::from_secs(60), None);
    let engine = Controller::new(
        fixture.dispatch.clone(),
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

pub async fn wait_until(done: &dyn Fn() -> bool) {
    let limit = tokio::time::Instant::now() + STEP_TIMEOUT;
    while !done() {
        assert!(tokio::time::Instant::now() < limit);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn queue(fixture: &Fixture, count: usize) -> Vec<ContainerUuid> {
    let mut containers = Vec::new();
    for n in 0..count {
        containers.push(fixture.request(&format!("n{n}")).await.1);
    }
    containers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_takes_nothing_does_not_use_up_the_locks_of_the_queue() {
    let fixture = Fixture::new().await;
    let containers = queue(&fixture, 8).await;
    let scheduler = Scripted::new(SubmitBehavior::Mumble);
    let (stop, run) = dispatch(&fixture, &scheduler);
    for container in &containers {
        record_when(&fixture, container, |record| record.lock_count > 0).await;
    }
    tokio::time::sleep(Duration::from_secs(7)).await;
    stop.cancel();
    run.await.unwrap();
    let mut locks = 0;
    for container in &containers {
        let record = fixture.user.container(container).await.unwrap();
        assert_eq!(record.state, ContainerState::Queued);
        locks += record.lock_count;
    }
    // Each once, at the beginning; then the breaker is open. Without it they would be at 3 each by
    // now.
    assert!((8..=10).contains(&locks), "{locks} locks");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_makes_no_second_job() {
    let fixture = Fixture::new().await;
    let containers = queue(&fixture, 3).await;
    let scheduler = Scripted::new(SubmitBehavior::Swallow);
    let (stop, run) = dispatch(&fixture, &scheduler);
    wait_until(&|| containers.iter().all(|one| scheduler.made(one) > 0)).await;
    // Time for a second one.
    scheduler.wait_for_listings(10).await;
    for container in &containers {
        let record = fixture.user.container(container).await.unwrap();
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
    let fixture = Fixture::new().await;
    let containers = queue(&fixture, 30).await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::from_millis(500)));
    let (stop, run) = dispatch(&fixture, &scheduler);
    // The dispatcher is stopped in the middle of the queue.
    wait_until(&|| scheduler.jobs.lock().unwrap().len() >= 3).await;
    stop.cancel();
    run.await.unwrap();
    let mut locked = 0;
    for container in &containers {
        let state = fixture.user.container(container).await.unwrap().state;
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

/// What was to be locked when the dispatcher stopped keeps its locks and has no token left.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_that_stops_locks_nothing_more() {
    let fixture = Fixture::of_arvados().await;
    let containers = queue(&fixture, 2).await;
    let api = fixture.dispatch.clone();
    let runner = TaskRunner {
        attempts: AttemptTokens::new(
            api.clone(),
            "test".into(),
            Duration::from_secs(600),
            TokenMode::PerAttempt,
        ),
        api,
        scheduler: Arc::new(Scripted::new(SubmitBehavior::Mumble)),
        gateway: None,
        max_evictions: 1,
        storage: Arc::new(Precondition::file_storage(None, async || Ok(()))),
        stopping: CancellationToken::new(),
    };
    for (container, locks) in containers.iter().zip([1, 0]) {
        let record = fixture.user.container(container).await.unwrap();
        let start = Start {
            container: container.clone(),
            etag: record.etag,
            token: None,
            max_run_time: None,
        };
        let done = runner.run(Task::Start(vec![start])).await;
        let record = fixture.user.container(container).await.unwrap();
        assert_eq!(record.lock_count, locks, "{done:?}");
        runner.stopping.cancel();
    }
    assert_eq!(runner.attempts.list(None).await.unwrap().ours.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_on_hold_gives_its_job_back() {
    let fixture = Fixture::new().await;
    let (request, container) = fixture.request("held").await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    let (stop, run) = dispatch(&fixture, &scheduler);
    wait_until(&|| scheduler.made(&container) == 1).await;
    let hold = json!({"priority": 0});
    fixture
        .user
        .update_container_request(&request, hold)
        .await
        .unwrap();
    wait_until(&|| scheduler.made(&container) == 0).await;
    stop.cancel();
    run.await.unwrap();
}

/// The record of a container that does not start says why; its job is cancelled after the start
/// timeout.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_job_waits_for_is_told_and_what_is_in_vain_is_given_up() {
    let fixture = Fixture::new().await;
    let containers = queue(&fixture, 2).await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    let waits = |outlook, words: &str| {
        let words = words.to_owned();
        *scheduler.waiting.lock().unwrap() = Some(PendingReason {
            outlook,
            text: words,
        });
    };
    waits(PendingOutlook::Transient, "waits for its turn");
    let settings = Settings {
        start_timeout: Some(Duration::from_secs(3)),
        ..Settings::default()
    };
    let (stop, run) = dispatch_with(&fixture, &scheduler, settings);
    for container in &containers {
        let is_reported = |record: &Container| {
            record.runtime_status.activity.as_deref() == Some("waits for its turn")
        };
        record_when(&fixture, container, is_reported).await;
    }
    // The order is set after the reasons are told.
    wait_until(&|| scheduler.wanted.lock().unwrap().len() == 2).await;
    let wanted = scheduler.wanted.lock().unwrap().clone();
    let mut ordered: Vec<_> = wanted.iter().map(|wanted| &wanted.container).collect();
    let mut sorted: Vec<_> = containers.iter().collect();
    ordered.sort();
    sorted.sort();
    assert_eq!(ordered, sorted);
    // Longer than the start timeout, which does not apply to jobs that only wait for their turn.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(scheduler.made(&containers[0]), 1);
    waits(PendingOutlook::NeedsAdmin, "an administrator holds it");
    for container in &containers {
        let is_reported = |record: &Container| {
            record.runtime_status.activity.as_deref() == Some("an administrator holds it")
        };
        record_when(&fixture, container, is_reported).await;
    }
    for container in &containers {
        let record = record_when(&fixture, container, |c| c.lock_count >= 2).await;
        assert!(record.state != ContainerState::Cancelled, "{record:?}");
    }
    stop.cancel();
    run.await.unwrap();
}

/// Waits for a container's job, records Running with the attempt token as the executor would, and
/// removes the job.
async fn run_and_lose(
    fixture: &Fixture,
    scheduler: &Scripted,
    container: &ContainerUuid,
) -> Client {
    wait_until(&|| scheduler.made(container) > 0).await;
    let as_attempt = fixture.dispatch.with_token(scheduler.token(container));
    let running = json!({"state": "Running", "log": fixture.image.clone()});
    as_attempt
        .update_container(container, running)
        .await
        .unwrap();
    scheduler.jobs.lock().unwrap().clear();
    as_attempt
}

pub async fn record_when(
    fixture: &Fixture,
    container: &ContainerUuid,
    done: impl Fn(&Container) -> bool,
) -> Container {
    let limit = tokio::time::Instant::now() + STEP_TIMEOUT;
    loop {
        let record = fixture.dispatch.container(container).await.unwrap();
        if done(&record) {
            break record;
        }
        assert!(tokio::time::Instant::now() < limit, "{record:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn undelivered() -> JobExit {
    JobExit {
        reason: "the container ran, and its results are kept".into(),
        node: Some("n7".into()),
        undelivered: true,
        ..JobExit::default()
    }
}

/// The results are delivered later, when neither this dispatcher nor its scheduler has the job.
#[tokio::test(flavor = "multi_thread")]
async fn results_that_wait_on_their_node_keep_the_record_as_it_is() {
    let fixture = Fixture::new().await;
    let (_, container) = fixture.request("kept").await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    *scheduler.ending.lock().unwrap() = undelivered();
    let (stop, run) = dispatch(&fixture, &scheduler);
    let as_attempt = run_and_lose(&fixture, &scheduler, &container).await;
    let noted = |record: &Container| record.runtime_status.warning.is_some();
    let record = record_when(&fixture, &container, noted).await;
    let activity = record.runtime_status.activity.unwrap();
    assert!(activity.contains("its results are on n7"), "{activity}");
    stop.cancel();
    run.await.unwrap();

    *scheduler.ending.lock().unwrap() = JobExit::default();
    let (stop, run) = dispatch(&fixture, &scheduler);
    scheduler.wait_for_listings(15).await;
    let record = fixture.dispatch.container(&container).await.unwrap();
    assert_eq!(record.state, ContainerState::Running);
    let complete = json!({"state": "Complete", "exit_code": 0, "output": fixture.image.clone()});
    as_attempt
        .update_container(&container, complete)
        .await
        .unwrap();
    stop.cancel();
    run.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_nobody_delivers_in_time_are_given_up() {
    let fixture = Fixture::new().await;
    let (_, container) = fixture.request("given up").await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    *scheduler.ending.lock().unwrap() = undelivered();
    let settings = Settings {
        undelivered_wait: Duration::from_secs(2),
        ..Settings::default()
    };
    let (stop, run) = dispatch_with(&fixture, &scheduler, settings);
    run_and_lose(&fixture, &scheduler, &container).await;
    let noted = |record: &Container| record.runtime_status.warning.is_some();
    let record = record_when(&fixture, &container, noted).await;
    assert_eq!(record.state, ContainerState::Running);
    let record = record_when(&fixture, &container, |record| record.state.is_final()).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap();
    assert!(
        why.ends_with("the results were not delivered in time"),
        "{why}"
    );
    stop.cancel();
    run.await.unwrap();
}

/// The executor is gone: the record says why, and its log has the executor's last save and the
/// dispatcher's report.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_executor_is_gone_ends_with_a_reason_and_a_log() {
    let fixture = Fixture::new().await;
    let (request, container) = fixture.request("doomed").await;
    let scheduler = Scripted::new(SubmitBehavior::Slow(Duration::ZERO));
    let (stop, run) = dispatch(&fixture, &scheduler);
    run_and_lose(&fixture, &scheduler, &container).await;
    let record = record_when(&fixture, &container, |record| record.state.is_final()).await;
    stop.cancel();
    run.await.unwrap();
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap();
    assert!(why.contains("without recording a final state"), "{why}");
    // The collection of the container's log is in the trash, so the test reads the request's log.
    let request = fixture.user.container_request(&request).await.unwrap();
    let log = request.log_uuid.unwrap();
    let log = fixture.user.collection(log.as_str());
    let manifest = log.await.unwrap().manifest_text;
    assert!(
        manifest.contains("dispatch.txt") && manifest.contains(".tar"),
        "{manifest}"
    );
}
