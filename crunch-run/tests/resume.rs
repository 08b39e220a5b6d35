//! Results that an attempt left on this node, and `crunch-run resume`, which delivers them later.

mod run_lab;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use arvados_client::records::ContainerState;
use run_lab::{Finished, Job, World, can_run, file, finish, go_on, lines, signal};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const SCRIPT: &str = "echo ready; until [ -e /go/on ]; do sleep 0.05; done; mkdir /out/d; echo data >/out/d/file; \
                      ln -s /in/a.txt /out/link; exit 3";

/// A container that has inputs, a secret, and ends when it is told to.
async fn job(world: &World) -> Job {
    let input = world.collection(&[("a.txt", b"from a collection\n")]).await;
    let mounts = json!({
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/go": {"kind": "tmp", "capacity": 1 << 20},
        "/in": {"kind": "collection", "portable_data_hash": input},
    });
    let secret = json!({"/run/secret": {"kind": "text", "content": "sesame-4711"}});
    world
        .lock(
            &["sh", "-c", SCRIPT],
            json!({"mounts": mounts, "secret_mounts": secret}),
        )
        .await
}

/// A job whose results are left because the server was away.
async fn left_behind(world: &mut World) -> Job {
    let job = job(world).await;
    let child = world.start(&job, &["--deliver-for=1s"]);
    world.until_said(&job, "ready").await;
    world.stop_server().await;
    go_on(&job);
    let finished = finish(child).await;
    assert_eq!(finished.code, 77, "{}", finished.said);
    let advice = format!("`crunch-run resume {}`", job.dir.display());
    assert!(finished.said.contains(&advice), "{}", finished.said);
    let host = rustix::system::uname();
    let place = format!(
        "stay in {} on {}: ",
        job.dir.display(),
        host.nodename().to_string_lossy()
    );
    assert!(finished.said.contains(&place), "{}", finished.said);
    job
}

fn start(dir: &Path, flags: &[&str]) -> Child {
    command(dir, flags).spawn().unwrap()
}

