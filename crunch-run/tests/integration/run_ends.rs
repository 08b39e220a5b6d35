//! Every end of a container other than its own exit, and the record of each.

use crate::run_lab::{World, can_run, file, finish, left_overs, lines, signal};
use arvados_client::records::ContainerState;
use rustix::process::Signal;
use serde_json::json;
use suite_tests::STEP_TIMEOUT;
use suite_tests::fail_point_dir::{FailPointDir, PassedPoint};
use suite_tests::stack::wait_for;

#[tokio::test]
async fn a_command_that_does_not_exist_is_said_and_cancelled() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (job, finished, record) = world.run_command(&["no-such-command"], json!({})).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(record.state, ContainerState::Cancelled);
    assert_eq!(
        record.runtime_status.error.as_deref(),
        Some("command \"no-such-command\" not found in the image; PATH is /bin")
    );
    assert!(record.runtime_status.error_detail.is_some());
    assert_eq!(record.exit_code, None);
    let log = world.log(&job).await;
    let story = lines(file(&log, "crunch-run.txt"));
    assert_eq!(story.last(), Some(&"Cancelled"));
    assert!(left_overs(&job.uuid).is_empty());
}

#[tokio::test]
async fn an_image_that_is_none_is_said_and_cancelled() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let empty = world.collection(&[("README", b"no image")]).await;
    let two = world.collection(&[("a.tar", b"x"), ("b.tar", b"y")]).await;
    let garbage = world
        .collection(&[(&format!("sha256:{:064}.tar", 7), b"not a tar at all")])
        .await;
    for (image, words) in [
        (&empty, "no file at its top ends in .tar"),
        (&two, "2 .tar files"),
        (&garbage, "neither a docker-archive nor an OCI archive"),
    ] {
        let (_, finished, record) = world
            .run_command(&["true"], json!({"container_image": image}))
            .await;
        assert_eq!(finished.code, 0, "{}", finished.output);
        assert_eq!(record.state, ContainerState::Cancelled);
        let error = record.runtime_status.error.unwrap_or_default();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn an_image_that_is_gone_is_said_and_cancelled() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let image = world.collection(&[("image.tar", b"gone soon")]).await;
    let job = world
        .lock(&["true"], json!({"container_image": image}))
        .await;
    let of_image = arvados_client::filter::Query::new().filter("portable_data_hash", "=", &image);
    let found = world
        .user
        .page::<serde_json::Value>("collections", &of_image)
        .await
        .unwrap();
    let uuid = found.items[0]["uuid"].as_str().unwrap();
    let gone = arvados_client::client::Call::delete(format!("collections/{uuid}"));
    world.user.send::<serde_json::Value>(gone).await.unwrap();
    let finished = world.run(&job, &[]).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.contains(&format!("no collection {image}")), "{error}");
}

#[tokio::test]
async fn a_mount_that_does_not_exist_is_said_and_cancelled() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mounts = json!({
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/in": {"kind": "collection", "portable_data_hash": "acbd18db4cc2f85cedef654fccc4a4d8+3"},
    });
    let (_, finished, record) = world
        .run_command(&["true"], json!({"mounts": mounts}))
        .await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(record.state, ContainerState::Cancelled);
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.contains("/in"), "{error}");
}

#[tokio::test]
async fn an_output_that_leads_out_of_the_container_costs_that_link_or_all() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "ln -s /etc/shadow /out/link; mkfifo /out/pipe; echo result >/out/good";
    let job = world.lock(&["sh", "-c", script], json!({})).await;
    let finished = world.run(&job, &[]).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Complete);
    let output = record.output.unwrap();
    let files = world.files(output.as_str()).await;
    assert_eq!(files, [("good".to_owned(), "result\n".to_owned())]);
    let status = record.runtime_status;
    let warning = status.warning.unwrap_or_default();
    assert_eq!(warning, "2 entries are not in its output");
    let detail = status.warning_detail.unwrap_or_default();
    let lines: Vec<&str> = detail.lines().collect();
    assert!(
        lines[0].starts_with("output link /out/link leads to /etc/shadow"),
        "{detail}"
    );
    assert_eq!(
        lines[1],
        "/out/pipe is not in the output because it is a pipe"
    );
    assert_eq!(status.error, None);

    // As with upstream's crunch-run.
    let job = world.lock(&["sh", "-c", script], json!({})).await;
    let finished = world.run(&job, &["--strict-output"]).await;
    let record = world.record(&job).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(record.state, ContainerState::Cancelled);
    assert_eq!((record.exit_code, &record.output), (Some(0), &None));
    // The same command would leave the same link.
    assert_eq!(record.runtime_status.extra["permanentFailure"], true);
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.starts_with("its output cannot be saved: "), "{error}");
    assert!(error.contains("link"), "{error}");
}

