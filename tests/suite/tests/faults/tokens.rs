//! A dispatcher that is killed starts again on a server with thousands of tokens, which behaves as
//! a real Arvados: filters on tokens are ignored, a page ends after 1,000, the system user's token
//! shows the tokens of all users, and an administrator's only those of this user.

use arvados_client::api::NewToken;
use arvados_client::records::{Authorization, Container, ContainerState};
use arvados_client::{Client, ContainerUuid, scopes};
use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use suite_tests::STEP_TIMEOUT;
use suite_tests::fail_point_dir::FailPointDir;
use suite_tests::stack::client;
use suite_tests::start_log::Gate;

use crate::backend::{Backend, api_fault};
use crate::fixture::{Fixture, FixtureOptions, running};

/// Number of tokens of others. Attempts are among the first 1,000 by chance only.
const OTHER_TOKENS: usize = 1200;

impl Fixture {
    /// Kills the dispatcher and starts it with the token of this user of the server.
    async fn restart_as(&mut self, user: &Client) {
        let token = user.endpoint().token.expose();
        self.stack.dispatcher.kill();
        let path = self.stack.ready["tokens"]["dispatch"].as_str().unwrap();
        std::fs::write(path, token).unwrap();
        self.stack.dispatcher.start();
        let has_started = || self.stack.dispatcher.log_contains(r#"event="started""#);
        self.wait_for("the start", has_started).await;
    }

    async fn runs(&self, container: &ContainerUuid) {
        let runs = |c: &Container| c.state == ContainerState::Running;
        self.stack.wait_until(container, STEP_TIMEOUT, runs).await;
    }
}

/// Tokens such as each login makes.
async fn make_tokens(by: &Client, count: usize) {
    let new = NewToken {
        scopes: vec!["all".to_owned()],
        expires_at: Timestamp::now() + SignedDuration::from_hours(24),
    };
    let made = stream::iter(0..count).map(|_| by.create_token(&new));
    let made: Vec<_> = made.buffer_unordered(8).collect().await;
    assert!(made.iter().all(Result::is_ok));
}

async fn a_restart_costs_no_container(backend: Backend) {
    let options = FixtureOptions {
        api_flags: vec!["--emulate=arvados-3"],
        ..running(backend)
    };
    let mut fixture = options.up().await;
    let [root, admin] = ["root", "dispatch"].map(|who| client(&fixture.stack.ready, who));
    make_tokens(&root, OTHER_TOKENS).await;
    fixture.restart_as(&root).await;
    let gate = Gate::closed();
    // One CPU of this machine is for the containers that come later.
    let count = match backend {
        Backend::Local => 1,
        _ => 6,
    };
    let with_network = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true}});
    let mut containers = Vec::new();
    for _ in 0..count {
        let (_, container) = fixture.request(&gate.script(), with_network.clone()).await;
        containers.push(container);
    }
    for container in &containers {
        fixture.runs(container).await;
    }
    for (user, who) in [(&root, "the same user"), (&admin, "another administrator")] {
        fixture.restart_as(user).await;
        let first = fixture.submit().await;
        fixture.complete(&first, 1).await;
        fixture.wait_for_log("found attempt tokens").await;
        if backend != Backend::Local {
            fixture.wait_for_listings(3).await;
        }
        let stopped = fixture.event_count("cleaned_up_abandoned_container");
        assert_eq!(stopped, 0, "jobs were stopped after a restart as {who}");
    }
    gate.open();
    for container in &containers {
        fixture.complete(container, 1).await;
    }
}
api_fault!(a_restart_costs_no_container, [Condor, Local]);

/// Its job directory would name the attempt, and is made only when the job is submitted.
async fn a_lock_without_a_job_is_given_back_by_another_administrator(backend: Backend) {
    let options = FixtureOptions {
        api_flags: vec!["--emulate=arvados-3"],
        ..running(backend)
    };
    let mut fixture = options.up().await;
    let [root, admin] = ["root", "dispatch"].map(|who| client(&fixture.stack.ready, who));
    fixture.restart_as(&root).await;
    let points = FailPointDir::of(&fixture.stack.points_dir());
    points.arm("dispatcher.after-lock", 1);
    let container = fixture.submit().await;
    let is_killed = || !points.killed().is_empty();
    fixture.wait_for("the kill", is_killed).await;
    let record = fixture.stack.container(&container).await;
    assert_eq!(
        (record.state, record.lock_count),
        (ContainerState::Locked, 1)
    );
    fixture.restart_as(&admin).await;
    fixture.complete(&container, 2).await;
    let locks = fixture.state_dir().join("locking");
    assert_eq!(std::fs::read_dir(locks).unwrap().count(), 0);
}
api_fault!(
    a_lock_without_a_job_is_given_back_by_another_administrator,
    [Condor, Local]
);

/// The scopes and the label of a running attempt do not make a token the attempt's. It is found
/// although thousands of tokens are older, and the attempt continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_made_beside_an_attempt_is_found_among_thousands() {
    let options = FixtureOptions {
        api_flags: vec!["--emulate=arvados-3"],
        ..running(Backend::Slurm)
    };
    let fixture = options.up().await;
    let admin = client(&fixture.stack.ready, "dispatch");
    make_tokens(&admin, OTHER_TOKENS).await;
    let gate = Gate::closed();
    let with_network = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true}});
    let (_, container) = fixture.request(&gate.script(), with_network).await;
    fixture.runs(&container).await;
    let holder = fixture.stack.container(&container).await.locked_by_uuid;
    let attempt = admin.token(&holder.unwrap()).await.unwrap().unwrap();
    let beside: Authorization = {
        let new = NewToken {
            scopes: attempt.scopes.clone(),
            expires_at: Timestamp::now() + SignedDuration::from_hours(1),
        };
        assert_eq!(
            scopes::attempt_container(&new.scopes),
            Some(container.clone())
        );
        admin.create_token(&new).await.unwrap()
    };
    let by_hand = admin.with_token(beside.token().unwrap());
    let began = std::time::Instant::now();
    while !by_hand
        .container(&container)
        .await
        .is_err_and(|error| error.is_denied())
    {
        assert!(began.elapsed() < STEP_TIMEOUT, "the token is still valid");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    gate.open();
    fixture.complete(&container, 1).await;
}