fn command(dir: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crunch-run"));
    command
        .arg("resume")
        .args(flags)
        .arg(dir)
        // Where the server is was noted.
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn resume(dir: &Path) -> Finished {
    finish(start(dir, &["--deliver-for=1s"])).await
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn assert_delivered(world: &World, job: &Job) {
    let record = world.record(job).await;
    assert_eq!(record.state, ContainerState::Complete);
    assert_eq!(record.exit_code, Some(3));
    assert_eq!(record.runtime_status.error, None);
    let mut output = world.output(job).await;
    output.sort();
    assert_eq!(
        output,
        [
            ("d/file".to_owned(), "data\n".to_owned()),
            ("link".to_owned(), "from a collection\n".to_owned())
        ]
    );
    let log = world.log(job).await;
    assert_eq!(lines(file(&log, "stdout.txt")), ["ready"]);
    assert_eq!(
        lines(file(&log, "crunch-run.txt")).last(),
        Some(&"Complete")
    );
    let result: Value = serde_json::from_str(file(&log, "result.json")).unwrap();
    assert_eq!(
        (&result["verdict"], &result["exit_code"]),
        (&json!("exited"), &json!(3))
    );
    assert!(result["error"].is_null(), "{result}");
    for (name, text) in &log {
        assert!(!text.contains("sesame"), "{name}");
    }
}

/// HTCondor removes the job's own directory, in which TMPDIR is.
#[tokio::test]
async fn results_outlive_the_directory_of_a_job_of_htcondor() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let mut job = job(&world).await;
    let sandbox = tempfile::tempdir().unwrap();
    let path = sandbox.path().canonicalize().unwrap();
    fs::rename(job.dir.join("token"), path.join("token-1")).unwrap();
    let certificate = &world.environment()["SSL_CERT_FILE"];
    fs::copy(certificate, path.join("ca.pem")).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_crunch-run"));
    program
        .args([
            "--token-file",
            "token-1",
            "--deliver-for=1s",
            "--cache-free=0",
            "--cache",
        ])
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-cache"))
        .arg(job.uuid.as_str())
        .current_dir(&path)
        .env_clear()
        .env("ARVADOS_API_HOST", &world.environment()["ARVADOS_API_HOST"])
        .env("SSL_CERT_FILE", "ca.pem")
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin")
        .env("TMPDIR", &path)
        .env("_CONDOR_SCRATCH_DIR", &path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let child = program.spawn().unwrap();
    world.until_running(&job).await;
    let found = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    job.dir = found.into_iter().find(|path| path.is_dir()).unwrap();
    world.until_said(&job, "ready").await;
    world.stop_server().await;
    go_on(&job);
    let finished = finish(child).await;
    assert_eq!(finished.code, 77, "{}", finished.said);
    drop(sandbox);
    let advice = finished.said.rsplit("`crunch-run resume ").next().unwrap();
    let dir = PathBuf::from(advice.split('`').next().unwrap());
    let user = rustix::process::geteuid().as_raw();
    let place = format!("/var/tmp/crunch-run-undelivered-{user}");
    assert_eq!(dir.parent(), Some(Path::new(&place)), "{}", finished.said);
    world.start_server().await;
    let finished = resume(&dir).await;
    assert_eq!(finished.code, 0, "{}", finished.said);
    assert_delivered(&world, &job).await;
    fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn a_record_does_not_go_on_saying_that_its_results_wait() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = left_behind(&mut world).await;
    world.start_server().await;
    let dispatcher = world.dispatch.with_token(job.token.clone());
    let waits = json!({"runtime_status": {
        "activity": "its results are on n7 and wait", "warning": "the container ran, and its results are kept",
        "warningDetail": "the last words of its job", "undeliveredSince": "2026-01-02T03:04:05Z",
    }});
    dispatcher.update_container(&job.uuid, waits).await.unwrap();
    let finished = resume(&job.dir).await;
    assert_eq!(finished.code, 0, "{}", finished.said);
    let status = world.record(&job).await.runtime_status;
    assert_eq!(status, arvados_client::records::RuntimeStatus::default());
}

#[tokio::test]
async fn results_left_behind_are_delivered_later_and_once() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = left_behind(&mut world).await;

    let note = job.dir.join("undelivered.json");
    let text = fs::read_to_string(&note).unwrap();
    assert_eq!(
        fs::metadata(&note).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let secret = job.token.expose().rsplit('/').next().unwrap();
    assert!(!text.contains(secret) && !text.contains("sesame"), "{text}");
    assert!(
        text.len() < 8000 && text.starts_with("{\n  \"version\": 1,"),
        "{text}"
    );
    // What is left is not the container's secrets.
    let kept = std::process::Command::new("grep")
        .args(["-r", "sesame"])
        .arg(&job.dir)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "");

    let finished = resume(&job.dir).await;
    assert_eq!(
        finished.code, 77,
        "the server is still away: {}",
        finished.said
    );
    world.start_server().await;
    let finished = resume(&job.dir).await;
    assert_eq!(finished.code, 0, "{}", finished.said);
    assert_delivered(&world, &job).await;
    let story = world.log(&job).await;
    let story = lines(file(&story, "crunch-run.txt")).join("\n");
    assert_eq!(story.matches("resumes the delivery from").count(), 2);
    assert_eq!(names(&job.dir), ["exit", "lock"]);
    let exit = fs::read_to_string(job.dir.join("exit")).unwrap();
    assert_eq!(exit, "{\"code\":0}");

    let record = world.record(&job).await;
    let again = resume(&job.dir).await;
    assert_eq!(again.code, 0, "{}", again.said);
    assert!(again.said.contains("are delivered"), "{}", again.said);
    assert_eq!(world.record(&job).await, record);
}

#[tokio::test]
async fn a_directory_that_was_moved_is_as_good() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = left_behind(&mut world).await;
    world.start_server().await;
    let aside = job.dir.with_extension("aside");
    fs::rename(&job.dir, &aside).unwrap();
    // As a dispatcher leaves it; an admin may have the token elsewhere.
    let token = aside.with_extension("token");
    fs::rename(aside.join("token"), &token).unwrap();
    let finished = resume(&aside).await;
    assert_eq!(finished.code, 78, "{}", finished.said);
    assert!(finished.said.contains("token"), "{}", finished.said);
    let flags = ["--token-file", token.to_str().unwrap()];
    let finished = finish(start(&aside, &flags)).await;
    assert_eq!(finished.code, 0, "{}", finished.said);
    assert_delivered(&world, &job).await;
}

