//! Commands and answers that never end, or end after the dispatcher's patience.

use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use http::Method;
use serde_json::json;
use suite_tests::fake_sched::{Fault, Rule};
use suite_tests::proxy;

use crate::scene::{Begin, PATIENCE, everywhere, held, running};

/// More than the dispatcher's patience with the server, which is a minute, and a while for what follows.
const LONG: Duration = Duration::from_secs(100);

/// So long the dispatcher waits for a command. Those that nothing is wrong with end in time also on a machine that stalls.
const TIMEOUT: &str = "25s";
/// What it says of others.
const GIVEN_UP: &str = "did not end within 25 s";

fn impatient(mut begin: Begin) -> Begin {
    begin.flags = vec!["--command-timeout", TIMEOUT];
    begin
}

// A listing never ends: the job that waits stays as it is, and the dispatcher goes on.
everywhere!(both, a_listing_never_ends, |kind| async move {
    let scene = impatient(held(kind)).up().await;
    let container = scene.submit().await;
    scene.job(&container).await;
    scene.looks(2).await;
    let rule = Rule::next(kind.lists(), 1, Fault::Hang).having(kind.listing());
    scene.fake.faults([rule]);
    scene.says(GIVEN_UP).await;
    scene.looks(2).await;
    scene.is_undisturbed(&container).await;
});

// A submission never ends; nothing was accepted: the container gets another attempt.
everywhere!(both, a_submission_never_ends, |kind| async move {
    let scene = impatient(running(kind)).up().await;
    scene
        .fake
        .faults([Rule::next(kind.submits(), 1, Fault::Hang)]);
    let container = scene.submit().await;
    scene.says(GIVEN_UP).await;
    scene.complete(&container, 2).await;
});

// A submission never ends, and was accepted: its job is the only one.
everywhere!(both, an_accepted_submission_never_ends, |kind| async move {
    let scene = impatient(running(kind)).up().await;
    let fault = Fault::DoneButHangs;
    scene.fake.faults([Rule::next(kind.submits(), 1, fault)]);
    let container = scene.submit().await;
    scene.complete(&container, 1).await;
    scene.says(GIVEN_UP).await;
    scene.looks(2).await;
    assert_eq!(scene.fake.count(kind.submits()), 1);
});

// A submission is given up, and accepted after all when the next attempt runs already: that one is not disturbed.
everywhere!(both, a_submission_is_accepted_too_late, |kind| async move {
    let scene = impatient(running(kind)).up().await;
    let fault = Fault::DoneLater;
    scene.fake.faults([Rule::next(kind.submits(), 1, fault)]);
    // Long enough to be seen when it runs.
    let script = "sleep 15; echo done > x";
    let (_, container) = scene.request(script, json!({})).await;
    scene.says(GIVEN_UP).await;
    let runs = |c: &Container| c.state == ContainerState::Running;
    scene.stack.wait_until(&container, PATIENCE, runs).await;
    scene.fake.change(|state| state.late = true);
    let record = scene.stack.end(&container, PATIENCE).await;
    let two = || scene.jobs_of(container.as_str()).len() == 2;
    scene.wait_for("the late job", two).await;
    let over = || {
        let jobs = scene.jobs_of(container.as_str());
        jobs.iter().all(|job| job.ended.is_some())
    };
    scene.wait_for("the end of both", over).await;
    let jobs = scene.jobs_of(container.as_str());
    assert_eq!(
        (jobs[0].exit, record.state),
        (Some(0), ContainerState::Complete),
        "{jobs:#?}"
    );
    assert_ne!(jobs[1].exit, Some(0), "{jobs:#?}");
    assert_eq!((record.exit_code, record.lock_count), (Some(0), 2));
});

// A listing of the API comes at one byte a second: the next one counts.
everywhere!(
    both,
    an_answer_comes_at_a_byte_a_second,
    |kind| async move {
        let mut scene = held(kind).up().await;
        let container = scene.submit().await;
        scene.job(&container).await;
        scene.looks(2).await;
        let trickle = proxy::Fault::Trickle(Duration::from_secs(1));
        let rule = proxy::Rule::next(1, Method::GET, "containers", trickle);
        scene.proxy.faults([rule]);
        let second = scene.submit().await;
        let locked = |c: &Container| c.state == ContainerState::Locked;
        scene.stack.wait_until(&second, LONG, locked).await;
        scene.is_undisturbed(&container).await;
        scene.release();
        for container in [container, second] {
            scene.complete(&container, 1).await;
        }
        assert_eq!(scene.proxy.spoilt(), 1);
    }
);

// A listing never ends: what needs only the API goes on meanwhile.
everywhere!(
    both,
    the_api_is_looked_at_while_a_listing_hangs,
    |kind| async move {
        let scene = impatient(held(kind)).up().await;
        let container = scene.submit().await;
        scene.job(&container).await;
        scene.looks(2).await;
        let rule = Rule::next(kind.lists(), 1, Fault::Hang).having(kind.listing());
        scene.fake.faults([rule]);
        // Until it hangs.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let second = scene.submit().await;
        let locked = |c: &Container| c.state == ContainerState::Locked;
        let soon = Duration::from_secs(12);
        scene.stack.wait_until(&second, soon, locked).await;
        let said = scene.stack.dispatcher.said();
        assert!(!said.contains(GIVEN_UP), "the listing did not hang: {said}");
    }
);

// Nobody waits long for an explanation, and it says who did not answer.
everywhere!(
    both,
    an_explanation_does_not_wait_for_a_scheduler_that_hangs,
    |kind| async move {
        let scene = impatient(held(kind)).up().await;
        let container = scene.submit().await;
        scene.job(&container).await;
        let rule = Rule::every(kind.lists(), Fault::Hang).having(kind.listing());
        scene.fake.faults([rule]);
        let began = Instant::now();
        let asked = scene
            .stack
            .dispatcher
            .errand(&["explain", container.as_str()]);
        let answer = tokio::process::Command::from(asked).output().await.unwrap();
        let took = began.elapsed();
        let said = [answer.stdout, answer.stderr].concat();
        let told = String::from_utf8_lossy(&said);
        assert!(took < Duration::from_secs(15), "{took:?}: {told}");
        assert!(told.contains("did not answer within 5 s"), "{told}");
        assert!(told.contains("record  Locked"), "{told}");
    }
);
