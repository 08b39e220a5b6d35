//! Docker's daemon and podman's service when they are not there, or not any more.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use arvados_client::records::ContainerState;
use cgroup::{Layout, Mode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tar::EntryType;

use crate::contract::daemons::{self, Daemon};
use crate::contract::engines::Engine;
use crate::contract::lab::until_counted;
use crate::contract::limits::processes_named;
use crate::engine_lab::{archive, busybox_layer};
use crate::image_lab::{entry, layer};
use crate::run_lab::{World, can_run, file, finish, lines};

#[tokio::test]
async fn docker_is_killed_while_a_command_runs() {
    is_killed_while_a_command_runs(Engine::Docker, "docker").await;
}

#[tokio::test]
async fn podman_s_service_is_killed_while_a_command_runs() {
    is_killed_while_a_command_runs(Engine::Podman, "podman").await;
}

/// On hybrid control groups, as `crunch-run check` reports too.
#[tokio::test]
async fn podman_with_a_runtime_that_refuses_the_control_groups_is_told_with_the_remedy() {
    let layout = Layout::of_this_process().unwrap();
    let controllers = layout.v2().map(|v2| v2.mount.join("cgroup.controllers"));
    let controllers = controllers.and_then(|file| std::fs::read_to_string(file).ok());
    let is_refused = layout.mode == Mode::Hybrid && controllers.is_some_and(|c| c.trim() != "");
    if !Engine::Podman.can_run() || !is_refused || !crate::run_lab::can_run_with("crun") {
        eprintln!("SKIPPED: crun takes this machine's control groups");
        return;
    }
    let world = World::new().await;
    let daemon = Daemon::start("podman-with-crun");
    let job = world.lock(&["true"], json!({})).await;
    let socket = format!("--docker-socket={}", daemon.socket.display());
    let flags = ["--runtime-engine=podman", &socket];
    let finished = world.run(&job, &flags).await;
    assert_eq!(finished.code, 75, "{}", finished.output);
    let remedy = "set runtime = \"runc\" below [engine] in /etc/containers/containers.conf";
    assert!(finished.output.contains(remedy), "{}", finished.output);
    let checked = Command::new(env!("CARGO_BIN_EXE_crunch-run"))
        .args(["check", "--offline"])
        .args(flags)
        .output()
        .unwrap();
    let stdout = String::from_utf8(checked.stdout).unwrap();
    let line = stdout.lines().find(|line| line.contains("engine podman"));
    assert!(
        line.is_some_and(|l| l.starts_with("FAIL") && l.contains(remedy)),
        "{stdout}"
    );
}

async fn is_killed_while_a_command_runs(engine: Engine, name: &str) {
    if !engine.can_run() {
        return;
    }
    let world = World::new().await;
    let daemon = Daemon::start(name);
    let command = format!("sleep-{:016x}", fastrand::u64(..));
    let job = world
        .lock(
            &["sh", "-c", "echo ready; sleep 1000; exit 0", &command],
            json!({}),
        )
        .await;
    let flags = [
        format!("--runtime-engine={name}"),
        format!("--docker-socket={}", daemon.socket.display()),
    ];
    let child = world.start(&job, &flags.each_ref().map(String::as_str));
    world.until_logged(&job, "ready").await;
    until_counted(&world, &job, 1).await;
    let peer = tokio::net::UnixStream::connect(&daemon.socket)
        .await
        .unwrap();
    let service = peer.peer_cred().unwrap().pid().unwrap();
    kill_process(Pid::from_raw(service).unwrap(), Signal::KILL).unwrap();

    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    assert_eq!(record.exit_code, None);
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.contains("the container was lost"), "{error}");
    let log = world.log(&job).await;
    assert_eq!(lines(file(&log, "stdout.txt")), ["ready"]);
    // Removed without the daemon.
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    while !processes_named(&command).is_empty() {
        assert!(Instant::now() < deadline, "its command still runs");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_socket_without_a_service_ends_the_attempt_and_not_the_container() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let stale = world.dir().join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let plain = world.dir().join("plain");
    std::fs::write(&plain, "").unwrap();
    let missing = world.dir().join("missing");
    for (engine, hint) in [
        ("docker", "is dockerd running?"),
        ("podman", "start its service"),
    ] {
        for (socket, words) in [
            (&missing, hint),
            (&stale, "is its daemon running?"),
            (&plain, "is its daemon running?"),
        ] {
            let job = world.lock(&["true"], json!({})).await;
            let flags = [
                format!("--runtime-engine={engine}"),
                format!("--docker-socket={}", socket.display()),
            ];
            let finished = world.run(&job, &flags.each_ref().map(String::as_str)).await;
            assert_eq!(finished.code, 75, "{}", finished.output);
            let output = &finished.output;
            assert!(output.contains(words), "{output}");
            assert!(output.contains(socket.to_str().unwrap()), "{output}");
            assert_eq!(world.record(&job).await.state, ContainerState::Locked);
        }
    }
}

#[tokio::test]
async fn a_container_that_is_refused_after_it_was_made_is_removed_by_a_slow_daemon_too() {
    if !Engine::Docker.can_run() {
        return;
    }
    let world = World::new().await;
    // Only the daemon can say what this file is: it knows the container's root.
    let top = layer(|tar| entry(tar, "etc/passwd", EntryType::Fifo, |_| {}));
    let config = json!({"Env": ["PATH=/bin"], "User": "eve"});
    let (archive, id) = archive(&[busybox_layer(), top], config);
    let files: [(&str, &[u8]); 1] = [(&format!("{id}.tar"), &archive)];
    let image = world.collection(&files).await.to_string();
    let job = world
        .lock(&["true"], json!({"container_image": image}))
        .await;
    let socket = slow_to_remove(world.dir(), &daemons::docker().socket);
    let socket = format!("--docker-socket={}", socket.display());
    let finished = world.run(&job, &["--runtime-engine=docker", &socket]).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.contains("etc/passwd"), "{error}");
    let left = Engine::Docker.left_overs(&job.uuid).await;
    assert_eq!(left, [] as [&str; 0]);
}

/// A socket of `daemon` that forwards each removal two seconds late.
fn slow_to_remove(dir: &Path, daemon: &Path) -> PathBuf {
    let path = dir.join("slow");
    let (listener, daemon) = (UnixListener::bind(&path).unwrap(), daemon.to_owned());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&daemon).unwrap());
            let (answers, asker) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || forward(client, server));
            thread::spawn(move || forward(answers, asker));
        }
    });
    path
}

/// Forwards what is read until one side closes.
fn forward(mut from: UnixStream, mut to: UnixStream) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if buffer.starts_with(b"DELETE ") {
            thread::sleep(Duration::from_secs(2));
        }
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}