#[tokio::test]
async fn two_at_once_are_one_too_many() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = left_behind(&mut world).await;
    let first = start(&job.dir, &["--deliver-for=60s"]);
    let path = job.dir.join("log/crunch-run.txt");
    until(|| fs::read_to_string(&path).is_ok_and(|text| text.contains("resumes"))).await;
    let second = resume(&job.dir).await;
    assert_eq!(second.code, 76, "{}", second.said);
    assert!(
        second.said.contains("another crunch-run is at work in"),
        "{}",
        second.said
    );
    world.start_server().await;
    let first = finish(first).await;
    assert_eq!(first.code, 0, "{}", first.said);
    assert_delivered(&world, &job).await;
}

async fn until(holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !holds() {
        assert!(std::time::Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_is_not_ours_any_more_is_not_written_to_and_stays_here() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = left_behind(&mut world).await;
    world.start_server().await;
    let dispatcher = world.dispatch.with_token(job.token.clone());
    let cancel = json!({"state": "Cancelled", "runtime_status": {"error": "its node was lost"}});
    dispatcher
        .update_container(&job.uuid, cancel)
        .await
        .unwrap();
    let (record, before) = (world.record(&job).await, names(&job.dir));
    let finished = resume(&job.dir).await;
    assert_eq!(finished.code, 76, "{}", finished.said);
    assert!(
        finished
            .said
            .contains("is not this attempt's any more, so nothing was delivered"),
        "{}",
        finished.said
    );
    assert_eq!(world.record(&job).await, record);
    assert_eq!(names(&job.dir), before);
    let output = job.dir.join("scratch/files/mounts/output/d/file");
    assert_eq!(fs::read_to_string(output).unwrap(), "data\n");
}

#[tokio::test]
async fn results_that_are_gone_are_not_taken_for_none() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = left_behind(&mut world).await;
    world.start_server().await;
    fs::remove_dir_all(job.dir.join("scratch")).unwrap();
    let finished = resume(&job.dir).await;
    assert_eq!(finished.code, 77, "{}", finished.said);
    assert!(finished.said.contains("is gone from this node"));
    assert_eq!(world.record(&job).await.state, ContainerState::Running);
}

#[tokio::test]
async fn what_cannot_be_resumed_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("job");
    let said = |finished: Finished, words: &str| {
        assert_eq!(finished.code, 78, "{}", finished.said);
        assert!(finished.said.contains(words), "{}", finished.said);
    };
    said(resume(&place).await, "cannot be used");
    fs::create_dir(&place).unwrap();
    said(resume(&place).await, "has no undelivered results");
    let note = place.join("undelivered.json");
    for (text, words) in [
        ("{\"version\": 2, \"x\": 1}", "is of version 2"),
        ("{\"version\": 1}", "is damaged: missing field"),
        ("", "is damaged: EOF"),
    ] {
        fs::write(&note, text).unwrap();
        said(resume(&place).await, words);
    }
    let finished = finish(start(&place, &["--no-such-flag"])).await;
    assert_eq!(finished.code, 78);
    let finished = finish(start(&place, &["--help"])).await;
    assert_eq!(finished.code, 0);
    assert!(finished.said.contains("Exit status:"));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&place, Some(65534), None).unwrap();
        said(resume(&place).await, "run it as user 65534");
    }
}

