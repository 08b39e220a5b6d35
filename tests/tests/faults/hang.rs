//! Commands and answers that never end, or end after the dispatcher's patience of a minute. The rows wait side by
//! side: each takes more than that minute.

use std::future::Future;
use std::time::Duration;

use arvados_client::records::ContainerState;
use http::Method;
use serde_json::json;
use suite_tests::fake_sched::{Fault, Rule};
use suite_tests::proxy;

use crate::scene::{Kind, both, held, running};

/// More than the dispatcher's patience, and a while for what follows.
const LONG: Duration = Duration::from_secs(100);

/// A listing never ends: the job that waits stays as it is, and the dispatcher goes on.
async fn listing_never_ends(kind: Kind) {
    let scene = held(kind).up().await;
    let container = scene.submit().await;
    scene.job(&container).await;
    scene.looks(2).await;
    let rule = Rule::next(kind.lists(), 1, Fault::Hang).having(kind.listing());
    scene.fake.faults([rule]);
    scene.says_within("did not end within 60 s", LONG).await;
    scene.looks(2).await;
    scene.is_undisturbed(&container).await;
}

/// A submission never ends; nothing was accepted: the container gets another attempt.
async fn submission_never_ends(kind: Kind) {
    let scene = running(kind).up().await;
    scene
        .fake
        .faults([Rule::next(kind.submits(), 1, Fault::Hang)]);
    let container = scene.submit().await;
    scene.says_within("did not end within 60 s", LONG).await;
    scene.complete(&container, 2).await;
}

/// A submission never ends, and was accepted: its job is the only one.
async fn accepted_submission_never_ends(kind: Kind) {
    let scene = running(kind).up().await;
    let fault = Fault::DoneButHangs;
    scene.fake.faults([Rule::next(kind.submits(), 1, fault)]);
    let container = scene.submit().await;
    scene.complete(&container, 1).await;
    scene.says_within("did not end within 60 s", LONG).await;
    scene.looks(2).await;
    assert_eq!(scene.fake.count(kind.submits()), 1);
}

/// A submission is given up, and accepted after all when the next attempt runs already: that one is not disturbed.
async fn submission_is_accepted_too_late(kind: Kind) {
    let scene = running(kind).up().await;
    let fault = Fault::DoneLater { ms: 66_000 };
    scene.fake.faults([Rule::next(kind.submits(), 1, fault)]);
    let (_, container) = scene.request("sleep 8; echo done > x", json!({})).await;
    scene.says_within("did not end within 60 s", LONG).await;
    let record = scene.stack.end(&container, LONG).await;
    let two = || scene.fake.jobs_of(container.as_str()).len() == 2;
    scene.wait_for("the late job", two).await;
    let over = || {
        let jobs = scene.fake.jobs_of(container.as_str());
        jobs.iter().all(|job| job.ended.is_some())
    };
    scene.wait_for("the end of both", over).await;
    let jobs = scene.fake.jobs_of(container.as_str());
    assert_eq!(
        (jobs[0].exit, record.state),
        (Some(0), ContainerState::Complete),
        "{jobs:#?}"
    );
    assert_ne!(jobs[1].exit, Some(0), "{jobs:#?}");
    assert_eq!((record.exit_code, record.lock_count), (Some(0), 2));
}

/// A listing of the API comes at one byte a second: the next one counts.
async fn answer_at_a_byte_a_second(kind: Kind) {
    let scene = held(kind).up().await;
    let container = scene.submit().await;
    scene.job(&container).await;
    scene.looks(2).await;
    let trickle = proxy::Fault::Trickle(Duration::from_secs(1));
    let rule = proxy::Rule::next(1, Method::GET, "containers", trickle);
    scene.proxy.faults([rule]);
    scene.fake.change(|state| state.settings.run_jobs = true);
    let second = scene.submit().await;
    scene.stack.end(&second, LONG).await;
    scene.complete(&second, 1).await;
    scene.is_undisturbed(&container).await;
    assert_eq!(scene.proxy.spoilt(), 1);
}

/// One row, with its name where it fails.
async fn row<F: Future<Output = ()> + Send + 'static>(
    name: &'static str,
    row: impl Fn(Kind) -> F + Send + 'static,
) -> Result<(), &'static str> {
    tokio::spawn(both(row)).await.map_err(|_| name)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_ends_is_given_up_after_a_minute() {
    let (a, b, c, d, e) = tokio::join!(
        row("a listing never ends", listing_never_ends),
        row("a submission never ends", submission_never_ends),
        row(
            "an accepted submission never ends",
            accepted_submission_never_ends
        ),
        row(
            "a submission is accepted too late",
            submission_is_accepted_too_late
        ),
        row("an answer at a byte a second", answer_at_a_byte_a_second),
    );
    let failed: Vec<_> = [a, b, c, d, e]
        .into_iter()
        .filter_map(Result::err)
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}
