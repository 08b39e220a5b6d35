//! Inputs through the real arv-mount, from a virtual environment: they are read on demand, and the
//! mount ends with the container, however either ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::run_lab::{Job, World, file, finish};
use arvados_client::records::ContainerState;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether FUSE is there. Where the tests must not be skipped, they fail instead.
fn can_run() -> bool {
    let has_fuse = Path::new("/dev/fuse").exists();
    if !has_fuse {
        suite_tests::skip("this test needs /dev/fuse");
        return false;
    }
    crate::run_lab::can_run_with("fusermount")
}

/// crunch-run with arv-mount in its PATH.
fn program(world: &World, job: &Job) -> tokio::process::Command {
    let mut program = world.program(job, &["--mount-method=arv-mount"]);
    let path = format!(
        "{}:/usr/bin:/bin:/usr/sbin",
        suite_tests::python_clients().display()
    );
    program.env("PATH", path);
    program
}

/// The pids and arguments of the arv-mounts of this job.
fn servers(job: &Job) -> Vec<(i32, String)> {
    let tree = job.dir.join("keep").display().to_string();
    let mut found = Vec::new();
    for process in procfs::process::all_processes().unwrap().flatten() {
        let words = process.cmdline().unwrap_or_default();
        if words.iter().any(|word| word.ends_with("/arv-mount")) && words.contains(&tree) {
            found.push((process.pid(), words.join(" ")));
        }
    }
    found
}

fn assert_nothing_is_left(job: &Job) {
    assert_eq!(servers(job), []);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = job.dir.display().to_string();
    assert!(!mounts.contains(&dir), "{mounts}");
    assert!(!job.dir.join("keep").exists());
    assert!(!job.dir.join("scratch").exists());
    assert_eq!(crate::run_lab::left_overs(&job.uuid), [] as [PathBuf; 0]);
}

async fn job_with_input(world: &World, script: &str, more: Value) -> Job {
    let files: [(&str, &[u8]); 2] = [
        ("a.txt", b"from a tree\n"),
        ("deep/b.txt", b"further down\n"),
    ];
    let input = world.collection(&files).await;
    let mut request = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 20},
        "/in": {"kind": "collection", "portable_data_hash": input},
        "/b": {"kind": "collection", "portable_data_hash": input, "path": "deep/b.txt"},
    }});
    for (name, value) in more.as_object().into_iter().flatten() {
        request[name] = value.clone();
    }
    world.lock(&["sh", "-c", script], request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inputs_are_read_through_it() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "cat /in/a.txt /in/deep/b.txt /b; ls /in; ! touch /in/new; grep ' /in fuse' /proc/mounts; \
                  cat /in/a.txt >/out/copy; ln -s /in/deep /out/link";
    let more =
        json!({"runtime_constraints": {"vcpus": 1, "ram": 128 << 20, "keep_cache_ram": 64 << 20}});
    let job = job_with_input(&world, script, more).await;
    let finished = finish(program(&world, &job).spawn().unwrap()).await;
    let record = world.record(&job).await;
    assert_eq!(
        record.state,
        ContainerState::Complete,
        "{}",
        finished.output
    );
    assert_eq!(record.exit_code, Some(0), "{}", finished.output);
    let log = world.log(&job).await;
    let stdout = file(&log, "stdout.txt");
    for words in ["from a tree", "further down", "deep", "fuse"] {
        assert!(stdout.contains(words), "{stdout}");
    }
    crate::run_lab::lines(file(&log, "arv-mount.txt"));
    let mut output = world.output(&job).await;
    output.sort();
    let expected = [("copy", "from a tree\n"), ("link/b.txt", "further down\n")];
    assert_eq!(output, expected.map(|(n, t)| (n.to_owned(), t.to_owned())));
    assert_nothing_is_left(&job);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_whose_arv_mount_dies_is_stopped_with_that_reason() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "echo ready; sleep 1000";
    let job = job_with_input(&world, script, json!({})).await;
    let child = program(&world, &job).spawn().unwrap();
    world.until_logged(&job, "ready").await;
    let servers = servers(&job);
    assert_eq!(servers.len(), 1, "{servers:?}");
    let (pid, arguments) = &servers[0];
    assert!(
        arguments.contains("--foreground --read-write --storage-classes default"),
        "{arguments}"
    );
    let record = world.record(&job).await;
    assert!(
        !arguments.contains(&crate::run_lab::any_token(&job)),
        "{arguments}"
    );
    assert_eq!(record.state, ContainerState::Running);
    kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).unwrap();
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let error = record.runtime_status.error.unwrap();
    assert!(error.contains("arv-mount"), "{error}");
    let log = world.log(&job).await;
    let run_log = file(&log, "crunch-run.txt");
    let words = "arv-mount exited while container is still running. Stopping container.";
    assert!(run_log.contains(words), "{run_log}");
    assert_nothing_is_left(&job);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_program_nothing_is_run() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = job_with_input(&world, "true", json!({})).await;
    let mut program = program(&world, &job);
    program.env("PATH", "/bin");
    let finished = finish(program.spawn().unwrap()).await;
    assert_eq!(finished.code, 75, "{}", finished.output);
    assert!(
        finished.output.contains("--mount-method=copy"),
        "{}",
        finished.output
    );
    assert_eq!(world.record(&job).await.state, ContainerState::Locked);
    assert_nothing_is_left(&job);
}

