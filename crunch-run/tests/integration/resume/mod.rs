//! Results that an attempt left on this node, and `crunch-run resume`, which delivers them later.

mod killed;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::run_lab::{Finished, Job, World, can_run, file, finish, go_on, lines, signal};
use arvados_client::records::ContainerState;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const SCRIPT: &str = "echo ready; until [ -e /go/on ]; do sleep 0.05; done; mkdir /out/d; echo data >/out/d/file; \
                      ln -s /in/a.txt /out/link; exit 3";

/// A container with inputs and a secret, which ends when it is told to.
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
    let child = world.start(&job, &["--delivery-timeout=1s"]);
    world.until_logged(&job, "ready").await;
    world.stop_server().await;
    go_on(&job);
    let finished = finish(child).await;
    assert_eq!(finished.code, 77, "{}", finished.output);
    let advice = format!("`crunch-run resume {}`", job.dir.display());
    assert!(finished.output.contains(&advice), "{}", finished.output);
    // Dispatchers read only the end of the output, so the status line follows all other lines about
    // it.
    let (_, behind) = finished.output.rsplit_once(&advice).unwrap();
    let status = crunch_contract::split_output(behind).1;
    let directory = job.dir.display().to_string();
    let expected = crunch_contract::StatusLine::Undelivered { directory };
    assert_eq!(status, Some(expected), "{}", finished.output);
    let host = rustix::system::uname();
    let location = format!(
        "stay in {} on {}: ",
        job.dir.display(),
        host.nodename().to_string_lossy()
    );
    assert!(finished.output.contains(&location), "{}", finished.output);
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
        // The server's address was recorded.
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn resume(dir: &Path) -> Finished {
    finish(start(dir, &["--delivery-timeout=1s"])).await
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
            "--delivery-timeout=1s",
            "--cache-free=0",
            "--cache-dir",
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
    world.until_logged(&job, "ready").await;
    world.stop_server().await;
    go_on(&job);
    let finished = finish(child).await;
    assert_eq!(finished.code, 77, "{}", finished.output);
    drop(sandbox);
    let advice = finished
        .output
        .rsplit("`crunch-run resume ")
        .next()
        .unwrap();
    let dir = PathBuf::from(advice.split('`').next().unwrap());
    let user = rustix::process::geteuid().as_raw();
    let root = format!("/var/tmp/crunch-run-undelivered-{user}");
    assert_eq!(dir.parent(), Some(Path::new(&root)), "{}", finished.output);
    world.start_server().await;
    let finished = resume(&dir).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
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
    assert_eq!(finished.code, 0, "{}", finished.output);
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
    // The files that are left do not have the container's secrets.
    let kept = std::process::Command::new("grep")
        .args(["-r", "sesame"])
        .arg(&job.dir)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "");

    for (path, open, private) in [(&note, 0o666, 0o600), (&job.dir, 0o777, 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(open)).unwrap();
        let finished = resume(&job.dir).await;
        assert_eq!(finished.code, 78, "{}", finished.output);
        let words = format!(
            "{} is not used: it can be written to by others",
            path.display()
        );
        assert!(finished.output.contains(&words), "{}", finished.output);
        fs::set_permissions(path, fs::Permissions::from_mode(private)).unwrap();
    }
    let finished = resume(&job.dir).await;
    assert_eq!(
        finished.code, 77,
        "the server is still away: {}",
        finished.output
    );
    world.start_server().await;
    let finished = resume(&job.dir).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_delivered(&world, &job).await;
    let story = world.log(&job).await;
    let story = lines(file(&story, "crunch-run.txt")).join("\n");
    assert_eq!(story.matches("resumes the delivery from").count(), 2);
    assert_eq!(names(&job.dir), ["exit", "lock"]);
    let exit = fs::read_to_string(job.dir.join("exit")).unwrap();
    assert_eq!(exit, "{\"code\":0}");

    let record = world.record(&job).await;
    let again = resume(&job.dir).await;
    assert_eq!(again.code, 0, "{}", again.output);
    assert!(again.output.contains("are delivered"), "{}", again.output);
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
    // The directory without its token; an admin may have the token elsewhere.
    let token = aside.with_extension("token");
    fs::rename(aside.join("token"), &token).unwrap();
    let finished = resume(&aside).await;
    assert_eq!(finished.code, 78, "{}", finished.output);
    assert!(finished.output.contains("token"), "{}", finished.output);
    let flags = ["--token-file", token.to_str().unwrap()];
    let finished = finish(start(&aside, &flags)).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert_delivered(&world, &job).await;
}

#[tokio::test]
async fn two_at_once_are_one_too_many() {
    if !can_run() {
        return;
    }
    let mut world = World::new().await;
    let job = left_behind(&mut world).await;
    let first = start(&job.dir, &["--delivery-timeout=60s"]);
    let path = job.dir.join("log/crunch-run.txt");
    until(|| fs::read_to_string(&path).is_ok_and(|text| text.contains("resumes"))).await;
    let second = resume(&job.dir).await;
    assert_eq!(second.code, 76, "{}", second.output);
    assert!(
        second.output.contains("another crunch-run is running in"),
        "{}",
        second.output
    );
    world.start_server().await;
    let first = finish(first).await;
    assert_eq!(first.code, 0, "{}", first.output);
    assert_delivered(&world, &job).await;
}

async fn until(holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + suite_tests::STEP_TIMEOUT;
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
    assert_eq!(finished.code, 76, "{}", finished.output);
    assert!(
        finished
            .output
            .contains("belongs to another attempt, so nothing was delivered"),
        "{}",
        finished.output
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
    assert_eq!(finished.code, 77, "{}", finished.output);
    assert!(
        finished
            .output
            .contains("does not exist any more on this node")
    );
    assert_eq!(world.record(&job).await.state, ContainerState::Running);
}

#[tokio::test]
async fn what_cannot_be_resumed_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let job_dir = dir.path().join("job");
    let assert_refused = |finished: Finished, words: &str| {
        assert_eq!(finished.code, 78, "{}", finished.output);
        assert!(finished.output.contains(words), "{}", finished.output);
    };
    assert_refused(resume(&job_dir).await, "cannot be used");
    fs::create_dir(&job_dir).unwrap();
    assert_refused(resume(&job_dir).await, "has no undelivered results");
    let note = job_dir.join("undelivered.json");
    for (text, words) in [
        ("{\"version\": 2, \"x\": 1}", "is of version 2"),
        ("{\"version\": 1}", "is damaged: missing field"),
        ("", "is damaged: EOF"),
    ] {
        fs::write(&note, text).unwrap();
        assert_refused(resume(&job_dir).await, words);
    }
    let finished = finish(start(&job_dir, &["--no-such-flag"])).await;
    assert_eq!(finished.code, 78);
    let finished = finish(start(&job_dir, &["--help"])).await;
    assert_eq!(finished.code, 0);
    assert!(finished.output.contains("Exit status:"));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&job_dir, Some(65534), None).unwrap();
        assert_refused(resume(&job_dir).await, "run it as user 65534");
    }
}
