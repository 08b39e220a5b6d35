//! `kill -9` of crunch-run at every step of a run, by its fail points: the next crunch-run of the
//! same user removes everything that was left on the node, whichever container and engine that one
//! runs.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::run_lab::{Job, World, can_run, can_run_with, finish};
use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use bollard::query_parameters::ListContainersOptionsBuilder;
use bollard::{API_DEFAULT_VERSION, Docker};
use crunch_run::node::lock_file::LockFile;
use serde_json::json;
use tokio::process::Command;

/// Every step of a run in the foreground, in their order.
const STEPS: [&str; 17] = [
    "run.before-claim",
    "run.claimed",
    "run.inputs-known",
    "run.image-ready",
    "run.before-first-log",
    "run.after-first-log",
    "run.created",
    "run.before-running",
    "run.after-running",
    "run.started",
    "run.command-ended",
    "run.before-output",
    "run.after-output",
    "run.after-last-log",
    "run.before-final",
    "run.after-final",
    "run.before-clean",
];
/// From here on there are results, which wait for `crunch-run resume`.
const FIRST_WITH_RESULTS: &str = "run.before-output";
/// The results were delivered and the attempt's token has ended with the container, but that is not
/// yet recorded.
const DELIVERED_UNNOTED: &str = "run.after-final";

const FEATURE: &str = "--features fail-points/enabled";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Engine {
    Builtin,
    Crun,
    Docker,
}

impl Engine {
    fn can_run(self) -> bool {
        match self {
            Self::Builtin => can_run(),
            Self::Crun => can_run_with("crun"),
            Self::Docker => can_run_with("dockerd"),
        }
    }

    fn flags(self) -> Vec<String> {
        match self {
            Self::Builtin => vec!["--runtime-engine=builtin".to_owned()],
            Self::Crun => vec!["--oci-runtime=crun".to_owned()],
            Self::Docker => vec![
                "--runtime-engine=docker".to_owned(),
                format!(
                    "--docker-socket={}",
                    crate::contract::daemons::docker().socket.display()
                ),
            ],
        }
    }

    /// What this container has left on this node with this engine.
    async fn left_overs(self, uuid: &ContainerUuid) -> Vec<String> {
        if self != Self::Docker {
            let paths = crate::run_lab::left_overs(uuid);
            return paths
                .iter()
                .map(|path| path.display().to_string())
                .collect();
        }
        let socket = crate::contract::daemons::docker().socket.to_string_lossy();
        let client = Docker::connect_with_unix(&socket, 60, API_DEFAULT_VERSION).unwrap();
        let client = client.negotiate_version().await.unwrap();
        let of_this = ListContainersOptionsBuilder::new()
            .all(true)
            .filters(&[("name", vec![uuid.as_str()])].into())
            .build();
        let found = client.list_containers(Some(of_this)).await.unwrap();
        found.into_iter().filter_map(|found| found.id).collect()
    }
}

/// How a dispatcher or a scheduler starts crunch-run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Start {
    /// In the foreground; the job directory is crunch-run's own, in TMPDIR.
    Foreground,
    /// The directory is the dispatcher's.
    JobDir,
    /// The same with `--detach`.
    Detached,
}

struct TestDir {
    dir: tempfile::TempDir,
}