/// An arv-mount that never reports its mount, and then ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_arv_mount_that_cannot_begin_says_why_in_the_log() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let job = job_with_input(&world, "true", json!({})).await;
    let stand_in = world.dir().join("stand-in");
    fs::create_dir(&stand_in).unwrap();
    let text = "#!/bin/sh\necho no such thing as keep >&2\nexit 3\n";
    crate::run_lab::script::write(&stand_in.join("arv-mount"), text);
    let mut program = program(&world, &job);
    program.env("PATH", format!("{}:/usr/bin:/bin", stand_in.display()));
    let began = Instant::now();
    let finished = finish(program.spawn().unwrap()).await;
    assert!(began.elapsed() < MOUNT_TIMEOUT);
    assert_eq!(finished.code, 75, "{}", finished.output);
    assert!(
        finished.output.contains("exit status: 3"),
        "{}",
        finished.output
    );
    let files = world.log(&job).await;
    assert!(file(&files, "arv-mount.txt").contains("no such thing"));
    assert_nothing_is_left(&job);
}

/// A stand-in whose mount is empty, and which prints the error of one whose server fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arv_mount_could_not_do_is_a_warning_while_the_command_runs() {
    if !crate::run_lab::can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["sleep", "1000"], json!({})).await;
    let stand_in = world.dir().join("stand-in");
    fs::create_dir(&stand_in).unwrap();
    let text = r#"#!/bin/sh
for tree; do :; done
case " $* " in *" --unmount "*)
  rm -r "$tree/by_id"
  exec kill "$(cat "$tree.pid")" ;;
esac
echo $$ >"$tree.pid"
mkdir "$tree/by_id"
echo "Test: Keep write error: I am a teapot" >&2
echo >"$tree/by_id/README"
exec sleep 1000
"#;
    crate::run_lab::script::write(&stand_in.join("arv-mount"), text);
    let mut program = world.program(&job, &["--mount-method=arv-mount", "--stop-grace=0s"]);
    program.env("PATH", format!("{}:/usr/bin:/bin", stand_in.display()));
    let child = program.spawn().unwrap();
    let line = "arv-mount: Test: Keep write error: I am a teapot";
    let record = world
        .until(&job, "it is warned of", |record| {
            let warning = record.runtime_status.warning.as_deref();
            warning.is_some_and(|text| text.contains(line))
        })
        .await;
    assert_eq!(record.state, ContainerState::Running);
    crate::run_lab::signal(&child, Signal::TERM);
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let log = world.log(&job).await;
    assert!(file(&log, "crunch-run.txt").contains(line));
    assert!(file(&log, "arv-mount.txt").contains("I am a teapot"));
}
