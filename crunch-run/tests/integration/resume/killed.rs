//! Delivery after crunch-run was killed at one of its fail points.

use super::*;

/// Whether this build has fail points.
fn can_kill() -> bool {
    if !fail_points::ENABLED {
        suite_tests::skip("this test needs the feature fail-points/enabled");
    }
    fail_points::ENABLED && can_run()
}

/// Kills the next process that reaches this fail point.
fn deadly(world: &World, point: &str) -> PathBuf {
    let points = world.dir().join("points");
    fs::create_dir_all(&points).unwrap();
    fs::write(points.join(point), "1").unwrap();
    points
}

async fn killed(mut child: Child) {
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().await.unwrap();
    assert_eq!(status.signal(), Some(9), "{status}");
}

#[tokio::test]
async fn a_resume_that_is_killed_is_resumed() {
    if !can_kill() {
        return;
    }
    let mut world = World::new().await;
    let job = left_behind(&mut world).await;
    world.start_server().await;
    let point = deadly(&world, "run.output-stored");
    let mut child = command(&job.dir, &[]);
    child.env(fail_points::VARIABLE, &point);
    killed(child.spawn().unwrap()).await;
    assert_eq!(world.record(&job).await.state, ContainerState::Running);
    let finished = resume(&job.dir).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_delivered(&world, &job).await;
}

/// Not only undelivered runs: also killed ones.
#[tokio::test]
async fn an_attempt_killed_after_its_command_is_resumed_wherever_it_was() {
    if !can_kill() {
        return;
    }
    let world = World::new().await;
    for point in [
        "run.before-output",
        "run.output-stored",
        "run.after-output",
        "run.after-last-log",
        "run.before-final",
    ] {
        let job = killed_at(&world, point).await;
        let finished = resume(&job.dir).await;
        assert_eq!(finished.code, 0, "{point}: {}", finished.output);
        assert_delivered(&world, &job).await;
        assert_eq!(names(&job.dir), ["exit", "lock"], "{point}");
    }
}

/// Partial files of a killed container are not its output.
#[tokio::test]
async fn an_attempt_killed_after_it_was_stopped_is_cancelled_by_resume() {
    if !can_kill() {
        return;
    }
    let world = World::new().await;
    let job = job(&world).await;
    let mut program = world.program(&job, &["--stop-grace=100ms"]);
    program.env(fail_points::VARIABLE, deadly(&world, "run.before-output"));
    let child = program.spawn().unwrap();
    world.until_logged(&job, "ready").await;
    signal(&child, Signal::TERM);
    killed(child).await;
    let words = "it was stopped on request (signal TERM)";
    assert_cancelled_by_resume(&world, &job, words).await;
}

#[tokio::test]
async fn an_output_that_was_too_large_is_so_for_resume() {
    if !can_kill() {
        return;
    }
    let world = World::new().await;
    let script = "head -c 100000 /dev/zero >/out/large";
    let job = world.lock(&["sh", "-c", script], json!({})).await;
    let mut program = world.program(&job, &["--output-limit=1000B"]);
    program.env(fail_points::VARIABLE, deadly(&world, "run.before-output"));
    killed(program.spawn().unwrap()).await;
    assert_cancelled_by_resume(&world, &job, "its output is too large").await;
}

async fn assert_cancelled_by_resume(world: &World, job: &Job, words: &str) {
    let finished = resume(&job.dir).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    assert_eq!(record.output, None);
    let error = record.runtime_status.error.unwrap();
    assert!(error.contains(words), "{error}");
    let log = world.log(job).await;
    let result: Value = serde_json::from_str(file(&log, "result.json")).unwrap();
    assert_eq!(result["error"]["sentence"], error);
}

/// The final state ends the attempt's token, so nothing can be delivered twice.
#[tokio::test]
async fn an_attempt_killed_after_its_final_update_changes_nothing_more() {
    if !can_kill() {
        return;
    }
    let world = World::new().await;
    // Killed before the answer is recorded, this node does not know whether the update was applied.
    for (point, code) in [("run.after-final", 76), ("run.before-clean", 0)] {
        let job = killed_at(&world, point).await;
        assert_delivered(&world, &job).await;
        let record = world.record(&job).await;
        let finished = resume(&job.dir).await;
        assert_eq!(finished.code, code, "{point}: {}", finished.output);
        assert_eq!(world.record(&job).await, record);
        if code == 0 {
            assert_eq!(names(&job.dir), ["exit", "lock"]);
            continue;
        }
        // A token that may read the record shows it.
        let token = job.dir.join("mine");
        fs::write(&token, world.user.endpoint().token.expose()).unwrap();
        let flags = ["--token-file", token.to_str().unwrap()];
        let finished = finish(start(&job.dir, &flags)).await;
        assert_eq!(finished.code, 0, "{point}: {}", finished.output);
        assert_eq!(names(&job.dir), ["exit", "lock", "mine"]);
    }
}

async fn killed_at(world: &World, point: &str) -> Job {
    let job = job(world).await;
    let mut program = world.program(&job, &[]);
    program.env(fail_points::VARIABLE, deadly(world, point));
    let child = program.spawn().unwrap();
    world.until_logged(&job, "ready").await;
    go_on(&job);
    killed(child).await;
    job
}
