//! Commands and API answers that never end, or end after the dispatcher's timeout.

use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use http::Method;
use serde_json::json;
use suite_tests::fake_sched::{Call, Fault, Rule};
use suite_tests::proxy;

use crate::backend::{Backend, api_fault, on_every_scheduler, on_fake_schedulers};
use crate::fixture::{Fixture, FixtureOptions, held, running};
use suite_tests::STEP_TIMEOUT;

/// Longer than the dispatcher's timeout for the server, which is a minute, and the steps after it.
const TRICKLE_TIMEOUT: Duration = Duration::from_secs(100);

/// `TimeoutStopSec` of the services in contrib/.
const SYSTEMD_STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of the dispatcher's commands; long enough for healthy commands on a slow machine.
const COMMAND_TIMEOUT: &str = "25s";

fn with_command_timeout(mut options: FixtureOptions) -> FixtureOptions {
    options.flags = vec!["--command-timeout", COMMAND_TIMEOUT];
    options
}

/// A listing never ends: the pending job stays as it is, and the dispatcher goes on.
async fn a_listing_never_ends(backend: Backend) {
    let fixture = with_command_timeout(held(backend)).up().await;
    let container = fixture.submit().await;
    fixture.job(&container).await;
    fixture.wait_for_listings(2).await;
    let rule =
        Rule::next(backend.list_command(), 1, Fault::Hang).having(backend.listing_argument());
    fixture.fake.faults([rule]);
    fixture.wait_for_event("listing_failed").await;
    fixture.wait_for_listings(2).await;
    fixture.assert_undisturbed(&container).await;
}
on_every_scheduler!(a_listing_never_ends);

/// A submission never ends; nothing was accepted: the container gets another attempt.
async fn a_submission_never_ends(backend: Backend) {
    let fixture = with_command_timeout(running(backend)).up().await;
    fixture
        .fake
        .faults([Rule::next(backend.submit_command(), 1, Fault::Hang)]);
    let container = fixture.submit().await;
    fixture.wait_for_event("submit_failed").await;
    fixture.complete(&container, 2).await;
}
on_every_scheduler!(a_submission_never_ends);