/// Whether processes can be made to die at a named place.
fn can_kill() -> bool {
    assert!(
        fail_points::ENABLED || std::env::var_os("CI").is_none(),
        "this test needs the feature fail-points/enabled"
    );
    if !fail_points::ENABLED {
        eprintln!("SKIPPED: this test needs the feature fail-points/enabled");
    }
    fail_points::ENABLED && can_run()
}

/// Tells the next process that comes to this point to die there.
fn deadly(world: &World, point: &str) -> PathBuf {
    let place = world.place().join("points");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join(point), "1").unwrap();
    place
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
    assert_eq!(finished.code, 0, "{}", finished.said);
    assert_delivered(&world, &job).await;
}

/// Not only what was given up: also what was cut off.
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
        assert_eq!(finished.code, 0, "{point}: {}", finished.said);
        assert_delivered(&world, &job).await;
        assert_eq!(names(&job.dir), ["exit", "lock"], "{point}");
    }
}

/// What it left until then is not its output.
#[tokio::test]
async fn an_attempt_killed_after_it_was_stopped_is_cancelled_by_resume() {
    if !can_kill() {
        return;
    }
    let world = World::new().await;
    let job = job(&world).await;
    let mut program = world.program(&job, &["--grace=100ms"]);
    program.env(fail_points::VARIABLE, deadly(&world, "run.before-output"));
    let child = program.spawn().unwrap();
    world.until_said(&job, "ready").await;
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
    let mut program = world.program(&job, &["--output-limit=1000"]);
    program.env(fail_points::VARIABLE, deadly(&world, "run.before-output"));
    killed(program.spawn().unwrap()).await;
    assert_cancelled_by_resume(&world, &job, "its output is too large").await;
}

async fn assert_cancelled_by_resume(world: &World, job: &Job, words: &str) {
    let finished = resume(&job.dir).await;
    assert_eq!(finished.code, 0, "{}", finished.said);
    let record = world.record(job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    assert_eq!(record.output, None);
    let error = record.runtime_status.error.unwrap();
    assert!(error.contains(words), "{error}");
    let log = world.log(job).await;
    let result: Value = serde_json::from_str(file(&log, "result.json")).unwrap();
    assert_eq!(result["error"]["sentence"], error);
}

/// The final state ends the attempt's token, so nothing can be done twice.
#[tokio::test]
async fn an_attempt_killed_after_its_final_update_changes_nothing_more() {
    if !can_kill() {
        return;
    }
    let world = World::new().await;
    // In the moment before the answer is noted, nobody on this node knows what became of it.
    for (point, code) in [("run.after-final", 76), ("run.before-clean", 0)] {
        let job = killed_at(&world, point).await;
        assert_delivered(&world, &job).await;
        let record = world.record(&job).await;
        let finished = resume(&job.dir).await;
        assert_eq!(finished.code, code, "{point}: {}", finished.said);
        assert_eq!(world.record(&job).await, record);
        if code == 0 {
            assert_eq!(names(&job.dir), ["exit", "lock"]);
            continue;
        }
        // But whoever may read the record can tell.
        let token = job.dir.join("mine");
        fs::write(&token, world.user.endpoint().token.expose()).unwrap();
        let flags = ["--token-file", token.to_str().unwrap()];
        let finished = finish(start(&job.dir, &flags)).await;
        assert_eq!(finished.code, 0, "{point}: {}", finished.said);
        assert_eq!(names(&job.dir), ["exit", "lock", "mine"]);
    }
}

async fn killed_at(world: &World, point: &str) -> Job {
    let job = job(world).await;
    let mut program = world.program(&job, &[]);
    program.env(fail_points::VARIABLE, deadly(world, point));
    let child = program.spawn().unwrap();
    world.until_said(&job, "ready").await;
    go_on(&job);
    killed(child).await;
    job
}
