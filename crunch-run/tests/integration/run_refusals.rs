//! Refusals that pass, and refusals that stay: a server refuses valid tokens while its database
//! restarts.

use std::time::{Duration, Instant};

use crate::run_lab::{Job, World, can_run, file, finish, go_on, left_overs, lines};
use crate::run_logs::until_saved;
use arvados_client::records::ContainerState;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use suite_tests::proxy::{Effect, Fault, Rule};

/// Enough to show that requests are repeated, and few enough for less than a minute.
const REFUSALS: u32 = 5;

/// Refuses `REFUSALS` such requests, after this many that succeed.
fn refused(status: u16, method: Method, path: &str, after: u32) -> Rule {
    let status = StatusCode::from_u16(status).unwrap();
    Rule::next(REFUSALS, method, path, Fault::Answer(status, Effect::None)).after(after)
}

#[tokio::test]
async fn refusals_that_pass_cost_nothing_at_any_step() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    let steps = [
        ("claim", refused(401, Method::GET, "containers/*", 0)),
        ("claim", refused(404, Method::GET, "containers/*", 0)),
        ("auth", refused(403, Method::GET, "containers/*/auth", 0)),
        (
            "secrets",
            refused(404, Method::GET, "containers/*/secret_mounts", 0),
        ),
        ("image", refused(401, Method::GET, "collections/*", 0)),
        ("first log", refused(401, Method::POST, "collections", 0)),
        ("running", refused(401, Method::PUT, "containers/*", 0)),
        ("output", refused(401, Method::POST, "collections", 1)),
        ("last log", refused(403, Method::POST, "collections", 2)),
        ("final update", refused(401, Method::PUT, "containers/*", 1)),
    ];
    for (step, rule) in steps {
        let more = json!({"secret_mounts": {"/run/secret": {"kind": "text", "content": "x"}}});
        let job = world
            .lock(&["sh", "-c", "cat /run/secret >/out/file"], more)
            .await;
        let before = proxy.fault_count();
        proxy.faults([rule]);
        let program = world.program_by(&proxy, &job, &[]).spawn();
        let finished = finish(program.unwrap()).await;
        assert_eq!(proxy.fault_count() - before, REFUSALS as usize, "{step}");
        assert_eq!(finished.code, 0, "{step}: {}", finished.output);
        let record = world.record(&job).await;
        assert_eq!(record.state, ContainerState::Complete, "{step}");
        assert_eq!(
            (record.exit_code, record.lock_count),
            (Some(0), 1),
            "{step}"
        );
        assert_eq!(record.runtime_status.error, None, "{step}");
        assert_eq!(record.runtime_status.warning, None, "{step}");
        let output = world.output(&job).await;
        assert_eq!(output, [("file".to_owned(), "x".to_owned())], "{step}");
    }
}

#[tokio::test]
async fn a_log_save_that_is_refused_for_a_while_is_made_up_for() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    let job = world.lock_held("echo ready", "echo data >/out/file").await;
    proxy.faults([refused(401, Method::POST, "collections", 1)]);
    let program = world.program_by(&proxy, &job, &["--log-update-period=1s"]);
    let child = { program }.spawn().unwrap();
    world.until_logged(&job, "ready").await;
    let first = world.record(&job).await.log;
    world
        .until(&job, "saved again", |record| record.log != first)
        .await;
    assert_eq!(proxy.fault_count(), REFUSALS as usize);
    // The save that was refused may be from before the first line.
    until_saved(&world, &job, "ready").await;
    let log = world.log(&job).await;
    assert_eq!(lines(file(&log, "stdout.txt")), ["ready"]);
    go_on(&job);
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
}

#[tokio::test]
async fn a_running_command_outlives_refusals_for_less_than_a_minute() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    let job = world.lock_held("echo ready", "echo data >/out/file").await;
    let child = world.program_by(&proxy, &job, &[]).spawn().unwrap();
    world.until_logged(&job, "ready").await;
    let refusal = Fault::Answer(StatusCode::UNAUTHORIZED, Effect::None);
    proxy.faults([Rule::every(Method::GET, "containers/*", refusal)]);
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    while proxy.fault_count() < 3 {
        assert!(Instant::now() < deadline, "it looks at its record");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    proxy.faults([]);
    go_on(&job);
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Complete);
    assert_eq!((record.exit_code, record.lock_count), (Some(0), 1));
}

async fn revoke(world: &World, job: &Job) {
    world.dispatch.delete_token(&job.attempt).await.unwrap();
}