#[tokio::test]
async fn killed_by_its_memory_limit_is_said_with_numbers() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let small = json!({"runtime_constraints": {"vcpus": 1, "ram": 24 << 20}});
    let (_, finished, record) = world
        .run_command(&["sh", "-c", "exec tail /dev/zero"], small.clone())
        .await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(record.state, ContainerState::Complete);
    assert_eq!(record.exit_code, Some(137));
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(
        error.starts_with("killed by its memory limit: used "),
        "{error}"
    );
    assert!(
        error.ends_with(" of 24.0 MiB; ask for more (--memory of dispatch, ram of the API)"),
        "{error}"
    );
    let detail = record.runtime_status.error_detail.unwrap_or_default();
    assert!(detail.contains("out-of-memory kill"), "{detail}");

    let (_, finished, record) = world
        .run_command(&["sh", "-c", "tail /dev/zero; exit 0"], small)
        .await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(record.exit_code, Some(0));
    assert_eq!(record.runtime_status.error, None);
    let warning = record.runtime_status.warning.unwrap_or_default();
    assert!(
        warning.starts_with("a process of it was killed by its memory limit"),
        "{warning}"
    );
}

#[tokio::test]
async fn the_maximum_run_time_is_kept() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let (job, finished, record) = world
        .run_command(
            &["sh", "-c", "sleep 1000 & wait"],
            json!({"scheduling_parameters": {"max_run_time": 1}}),
        )
        .await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(record.state, ContainerState::Cancelled);
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.starts_with("maximum run time exceeded"), "{error}");
    assert!(left_overs(&job.uuid).is_empty());
}

#[tokio::test]
async fn term_stops_the_container_gently_and_cancels() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world
        .lock(
            &[
                "sh",
                "-c",
                "trap 'echo gently; exit 3' TERM; echo ready; sleep 1000 & wait",
            ],
            json!({}),
        )
        .await;
    let child = world.start(&job, &[]);
    world.until_logged(&job, "ready").await;
    signal(&child, Signal::TERM);
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    assert_eq!(record.exit_code, Some(3));
    assert_eq!(
        record.runtime_status.error.as_deref(),
        Some("it was stopped on request (signal TERM)")
    );
    let log = world.log(&job).await;
    assert_eq!(lines(file(&log, "stdout.txt")), ["ready", "gently"]);
    assert!(left_overs(&job.uuid).is_empty());
}

#[tokio::test]
async fn a_cancelled_request_is_the_reason_where_it_is_and_a_second_term_kills_at_once() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world
        .lock(
            &[
                "sh",
                "-c",
                "trap 'echo no' TERM; echo ready; while :; do sleep 1; done",
            ],
            json!({}),
        )
        .await;
    let child = world.start(&job, &["--stop-grace=1000s"]);
    world.until_logged(&job, "ready").await;
    world
        .user
        .update_container_request(&job.request, json!({"priority": 0}))
        .await
        .unwrap();
    signal(&child, Signal::TERM);
    world.until_logged(&job, "no").await;
    signal(&child, Signal::TERM);
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    assert_eq!(
        record.runtime_status.error.as_deref(),
        Some("it was stopped because its priority was set to 0")
    );
}

/// The command has ended, and its output is being saved.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_is_the_reason_also_while_the_output_is_saved() {
    if !fail_points::ENABLED {
        return suite_tests::skip("this test needs the feature fail-points/enabled");
    }
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    let points = world.dir().join("points");
    std::fs::create_dir_all(&points).unwrap();
    let points = FailPointDir::of(&points);
    points.block_at("run.before-output");
    let mut program = world.program(&job, &[]);
    program.env(fail_points::VARIABLE, world.dir().join("points"));
    let child = program.spawn().unwrap();
    wait_for("the end of the command", STEP_TIMEOUT, || {
        let passed = points.passed();
        let is_there = |passed: &PassedPoint| passed.point == "run.before-output";
        passed.iter().any(is_there).then_some(())
    });
    let hold = json!({"priority": 0});
    let request = world.user.update_container_request(&job.request, hold);
    request.await.unwrap();
    signal(&child, Signal::TERM);
    points.unblock("run.before-output");
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.contains("priority was set to 0"), "{error}");
}

#[tokio::test]
async fn without_any_signal_the_record_alone_stops_the_container() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["sleep", "1000"], json!({})).await;
    let child = world.start(&job, &[]);
    world.until_running(&job).await;
    world
        .user
        .update_container_request(&job.request, json!({"priority": 0}))
        .await
        .unwrap();
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(world.record(&job).await.state, ContainerState::Cancelled);
}