impl TestDir {
    fn path(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn program(&self, world: &World, job: &Job, engine: Engine, start: Start) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crunch-run"));
        match start {
            Start::Foreground => &mut command,
            Start::JobDir => command.arg("--job-dir").arg(&job.dir),
            Start::Detached => command.arg("--detach").arg("--job-dir").arg(&job.dir),
        }
        .arg("--token-file")
        .arg(job.dir.join("token"))
        .arg("--cache-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-cache"))
        .args(engine.flags())
        .args(["--cache-size=100%", "--cache-free=0"])
        .arg(job.uuid.as_str())
        .env_clear()
        .envs(world.environment())
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("TMPDIR", self.path("tmp"))
        .env(fail_points::VARIABLE, self.path("points"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
        command
    }

    /// Runs the job until it dies at this step.
    async fn kill_at(&self, step: &str, world: &World, job: &Job, engine: Engine, start: Start) {
        let point = self.path("points").join(step);
        fs::write(&point, "1").unwrap();
        let child = self.program(world, job, engine, start).spawn().unwrap();
        let output = child.wait_with_output().await.unwrap();
        if start != Start::Detached {
            assert_eq!(output.status.signal(), Some(9), "{step}: {output:?}");
            return;
        }
        assert!(output.status.success(), "{step}: {output:?}");
        until(&format!("{step}: its worker is dead"), async || {
            LockFile::acquire(&job.dir.join("lock")).is_ok()
        })
        .await;
        assert!(!point.exists(), "{step}: it did not come there");
        assert!(!job.dir.join("exit").exists(), "{step}");
    }

    fn in_tmp(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("tmp")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    assert!(
        comes_true(suite_tests::STEP_TIMEOUT, holds).await,
        "not: {what}"
    );
}

async fn comes_true(within: Duration, holds: impl AsyncFn() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while !holds().await {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    true
}

/// One test at a time, also of several processes: a second one could remove what this one is about
/// to check.
fn one_test_at_a_time() -> fs::File {
    let lock = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kill-phases.lock");
    let lock = fs::File::create(lock).unwrap();
    lock.lock().unwrap();
    lock
}

/// A run is killed at every step, and the next run is of another container.
async fn is_taken_away(killed: Engine, start: Start, next: Engine) {
    if !killed.can_run() || !next.can_run() {
        return;
    }
    if !fail_points::ENABLED {
        suite_tests::skip(format_args!("this test needs {FEATURE}"));
        return;
    }
    let _alone = one_test_at_a_time();
    let world = World::new().await;
    let test_dir = TestDir {
        dir: tempfile::tempdir().unwrap(),
    };
    for step in STEPS {
        let job = world
            .lock(&["sh", "-c", "echo said; echo x >/out/x"], json!({}))
            .await;
        test_dir.kill_at(step, &world, &job, killed, start).await;

        let after = world.lock(&["true"], json!({})).await;
        let program = test_dir
            .program(&world, &after, next, Start::Foreground)
            .spawn();
        let finished = finish(program.unwrap()).await;
        assert_eq!(finished.code, 0, "{step}: {}", finished.output);
        let record = world.record(&after).await;
        assert_eq!(record.state, ContainerState::Complete, "{step}");
        // Another crunch-run of this machine may be at it just now.
        let is_clean = async || {
            let are_results = test_dir.in_tmp().iter().all(|dir| has_results(dir));
            are_results && killed.left_overs(&job.uuid).await.is_empty()
        };
        // A run does not wait for another engine that hangs, so the runs after it remove the rest.
        let mut more_runs = if killed == next { 0 } else { 8 };
        while more_runs > 0 && !comes_true(Duration::from_secs(10), is_clean).await {
            let another = world.lock(&["true"], json!({})).await;
            let program = test_dir
                .program(&world, &another, next, Start::Foreground)
                .spawn();
            let finished = finish(program.unwrap()).await;
            assert_eq!(finished.code, 0, "{step}: {}", finished.output);
            more_runs -= 1;
        }
        until(&format!("{step}: nothing is left"), is_clean).await;

        let story = world.log(&after).await;
        let left = match start {
            Start::Foreground => test_dir.in_tmp(),
            Start::JobDir | Start::Detached => {
                assert_eq!(test_dir.in_tmp(), [] as [PathBuf; 0], "{step}");
                let results = has_results(&job.dir).then(|| job.dir.clone());
                results.into_iter().collect()
            }
        };
        match left.as_slice() {
            [] => assert!(
                !is_from(step, FIRST_WITH_RESULTS)
                    || (start == Start::Foreground && is_after(step, DELIVERED_UNNOTED)),
                "{step}: the results are gone"
            ),
            // The results are all that is left, and not for long.
            [dir] if has_results(dir) => {
                assert!(is_from(step, FIRST_WITH_RESULTS), "{step}: {dir:?}");
                let code = if step == DELIVERED_UNNOTED { 76 } else { 0 };
                resume(step, dir, code).await;
                fs::remove_dir_all(dir).unwrap();
            }
            left => panic!(
                "{step}: {left:?}\n{}",
                crate::run_lab::file(&story, "crunch-run.txt")
            ),
        }
        if is_from(step, FIRST_WITH_RESULTS) {
            let record = world.record(&job).await;
            assert_eq!(record.state, ContainerState::Complete, "{step}");
            let log = world.log(&job).await;
            let stdout = crate::run_lab::file(&log, "stdout.txt");
            assert_eq!(crate::run_lab::lines(stdout), ["said"], "{step}");
        }
    }
}

fn has_results(dir: &Path) -> bool {
    dir.join("undelivered.json").exists()
}

async fn resume(step: &str, dir: &Path, code: i32) {
    let mut resume = Command::new(env!("CARGO_BIN_EXE_crunch-run"));
    resume
        .arg("resume")
        .arg(dir)
        .arg("--delivery-timeout=2s")
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let finished = finish(resume.spawn().unwrap()).await;
    assert_eq!(finished.code, code, "{step}: {}", finished.output);
}

fn is_from(step: &str, first: &str) -> bool {
    let at = |name: &str| STEPS.iter().position(|known| *known == name);
    at(step) >= at(first)
}

fn is_after(step: &str, last: &str) -> bool {
    is_from(step, last) && step != last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_run_takes_away_what_a_killed_one_left() {
    is_taken_away(Engine::Builtin, Start::Foreground, Engine::Builtin).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_crun_had_is_found_by_a_run_with_docker() {
    is_taken_away(Engine::Crun, Start::Foreground, Engine::Docker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_docker_has_is_found_by_a_run_without_it() {
    is_taken_away(Engine::Docker, Start::JobDir, Engine::Builtin).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_in_the_background_leaves_no_more() {
    is_taken_away(Engine::Builtin, Start::Detached, Engine::Crun).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_in_the_background_leaves_no_more_with_docker() {
    is_taken_away(Engine::Docker, Start::Detached, Engine::Docker).await;
}

/// The next attempt at the same container does not run beside the killed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_attempt_ends_what_the_first_left_with_another_engine() {
    if !Engine::Docker.can_run() || !can_run() {
        return;
    }
    if !fail_points::ENABLED {
        suite_tests::skip(format_args!("this test needs {FEATURE}"));
        return;
    }
    let _alone = one_test_at_a_time();
    // A run of another test may remove the orphan before the next attempt does.
    let mut is_removed = false;
    for _ in 0..30 {
        is_removed = docker_attempt_killed_and_run_without_docker()
            .await
            .contains("Removed docker container");
        if is_removed {
            break;
        }
    }
    assert!(is_removed, "nothing was ever left, or nobody told of it");
}

/// Returns the log of the second attempt.
async fn docker_attempt_killed_and_run_without_docker() -> String {
    let world = World::new().await;
    let test_dir = TestDir {
        dir: tempfile::tempdir().unwrap(),
    };
    let job = world.lock(&["echo", "well"], json!({})).await;
    test_dir
        .kill_at("run.created", &world, &job, Engine::Docker, Start::JobDir)
        .await;
    let program = test_dir.program(&world, &job, Engine::Builtin, Start::JobDir);
    let finished = finish({ program }.spawn().unwrap()).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_eq!(Engine::Docker.left_overs(&job.uuid).await, [] as [&str; 0]);
    crate::run_lab::file(&world.log(&job).await, "crunch-run.txt").to_owned()
}