#[tokio::test]
async fn a_token_that_is_revoked_for_good_is_believed_to_be_within_a_minute_and_a_half() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    revoke(&world, &job).await;
    let began = Instant::now();
    let finished =
        crate::run_lab::finish_within(world.start(&job, &[]), Duration::from_secs(90)).await;
    assert_eq!(finished.code, 76, "{}", finished.output);
    assert!(
        began.elapsed() > Duration::from_secs(40),
        "{:?}",
        began.elapsed()
    );
    assert!(
        finished.output.contains("belongs to another attempt"),
        "{}",
        finished.output
    );
}

#[tokio::test]
async fn a_token_that_is_revoked_while_the_command_runs_ends_it() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock_held("echo ready", "echo data >/out/file").await;
    let child = world.start(&job, &["--delivery-timeout=4s"]);
    world.until_logged(&job, "ready").await;
    revoke(&world, &job).await;
    let finished = finish(child).await;
    assert_eq!(finished.code, 76, "{}", finished.output);
    let words = "cannot be read with this attempt's token any more";
    assert!(finished.output.contains(words), "{}", finished.output);
    assert!(left_overs(&job.uuid).is_empty());
}

#[tokio::test]
async fn a_token_that_is_revoked_before_results_are_delivered_ends_the_attempt_in_time() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock_held("echo ready", "echo data >/out/file").await;
    let child = world.start(&job, &["--delivery-timeout=20s"]);
    world.until_logged(&job, "ready").await;
    revoke(&world, &job).await;
    go_on(&job);
    let began = Instant::now();
    let finished = finish(child).await;
    assert_eq!(finished.code, 76, "{}", finished.output);
    // The window of 10 s is for all calls together, not for each.
    assert!(
        began.elapsed() < Duration::from_secs(40),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn a_refusal_of_running_is_told_in_the_server_s_words() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    let job = world.lock(&["true"], json!({})).await;
    let refusal = Fault::Answer(StatusCode::UNPROCESSABLE_ENTITY, Effect::None);
    proxy.faults([Rule::next(1, Method::PUT, "containers/*", refusal)]);
    let program = world.program_by(&proxy, &job, &[]).spawn();
    let finished = finish(program.unwrap()).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let error = record.runtime_status.error.unwrap();
    assert!(
        error.starts_with("the API server does not let it run: the API server answered 422"),
        "{error}"
    );
}

/// The proxy's changes of the container's record, as of another server.
fn with(more: Value) -> Rule {
    let change = Fault::changed(move |mut record| {
        for (name, value) in more.as_object().unwrap() {
            record[name] = value.clone();
        }
        record
    });
    Rule::every(Method::GET, "containers/*", change)
}

#[tokio::test]
async fn a_container_that_publishes_ports_is_cancelled_before_it_starts() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    let job = world.lock(&["true"], json!({})).await;
    let ports = json!({"80": {"access": "public", "label": "web", "initial_path": ""}});
    proxy.faults([with(json!({"service": true, "published_ports": ports}))]);
    let program = world.program_by(&proxy, &job, &[]).spawn();
    let finished = finish(program.unwrap()).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let error = record.runtime_status.error.unwrap();
    assert!(
        error.starts_with("it publishes ports (80), which this crunch-run cannot serve"),
        "{error}"
    );
}

#[tokio::test]
async fn a_storage_class_that_the_cluster_lacks_is_told_before_the_command_starts() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    let job = world.lock(&["true"], json!({})).await;
    proxy.faults([with(json!({"output_storage_classes": ["cold"]}))]);
    let program = world.program_by(&proxy, &job, &[]).spawn();
    let finished = finish(program.unwrap()).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(
        (record.state, record.started_at),
        (ContainerState::Cancelled, None)
    );
    let error = record.runtime_status.error.unwrap();
    assert!(
        error.contains("storage class cold, which this cluster does not have"),
        "{error}"
    );
}

/// The cluster names the class, but none of its volumes has it.
#[tokio::test]
async fn an_output_that_no_volume_takes_in_its_class_is_kept_in_the_default_one() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let proxy = world.proxy();
    let job = world
        .lock(&["sh", "-c", "echo data >/out/file"], json!({}))
        .await;
    let config = Fault::changed(|mut config| {
        config["StorageClasses"]["cold"] = json!({});
        config
    });
    proxy.faults([
        with(json!({"output_storage_classes": ["cold"]})),
        Rule::every(Method::GET, "config", config),
    ]);
    let program = world.program_by(&proxy, &job, &["--delivery-timeout=3s"]);
    let finished = finish({ program }.spawn().unwrap()).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Complete);
    let warning = record.runtime_status.warning.unwrap();
    assert!(warning.contains("could not store it in cold"), "{warning}");
    assert_eq!(
        world.output(&job).await,
        [("file".to_owned(), "data\n".to_owned())]
    );
}