/// A submission never ends while the dispatcher is stopped: systemd need not kill it, and the next
/// one goes on with the container.
async fn a_stop_does_not_wait_for_a_command_that_hangs(backend: Backend) {
    let mut options = running(backend);
    options.flags = vec!["--command-timeout", "10m"];
    let mut fixture = options.up().await;
    fixture
        .fake
        .faults([Rule::next(backend.submit_command(), 1, Fault::Hang)]);
    let container = fixture.submit().await;
    let submits = || fixture.fake.count(backend.submit_command()) > 0;
    fixture.wait_for("the submission", submits).await;
    fixture.stack.dispatcher.terminate(SYSTEMD_STOP_TIMEOUT);
    let log = fixture.stack.dispatcher.log_text();
    assert!(log.contains(r#"event="drain_incomplete""#), "{log}");
    fixture.stack.dispatcher.start();
    fixture.complete(&container, 2).await;
}
on_every_scheduler!(a_stop_does_not_wait_for_a_command_that_hangs);

/// A submission never ends, and was accepted: its job is the only one.
async fn an_accepted_submission_never_ends(backend: Backend) {
    let fixture = with_command_timeout(running(backend)).up().await;
    let fault = Fault::DoneButHangs;
    fixture
        .fake
        .faults([Rule::next(backend.submit_command(), 1, fault)]);
    let container = fixture.submit().await;
    fixture.complete(&container, 1).await;
    fixture.wait_for_event("submit_failed").await;
    fixture.wait_for_listings(2).await;
    assert_eq!(fixture.fake.count(backend.submit_command()), 1);
}
on_every_scheduler!(an_accepted_submission_never_ends);

/// A submission times out and is accepted after all, when the next attempt runs already: that
/// attempt is not disturbed.
async fn a_submission_is_accepted_too_late(backend: Backend) {
    let fixture = with_command_timeout(running(backend)).up().await;
    let fault = Fault::DoneLater;
    fixture
        .fake
        .faults([Rule::next(backend.submit_command(), 1, fault)]);
    // Long enough to be observed while it runs.
    let script = "sleep 15; echo done > x";
    let (_, container) = fixture.request(script, json!({})).await;
    fixture.wait_for_event("submit_failed").await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, runs)
        .await;
    fixture.fake.change(|state| state.late = true);
    let record = fixture.stack.end(&container, STEP_TIMEOUT).await;
    let two = || fixture.jobs_of(container.as_str()).len() == 2;
    fixture.wait_for("the late job", two).await;
    let over = || {
        let jobs = fixture.jobs_of(container.as_str());
        jobs.iter().all(|job| job.ended.is_some())
    };
    fixture.wait_for("the end of both", over).await;
    let jobs = fixture.jobs_of(container.as_str());
    assert_eq!(
        (jobs[0].exit, record.state),
        (Some(0), ContainerState::Complete),
        "{jobs:#?}"
    );
    assert_ne!(jobs[1].exit, Some(0), "{jobs:#?}");
    assert_eq!((record.exit_code, record.lock_count), (Some(0), 2));
}
on_every_scheduler!(a_submission_is_accepted_too_late);

/// A listing of the API arrives at one byte a second: the dispatcher uses the next one.
async fn an_answer_comes_at_a_byte_a_second(backend: Backend) {
    let mut fixture = held(backend).up().await;
    let container = fixture.submit().await;
    fixture.job(&container).await;
    fixture.wait_for_listings(2).await;
    let trickle = proxy::Fault::Trickle(Duration::from_secs(1));
    let rule = proxy::Rule::next(1, Method::GET, "containers", trickle);
    fixture.proxy.faults([rule]);
    let second = fixture.submit().await;
    let locked = |c: &Container| c.state == ContainerState::Locked;
    fixture
        .stack
        .wait_until(&second, TRICKLE_TIMEOUT, locked)
        .await;
    fixture.assert_undisturbed(&container).await;
    fixture.start_jobs();
    for container in [container, second] {
        fixture.complete(&container, 1).await;
    }
    assert_eq!(fixture.proxy.fault_count(), 1);
}
api_fault!(an_answer_comes_at_a_byte_a_second, [Condor]);

/// A listing never ends: the dispatcher still reads the API and locks containers.
async fn the_api_is_looked_at_while_a_listing_hangs(backend: Backend) {
    let mut options = held(backend);
    // Longer than the test.
    options.flags = vec!["--command-timeout", "600s"];
    let fixture = options.up().await;
    let container = fixture.submit().await;
    fixture.job(&container).await;
    fixture.wait_for_listings(2).await;
    let rule =
        Rule::next(backend.list_command(), 1, Fault::Hang).having(backend.listing_argument());
    fixture.fake.faults([rule]);
    let hangs = |call: &Call| call.fault.as_ref().is_some_and(Fault::hangs);
    fixture
        .wait_for("a listing to hang", || {
            fixture.fake.calls().iter().any(hangs)
        })
        .await;
    let second = fixture.submit().await;
    let locked = |c: &Container| c.state == ContainerState::Locked;
    fixture
        .stack
        .wait_until(&second, STEP_TIMEOUT, locked)
        .await;
    let failed = fixture.event_count("listing_failed");
    assert_eq!(failed, 0, "the listing did not hang");
}
on_every_scheduler!(the_api_is_looked_at_while_a_listing_hangs);

async fn explained(fixture: &Fixture, container: &ContainerUuid) -> String {
    let dispatcher = &fixture.stack.dispatcher;
    let explain = dispatcher.subcommand(&["explain", container.as_str()]);
    let mut explain = tokio::process::Command::from(explain);
    let answer = explain.output().await.unwrap();
    let output = [answer.stdout, answer.stderr].concat();
    String::from_utf8_lossy(&output).into_owned()
}

/// `explain` waits a short time for a scheduler that hangs, and names it.
async fn an_explanation_does_not_wait_for_a_scheduler_that_hangs(backend: Backend) {
    let fixture = with_command_timeout(held(backend)).up().await;
    let container = fixture.submit().await;
    fixture.job(&container).await;
    let rule = Rule::every(backend.list_command(), Fault::Hang).having(backend.listing_argument());
    fixture.fake.faults([rule]);
    let text = explained(&fixture, &container).await;
    assert!(text.contains("did not answer within 5 s"), "{text}");
    assert!(text.contains("record  Locked"), "{text}");
}
on_every_scheduler!(an_explanation_does_not_wait_for_a_scheduler_that_hangs);

/// Users are told that the scheduler does not answer, of a job that waits there and of one that was
/// not submitted, and both go on by themselves.
async fn users_are_told_of_a_scheduler_that_hangs(backend: Backend) {
    let fixture = with_command_timeout(held(backend)).up().await;
    let (first, container) = fixture.request("true", json!({})).await;
    fixture.job(&container).await;
    fixture.wait_for_listings(2).await;
    let rule = Rule::every(backend.list_command(), Fault::Hang).having(backend.listing_argument());
    fixture.fake.faults([rule]);
    fixture.wait_for_event("scheduler_silent").await;
    assert_eq!(fixture.event_count("listing_failed"), 0, "told too late");
    let (second, waiting) = fixture.request("true", json!({})).await;
    let words = format!(
        "the {} scheduler has not answered since ",
        backend.scheduler()
    );
    let is_told = |request| fixture.stack.explained(request).contains(&words);
    for request in [&first, &second] {
        fixture.wait_for(&words, || is_told(request)).await;
    }
    fixture.assert_undisturbed(&container).await;
    assert_eq!(fixture.stack.container(&waiting).await.lock_count, 0);
    fixture.fake.faults([]);
    fixture.wait_for_event("listing_works").await;
    fixture.job(&waiting).await;
    let newest = |request| {
        let text = fixture.stack.explained(request);
        text.lines()
            .find(|line| line.contains("Message of a dispatcher"))
            .map(str::to_owned)
    };
    for request in [&first, &second] {
        let is_over = || !newest(request).is_some_and(|line| line.contains(&words));
        fixture.wait_for("the end of the outage", is_over).await;
        let says_now = || {
            fixture
                .stack
                .explained(request)
                .contains(&format!("Now: {words}"))
        };
        fixture
            .wait_for("the end of the outage in the record", || !says_now())
            .await;
    }
    assert_eq!(fixture.event_count("scheduler_silent"), 1);
    fixture.assert_undisturbed(&container).await;
}
on_every_scheduler!(users_are_told_of_a_scheduler_that_hangs);

/// A container that is locked and has no job yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_submission_under_way_is_not_explained_by_an_end() {
    on_fake_schedulers(|backend| async move {
        let mut options = held(backend);
        // Longer than the test.
        options.flags = vec!["--command-timeout", "600s"];
        let fixture = options.up().await;
        let rule = Rule::every(backend.submit_command(), Fault::Hang);
        fixture.fake.faults([rule]);
        let container = fixture.submit().await;
        let hangs = |call: &Call| call.fault.as_ref().is_some_and(Fault::hangs);
        fixture
            .wait_for("the submission to hang", || {
                fixture.fake.calls().iter().any(hangs)
            })
            .await;
        let text = explained(&fixture, &container).await;
        assert!(text.contains("record  Locked"), "{text}");
        assert!(!text.contains("its job has ended"), "{text}");
    })
    .await;
}
